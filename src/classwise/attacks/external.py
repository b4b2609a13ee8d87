"""Attacks of other libraries, run by the engine: projected onto the ball, verified in float32 and recorded."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State
from classwise.core.compute.memory_format import contiguous, format_of
from classwise.core.compute.precision import Forward
from classwise.core.compute.rng import seeded
from classwise.core.errors import ClasswiseError
from classwise.core.settings.ambient_state import default_of_user
from classwise.core.settings.config import Count, configurable
from classwise.core.settings.registry import is_builtin, load_object
from classwise.core.settings.user_code import call_user_code
from classwise.models.base import bare


@configurable
class ExternalAttack(Attack):
    """An attack of another library, or a function ``(images, labels) -> images``, run as a single step.

    ``attack`` is a ready attack: a torchattacks object, a foolbox attack, or any callable. One that cannot be called
    with two arguments also gets the audited model. Or ``build`` is called with the audited model and returns
    the attack. Either may be an import path: ``external:build=mine:attack``.

    If the attack changes the model, the model is restored after each call, and a warning names what was changed.

    The engine projects the images onto the ball and [0, 1], and decides success itself. Foolbox attacks receive the
    radius of the threat, and so does a parameter ``eps`` of a function: a number, or (N, 1, 1, 1) if the images have
    different radii. Other attacks use their own; if their attribute ``eps`` differs from it, a warning is issued.
    Passes are counted where the attack calls the audited model, as their mean over the images. The generators of torch,
    numpy and Python are seeded for each batch and restored afterwards, so the result of a randomised attack on an image
    depends on the other images of its batch.

    Args:
        attack: called as ``attack(images, labels)``, or as ``attack(model, images, labels)``.
        build: called as ``build(model)``; returns the attack.
        model: for foolbox, the wrapped model; by default the audited model is wrapped with bounds 0 and 1.
        restarts: maximum number of runs on an image; a run is skipped once an earlier one succeeded.

    Raises:
        ClasswiseError: if none or both of ``attack`` and ``build`` are set, if they cannot be called with these
            arguments, if the attack does not return images, or if the inputs have targets.
    """

    source = ()
    no_source = "the method is that of the external attack"
    example = "external:build=mine:attack"

    attack: Any = None
    build: Any = None
    model: Any = None
    restarts: Count = 1

    def __post_init__(self) -> None:
        if self.attack is not None and self.build is not None:
            raise ClasswiseError("external: attack= and build= exclude each other; set one of them")
        for name in ("attack", "build"):
            value = _loaded(getattr(self, name))
            if value is not None and (not callable(value) or is_builtin(value)):
                raise ClasswiseError(f"external: {name} = {value!r} cannot be called as {name}({_PARAMETERS[name]})")
            if name == "attack" and isinstance(value, type):
                raise ClasswiseError(
                    f"external: attack = {_name(value)} is a class; give an object of it, or build={_name(value)} to "
                    "call it with the model"
                )
            counts = (2, 3) if name == "attack" else (1,)
            if (
                value is not None
                and not _is_foolbox(value)
                and not any(_binds(value, count, radius=name == "attack") for count in counts)
            ):
                builds = name == "attack" and _binds(value, 1, radius=False)
                other = "; use build= to call it with the model" if builds else ""
                raise ClasswiseError(
                    f"external: {name} = {_name(value)} cannot be called as {name}({_PARAMETERS[name]}): its "
                    f"parameters are {inspect.signature(value)}{other}"
                )

    def check(self) -> None:
        """Check that an attack is set.

        Raises:
            ClasswiseError: if neither ``attack`` nor ``build`` is set.
        """
        if self.attack is None and self.build is None:
            raise ClasswiseError(
                "external: no attack; set one, such as ExternalAttack(attack=atk) or external:build=mine:attack"
            )

    @property
    def user_code(self) -> str:
        """The name of the attack."""
        return _name(self.build if self.attack is None else self.attack) or ""

    @property
    def length(self) -> int:
        """One step per start."""
        return 1

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start from the clean images."""
        del model
        self.check()
        if inputs.target is not None:
            raise ClasswiseError("external: targets are not supported; set them in the attack itself")
        count = torch.zeros(len(inputs.x), dtype=torch.int64, device=inputs.x.device)
        return {"x": inputs.x.clone(), "iteration": count, "done": count > 0}

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Call the attack on the pending rows; the engine verifies the result."""
        x = state["x"].clone()
        pending = (~state["done"]).nonzero().squeeze(1)
        if len(pending):
            first, position = _distinct(inputs, pending)
            with default_of_user():
                x[pending] = self._attacked(model, inputs, first)[position]
        return {
            "x": x,
            "seen": inputs.x,
            "margin": torch.full((len(x),), torch.inf, device=x.device),
            "iteration": torch.ones_like(state["iteration"]),
            "done": torch.ones_like(state["done"]),
        }

    def run(self, model: Forward, inputs: AttackInputs) -> Tensor:
        """Run the attack on a batch of training; images that leave the ball are projected."""
        return inputs.threat.project(super().run(model, inputs).nan_to_num(0.0), inputs.x)

    def described(self) -> dict[str, Any]:
        """The fields for the outcomes' metadata; objects are given by the name of their class or function."""
        named = {name: _name(getattr(self, name)) for name in ("attack", "build", "model")}
        return {**named, "restarts": self.restarts}

    def _attacked(self, model: Forward, inputs: AttackInputs, rows: Tensor) -> Tensor:
        """Run the attack on some rows; images (len(rows), C, H, W)."""
        module = getattr(model, "module", None)
        attack = self._loaded_attack(module)
        x, y = inputs.x[rows], inputs.y[rows]
        if module is not None and format_of(module).contiguous:
            x = contiguous(x)
        seed = int(inputs.uniform(())[rows[0]] * 2**24)
        with seeded(seed, x.device), _counted(model, module, len(rows), len(inputs.x)), torch.enable_grad():
            if _is_foolbox(attack):
                adversarial = self._run_foolbox(attack, module, inputs, rows)
            else:
                radius = inputs.threat.epsilon
                _compare_radius(attack, radius)
                if isinstance(radius, Tensor):
                    radius = inputs.threat.radius(inputs.x).expand(len(inputs.x), 1, 1, 1)[rows]
                options = {"eps": radius} if _has_radius(attack) else {}
                model_first = () if _binds(attack, 2) else (_required(module, "an attack on the model"),)
                adversarial = call_user_code(attack, *model_first, x.clone(), y.clone(), **options)
        what = "" if isinstance(adversarial, Tensor) else f"a {type(adversarial).__name__}"
        if isinstance(adversarial, Tensor):
            if adversarial.shape != x.shape or adversarial.is_meta:
                what = f"{'a meta tensor of ' if adversarial.is_meta else ''}shape {tuple(adversarial.shape)}"
            elif adversarial.layout is not torch.strided:
                what = f"a sparse tensor ({str(adversarial.layout).removeprefix('torch.')})"
            elif adversarial.is_complex():
                what = "complex numbers"
            elif adversarial.is_quantized:
                what = "a quantised tensor"
        if what:
            raise ClasswiseError(f"{_name(attack)} returns {what}; expected images of shape {tuple(x.shape)}")
        adversarial = adversarial.detach().to(x.device)
        if missing := int(adversarial.isnan().flatten(1).any(1).sum()):
            warnings.warn(f"{_name(attack)} returns NaN in {missing} of {len(x)} images, replaced by 0", stacklevel=2)
        return adversarial.to(x.dtype) if adversarial.is_floating_point() else adversarial.to(x.dtype) / 255

    def _loaded_attack(self, module: nn.Module | None) -> Callable[..., Any]:
        """The attack, built from the model if ``build`` is set."""
        if self.build is None:
            attack: Callable[..., Any] = _loaded(self.attack)
            return attack
        built = call_user_code(_loaded(self.build), _required(module, "build="))
        if not callable(built):
            raise ClasswiseError(f"{_name(self.build)} returns {built!r}; expected a callable attack")
        return built  # type: ignore[no-any-return]  # its result is checked after the call

    def _run_foolbox(self, attack: Any, module: nn.Module | None, inputs: AttackInputs, rows: Tensor) -> Tensor:
        """Run a foolbox attack, one call for each distinct radius."""
        x, y = inputs.x[rows], inputs.y[rows]
        wrapped = self.model
        if wrapped is None:
            if module is None:
                raise ClasswiseError("external: a foolbox attack requires model=, a foolbox model")
            wrapped = call_user_code(load_object("foolbox:PyTorchModel"), module, bounds=(0, 1), device=x.device)
        radii = inputs.threat.radius(inputs.x).flatten().expand(len(inputs.x))[rows]
        result = x.clone()
        for radius in torch.unique(radii):
            mask = radii == radius
            _, adversarial, _ = call_user_code(
                attack, wrapped, x[mask].clone(), y[mask].clone(), epsilons=float(radius)
            )
            result[mask] = adversarial.detach()
        return result


_PARAMETERS = {"attack": "[model,] images, labels", "build": "model"}


def _has_radius(function: Callable[..., Any]) -> bool:
    """Whether a callable has a parameter ``eps``."""
    try:
        return "eps" in inspect.signature(function).parameters
    except ValueError:
        return False


def _binds(function: Callable[..., Any], count: int, *, radius: bool = True) -> bool:
    """Whether a callable accepts so many positional arguments, and ``eps``, and requires no others; True if unknown."""
    options = {"eps": None} if radius and _has_radius(function) else {}
    try:
        inspect.signature(function).bind(*[None] * count, **options)
    except ValueError:
        return True
    except TypeError:
        return False
    return True


def _required(module: nn.Module | None, what: str) -> nn.Module:
    """The model.

    Raises:
        ClasswiseError: if there is none.
    """
    if module is None:
        raise ClasswiseError(f"external: {what} requires the model, which only the engine provides")
    return module


def _loaded(value: Any) -> Any:
    return load_object(value, "external attack") if isinstance(value, str) else value


def _name(value: Any) -> str | None:
    """An import path unchanged; otherwise the module and name of the function or class."""
    if value is None or isinstance(value, str):
        return value
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def _is_foolbox(attack: Any) -> bool:
    return any(base.__module__.partition(".")[0] == "foolbox" for base in type(attack).__mro__)


def _distinct(inputs: AttackInputs, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The rows without the copies that pad a batch, and for every row the position of its original among them."""
    index = inputs.index[rows]
    unique, position = torch.unique(index, return_inverse=True)
    order = torch.arange(len(rows), device=rows.device)
    first = rows[torch.full_like(unique, len(rows)).scatter_reduce(0, position, order, "amin")]
    if all(torch.equal(value[first][position], value[rows]) for value in (inputs.x, inputs.y)):
        return first, position
    return rows, order


def _compare_radius(attack: Any, epsilon: float | Tensor) -> None:
    """Warn if the attack's own radius differs from that of the threat."""
    own = getattr(attack, "eps", None)
    if isinstance(own, int | float) and isinstance(epsilon, float) and abs(own - epsilon) > 1e-6:
        effect = "the attack is weaker than it could be" if own < epsilon else "its images are projected onto the ball"
        warnings.warn(f"{_name(attack)} has eps = {own:g} and the threat {epsilon:g}; {effect}", stacklevel=2)


@contextmanager
def _counted(forward: Any, module: nn.Module | None, count: int, slots: int) -> Iterator[None]:
    """Count the module's passes; add their mean over ``count`` images, times ``slots``, to those of ``forward``.

    Training counts none.
    """
    if module is None or not hasattr(forward, "forwards"):
        yield
        return
    passes = {"forwards": 0, "backwards": 0}

    def backward(gradient: Tensor) -> None:
        passes["backwards"] += len(gradient)

    def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        passes["forwards"] += len(inputs[0]) if inputs else len(output)
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(backward)  # type: ignore[no-untyped-call]  # torch does not annotate it

    handle = bare(module).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
        forward.forwards += round(passes["forwards"] / count) * slots
        forward.backwards += round(passes["backwards"] / count) * slots
