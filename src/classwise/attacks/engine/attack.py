"""Base class of attacks: `Attack.start` and `Attack.step` on columns, which the engine calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from classwise.core.compute.precision import Forward
from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError
from classwise.core.settings.description import Described
from classwise.threat.ball import NORM_BALLS, Norm, Threat, ThreatLike

State = dict[str, Tensor]
"""Columns of an attack in progress, each (N, ...).

Every state has ``x`` (the iterate), ``iteration`` (steps taken) and ``done``; after a step also ``seen`` (the point at
which the step evaluated the logits) and ``margin`` (z_y - max other, at ``seen``). An attack may add columns.
"""


_RESTART = 1 << 32


@dataclass(frozen=True)
class AttackInputs:
    """Inputs of an attack, one row per image.

    Args:
        x: clean images in [0, 1], (N, C, H, W).
        y: labels, int64 (N,).
        index: index of each image in the random numbers, int64 (N,).
        threat: the norm ball; its radius is a number or a tensor (N,).
        rng: random numbers of the attack; use the methods `uniform` and `normal`.
        target: target class, int64 (N,); -1 for an untargeted row. None: all rows are untargeted.
        step_size: step size of each image, (N,), which overrides that of the attack.
        reference: logits on the clean images, (N, classes), for losses and targets that depend on them.
        restart: number of earlier starts of each row, int64 (N,).
        target_order: target classes of each row, the first of them first, int64 (N, K) (`Attack.target_order`).
        label_smoothing: label smoothing of the cross-entropy that the attack maximises, in training only
            (`Attack.smooths_labels`).
    """

    x: Tensor
    y: Tensor
    index: Tensor
    threat: Threat
    rng: CounterRNG
    target: Tensor | None = None
    step_size: Tensor | None = None
    reference: Tensor | None = None
    restart: Tensor | None = None
    target_order: Tensor | None = None
    label_smoothing: float = 0.0

    def _counter(self, counter: int | Tensor) -> int | Tensor:
        return counter if self.restart is None else self.restart * _RESTART + counter

    def uniform(self, shape: tuple[int, ...], counter: int | Tensor = 0) -> Tensor:
        """Uniform random numbers in [0, 1) (N, ...) for each row, different for every restart and counter."""
        return self.rng.uniform(self.index, shape, self._counter(counter))

    def normal(self, shape: tuple[int, ...], counter: int | Tensor = 0) -> Tensor:
        """Standard normal random numbers (N, ...) for each row, different for every restart and counter."""
        return self.rng.normal(self.index, shape, self._counter(counter))

    def inside(self, counter: int | Tensor = 0) -> Tensor:
        """A uniformly random point in the ball of each row, shaped like ``x``."""
        return self.threat.uniform(self.x, self.index, self.rng, self._counter(counter))


class Attack(Described, ABC):
    """Base class of attacks.

    Subclasses are frozen dataclasses (`classwise.core.settings.config.configurable`). A step computes each row from
    that row only, so the result for an image does not depend on its neighbours. A step must not synchronise with the
    device.

    The state of N images has the columns ``x`` (N, C, H, W), the iterate; ``iteration`` (N,), the steps taken, which
    each step increases; and ``done`` (N,), bool, true at the latest after `length` steps. A step adds ``seen``, shaped
    like ``x``, the images whose logits it computed, and ``margin`` (N,), the logit of the label minus the largest other
    one on them: if it is below 0, the engine verifies ``seen`` in float32. Further columns (N, ...) are optional.

    Example:
        >>> import torch
        >>> import classwise as cw
        >>> model = cw.load_model("small-cnn", num_classes=10, in_channels=3, width=0.25)
        >>> images, labels = torch.rand(4, 3, 32, 32), torch.arange(4)
        >>> attack = cw.ATTACKS.load("pgd")(steps=10)
        >>> adversarial = cw.attack(model, images, labels, attack, threat="Linf:8/255")
        >>> adversarial.shape
        torch.Size([4, 3, 32, 32])
        >>> bool((adversarial - images).abs().max() < 8.001 / 255)
        True
    """

    #: Maximum number of starts per image; a setting of attacks with random starts.
    restarts: int = 1
    #: State columns that the engine returns; outcomes have only ``zero_gradients``, ``queries`` and
    #: ``minimal_distance`` of them.
    records: ClassVar[tuple[str, ...]] = ()
    #: Supported threats: norms, ``"recolour"`` and ``"spatial"``.
    norms: ClassVar[tuple[Norm, ...]] = NORM_BALLS
    #: State column that is minimised over the starts of an image, such as a distance: the state with the smallest value
    #: is reported. A run with ``early_stop=False`` runs all starts, and of their successes returns that of this state.
    minimises: ClassVar[str] = ""
    #: Whether to compute in float32 in every engine, because bfloat16 would weaken the attack; ``"tf32"``: TF32 would
    #: not (`Precision.search`).
    precise: ClassVar[bool | Literal["tf32"]] = False
    #: State columns that are carried over from one start of an image to the next, which therefore never run at once.
    carries: ClassVar[tuple[str, ...]] = ()

    @property
    def user_code(self) -> str:
        """The name of the code of a user, or of another library, that the attack runs; empty if there is none."""
        kind = type(self)
        return "" if kind.__module__.partition(".")[0] == "classwise" else f"{kind.__module__}:{kind.__qualname__}"

    @property
    def needs_reference(self) -> bool:
        """Whether the attack reads `AttackInputs.reference`, the logits on the clean images."""
        return False

    @property
    def detects_cycles(self) -> bool:
        """Whether the attack skips repeated iterates on a model whose results repeat (`CountedForward.repeatable`)."""
        return False

    @property
    def cross_entropy(self) -> bool:
        """Whether the attack maximises the cross-entropy of the label, or of the clean prediction, and nothing else."""
        return False

    @property
    def smooths_labels(self) -> bool:
        """Whether the cross-entropy that it maximises has `AttackInputs.label_smoothing`."""
        return False

    @property
    def may_end_early(self) -> bool:
        """Whether a start may end before `length` steps although no adversarial example was found."""
        return False

    @property
    def orders_targets(self) -> bool:
        """Whether `target_order` takes passes; the engine then calls it once per image, for all starts."""
        return False

    def target_order(self, model: Forward, inputs: AttackInputs) -> Tensor:
        """Target classes of each row in the order of its starts, int64 (N, K), for attacks with `orders_targets`."""
        raise NotImplementedError  # the engine calls it only where `orders_targets` is true

    def check(self) -> None:
        """Check that every required setting is present; most attacks have none.

        Raises:
            ClasswiseError: if a required setting is missing.
        """

    @property
    @abstractmethod
    def length(self) -> int:
        """Maximum number of steps per start."""

    @property
    def starts(self) -> int:
        """Maximum number of starts per image, all of which must fail before the image counts as robust."""
        return self.restarts

    @property
    def total_length(self) -> int:
        """Maximum number of steps per image, over all starts."""
        return self.length * self.starts

    def starts_for(self, classes: int) -> int:
        """Number of starts per image for a model with ``classes`` classes; fewer if each start has its own target."""
        del classes
        return self.starts

    @abstractmethod
    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Return the initial state, without a model pass."""

    @abstractmethod
    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Evaluate the iterate (one or more passes) and update it. Row i depends on row i only."""

    def confirm(self, model: Forward, inputs: AttackInputs, state: State, image: Tensor) -> State:
        """Verify what the state reports about a row that has ended, such as a distance, if its search was in TF32.

        Args:
            model: the logits in true float32.
            inputs: the inputs of the rows.
            state: their final state.
            image: the image of each row that was verified, shaped like ``x``.

        Returns:
            The state with verified columns; without early stop its ``x`` is the image to return.
        """
        del model, inputs, image
        return state

    def run(self, model: Forward, inputs: AttackInputs) -> Tensor:
        """Run all steps of one start on a fixed batch, as training does; return the last iterate, shaped like ``x``."""
        if self.needs_reference and inputs.reference is None:
            with torch.no_grad():
                inputs = replace(inputs, reference=model(inputs.x))
        state = self.start(model, inputs)
        for _ in range(self.length):
            state = self.step(model, inputs, state)
        return state["x"]

    def supported(self, threat: ThreatLike) -> Threat:
        """Parse a threat and check that the attack supports it.

        Raises:
            ClasswiseError: if it does not.
        """
        parsed = Threat.parse(threat)
        if parsed.norm not in self.norms:
            supported = " and ".join(self.norms)
            raise ClasswiseError(f"{type(self).__name__} does not support {parsed.norm}; it supports {supported}")
        return parsed

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002  # the usual signature
        """Raise an error: an attack has no model and no radius."""
        raise ClasswiseError(
            f"{type(self).__name__} has no model and no threat; call "
            "classwise.attack(model, images, labels, attack, threat='Linf:8/255')"
        )
