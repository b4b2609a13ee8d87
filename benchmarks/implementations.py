"""The attacks that classwise and another library implement, at one budget, and their constructors in each library.

All get the same images, in batches of `BATCH`, and return images. Libraries differ in the image that they return, the
``keep`` rule: ``last`` is the last iterate (for APGD the one of highest loss), ``first`` is any misclassified iterate
inside the ball, ``nearest`` is the nearest misclassified point at any distance. classwise is run under each rule that
another library has, and compared under the same one.
"""

from __future__ import annotations

import functools
import importlib
import math
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine, Job
from classwise.core.compute.precision import fastest
from classwise.core.settings.config import make
from classwise.models.base import device_of
from classwise.threat.ball import Norm, Threat

BATCH = 128
OURS = "classwise"

Keep = Literal["last", "first", "nearest"]
Perturb = Callable[[Tensor, Tensor], Tensor]
"""Maps images (N, C, H, W) and labels (N,) to adversarial images."""


@dataclass(frozen=True)
class Task:
    """An attack at its budget.

    Args:
        name: name in the tables.
        spec: specification of the classwise attack.
        steps: number of steps per restart, or of queries.
        norm: the norm of the ball.
        loss: the loss, for libraries that have one attack for several losses.
        random: whether it uses random numbers, so that its result depends on the seed.
        cheap: whether a quick run includes it.
    """

    name: str
    spec: str
    steps: int = 100
    norm: Norm = "Linf"
    loss: str = "ce"
    random: bool = True
    cheap: bool = False


@dataclass
class PassCounts:
    """Numbers of forward and backward passes of images."""

    forwards: int = 0
    backwards: int = 0


class ClasswiseAttack(PassCounts):
    """An attack of classwise, which counts its own passes: the engine fuses the network only without hooks."""

    def __init__(self, engine: Engine, attack: Attack, threat: Threat) -> None:
        super().__init__()
        self.engine, self.attack, self.threat = engine, attack, threat

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        rows = torch.split(torch.arange(len(x)), BATCH)
        result = x.clone()
        for done in self.engine.attack(self.attack, self.threat, (Job(part, x[part], y[part]) for part in rows)):
            result[done.row] = done.x
            self.forwards += int(done.forwards.sum())
            self.backwards += int(done.backwards.sum())
        return result


@dataclass(frozen=True)
class AttackBuilder:
    """Constructs the attacks of each library for one model, task, radius and seed."""

    model: nn.Module
    task: Task
    epsilon: float
    shape: tuple[int, int, int]
    classes: int
    seed: int

    def torchattacks(self, name: str, **options: Any) -> Perturb:
        """An attack of torchattacks; options that are None are omitted."""
        import torchattacks

        merged = {"eps": self.epsilon} | options
        arguments = {key: value for key, value in merged.items() if value is not None}
        return batchwise(getattr(torchattacks, name)(self.model, **arguments))

    def foolbox(self, name: str, *, nearest: bool = False, **options: Any) -> Perturb:
        import foolbox

        wrapped = foolbox.PyTorchModel(self.model, bounds=(0, 1), device="cpu")
        attack = getattr(foolbox.attacks, name)(**options)
        return batchwise(lambda x, y: attack(wrapped, x, y, epsilons=None if nearest else self.epsilon)[1])

    def art(self, name: str, **options: Any) -> Perturb:
        """An attack of ART, which iterates over batches itself; options that are None are omitted."""
        from art.attacks import evasion
        from art.estimators.classification import PyTorchClassifier

        estimator = PyTorchClassifier(
            self.model, nn.CrossEntropyLoss(), self.shape, self.classes, clip_values=(0, 1), device_type="cpu"
        )
        defaults = {"batch_size": BATCH, "verbose": False, "norm": self.p, "eps": self.epsilon}
        arguments = {key: value for key, value in (defaults | options).items() if value is not None}
        attack = getattr(evasion, name)(estimator, **arguments)
        return lambda x, y: torch.from_numpy(attack.generate(x.numpy(), y.numpy()))

    def adv_lib(self, name: str, *radius: float, **options: Any) -> Perturb:
        attack = getattr(_adv_lib(), name)
        return batchwise(lambda x, y: attack(self.model, x, y, *radius, **options))

    def reference(self, member: str, **options: Any) -> Perturb:
        """A member of pyautoattack's suite with the configuration of AutoAttack, except for ``options``."""
        from pyautoattack import AutoAttack

        suite = AutoAttack(self.model, norm=self.task.norm, eps=self.epsilon, seed=self.seed, device="cpu")
        attack = getattr(suite, member)
        for key, value in {"n_restarts": 1, "seed": self.seed, **options}.items():
            assert hasattr(attack, key)
            setattr(attack, key, value)
        return batchwise(attack.perturb)

    def classwise(self, keep: Keep) -> Perturb:
        """The attack of classwise, with bfloat16 gradients unless the attack requires float32."""
        early_stop = keep == "first"
        attack, threat = (
            make(ATTACKS, self.task.spec),
            Threat(self.task.norm, 1e3 if keep == "nearest" else self.epsilon),
        )
        return ClasswiseAttack(
            Engine(
                self.model,
                precision=fastest(device_of(self.model)),
                batch_size=BATCH,
                early_stop=early_stop,
                seed=self.seed,
            ),
            attack,
            threat,
        )

    def step(self, parts: int) -> float:
        """The radius divided by ``parts``."""
        return self.epsilon / parts

    @property
    def steps(self) -> int:
        """Steps per restart."""
        return self.task.steps

    @property
    def p(self) -> float:
        """The order p of the norm."""
        return {"Linf": math.inf, "L2": 2.0}[self.task.norm]


@dataclass(frozen=True)
class Implementation:
    """A library's implementation of one or several attacks (``tasks``, separated by spaces)."""

    tasks: str
    library: str
    keep: Keep
    make: Callable[[AttackBuilder], Perturb]


def _adv_lib() -> Any:
    """Import ``adv_lib.attacks``, with empty modules for plotting and metric packages that cannot be imported."""
    missing = [name for name in ("torchvision", "visdom") if not _importable(name)]
    stubs = {name: types.ModuleType(name) for name in missing}
    for module in stubs.values():
        module.__dict__.update(models=None, Visdom=None)
    sys.modules |= stubs
    try:
        return importlib.import_module("adv_lib.attacks")
    finally:
        for name in missing:
            del sys.modules[name]


def _importable(name: str) -> bool:
    """Whether a package can be imported; torchvision fails with a RuntimeError beside another build of PyTorch."""
    try:
        importlib.import_module(name)
    except (ImportError, RuntimeError):
        for module in [imported for imported in sys.modules if imported.partition(".")[0] == name]:
            del sys.modules[module]
        return False
    return True


def batchwise(attack: Perturb) -> Perturb:
    """Run an attack in batches of `BATCH` images."""

    def perturb(x: Tensor, y: Tensor) -> Tensor:
        blocks = zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True)
        return torch.cat([attack(images, labels).detach() for images, labels in blocks])

    return perturb


_SEARCHES = 5
_TARGETS = 2

TASKS = (
    Task("fgsm", "fgsm", 1, random=False, cheap=True),
    Task("pgd-20", "pgd:steps=20,step_size=0.25eps", 20, cheap=True),
    Task("pgd-20-margin", "pgd:steps=20,step_size=0.25eps,objective=margin", 20, cheap=True),
    Task("pgd-20-kl", "pgd:steps=20,step_size=0.25eps,objective=kl,random_init=normal", 20, cheap=True),
    Task("pgd-20-l2", "pgd:steps=20,step_size=0.25eps", 20, "L2", cheap=True),
    Task("pgd-100", "pgd:steps=100,step_size=0.25eps"),
    Task("mifgsm", "mifgsm:steps=20,step_size=0.1eps", 20, random=False, cheap=True),
    Task("difgsm", "difgsm:steps=20,step_size=0.1eps", 20, cheap=True),
    Task("apgd-ce", "apgd-ce"),
    Task("apgd-ce-l2", "apgd-ce", norm="L2"),
    Task("apgd-dlr", "apgd-dlr", loss="dlr"),
    Task("apgd-t", f"apgd-t:targets={_TARGETS}"),
    Task("fab", "fab:steps=20", 20, random=False),
    Task("fab-t", f"fab-t:steps=20,targets={_TARGETS}", 20, random=False),
    Task("fab-t-l2", f"fab-t:steps=20,targets={_TARGETS}", 20, "L2", random=False),
    Task("square", "square:steps=500,rescale_schedule=true", 500),
    Task("square-l2", "square:steps=500,rescale_schedule=true", 500, "L2"),
    Task("cw", "cw:steps=44,binary_search_steps=10,learning_rate=0.01", 20, random=False),
    Task("cw-l2", f"cw-l2:steps=50,binary_search_steps={_SEARCHES}", 50, "L2", random=False),
)
"""The step size of PGD is a quarter of the radius, that of MI- and DI-FGSM a tenth. adv-lib's C&W for Linf tries more
values of its constant, with fewer steps each; classwise has the same number of passes."""

_PGD, _APGD, _FAB_T = "pgd-20 pgd-100", "apgd-ce apgd-ce-l2 apgd-dlr", "fab-t fab-t-l2"
_SQUARE, _ART_LOSS = "square square-l2", {"ce": "cross_entropy", "dlr": "difference_logits_ratio"}
_MI = "LinfMomentumIterativeFastGradientMethod"
_ART_PGD = "ProjectedGradientDescentPyTorch"
_CW = {"learning_rate": 0.01, "initial_const": 1e-3, "binary_search_steps": _SEARCHES}

PEERS = (
    Implementation("fgsm", "torchattacks", "last", lambda g: g.torchattacks("FGSM")),
    Implementation("fgsm", "foolbox", "last", lambda g: g.foolbox("LinfFastGradientAttack")),
    Implementation("fgsm", "ART", "last", lambda g: g.art("FastGradientMethod", verbose=None)),
    Implementation(_PGD, "torchattacks", "last", lambda g: g.torchattacks("PGD", alpha=g.step(4), steps=g.steps)),
    Implementation(_PGD, "foolbox", "last", lambda g: g.foolbox("LinfPGD", abs_stepsize=g.step(4), steps=g.steps)),
    Implementation(
        f"{_PGD} pgd-20-l2",
        "ART",
        "last",
        lambda g: g.art(_ART_PGD, eps_step=g.step(4), max_iter=g.steps, num_random_init=1),
    ),
    Implementation(
        _PGD,
        "adv-lib",
        "first",
        lambda g: g.adv_lib("pgd_linf", g.epsilon, steps=g.steps, absolute_step_size=g.step(4)),
    ),
    Implementation(
        "pgd-20-margin",
        "adv-lib",
        "first",
        lambda g: g.adv_lib("pgd_linf", g.epsilon, steps=g.steps, absolute_step_size=g.step(4), loss_function="dl"),
    ),
    Implementation(
        "pgd-20-kl", "torchattacks", "last", lambda g: g.torchattacks("TPGD", alpha=g.step(4), steps=g.steps)
    ),
    Implementation(
        "pgd-20-l2", "torchattacks", "last", lambda g: g.torchattacks("PGDL2", alpha=g.step(4), steps=g.steps)
    ),
    Implementation("pgd-20-l2", "foolbox", "last", lambda g: g.foolbox("L2PGD", abs_stepsize=g.step(4), steps=g.steps)),
    Implementation(
        "mifgsm", "torchattacks", "last", lambda g: g.torchattacks("MIFGSM", alpha=g.step(10), steps=g.steps)
    ),
    Implementation("mifgsm", "foolbox", "last", lambda g: g.foolbox(_MI, abs_stepsize=g.step(10), steps=g.steps)),
    Implementation(
        "mifgsm", "ART", "last", lambda g: g.art("MomentumIterativeMethod", eps_step=g.step(10), max_iter=g.steps)
    ),
    Implementation(
        "difgsm", "torchattacks", "last", lambda g: g.torchattacks("DIFGSM", alpha=g.step(10), steps=g.steps)
    ),
    Implementation(_APGD, "pyautoattack", "first", lambda g: g.reference("apgd", loss=g.task.loss)),
    Implementation(
        _APGD,
        "torchattacks",
        "first",
        lambda g: g.torchattacks("APGD", norm=g.task.norm, steps=g.steps, seed=g.seed, loss=g.task.loss),
    ),
    Implementation(
        _APGD, "adv-lib", "first", lambda g: g.adv_lib("apgd", g.epsilon, norm=g.p, loss_function=g.task.loss)
    ),
    Implementation(
        _APGD,
        "ART",
        "last",
        lambda g: g.art(
            "AutoProjectedGradientDescent",
            eps_step=2 * g.epsilon,
            max_iter=g.steps,
            nb_random_init=1,
            loss_type=_ART_LOSS[g.task.loss],
        ),
    ),
    Implementation(
        "apgd-t", "pyautoattack", "first", lambda g: g.reference("apgd_targeted", n_target_classes=_TARGETS)
    ),
    Implementation(
        "apgd-t",
        "torchattacks",
        "first",
        lambda g: g.torchattacks("APGDT", norm=g.task.norm, steps=g.steps, seed=g.seed, n_classes=_TARGETS + 1),
    ),
    Implementation(
        "apgd-t", "adv-lib", "first", lambda g: g.adv_lib("apgd_targeted", g.epsilon, norm=g.p, num_targets=_TARGETS)
    ),
    Implementation("fab", "pyautoattack", "first", lambda g: g.reference("fab", targeted=False, n_iter=g.steps)),
    Implementation(
        "fab",
        "torchattacks",
        "first",
        lambda g: g.torchattacks("FAB", norm=g.task.norm, steps=g.steps, n_classes=g.classes),
    ),
    Implementation("fab", "adv-lib", "nearest", lambda g: g.adv_lib("fab", norm=g.p, n_iter=g.steps)),
    Implementation(
        _FAB_T,
        "pyautoattack",
        "first",
        lambda g: g.reference("fab", targeted=True, n_target_classes=_TARGETS, n_iter=g.steps),
    ),
    Implementation(
        _FAB_T,
        "torchattacks",
        "first",
        lambda g: g.torchattacks("FAB", norm=g.task.norm, steps=g.steps, n_classes=_TARGETS + 1, multi_targeted=True),
    ),
    Implementation(
        _FAB_T,
        "adv-lib",
        "nearest",
        lambda g: g.adv_lib("fab", norm=g.p, n_iter=g.steps, restarts=_TARGETS, targeted_restarts=True),
    ),
    Implementation(
        _SQUARE, "pyautoattack", "first", lambda g: g.reference("square", n_queries=g.steps, rescale_schedule=True)
    ),
    Implementation(
        _SQUARE,
        "torchattacks",
        "first",
        lambda g: g.torchattacks("Square", norm=g.task.norm, n_queries=g.steps, seed=g.seed, resc_schedule=True),
    ),
    Implementation(_SQUARE, "ART", "first", lambda g: g.art("SquareAttack", max_iter=g.steps)),
    Implementation("cw", "adv-lib", "nearest", lambda g: g.adv_lib("carlini_wagner_linf", max_iterations=g.steps)),
    Implementation(
        "cw-l2", "adv-lib", "nearest", lambda g: g.adv_lib("carlini_wagner_l2", max_iterations=g.steps, **_CW)
    ),
    Implementation(
        "cw-l2",
        "foolbox",
        "nearest",
        lambda g: g.foolbox("L2CarliniWagnerAttack", nearest=True, steps=g.steps, binary_search_steps=_SEARCHES),
    ),
    Implementation(
        "cw-l2", "ART", "nearest", lambda g: g.art("CarliniL2Method", norm=None, eps=None, max_iter=g.steps, **_CW)
    ),
    Implementation(
        "cw-l2",
        "torchattacks",
        "nearest",
        lambda g: g.torchattacks("CW", eps=None, c=1, lr=0.01, steps=_SEARCHES * g.steps),
    ),
)


def implementations(task: Task) -> list[Implementation]:
    """The implementations of a task: classwise under every ``keep`` rule of a peer, ``first`` first; then the peers."""
    peers = [peer for peer in PEERS if task.name in peer.tasks.split()]
    rules: list[Keep] = ["first", *sorted({peer.keep for peer in peers} - {"first"})]
    ours = [
        Implementation(task.name, OURS, keep, functools.partial(AttackBuilder.classwise, keep=keep)) for keep in rules
    ]
    return [*ours, *peers]
