"""The contract of an attack: a start and a step on columns, so that one engine can run and refill any of them."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, get_args

import torch
from torch import Tensor, nn

from classwise.compute import EXACT, Forward
from classwise.description import Described
from classwise.draws import Draws
from classwise.errors import UserError
from classwise.threat import Norm, Threat

if TYPE_CHECKING:
    from classwise.attacks.engine import Stop

State = dict[str, Tensor]
"""The columns of an attack in progress, each (N, ...).

Every state has ``x`` (the iterate), ``iteration`` (steps taken) and ``done``; after a step also ``seen`` (the point
whose logits the step evaluated) and ``margin`` (z_y - max other, at ``seen``). Further columns are the attack's own.
"""

_RESTART = 1 << 32


@dataclass(frozen=True)
class Case:
    """The rows that an attack works on.

    Args:
        x: clean images in [0, 1], (N, C, H, W).
        y: labels, int64 (N,).
        index: what each image is called in draws, int64 (N,).
        threat: the ball; its radius one number or (N,).
        draws: the attack's random draws; use `uniform` and `normal` below.
        target: the class to reach, int64 (N,); -1 for an untargeted row. None: all rows untargeted.
        step_size: a step for each image, (N,), which overrides the attack's own.
        reference: logits on the clean images, (N, classes), for losses that compare with them.
        restart: how many starts each row has had, int64 (N,).
    """

    x: Tensor
    y: Tensor
    index: Tensor
    threat: Threat
    draws: Draws
    target: Tensor | None = None
    step_size: Tensor | None = None
    reference: Tensor | None = None
    restart: Tensor | None = None

    def _counter(self, counter: int | Tensor) -> int | Tensor:
        return counter if self.restart is None else self.restart * _RESTART + counter

    def uniform(self, shape: tuple[int, ...], counter: int | Tensor = 0) -> Tensor:
        """Each row's own uniform draws in [0, 1), (N, *shape), fresh for every restart and counter."""
        return self.draws.uniform(self.index, shape, self._counter(counter))

    def normal(self, shape: tuple[int, ...], counter: int | Tensor = 0) -> Tensor:
        """Each row's own normal draws, (N, *shape), fresh for every restart and counter."""
        return self.draws.normal(self.index, shape, self._counter(counter))

    def inside(self, counter: int | Tensor = 0) -> Tensor:
        """A uniform start in each row's ball, shaped like ``x``."""
        return self.threat.uniform(self.x, self.index, self.draws, self._counter(counter))


class Attack(Described, ABC):
    """An attack: hyper-parameters, a start, a step.

    Subclasses are frozen dataclasses (`classwise.settings.settings`). A step may look at its own row only, so the
    result for an image does not depend on its neighbours; it must not wait for the device.
    """

    #: The columns of the state, beside iterations and passes, that belong in the outcomes.
    records: ClassVar[tuple[str, ...]] = ()
    #: The norms that it knows.
    norms: ClassVar[tuple[Norm, ...]] = get_args(Norm)
    #: Whether a run that does not stop at broken images looks for the nearest point over all its starts.
    minimises: ClassVar[bool] = False
    #: Whether it computes in float32 whatever the engine is set to, because coarser logits would weaken it.
    precise: ClassVar[bool] = False
    #: The columns of the state that a further start of the same image takes over from the one before.
    carries: ClassVar[tuple[str, ...]] = ()
    #: An example of the setting without which it cannot run, as a spec has it; empty if there is none.
    required: ClassVar[str] = ""

    @property
    def needs_reference(self) -> bool:
        """Whether the case must hold the logits on the clean images."""
        return False

    def check(self) -> None:  # most attacks have all they need
        """See that it was given all that it cannot run without.

        Raises:
            UserError: if not.
        """

    @property
    @abstractmethod
    def length(self) -> int:
        """The largest number of steps that a start takes."""

    @property
    def starts(self) -> int:
        """How many starts an image gets before it counts as standing."""
        return 1

    def starts_for(self, classes: int) -> int:
        """How many starts an image gets where the model has that many classes: fewer, if each aims at its own class."""
        del classes
        return self.starts

    @abstractmethod
    def start(self, model: Forward, case: Case) -> State:
        """The first columns. It makes no model pass."""

    @abstractmethod
    def step(self, model: Forward, case: Case, state: State) -> State:
        """Evaluate the iterate (one pass or more) and move it. Row i depends on row i only."""

    def run(self, model: Forward, case: Case) -> Tensor:
        """All steps of one start on a fixed batch; the last iterate, shaped like ``case.x``. What training uses."""
        state = self.start(model, case)
        for _ in range(self.length):
            state = self.step(model, case, state)
        return state["x"]

    def perturb(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        threat: Threat | str,
        *,
        seed: int = 0,
        index: Tensor | None = None,
        target: Tensor | None = None,
        stop: Stop = "broken",
    ) -> Tensor:
        """Attack a batch and return adversarial images, shaped like ``x``.

        Args:
            model: any classifier; it is evaluated in evaluation mode and left as it was.
            x: images in [0, 1], (N, C, H, W).
            y: labels, int64 (N,).
            threat: the ball, such as ``"Linf:8/255"``; its radius one number or (N,).
            seed: the seed of the attack's draws.
            index: what each image is called in draws; by default its place in the batch.
            target: the class to reach for each image, -1 for none.
            stop: ``"broken"`` returns the first misclassified iterate, else the one of lowest margin; ``"never"``
                returns the last iterate.
        """
        from classwise.attacks.engine import Engine

        engine = Engine(model, compute=EXACT, batch=max(len(x), 1), stop=stop, seed=seed)
        return engine.perturb(self, x, y, Threat.parse(threat), index=index, target=target)

    def bind(self, model: nn.Module, threat: Threat | str, *, seed: int = 0, stop: Stop = "broken") -> BoundAttack:
        """The attack on one model under one threat, to be called as ``attack(images, labels)``."""
        return BoundAttack(self, model, Threat.parse(threat), seed, stop)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002  # the usual signature
        """Refuse politely: an attack alone has no model and no radius."""
        raise UserError(f"{type(self).__name__} needs a model and a radius first: attack.bind(model, 'Linf:8/255')")


@dataclass(frozen=True)
class BoundAttack:
    """An attack with its model and threat, callable as most libraries' attacks are."""

    attack: Attack
    model: nn.Module
    threat: Threat
    seed: int = 0
    stop: Stop = "broken"

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Adversarial images, shaped like ``images``."""
        return self.attack.perturb(self.model, images, labels, self.threat, seed=self.seed, stop=self.stop)


Loss = Callable[[Tensor], Tensor]


class NoGradientError(UserError):
    """The model's logits have no gradient with respect to its input."""

    def __init__(self) -> None:
        super().__init__(
            "the model's logits do not depend on its input in autograd (it detaches them, runs under torch.no_grad, or "
            "leaves torch); use an attack without gradients, such as square"
        )


def value_and_gradient(model: Forward, x: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Logits at ``x`` (N, C) and the gradient of the summed loss there (shaped like ``x``).

    The loss is summed, not averaged, so that a row's gradient does not depend on the size of its batch. Where a
    gradient is not finite it counts as zero, so that a broken model cannot push an image out of the ball.

    Raises:
        NoGradientError: if the logits do not depend on ``x`` in autograd. (A gradient that is zero is no error.)
    """
    with torch.enable_grad():
        leaf = x.detach().requires_grad_(True)
        logits = model(leaf)
        gradient = image_gradient(loss(logits), leaf) if logits.requires_grad else None
    if gradient is None:
        raise NoGradientError
    return logits.detach(), gradient.nan_to_num(0.0, 0.0, 0.0).contiguous()


def image_gradient(values: Tensor, leaf: Tensor, *, retain: bool = False) -> Tensor | None:
    """The gradient of the sum of ``values`` at ``leaf``, shaped like it; None if they do not depend on it."""
    (gradient,) = torch.autograd.grad(values.sum(), leaf, retain_graph=retain, allow_unused=True)
    return gradient


def recordable(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of one that was made in `torch.inference_mode`, which autograd refuses."""
    return tensor.clone() if tensor.is_inference() else tensor


def rows(case: Case, which: Tensor) -> Case:
    """The case of some of the rows."""

    def pick(value: Tensor | None) -> Tensor | None:
        return None if value is None else value[which]

    epsilon = case.threat.epsilon
    threat = case.threat.with_epsilon(epsilon[which]) if isinstance(epsilon, Tensor) else case.threat
    return dataclasses.replace(
        case,
        x=case.x[which],
        y=case.y[which],
        index=case.index[which],
        threat=threat,
        target=pick(case.target),
        step_size=pick(case.step_size),
        reference=pick(case.reference),
        restart=pick(case.restart),
    )
