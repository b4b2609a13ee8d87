"""Other people's attacks, run by our engine: verified in float32, brought back into the ball, recorded like our own."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State
from classwise.core.config import Count, configurable
from classwise.core.errors import ClasswiseError
from classwise.core.precision import Forward
from classwise.core.registry import is_builtin, load_object
from classwise.models.base import bare


@configurable
class ExternalAttack(Attack):
    """An attack of another library, or a plain function ``(images, labels) -> images``, as one step.

    Give ``attack``, an attack that is ready: an object of torchattacks, an attack of foolbox, or any callable. Or give
    ``build``, which is called with the model under audit and returns one; on the command line only this has the model.
    Either may be a path: ``external:build=mine:attack``.

    The images may leave the ball or the box; the engine brings them back, and only its own verdict counts. Foolbox gets
    the radius of the threat; the others hold their own, and where it is an attribute ``eps`` that differs, a warning
    says so. Passes are counted where the attack calls the model under audit, as their mean over the images. The
    generators of torch, numpy and Python are seeded from the draws for each batch and then put back, so an attack that
    draws depends on which images share its batch.

    Args:
        attack: what to call as ``attack(images, labels)``.
        build: what to call as ``build(model)`` for such an attack.
        model: for foolbox, its wrapped model; by default the model under audit is wrapped with bounds 0 and 1.
        restarts: how many times to run it on an image that still stands.

    Raises:
        ClasswiseError: for none or both of ``attack`` and ``build``, an attack that returns something else than
            images, or images with a target.
    """

    source = ()
    example = "external:build=mine:attack"

    attack: Any = None
    build: Any = None
    model: Any = None
    restarts: Count = 1

    def __post_init__(self) -> None:
        if self.attack is not None and self.build is not None:
            raise ClasswiseError("external takes attack= or build=, not both")
        for name in ("attack", "build"):
            value = _loaded(getattr(self, name))
            if value is not None and (not callable(value) or is_builtin(value)):
                raise ClasswiseError(f"external: {name} = {value!r} cannot be called as {name}({_CALLED[name]})")

    def check(self) -> None:
        """See that there is an attack."""
        if self.attack is None and self.build is None:
            raise ClasswiseError(
                "external needs an attack, such as ExternalAttack(attack=atk) or external:build=mine:attack"
            )

    @property
    def length(self) -> int:
        """One step makes the image."""
        return 1

    @property
    def starts(self) -> int:
        """Runs of the attack."""
        return self.restarts

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """The images themselves."""
        del model
        self.check()
        if inputs.target is not None:
            raise ClasswiseError("an external attack takes no targets; set them in the attack itself")
        count = torch.zeros(len(inputs.x), dtype=torch.int64, device=inputs.x.device)
        return {"x": inputs.x.clone(), "iteration": count, "done": count > 0}

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Call the attack on the rows that wait for it; the engine judges what it makes."""
        x = state["x"].clone()
        waiting = (~state["done"]).nonzero().squeeze(1)
        if len(waiting):
            first, place = _distinct(inputs, waiting)
            x[waiting] = self._made(model, inputs, first)[place]
        return {
            "x": x,
            "seen": inputs.x,
            "margin": torch.full((len(x),), torch.inf, device=x.device),
            "iteration": torch.ones_like(state["iteration"]),
            "done": torch.ones_like(state["done"]),
        }

    def described(self) -> dict[str, Any]:
        """The fields as text: what is not a path by the name of its class or function."""
        named = {name: _name(getattr(self, name)) for name in ("attack", "build", "model")}
        return {**named, "restarts": self.restarts}

    def _made(self, model: Forward, inputs: AttackInputs, rows: Tensor) -> Tensor:
        """What the attack makes of some rows, (len(rows), C, H, W)."""
        _calls_user_code = True
        module = getattr(model, "module", None)
        attack = self._ready(module)
        x, y = inputs.x[rows], inputs.y[rows]
        seed = int(inputs.uniform(())[rows[0]] * 2**24)
        with _seeded(seed, x.device), _counted(model, module, len(rows), len(inputs.x)), torch.enable_grad():
            if _is_foolbox(attack):
                made = self._by_foolbox(attack, module, inputs, rows)
            else:
                _compare_radius(attack, inputs.threat.epsilon)
                made = attack(x.clone(), y.clone())
        if not isinstance(made, Tensor) or made.shape != x.shape or made.is_meta:
            meta = "a meta tensor of " if isinstance(made, Tensor) and made.is_meta else ""
            what = f"{meta}shape {tuple(made.shape)}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
            raise ClasswiseError(f"{_name(attack)} returns {what}; it should return images of shape {tuple(x.shape)}")
        made = made.detach().to(x.device)
        return made.to(x.dtype) if made.is_floating_point() else made.to(x.dtype) / 255

    def _ready(self, module: nn.Module | None) -> Callable[..., Any]:
        """The attack, built on the model if it is to be."""
        _calls_user_code = True
        if self.build is None:
            attack: Callable[..., Any] = _loaded(self.attack)
            return attack
        if module is None:
            raise ClasswiseError("external: build= needs the model itself, which only an engine has; give attack=")
        built = _loaded(self.build)(module)
        if not callable(built):
            raise ClasswiseError(f"{_name(self.build)} returns {built!r}; it should return an attack to be called")
        return built  # type: ignore[no-any-return]  # what it returns is seen when it is called

    def _by_foolbox(self, attack: Any, module: nn.Module | None, inputs: AttackInputs, rows: Tensor) -> Tensor:
        """Foolbox takes one radius a call, so each of them is one."""
        _calls_user_code = True
        x, y = inputs.x[rows], inputs.y[rows]
        wrapped = self.model
        if wrapped is None:
            if module is None:
                raise ClasswiseError("external: a foolbox attack needs model=, its own wrapped model")
            wrapped = load_object("foolbox:PyTorchModel")(module, bounds=(0, 1), device=x.device)
        radii = inputs.threat.radius(inputs.x).flatten().expand(len(inputs.x))[rows]
        result = x.clone()
        for radius in torch.unique(radii):
            of = radii == radius
            _, made, _ = attack(wrapped, x[of].clone(), y[of].clone(), epsilons=float(radius))
            result[of] = made.detach()
        return result


_CALLED = {"attack": "images, labels", "build": "model"}


def _loaded(value: Any) -> Any:
    return load_object(value, "external attack") if isinstance(value, str) else value


def _name(value: Any) -> str | None:
    """A path as it is; otherwise where the function, or the object's class, is defined."""
    if value is None or isinstance(value, str):
        return value
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def _is_foolbox(attack: Any) -> bool:
    return any(base.__module__.partition(".")[0] == "foolbox" for base in type(attack).__mro__)


def _distinct(inputs: AttackInputs, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The rows without the copies that fill up a batch, and the place of every row's original among them."""
    index = inputs.index[rows]
    names, place = torch.unique(index, return_inverse=True)
    order = torch.arange(len(rows), device=rows.device)
    first = torch.full_like(names, len(rows)).scatter_reduce(0, place, order, "amin")
    chosen = rows[first]
    if torch.equal(inputs.x[chosen][place], inputs.x[rows]) and torch.equal(inputs.y[chosen][place], inputs.y[rows]):
        return chosen, place
    return rows, order


def _compare_radius(attack: Any, epsilon: float | Tensor) -> None:
    """Warn of an attack that was made for another ball."""
    own = getattr(attack, "eps", None)
    if isinstance(own, int | float) and isinstance(epsilon, float) and abs(own - epsilon) > 1e-6:
        what = "it is weaker than it could be" if own < epsilon else "its images are brought back"
        warnings.warn(f"{_name(attack)} has eps = {own:g} and the threat {epsilon:g}: {what}", stacklevel=2)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """The generators of torch, numpy and Python at a seed, and afterwards as they were."""
    before = np.random.get_state(), random.getstate()  # noqa: NPY002  # the global one, which others draw from
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            random.seed(seed)
            yield
    finally:
        np.random.set_state(before[0])  # noqa: NPY002
        random.setstate(before[1])


@contextmanager
def _counted(forward: Any, module: nn.Module | None, count: int, slots: int) -> Iterator[None]:
    """Add the passes through the module meanwhile to the forward's: their mean over the images, for each slot."""
    if module is None:
        yield
        return
    seen = {"forwards": 0, "backwards": 0}

    def backward(gradient: Tensor) -> None:
        seen["backwards"] += len(gradient)

    def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        seen["forwards"] += len(inputs[0]) if inputs else len(output)
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(backward)  # type: ignore[no-untyped-call]  # torch does not annotate it

    handle = bare(module).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
        forward.forwards += round(seen["forwards"] / count) * slots
        forward.backwards += round(seen["backwards"] / count) * slots
