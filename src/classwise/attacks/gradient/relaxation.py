"""Constraint relaxation: targeted ascent in balls that are larger than that of the threat and equal to it in turn.

Pan and Yao 2026, "FastAT Benchmark: A Comprehensive Framework for Fair Evaluation of Fast Adversarial Training
Methods" (CR attack).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from classwise.attacks import losses
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State, value_and_gradient
from classwise.attacks.engine.rows import choose
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import Count, NonNegative, configurable

_FIRST = 10
"""Steps of PGD that choose the targets."""
_CYCLE, _PART = 30, 10
"""Steps of a cycle, and of each of its three parts."""
_LEAST = 0.05
"""Smallest slack."""


@configurable
class ConstraintRelaxation(Attack):
    """Constraint relaxation (CR) attack: targeted ascent that leaves the ball by a slack s and returns to it.

    Ten steps of PGD on the cross-entropy, of size eps/2 from a random point, choose the targets: the wrong classes
    with the largest logits at the last point. For each target t in turn, sign steps of size s eps on z_t - z_y start
    from a random point in the ball, in cycles of 30 steps. The first ten steps of a cycle are in the ball of radius
    (1 + s) eps, and ten in that of radius eps. Then the point is projected to the radius (1 - s) eps, uniform noise of
    size s eps is added, and ten steps in the ball of radius eps follow. The slack s is 0.5 in the first cycle and is
    halved with each further one, down to 0.05.

    Points outside eps never count. A target is given up if z_y - z_t is above s at the last evaluation of the second
    part of a cycle. All targets are attacked again, from other random points, while the lowest margin of the image is
    within ``threshold`` of zero. Without early stop the point of lowest margin is returned.

    The attack takes few passes on images with large margins. Where gradients are masked it can miss most adversarial
    examples, more than AutoAttack does, so it complements other attacks and does not replace them.

    Args:
        steps: maximum number of steps for each target.
        targets: maximum number of target classes, capped at C - 1. A row with a target uses only that one.
        restarts: maximum number of starts for each target: the first, and five more.
        threshold: distance of the lowest margin from zero, in logits, up to which an image is attacked again.
    """

    source = ("pan2026fastat",)
    example = "cr:steps=90,targets=2"

    steps: Count = 150
    targets: Count = 3
    restarts: Count = 6
    threshold: NonNegative = 0.05

    records = ("zero_gradients",)
    norms = ("Linf",)
    may_end_early = True  # targets are given up, and not all images are attacked again

    @property
    def length(self) -> int:
        """Evaluations: those of PGD, and one for each step of all starts."""
        return _FIRST + 1 + self.restarts * self.targets * self.steps

    @property
    def starts(self) -> int:
        """One: the targets depend on the first steps, and further starts on the margins of the earlier ones."""
        return 1

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start PGD from a random point in the ball."""
        del model
        x, zero = inputs.inside(), torch.zeros_like(inputs.y)
        return {
            "x": x,
            "relaxed": zero > 0,
            "turn": zero - 1,
            "taken": zero.clone(),
            "target": zero.clone(),
            "targets": zero[:, None].repeat(1, self.targets),
            "lowest": torch.full(zero.shape, torch.inf, dtype=x.dtype, device=x.device),
            "best_x": x.clone(),
            "iteration": zero.clone(),
            "zero_gradients": zero.clone(),
            "done": zero > 0,
        }

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Evaluate the iterate, and take a step or begin with the next target."""
        x, turn, taken = state["x"], state["turn"], state["taken"]
        first = turn < 0
        logits, gradient = value_and_gradient(model, x, lambda logits: self._loss(logits, inputs, state))
        margin = torch.where(state["relaxed"], torch.inf, losses.margin(logits, inputs.y))
        aimed = -losses.towards(logits, inputs.y, state["target"])
        value, targets, each = margin, _largest_others(logits, inputs.y, self.targets), state["targets"]
        per_start = torch.full_like(turn, min(self.targets, logits.shape[1] - 1))
        if inputs.target is not None:
            given = inputs.target >= 0
            toward = -losses.towards(logits, inputs.y, inputs.target.clamp_min(0))
            value = torch.where(given, torch.where(state["relaxed"], torch.inf, toward), value)
            targets = torch.where(given[:, None], inputs.target[:, None], targets)
            per_start = torch.where(given, 1, per_start)
        targets = choose(first, targets, each)
        lower = value < state["lowest"]
        lowest, best_x = torch.where(lower, value, state["lowest"]), choose(lower, x, state["best_x"])

        slack = self._slack(taken)
        gives_up = (taken % _CYCLE == 2 * _PART - 1) & (aimed > slack)
        ends = torch.where(first, taken >= _FIRST, gives_up | (taken >= self.steps - 1))
        following = turn + ends
        over = ends & (following > 0) & (following % per_start == 0)
        done = over & ((following >= per_start * self.restarts) | (lowest.abs() > self.threshold))
        moved, relaxed = self._moved(inputs, state, gradient, slack)
        return {
            "x": choose(done, best_x, self._renewed(inputs, state, moved, slack, ends)),
            "seen": x,
            "margin": margin,
            "relaxed": relaxed & ~ends,
            "turn": following,
            "taken": torch.where(ends, 0, taken + 1),
            "target": targets.gather(1, (following.clamp_min(0) % per_start)[:, None]).squeeze(1),
            "targets": targets,
            "lowest": lowest,
            "best_x": best_x,
            "iteration": state["iteration"] + 1,
            "zero_gradients": state["zero_gradients"] + (gradient.flatten(1).abs().amax(1) == 0),
            "done": done,
        }

    def _loss(self, logits: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        """In the steps of PGD the cross-entropy, or for rows with a target the negative one of the target."""
        first = losses.cross_entropy(logits, inputs.y)
        if inputs.target is not None:
            toward = -losses.cross_entropy(logits, inputs.target.clamp_min(0))
            first = torch.where(inputs.target >= 0, toward, first)
        return torch.where(state["turn"] < 0, first, losses.towards(logits, inputs.y, state["target"]))

    @staticmethod
    def _slack(taken: Tensor) -> Tensor:
        """The slack at a step of a target, float (N,)."""
        return torch.exp2(-1.0 - taken.div(_CYCLE, rounding_mode="floor")).clamp_min(_LEAST)

    @staticmethod
    def _moved(inputs: AttackInputs, state: State, gradient: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
        """The point after a step, projected to its ball, and whether that ball is the larger one, bool (N,)."""
        threat, first = inputs.threat, state["turn"] < 0
        radius = threat.radius(inputs.x)
        unit = radius if inputs.step_size is None else 2 * _column(inputs.step_size, inputs.x)
        size = unit * _column(torch.where(first, 0.5, slack), inputs.x)
        relaxed = ~first & (state["taken"] % _CYCLE < _PART)
        ball = threat.with_epsilon(radius.flatten() * torch.where(relaxed, 1 + slack, 1.0))
        return ball.project(state["x"] + size * threat.steepest(gradient, inputs.x), inputs.x), relaxed

    def _renewed(self, inputs: AttackInputs, state: State, moved: Tensor, slack: Tensor, ends: Tensor) -> Tensor:
        """The next point: the one moved to; before the third part of a cycle with noise; random for the next target.

        Args:
            inputs: the inputs.
            state: the state before the step.
            moved: the points after the step, shaped like ``x``.
            slack: the slack of each row, (N,).
            ends: the rows whose target ends with the step, bool (N,).
        """
        threat, turn, taken = inputs.threat, state["turn"], state["taken"] + 1
        radius = threat.radius(inputs.x)
        counter = 1 + torch.where(ends, (turn + 1) * self.steps, turn.clamp_min(0) * self.steps + taken)
        noise = inputs.uniform(tuple(inputs.x.shape[1:]), counter) * 2 - 1
        shrunk = threat.with_epsilon(radius.flatten() * (1 - slack)).project(moved, inputs.x)
        size = radius * _column(torch.where(ends, 1.0, slack), inputs.x)
        random = threat.project(choose(ends, inputs.x, shrunk) + size * noise, inputs.x)
        return choose(ends | ((turn >= 0) & (taken % _CYCLE == 2 * _PART)), random, moved)


def _largest_others(logits: Tensor, y: Tensor, count: int) -> Tensor:
    """The wrong classes with the largest logits, int64 (N, count), the largest first; padded with class 0."""
    others = logits.scatter(1, y[:, None], -torch.inf)
    ranked = others.sort(dim=1, descending=True, stable=True).indices[:, : min(count, logits.shape[1] - 1)]
    return functional.pad(ranked, (0, count - ranked.shape[1]))


def _column(values: Tensor, like: Tensor) -> Tensor:
    """Values (N,) shaped to broadcast over images."""
    return values.to(like.dtype).view(-1, *[1] * (like.ndim - 1))
