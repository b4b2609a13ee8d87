"""FGSM, PGD and variants: projected gradient ascent; each attack defines its loss.

FGSM: Goodfellow, Shlens and Szegedy, ICLR 2015. PGD: Madry et al., ICLR 2018. DLR: Croce and Hein, ICML 2020. The
targeted margin: Gowal et al. 2019 (MultiTargeted). Temperature-PGD: Tian et al., KDD 2021, eq. 4.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.base import Attack, TargetedAttack
from classwise.attacks.engine import AttackInputs, State, value_and_gradient
from classwise.attacks.engine.rows import choose
from classwise.core.compute.precision import Forward
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import Count, Positive, StepSize, configurable, relative_step
from classwise.threat.ball import NORM_BALLS

Start = Literal["uniform", "normal", "none"]

_LONG = 40
"""Minimum number of steps with cycle detection."""
_ANCHOR = 10
"""Steps between two anchors, and the longest cycle that is detected."""


@configurable
class Ascent(Attack):
    """Base class of projected gradient ascent along the steepest direction of a loss.

    Iterates of sign attacks with a constant step size often end in a cycle. `memoryless` attacks of 40 steps or more
    compare each iterate with an anchor, the iterate at the last multiple of ten steps. If all bits are equal, the
    repetitions of the cycle are counted without being computed. Only the numbers of passes change. This needs a model
    whose results repeat (`CountedForward.repeatable`).

    Args:
        steps: number of steps per start.
        step_size: absolute (``"2/255"``) or relative to each image's radius (``"0.25eps"``).
        random_init: ``"uniform"`` in the ball, ``"normal"`` (the image plus 0.001 N(0, 1), as in TRADES) or
            ``"none"``.
        restarts: maximum number of starts per image.
    """

    steps: Count = 10
    step_size: StepSize = "0.25eps"
    random_init: Start = "uniform"
    restarts: Count = 1

    records = ("zero_gradients",)
    norms = (*NORM_BALLS, "recolour")
    #: Whether a step depends on nothing but the iterate and the inputs of its row. Subclasses do not inherit it.
    memoryless: ClassVar[bool] = False

    @property
    def length(self) -> int:
        """Steps per start."""
        return self.steps

    @property
    def detects_cycles(self) -> bool:
        """Whether the attack itself is `memoryless`, and long enough."""
        return self.steps >= _LONG and bool(vars(type(self)).get("memoryless"))

    @property
    def may_end_early(self) -> bool:
        """Whether repetitions of a cycle are not computed."""
        return self.detects_cycles

    @abstractmethod
    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        """The loss to maximise, (N,), of logits (N, classes) and the label (or target) of each row."""

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start from the clean image or a random point near it."""
        if self.random_init == "uniform":
            x = inputs.inside()
        elif self.random_init == "normal":
            x = inputs.threat.project(inputs.x + 0.001 * inputs.normal(tuple(inputs.x.shape[1:])), inputs.x)
        else:
            x = inputs.x.clone()
        count = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        state = {"x": x, "iteration": count, "zero_gradients": count.clone(), "done": count > 0}
        if self.detects_cycles and getattr(model, "repeatable", False):
            state |= {"anchor": x.clone(), "anchor_zero_gradients": count.clone()}
        return state

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Compute the gradient, take a step, and project."""
        return self.ascend(model, inputs, state, lambda logits: self.signed_loss(logits, inputs, state))

    def ascend(self, model: Forward, inputs: AttackInputs, state: State, loss: Callable[[Tensor], Tensor]) -> State:
        """Take a step along the gradient of a loss of the logits, (N, classes) to (N,), and project."""
        x = state["x"]
        logits, gradient = value_and_gradient(model, x, loss)
        direction, columns = self._direction(gradient, state)
        move = self._step_of(inputs, state) * inputs.threat.steepest(direction, inputs.x)
        new = {
            **state,
            **columns,
            "x": self._bounded(x + move, inputs),
            "seen": x,
            "margin": losses.margin(logits, inputs.y),
            "iteration": state["iteration"] + 1,
            "zero_gradients": state["zero_gradients"] + (gradient.flatten(1).abs().amax(1) == 0),
        }
        if "anchor" in state:
            new |= self._without_laps(new)
        return new | {"done": new["iteration"] >= self.steps}

    def _without_laps(self, state: State) -> State:
        """Columns after all laps of a cycle that fit into the remaining steps, for rows at their anchor again.

        Every iterate of the cycle has been evaluated. Fewer steps than one lap remain and are computed, so the last
        iterate is that of an attack without cycle detection.
        """
        x, anchor, iteration, zeros = (state[name] for name in ("x", "anchor", "iteration", "zero_gradients"))
        same = (x.view(torch.int32) == anchor.view(torch.int32)).flatten(1).all(1)  # bits, since 0.0 == -0.0
        lap = (iteration - 1) % _ANCHOR + 1
        laps = torch.where(same, (self.steps - iteration).clamp_min(0) // lap, 0)
        renewed = iteration % _ANCHOR == 0
        zero_gradients = zeros + laps * (zeros - state["anchor_zero_gradients"])
        return {
            "iteration": iteration + laps * lap,
            "zero_gradients": zero_gradients,
            "anchor": choose(renewed, x, anchor),
            "anchor_zero_gradients": torch.where(renewed, zero_gradients, state["anchor_zero_gradients"]),
        }

    def _bounded(self, x: Tensor, inputs: AttackInputs) -> Tensor:
        """The point projected to the feasible set: the ball and [0, 1]."""
        return inputs.threat.project(x, inputs.x)

    def signed_loss(self, logits: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        """The loss of the label; for rows with a target, the negative loss of the target."""
        if inputs.target is None:
            return self._loss_at(logits, inputs.y, inputs, state)
        targeted = inputs.target >= 0
        toward = torch.where(targeted, inputs.target, inputs.y)
        return self._loss_at(logits, toward, inputs, state) * torch.where(targeted, -1.0, 1.0)

    def _loss_at(self, logits: Tensor, y: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        """The loss at the current step; by default `loss` at every step."""
        del state
        return self.loss(logits, y, inputs)

    def _direction(self, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """The direction of the step, shaped like the gradient, and updated state columns; by default the gradient."""
        del state
        return gradient, {}

    def _step_of(self, inputs: AttackInputs, state: State) -> Tensor | float:
        """The step size, a number or a tensor that broadcasts over images."""
        del state
        if inputs.step_size is not None:
            return inputs.step_size.view(-1, *[1] * (inputs.x.ndim - 1))
        factor, relative = relative_step(self.step_size)
        return factor * inputs.threat.radius(inputs.x) if relative else factor


def step_size_problem(attack: Attack, radius: float) -> str:
    """Why the step size of an attack does not suit a radius; empty if it does, or the attack has no step size.

    Example:
        >>> step_size_problem(PGD(steps=5, step_size="2/255"), 25 / 255)
        '5 steps of 0.00784 reach 0.0392, less than the radius 0.098'
        >>> step_size_problem(PGD(steps=5), 25 / 255)
        ''
    """
    size, steps = getattr(attack, "step_size", None), getattr(attack, "steps", 1)
    if size is None:
        return ""
    factor, relative = relative_step(size)
    step, length = (factor * radius, size) if relative else (factor, f"{factor:.3g}")
    if (reach := steps * step) < radius * (1 - 1e-6):
        return f"{steps} steps of {length} reach {reach:.3g}, less than the radius {radius:.3g}"
    if steps > 1 and not relative and step > 0.5 * radius * (1 + 1e-6):
        return f"steps of {length} are more than half of the radius {radius:.3g}"
    return ""


def suitable_step(attack: Attack) -> str:
    """A step size that suits any radius, for the number of steps of an attack.

    Example:
        >>> suitable_step(PGD(steps=10)), suitable_step(PGD(steps=2))
        ('0.25eps', '0.5eps')
    """
    steps: int = getattr(attack, "steps", 1)
    return "0.25eps" if steps >= 4 else "0.5eps" if steps > 1 else "1eps"


@configurable
class PGD(Ascent):
    """Projected gradient ascent on a loss.

    Args:
        objective: ``"ce"``, ``"margin"``, ``"dlr"`` (the difference of logits ratio; with 2 classes the margin, with a
            warning), or ``"kl"`` (the inner maximisation of TRADES).
    """

    source = ("madry2018towards",)
    example = "pgd:steps=50,restarts=5"
    memoryless = True

    objective: Literal["ce", "margin", "dlr", "kl"] = "ce"

    def check(self) -> None:
        """Check that the loss has a gradient at the initial point.

        Raises:
            ClasswiseError: for ``objective="kl"`` with ``random_init="none"``.
        """
        if self.objective == "kl" and self.random_init == "none":
            raise ClasswiseError(
                "pgd: objective=kl has no gradient at the clean image; use random_init=normal or random_init=uniform"
            )

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        """Cross-entropy, negative margin, DLR, or KL divergence from the clean logits."""
        if self.objective == "ce":
            return losses.smoothed_cross_entropy(logits, y, inputs.label_smoothing)
        if self.objective == "margin":
            return losses.negative_margin(logits, y)
        if self.objective == "dlr":
            return losses.dlr(logits, y)
        assert inputs.reference is not None
        return losses.divergence(inputs.reference, logits)

    def signed_loss(self, logits: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        """As in the base class, except for targets with DLR (targeted DLR) and KL (negative cross-entropy)."""
        if self.objective not in ("dlr", "kl") or inputs.target is None:
            return super().signed_loss(logits, inputs, state)
        is_targeted = inputs.target >= 0
        if self.objective == "kl":  # the divergence does not depend on a class
            value = -losses.cross_entropy(logits, inputs.target.clamp_min(0))
        else:
            value = losses.targeted_dlr(logits, inputs.y, torch.where(is_targeted, inputs.target, inputs.y))
        return torch.where(is_targeted, value, self.loss(logits, inputs.y, inputs))

    @property
    def cross_entropy(self) -> bool:
        """The KL divergence differs from the cross-entropy of the clean prediction by a constant."""
        return self.objective in ("ce", "kl")

    @property
    def smooths_labels(self) -> bool:
        """The other losses have no smoothed labels."""
        return self.objective == "ce"

    @property
    def needs_reference(self) -> bool:
        """The KL divergence depends on the clean logits."""
        return self.objective == "kl"


@configurable
class PGDT(TargetedAttack, Ascent):
    """Targeted PGD on the margin z_t - z_y, one start per target class.

    Args:
        targets: maximum number of target classes, in the order of their clean logits, highest first; capped at C - 1.
    """

    source = ("gowal2019alternative",)
    example = "pgd-t:steps=20,targets=3"
    memoryless = True

    targets: Count = 9

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start near the image, with the target class of this start."""
        assert inputs.reference is not None
        restart = torch.zeros_like(inputs.y) if inputs.restart is None else inputs.restart
        rank = restart % min(self.targets, inputs.reference.shape[1] - 1)
        target = losses.nth_other(inputs.reference, inputs.y, rank)
        if inputs.target is not None:
            target = torch.where(inputs.target >= 0, inputs.target, target)
        return {**super().start(model, inputs), "target": target}

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        """z_t - z_y, where ``y`` is the target."""
        return losses.towards(logits, inputs.y, y)

    def signed_loss(self, logits: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        """The loss of the target of this start."""
        return self.loss(logits, state["target"], inputs)


@configurable
class CrossEntropyAscent(Ascent):
    """Base class of the attacks that maximise the cross-entropy."""

    @property
    def cross_entropy(self) -> bool:
        """The loss is the cross-entropy."""
        return True

    @property
    def smooths_labels(self) -> bool:
        """The loss is the cross-entropy."""
        return True

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        """Cross-entropy."""
        return losses.smoothed_cross_entropy(logits, y, inputs.label_smoothing)


@configurable
class FGSM(CrossEntropyAscent):
    """Fast gradient sign method: one step of size eps, by default from the clean image."""

    source = ("goodfellow2015explaining",)
    example = "fgsm:random_init=uniform"

    steps: Count = 1
    step_size: StepSize = "1eps"
    random_init: Start = "none"


@configurable
class NFGSM(FGSM):
    """N-FGSM (de Jorge et al., NeurIPS 2022): one step from a noisy image, without projection onto the ball.

    With eta uniform in the ball of radius ``noise`` eps, x' = clip(clip(x + eta) + step_size sign(gradient)), where
    clip is to [0, 1]. N-FGSM is meant for training: x' may be up to ``noise`` eps + ``step_size`` from x. An audit
    projects it onto the ball.

    Args:
        noise: radius of the noise, in multiples of eps.
    """

    source = ("dejorge2022make",)
    example = "n-fgsm:noise=1.5"

    random_init: Start = "uniform"
    noise: Positive = 2.0

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start from the image plus noise, clipped to [0, 1]."""
        wide = inputs.threat.with_epsilon(inputs.threat.epsilon * self.noise)
        return super().start(model, dataclasses.replace(inputs, threat=wide))

    def _bounded(self, x: Tensor, inputs: AttackInputs) -> Tensor:
        """The point clipped to [0, 1], not projected onto the ball."""
        del inputs
        return x.clamp(0, 1)


@configurable
class TemperaturePGD(Ascent):
    """Temperature-PGD: PGD on the cross-entropy of softmax(logits / T); success is decided without temperature.

    Args:
        inverse_temperature: 1/T, as in ``tpgd[5]``, the name of a column; an audit without it runs 2, 5, 10 and 50.
        arithmetic: ``"paper"`` is float32 autograd through the cross-entropy with temperature, most of whose gradients
            underflow to zero at large 1/T. ``"stable"`` maximises log sum_{k != y} exp((z_k - z_y)/T), whose gradient
            has the same direction and does not underflow.
    """

    source = ("tian2021analysis",)
    example = "tpgd:steps=20,inverse_temperature=10"
    memoryless = True

    inverse_temperature: Positive = 5.0
    arithmetic: Literal["stable", "paper"] = "stable"

    @property
    def cross_entropy(self) -> bool:
        """At 1/T above 1 the loss is closer to the margin than the cross-entropy is."""
        return self.inverse_temperature <= 1

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        """The loss of the scaled logits, in the chosen arithmetic."""
        del inputs
        scaled = logits * self.inverse_temperature
        if self.arithmetic == "paper":
            return losses.cross_entropy(scaled, y)
        return losses.others_against_label(scaled, y)


TEMPERATURES = (2.0, 5.0, 10.0, 50.0)
"""The values of 1/T over which the paper reports the best result."""
