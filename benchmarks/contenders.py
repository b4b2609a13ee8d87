"""Every attack that we and another library have, at one budget: a line for each attack, and a line for each library.

All get the same images, in batches of `BATCH`, and hand back images. What a library hands back differs, and that is its
``keep`` rule: ``last`` is the last iterate (of APGD: the one of highest loss), ``success`` is any misclassified iterate
inside the ball, ``nearest`` is the nearest misclassified point however far. Ours is run under each rule that another
library has, and compared under the same one.
"""

from __future__ import annotations

import functools
import importlib.util
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
from classwise.core.config import make
from classwise.core.precision import FAST
from classwise.core.threat import Norm, Threat

BATCH = 128
OURS = "classwise"

Keep = Literal["last", "first", "nearest"]
Perturb = Callable[[Tensor, Tensor], Tensor]
"""Images (N, C, H, W) and labels (N,) to adversarial images."""


@dataclass(frozen=True)
class Task:
    """An attack at its budget.

    Args:
        name: what the tables call it.
        spec: the attack as classwise has it.
        steps: of a start, or queries.
        norm: the norm of the ball.
        loss: for libraries that have one attack for several.
        random: whether it draws, so that another seed is another run.
        cheap: whether a quick run has it.
    """

    name: str
    spec: str
    steps: int = 100
    norm: Norm = "Linf"
    loss: str = "ce"
    random: bool = True
    cheap: bool = False


@dataclass
class Passes:
    """Images that passed forward, and gradients of images that passed back."""

    forwards: int = 0
    backwards: int = 0


class Ours(Passes):
    """Our attack, which counts its own passes: a hook on the model would keep the engine from fusing it."""

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
class Given:
    """What a library's attack is made from."""

    model: nn.Module
    task: Task
    epsilon: float
    shape: tuple[int, int, int]
    classes: int
    seed: int

    def torchattacks(self, name: str, **settings: Any) -> Perturb:
        """An attack of torchattacks; the radius is left out where it is None."""
        import torchattacks

        chosen = {"eps": self.epsilon} | settings
        wanted = {key: value for key, value in chosen.items() if value is not None}
        return batchwise(getattr(torchattacks, name)(self.model, **wanted))

    def foolbox(self, name: str, *, nearest: bool = False, **settings: Any) -> Perturb:
        import foolbox

        wrapped = foolbox.PyTorchModel(self.model, bounds=(0, 1), device="cpu")
        attack = getattr(foolbox.attacks, name)(**settings)
        return batchwise(lambda x, y: attack(wrapped, x, y, epsilons=None if nearest else self.epsilon)[1])

    def art(self, name: str, **settings: Any) -> Perturb:
        """ART loops over batches itself."""
        from art.attacks import evasion
        from art.estimators.classification import PyTorchClassifier

        estimator = PyTorchClassifier(
            self.model, nn.CrossEntropyLoss(), self.shape, self.classes, clip_values=(0, 1), device_type="cpu"
        )
        usual = {"batch_size": BATCH, "verbose": False, "norm": self.p, "eps": self.epsilon}
        wanted = {key: value for key, value in (usual | settings).items() if value is not None}
        attack = getattr(evasion, name)(estimator, **wanted)
        return lambda x, y: torch.from_numpy(attack.generate(x.numpy(), y.numpy()))

    def adv_lib(self, name: str, *radius: float, **settings: Any) -> Perturb:
        attack = getattr(_adv_lib(), name)
        return batchwise(lambda x, y: attack(self.model, x, y, *radius, **settings))

    def reference(self, member: str, **settings: Any) -> Perturb:
        """A member of pyautoattack's suite, set up as AutoAttack sets it up but for what is said here."""
        from pyautoattack import AutoAttack

        suite = AutoAttack(self.model, norm=self.task.norm, eps=self.epsilon, seed=self.seed, device="cpu")
        attack = getattr(suite, member)
        for key, value in {"n_restarts": 1, "seed": self.seed, **settings}.items():
            assert hasattr(attack, key)
            setattr(attack, key, value)
        return batchwise(attack.perturb)

    def ours(self, keep: Keep) -> Perturb:
        """With bfloat16 gradients, where the attack itself does not ask for float32."""
        early_stop = keep == "first"
        attack, threat = (
            make(ATTACKS, self.task.spec),
            Threat(self.task.norm, 1e3 if keep == "nearest" else self.epsilon),
        )
        return Ours(
            Engine(self.model, precision=FAST, batch_size=BATCH, early_stop=early_stop, seed=self.seed), attack, threat
        )

    def step(self, parts: int) -> float:
        """A part of the radius."""
        return self.epsilon / parts

    @property
    def steps(self) -> int:
        """Steps of a start."""
        return self.task.steps

    @property
    def p(self) -> float:
        """The norm as numbers say it."""
        return {"Linf": math.inf, "L2": 2.0}[self.task.norm]


@dataclass(frozen=True)
class Contender:
    """A library's form of one attack, or of several."""

    tasks: str
    library: str
    keep: Keep
    make: Callable[[Given], Perturb]


def _adv_lib() -> Any:
    """Its attacks. It imports what draws curves and what an unused distance needs, for which empty modules will do."""
    missing = [name for name in ("torchvision", "visdom") if importlib.util.find_spec(name) is None]
    stand_ins = {name: types.ModuleType(name) for name in missing}
    for module in stand_ins.values():
        module.__dict__.update(models=None, Visdom=None)
    sys.modules |= stand_ins
    try:
        return importlib.import_module("adv_lib.attacks")
    finally:
        for name in missing:
            del sys.modules[name]


def batchwise(attack: Perturb) -> Perturb:
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
    Task("square", "square:proposals=500,rescale=true", 500),
    Task("square-l2", "square:proposals=500,rescale=true", 500, "L2"),
    Task("cw", "cw:steps=44,searches=10,learning_rate=0.01", 20, random=False),
    Task("cw-l2", f"cw-l2:steps=50,searches={_SEARCHES}", 50, "L2", random=False),
)
"""A step of PGD is a quarter of the radius, one of MI- and DI-FGSM a tenth. adv-lib's C&W for Linf tries more values of
its constant, with fewer steps each; ours is given as many passes."""

_PGD, _APGD, _FAB_T = "pgd-20 pgd-100", "apgd-ce apgd-ce-l2 apgd-dlr", "fab-t fab-t-l2"
_SQUARE, _ART_LOSS = "square square-l2", {"ce": "cross_entropy", "dlr": "difference_logits_ratio"}
_MI = "LinfMomentumIterativeFastGradientMethod"
_ART_PGD = "ProjectedGradientDescentPyTorch"
_CW = {"learning_rate": 0.01, "initial_const": 1e-3, "binary_search_steps": _SEARCHES}

PEERS = (
    Contender("fgsm", "torchattacks", "last", lambda g: g.torchattacks("FGSM")),
    Contender("fgsm", "foolbox", "last", lambda g: g.foolbox("LinfFastGradientAttack")),
    Contender("fgsm", "ART", "last", lambda g: g.art("FastGradientMethod", verbose=None)),
    Contender(_PGD, "torchattacks", "last", lambda g: g.torchattacks("PGD", alpha=g.step(4), steps=g.steps)),
    Contender(_PGD, "foolbox", "last", lambda g: g.foolbox("LinfPGD", abs_stepsize=g.step(4), steps=g.steps)),
    Contender(
        f"{_PGD} pgd-20-l2",
        "ART",
        "last",
        lambda g: g.art(_ART_PGD, eps_step=g.step(4), max_iter=g.steps, num_random_init=1),
    ),
    Contender(
        _PGD,
        "adv-lib",
        "first",
        lambda g: g.adv_lib("pgd_linf", g.epsilon, steps=g.steps, absolute_step_size=g.step(4)),
    ),
    Contender(
        "pgd-20-margin",
        "adv-lib",
        "first",
        lambda g: g.adv_lib("pgd_linf", g.epsilon, steps=g.steps, absolute_step_size=g.step(4), loss_function="dl"),
    ),
    Contender("pgd-20-kl", "torchattacks", "last", lambda g: g.torchattacks("TPGD", alpha=g.step(4), steps=g.steps)),
    Contender("pgd-20-l2", "torchattacks", "last", lambda g: g.torchattacks("PGDL2", alpha=g.step(4), steps=g.steps)),
    Contender("pgd-20-l2", "foolbox", "last", lambda g: g.foolbox("L2PGD", abs_stepsize=g.step(4), steps=g.steps)),
    Contender("mifgsm", "torchattacks", "last", lambda g: g.torchattacks("MIFGSM", alpha=g.step(10), steps=g.steps)),
    Contender("mifgsm", "foolbox", "last", lambda g: g.foolbox(_MI, abs_stepsize=g.step(10), steps=g.steps)),
    Contender(
        "mifgsm", "ART", "last", lambda g: g.art("MomentumIterativeMethod", eps_step=g.step(10), max_iter=g.steps)
    ),
    Contender("difgsm", "torchattacks", "last", lambda g: g.torchattacks("DIFGSM", alpha=g.step(10), steps=g.steps)),
    Contender(_APGD, "pyautoattack", "first", lambda g: g.reference("apgd", loss=g.task.loss)),
    Contender(
        _APGD,
        "torchattacks",
        "first",
        lambda g: g.torchattacks("APGD", norm=g.task.norm, steps=g.steps, seed=g.seed, loss=g.task.loss),
    ),
    Contender(_APGD, "adv-lib", "first", lambda g: g.adv_lib("apgd", g.epsilon, norm=g.p, loss_function=g.task.loss)),
    Contender(
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
    Contender("apgd-t", "pyautoattack", "first", lambda g: g.reference("apgd_targeted", n_target_classes=_TARGETS)),
    Contender(
        "apgd-t",
        "torchattacks",
        "first",
        lambda g: g.torchattacks("APGDT", norm=g.task.norm, steps=g.steps, seed=g.seed, n_classes=_TARGETS + 1),
    ),
    Contender(
        "apgd-t", "adv-lib", "first", lambda g: g.adv_lib("apgd_targeted", g.epsilon, norm=g.p, num_targets=_TARGETS)
    ),
    Contender("fab", "pyautoattack", "first", lambda g: g.reference("fab", targeted=False, n_iter=g.steps)),
    Contender(
        "fab",
        "torchattacks",
        "first",
        lambda g: g.torchattacks("FAB", norm=g.task.norm, steps=g.steps, n_classes=g.classes),
    ),
    Contender("fab", "adv-lib", "nearest", lambda g: g.adv_lib("fab", norm=g.p, n_iter=g.steps)),
    Contender(
        _FAB_T,
        "pyautoattack",
        "first",
        lambda g: g.reference("fab", targeted=True, n_target_classes=_TARGETS, n_iter=g.steps),
    ),
    Contender(
        _FAB_T,
        "torchattacks",
        "first",
        lambda g: g.torchattacks("FAB", norm=g.task.norm, steps=g.steps, n_classes=_TARGETS + 1, multi_targeted=True),
    ),
    Contender(
        _FAB_T,
        "adv-lib",
        "nearest",
        lambda g: g.adv_lib("fab", norm=g.p, n_iter=g.steps, restarts=_TARGETS, targeted_restarts=True),
    ),
    Contender(
        _SQUARE, "pyautoattack", "first", lambda g: g.reference("square", n_queries=g.steps, rescale_schedule=True)
    ),
    Contender(
        _SQUARE,
        "torchattacks",
        "first",
        lambda g: g.torchattacks("Square", norm=g.task.norm, n_queries=g.steps, seed=g.seed, resc_schedule=True),
    ),
    Contender(_SQUARE, "ART", "first", lambda g: g.art("SquareAttack", max_iter=g.steps)),
    Contender("cw", "adv-lib", "nearest", lambda g: g.adv_lib("carlini_wagner_linf", max_iterations=g.steps)),
    Contender("cw-l2", "adv-lib", "nearest", lambda g: g.adv_lib("carlini_wagner_l2", max_iterations=g.steps, **_CW)),
    Contender(
        "cw-l2",
        "foolbox",
        "nearest",
        lambda g: g.foolbox("L2CarliniWagnerAttack", nearest=True, steps=g.steps, binary_search_steps=_SEARCHES),
    ),
    Contender(
        "cw-l2", "ART", "nearest", lambda g: g.art("CarliniL2Method", norm=None, eps=None, max_iter=g.steps, **_CW)
    ),
    Contender(
        "cw-l2",
        "torchattacks",
        "nearest",
        lambda g: g.torchattacks("CW", eps=None, c=1, lr=0.01, steps=_SEARCHES * g.steps),
    ),
)


def contenders(task: Task) -> list[Contender]:
    """Ours under every rule that a peer of this attack has, ``success`` first; then the peers."""
    peers = [peer for peer in PEERS if task.name in peer.tasks.split()]
    rules: list[Keep] = ["first", *sorted({peer.keep for peer in peers} - {"first"})]
    ours = [Contender(task.name, OURS, keep, functools.partial(Given.ours, keep=keep)) for keep in rules]
    return [*ours, *peers]
