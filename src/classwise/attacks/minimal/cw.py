"""Carlini and Wagner attacks: minimise distance + c * hinge(margin) with Adam, with a binary search over c.

Carlini and Wagner, S&P 2017; the Linf attack with the settings of Carmon et al., NeurIPS 2019. Every image has its own
c, Adam state and search state, which are columns, so images of a batch may be at different stages.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated

import pydantic
import torch
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State, value_and_gradient
from classwise.attacks.engine.rows import choose
from classwise.attacks.minimal.base import evaluated, initial_best, updated_best
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import Count, Number, Positive, configurable

_SHRINK = 1 - 1e-6
"""Images are scaled towards grey by this factor, so that the inverse of tanh is finite at 0 and 1."""
_PATIENCE = 1 - 1e-4
"""A descent is aborted if its loss is above this fraction of the loss a tenth of the steps earlier."""
_SHORTEST_WINDOW = 10
"""Minimum distance, in steps, of the two losses compared, since Adam overshoots in its first steps."""
_BETA_1, _BETA_2, _TINY = 0.9, 0.999, 1e-8
_SMALLEST_TAU = 1 / 256


@configurable
class _CarliniWagner(Attack):
    """Base class of the Carlini and Wagner attacks: a descent with a new Adam for every value of c.

    The radius does not affect the steps; it only decides which points count as a success. So a run with
    ``early_stop=False`` gives the ``minimal_distance`` of each image, from which the accuracy at every radius follows.

    Args:
        steps: maximum number of steps per descent; it ends early if its loss is zero, or did not decrease over a tenth
            of the steps (at least 10).
        learning_rate: learning rate of Adam, in tanh space.
        initial_const: initial c. It is multiplied by 10 until a descent succeeds; then the search bisects the largest
            c that failed and the smallest that succeeded.
        binary_search_steps: number of values of c.
        fast: stop at the first misclassified point inside the ball, without minimising its distance. (With
            ``early_stop=True`` the engine always does.)
    """

    steps: Count = 1_000
    learning_rate: Positive = 0.005
    initial_const: Positive = 0.01
    binary_search_steps: Count = 5
    fast: bool = False

    records = ("minimal_distance",)
    precise = True  # at the decision boundary two logits are equal, and bfloat16 cannot resolve which is larger

    @property
    def may_end_early(self) -> bool:
        """A start ends once every c has been tried, or tau is small."""
        return True

    @property
    def max_descent(self) -> int:
        """Maximum number of steps per descent."""
        return self.steps

    @abstractmethod
    def penalty(self, shift: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """The distance term of a shift, (N,), and its gradient, shaped like the shift."""

    @abstractmethod
    def success(self, distance: Tensor, state: State) -> Tensor:
        """Whether a descent succeeds at a point, bool (N,); the distance is infinite unless it is misclassified."""

    @abstractmethod
    def search(self, state: State, ends: Tensor) -> State:
        """State columns updated for the rows whose descent ``ends``, c included."""

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start from the image, scaled towards grey by 1e-6."""
        del model
        variable = ((inputs.x * 2 - 1) * _SHRINK).atanh()
        count = torch.zeros_like(inputs.y)
        zero = torch.zeros(len(inputs.x), dtype=inputs.x.dtype, device=inputs.x.device)
        return {
            "x": _image(variable),
            "iteration": count,
            "done": count > 0,
            "variable": variable,
            "first_moment": torch.zeros_like(variable),
            "second_moment": torch.zeros_like(variable),
            "descended": count.clone(),  # steps of this descent
            "earlier_loss": zero + torch.inf,  # the loss a tenth of the steps earlier
            "succeeded": count > 0,  # whether this descent succeeded
            "c": zero + self.initial_const,
            "largest_failure": zero.clone(),
            "smallest_success": zero + torch.inf,
            "tried": count.clone(),  # number of completed values of c
            **initial_best(inputs),
        }

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Take a step of Adam; where a descent ends, update c."""
        x, c = state["x"], state["c"]
        logits, slope = value_and_gradient(model, x, lambda logits: c * _hinge(logits, inputs))
        margin, hinge = losses.margin(logits, inputs.y), _hinge(logits, inputs)
        penalty, penalty_gradient = self.penalty(x - inputs.x, state)
        loss = (penalty + c * hinge).nan_to_num(torch.inf)
        distance = torch.where((margin < 0) & (hinge <= 0), inputs.threat.distance(x, inputs.x), torch.inf)

        succeeded = state["succeeded"] | self.success(distance, state)
        state = {**state, "succeeded": succeeded, **updated_best(state, x, distance)}
        evaluation = evaluated(inputs, x, margin)
        check = state["descended"] % max(self.max_descent // 10, _SHORTEST_WINDOW) == 0
        stalled = check & (loss > state["earlier_loss"] * _PATIENCE)
        state["earlier_loss"] = torch.where(check, loss, state["earlier_loss"])
        ends = stalled | (loss <= 0) | (state["descended"] + 1 >= self.max_descent)
        state |= self._adam(state, (slope + penalty_gradient) * 2 * x * (1 - x), ends)
        state |= self.search(state, ends)
        state |= _reset_adam(state, ends)

        iteration = state["iteration"] + 1
        done = state["done"] | (state["tried"] >= self.binary_search_steps) | (iteration >= self.length)
        if self.fast:
            done = done | (evaluation["margin"] < 0)
        succeeded_ever = done & state["minimal_distance"].isfinite()
        following = choose(succeeded_ever, state["best"], _image(state["variable"]))
        return {**state, **evaluation, "x": following, "iteration": iteration, "done": done}

    def _adam(self, state: State, gradient: Tensor, ends: Tensor) -> State:
        """A step of Adam in tanh space; rows whose descent ends do not move."""
        first = _BETA_1 * state["first_moment"] + (1 - _BETA_1) * gradient
        second = _BETA_2 * state["second_moment"] + (1 - _BETA_2) * gradient.square()
        descended = state["descended"] + 1
        power = descended.to(gradient.dtype).view(-1, *[1] * (gradient.ndim - 1))
        unbiased, spread = first / (1 - _BETA_1**power), second / (1 - _BETA_2**power)
        moved = state["variable"] - self.learning_rate * unbiased / (spread.sqrt() + _TINY)
        variable = choose(ends, state["variable"], moved)
        return {"variable": variable, "first_moment": first, "second_moment": second, "descended": descended}

    def next_c(self, state: State, completed: Tensor, reached: Tensor) -> State:
        """The next c of the rows that completed theirs; ``reached``: whether a misclassified point was found."""
        c, low, high = state["c"], state["largest_failure"], state["smallest_success"]
        high = torch.where(completed & reached, torch.minimum(high, c), high)
        low = torch.where(completed & ~reached, torch.maximum(low, c), low)
        following = torch.where(high.isfinite(), (low + high) / 2, c * 10)
        return {
            "c": torch.where(completed, following, c),
            "largest_failure": low,
            "smallest_success": high,
            "tried": state["tried"] + completed,
        }


@configurable
class CarliniWagnerLinf(_CarliniWagner):
    """C&W for Linf: minimise sum max(|x - x0| - tau, 0) + c max(0, z_y - max other) for decreasing tau.

    A descent succeeds if it finds a misclassified point nearer than all earlier ones. Then tau is set to
    ``decrease_factor`` times the minimum of tau and that distance, and another descent with the same c continues from
    the last iterate. Otherwise c changes and tau does not. An image is done if tau is at most 1/256 or every c has been
    tried. A step takes one forward and one backward pass.

    The distance found may exceed the minimum by a factor of up to 1 / ``decrease_factor``, because a descent with tau
    below the minimal distance does not succeed. On linear models the excess is 4 % on average at 0.9.

    Args:
        decrease_factor: factor by which tau decreases, between 0 and 1; values near 1 find nearer points and take
            longer.
    """

    source = ("carlini2017towards",)
    example = "cw:steps=100,binary_search_steps=2"

    decrease_factor: Annotated[Number, pydantic.Field(gt=0, lt=1)] = 0.9

    norms = ("Linf",)

    @property
    def length(self) -> int:
        """Upper bound of the number of steps, with all steps of a descent for every tau and c."""
        taus = math.ceil(math.log(_SMALLEST_TAU) / math.log(self.decrease_factor))
        return self.steps * (self.binary_search_steps + taus)

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """As in the base class, with tau = 1."""
        state = super().start(model, inputs)
        return {**state, "tau": torch.ones_like(state["c"]), "reached": torch.zeros_like(state["done"])}

    def penalty(self, shift: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Sum of max(|shift| - tau, 0) over pixels."""
        over = shift.abs() - state["tau"].view(-1, *[1] * (shift.ndim - 1))
        return over.clamp_min(0).flatten(1).sum(1), torch.where(over > 0, shift.sign(), 0)

    def success(self, distance: Tensor, state: State) -> Tensor:
        """Whether the point is nearer than all earlier ones."""
        return distance < state["minimal_distance"]

    def search(self, state: State, ends: Tensor) -> State:
        """Decrease tau after a success, change c after a failure."""
        success = ends & state["succeeded"]
        smaller = self.decrease_factor * torch.minimum(state["tau"], state["minimal_distance"])
        tau = torch.where(success, smaller, state["tau"])
        converged = tau <= _SMALLEST_TAU
        completed, reached = ends & ~(success & ~converged), state["reached"] | success
        return {
            **self.next_c(state, completed, reached),
            "tau": tau,
            "reached": reached & ~completed,
            "done": state["done"] | (ends & converged),
        }


@configurable
class CarliniWagnerL2(_CarliniWagner):
    """C&W for L2: minimise ‖x - x0‖² + c max(0, z_y - max other), each descent from the clean image.

    A descent succeeds if it finds a misclassified point. A step takes one forward and one backward pass. ``fast`` also
    limits a descent to 1,000 steps.
    """

    source = ("carlini2017towards",)
    example = "cw-l2:steps=200,binary_search_steps=3"

    steps: Count = 10_000
    learning_rate: Positive = 0.01
    initial_const: Positive = 1e-3
    binary_search_steps: Count = 9

    norms = ("L2",)

    @property
    def max_descent(self) -> int:
        """Maximum number of steps per descent."""
        return min(self.steps, 1_000) if self.fast else self.steps

    @property
    def length(self) -> int:
        """All steps of all descents."""
        return self.max_descent * self.binary_search_steps

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """As in the base class, with the clean image in tanh space for later descents."""
        state = super().start(model, inputs)
        return {**state, "clean_variable": state["variable"].clone()}

    def penalty(self, shift: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """The squared L2 distance."""
        del state
        return shift.square().flatten(1).sum(1), 2 * shift

    def success(self, distance: Tensor, state: State) -> Tensor:
        """Whether the point is misclassified."""
        del state
        return distance.isfinite()

    def search(self, state: State, ends: Tensor) -> State:
        """Change c and restart from the clean image."""
        variable = choose(ends, state["clean_variable"], state["variable"])
        return {**self.next_c(state, ends, state["succeeded"]), "variable": variable}


def _image(variable: Tensor) -> Tensor:
    """From tanh space to [0, 1]."""
    return (variable.tanh() + 1) / 2


def _hinge(logits: Tensor, inputs: AttackInputs) -> Tensor:
    """max(0, z_y - max other), (N,); for rows with a target, max(0, max other - z_target)."""
    against = losses.margin(logits, inputs.y)
    if inputs.target is not None:
        targeted = inputs.target >= 0
        toward = losses.margin(logits, torch.where(targeted, inputs.target, inputs.y))
        against = torch.where(targeted, -toward, against)
    return against.clamp_min(0)


def _reset_adam(state: State, ends: Tensor) -> State:
    """Reset Adam and the descent for the rows whose descent has ended."""
    return {
        "first_moment": choose(ends, torch.zeros_like(state["first_moment"]), state["first_moment"]),
        "second_moment": choose(ends, torch.zeros_like(state["second_moment"]), state["second_moment"]),
        "descended": torch.where(ends, 0, state["descended"]),
        "earlier_loss": torch.where(ends, torch.inf, state["earlier_loss"]),
        "succeeded": state["succeeded"] & ~ends,
    }
