"""Carlini and Wagner's attacks: Adam on a distance plus c times a hinge of the margin, and a search over c.

Carlini and Wagner, S&P 2017; the Linf attack with the settings of Carmon et al., NeurIPS 2019. Every image has its own
c, its own Adam and its own place in the search, all of them columns: the images of a batch may be anywhere.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, ClassVar

import pydantic
import torch
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State, value_and_gradient
from classwise.attacks.engine.rows import choose
from classwise.attacks.minimal.base import check_norm, remembered, reported, unfound
from classwise.core.config import Count, Number, Positive, configurable
from classwise.core.precision import Forward

_SHRINK = 1 - 1e-6
"""Images are moved this much towards grey, so that the inverse of tanh is finite at black and at white."""
_PATIENCE = 1 - 1e-4
"""A descent ends when its loss is not below this share of what it was a tenth of the steps ago."""
_SHORTEST_WINDOW = 10
"""Or so many steps ago, in short descents: a fresh Adam overshoots, and swings back."""
_BETA_1, _BETA_2, _TINY = 0.9, 0.999, 1e-8
_SMALLEST_TAU = 1 / 256


@configurable
class _CarliniWagner(Attack):
    """Descents, each a fresh Adam with one c, until the search over c is over.

    The radius plays no part in the steps, it only decides which points count. So a run with ``early_stop=False`` gives
    each image's ``minimal_distance``, from which accuracy at every radius follows.

    Args:
        steps: the most steps of a descent; it ends sooner when its loss is zero, or has not fallen over a tenth of them
            (10 at least).
        learning_rate: Adam's, in tanh space.
        first_c: the first weight of the hinge. It grows tenfold until one succeeds; then the middle of the largest that
            failed and the smallest that succeeded is next.
        searches: how many values of c are tried.
        fast: leave an image at its first misclassified point inside the ball, not looking for nearer ones. (Where the
            engine stops at broken images it does so in any case.)
    """

    steps: Count = 1_000
    learning_rate: Positive = 0.005
    first_c: Positive = 0.01
    searches: Count = 5
    fast: bool = False

    records = ("minimal_distance",)
    precise = True  # its points lie where two logits are equal, and bfloat16 does not know which is larger there
    instead: ClassVar[str]

    @property
    def longest(self) -> int:
        """The most steps of a descent."""
        return self.steps

    @abstractmethod
    def penalty(self, shift: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """What a shift costs, (N,), and its gradient, shaped like the shift."""

    @abstractmethod
    def success(self, distance: Tensor, state: State) -> Tensor:
        """Whether a point makes its descent a success, bool (N,); its distance is infinite unless it is wrong."""

    @abstractmethod
    def search(self, state: State, ends: Tensor) -> State:
        """The columns that change for the rows whose descent ``ends``, the next c among them."""

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """The image, moved a millionth towards grey."""
        del model
        check_norm(self, f"C&W's {self.norms[0]} attack", inputs.threat.norm, self.instead)
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
            "earlier_loss": zero + torch.inf,  # a tenth of the steps ago
            "succeeded": count > 0,  # this descent
            "c": zero + self.first_c,
            "largest_failure": zero.clone(),
            "smallest_success": zero + torch.inf,
            "tried": count.clone(),  # values of c that are behind us
            **unfound(inputs),
        }

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """One pass, one step of Adam; where a descent ends, one move of the search."""
        x, c = state["x"], state["c"]
        logits, slope = value_and_gradient(model, x, lambda logits: c * _hinge(logits, inputs))
        margin, hinge = losses.margin(logits, inputs.y), _hinge(logits, inputs)
        cost, push = self.penalty(x - inputs.x, state)
        loss = (cost + c * hinge).nan_to_num(torch.inf)
        distance = torch.where((margin < 0) & (hinge <= 0), inputs.threat.distance(x, inputs.x), torch.inf)

        succeeded = state["succeeded"] | self.success(distance, state)
        state = {**state, "succeeded": succeeded, **remembered(state, x, distance)}
        report = reported(inputs, x, margin)
        check = state["descended"] % max(self.longest // 10, _SHORTEST_WINDOW) == 0
        stalled = check & (loss > state["earlier_loss"] * _PATIENCE)
        state["earlier_loss"] = torch.where(check, loss, state["earlier_loss"])
        ends = stalled | (loss <= 0) | (state["descended"] + 1 >= self.longest)
        state |= self._adam(state, (slope + push) * 2 * x * (1 - x), ends)
        state |= self.search(state, ends)
        state |= _afresh(state, ends)

        iteration = state["iteration"] + 1
        done = state["done"] | (state["tried"] >= self.searches) | (iteration >= self.length)
        if self.fast:
            done = done | (report["margin"] < 0)
        found = done & state["minimal_distance"].isfinite()
        following = choose(found, state["best"], _image(state["variable"]))
        return {**state, **report, "x": following, "iteration": iteration, "done": done}

    def _adam(self, state: State, gradient: Tensor, ends: Tensor) -> State:
        """Adam's step in tanh space; rows whose descent ends stay where they are."""
        first = _BETA_1 * state["first_moment"] + (1 - _BETA_1) * gradient
        second = _BETA_2 * state["second_moment"] + (1 - _BETA_2) * gradient.square()
        descended = state["descended"] + 1
        power = descended.to(gradient.dtype).view(-1, *[1] * (gradient.ndim - 1))
        unbiased, spread = first / (1 - _BETA_1**power), second / (1 - _BETA_2**power)
        moved = state["variable"] - self.learning_rate * unbiased / (spread.sqrt() + _TINY)
        variable = choose(ends, state["variable"], moved)
        return {"variable": variable, "first_moment": first, "second_moment": second, "descended": descended}

    def next_c(self, state: State, leaves: Tensor, reached: Tensor) -> State:
        """The next c for the rows that leave theirs, given which of them reached a misclassified point."""
        c, low, high = state["c"], state["largest_failure"], state["smallest_success"]
        high = torch.where(leaves & reached, torch.minimum(high, c), high)
        low = torch.where(leaves & ~reached, torch.maximum(low, c), low)
        following = torch.where(high.isfinite(), (low + high) / 2, c * 10)
        return {
            "c": torch.where(leaves, following, c),
            "largest_failure": low,
            "smallest_success": high,
            "tried": state["tried"] + leaves,
        }


@configurable
class CarliniWagnerLinf(_CarliniWagner):
    """C&W for Linf: sum max(|x - x0| - tau, 0) + c max(0, z_y - max other), with a tau that shrinks.

    A descent succeeds if it meets a misclassified point nearer than any before; then tau becomes ``tau_factor`` times
    the smaller of itself and that distance, and the same c has another descent from where the last one ended.
    Otherwise c changes, and tau stays. An image is done when tau is at most 1/256 or every c has been tried. A step is
    one forward and one backward pass.

    A tau below the least distance there is asks for more than can be had, so the distance found may be too large by a
    factor of up to 1 / ``tau_factor``; on linear models it is 4 % on average at 0.9.

    Args:
        tau_factor: how fast tau shrinks, between 0 and 1; nearer to 1 finds nearer points and takes longer.
    """

    source = ("carlini2017towards",)
    example = "cw:steps=100,searches=2"

    tau_factor: Annotated[Number, pydantic.Field(gt=0, lt=1)] = 0.9

    norms = ("Linf",)
    instead = "take cw-l2 for L2, APGD for L1"

    @property
    def length(self) -> int:
        """An upper bound that is far from being reached: every descent to its end, for every tau and every c."""
        return self.steps * (self.searches + math.ceil(math.log(_SMALLEST_TAU) / math.log(self.tau_factor)))

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """As the family's, with tau = 1."""
        state = super().start(model, inputs)
        return {**state, "tau": torch.ones_like(state["c"]), "reached": torch.zeros_like(state["done"])}

    def penalty(self, shift: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """What lies beyond tau, summed over pixels."""
        over = shift.abs() - state["tau"].view(-1, *[1] * (shift.ndim - 1))
        return over.clamp_min(0).flatten(1).sum(1), torch.where(over > 0, shift.sign(), 0)

    def success(self, distance: Tensor, state: State) -> Tensor:
        """A point nearer than any before."""
        return distance < state["minimal_distance"]

    def search(self, state: State, ends: Tensor) -> State:
        """A smaller tau after a success, another c after a failure."""
        success = ends & state["succeeded"]
        smaller = self.tau_factor * torch.minimum(state["tau"], state["minimal_distance"])
        tau = torch.where(success, smaller, state["tau"])
        over = tau <= _SMALLEST_TAU
        leaves, reached = ends & ~(success & ~over), state["reached"] | success
        return {
            **self.next_c(state, leaves, reached),
            "tau": tau,
            "reached": reached & ~leaves,
            "done": state["done"] | (ends & over),
        }


@configurable
class CarliniWagnerL2(_CarliniWagner):
    """C&W for L2: ‖x - x0‖² + c max(0, z_y - max other), every descent from the image itself.

    A descent succeeds if it meets a misclassified point. A step is one forward and one backward pass. ``fast`` also
    caps a descent at 1,000 steps.
    """

    source = ("carlini2017towards",)
    example = "cw-l2:steps=200,searches=3"

    steps: Count = 10_000
    learning_rate: Positive = 0.01
    first_c: Positive = 1e-3
    searches: Count = 9

    norms = ("L2",)
    instead = "take cw for Linf, APGD for L1"

    @property
    def longest(self) -> int:
        """The most steps of a descent."""
        return min(self.steps, 1_000) if self.fast else self.steps

    @property
    def length(self) -> int:
        """Every descent to its end."""
        return self.longest * self.searches

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """As the family's; every descent begins where the first did."""
        state = super().start(model, inputs)
        return {**state, "origin": state["variable"].clone()}

    def penalty(self, shift: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """The squared distance."""
        del state
        return shift.square().flatten(1).sum(1), 2 * shift

    def success(self, distance: Tensor, state: State) -> Tensor:
        """Any misclassified point."""
        del state
        return distance.isfinite()

    def search(self, state: State, ends: Tensor) -> State:
        """Another c, and back to the image."""
        back = choose(ends, state["origin"], state["variable"])
        return {**self.next_c(state, ends, state["succeeded"]), "variable": back}


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


def _afresh(state: State, ends: Tensor) -> State:
    """A fresh Adam for the rows whose descent has ended."""
    return {
        "first_moment": choose(ends, torch.zeros_like(state["first_moment"]), state["first_moment"]),
        "second_moment": choose(ends, torch.zeros_like(state["second_moment"]), state["second_moment"]),
        "descended": torch.where(ends, 0, state["descended"]),
        "earlier_loss": torch.where(ends, torch.inf, state["earlier_loss"]),
        "succeeded": state["succeeded"] & ~ends,
    }
