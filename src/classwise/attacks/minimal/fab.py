"""FAB: projections onto the linearised decision boundary, biased towards the clean image.

Croce and Hein, "Minimally distorted adversarial examples with a fast adaptive boundary attack", ICML 2020; targets as
in AutoAttack (Croce and Hein, ICML 2020).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.base import Attack, TargetedAttack
from classwise.attacks.engine import AttackInputs, ImageGradients, State, value_and_gradient
from classwise.attacks.engine.rows import choose
from classwise.attacks.minimal.base import evaluated, initial_best, updated_best
from classwise.attacks.minimal.hyperplane import shift_onto
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import Count, Positive, Share, configurable

_FACTORS = tuple(1 + step / 1024 for step in (0, -1, -2, -4, -8, -16, 1, 2, 4, 8, 16, 32, 64))
"""Multiples of the nearest perturbation found that are tried in true float32, since TF32 errs near the boundary."""


@configurable
class _Boundary(Attack):
    """Base class of the FAB attacks, which differ in the boundary that they project onto.

    FAB is a minimum-norm attack: the radius only decides which points count as a success, and sets the initial distance
    of restarts. So a run with ``early_stop=False`` gives the ``minimal_distance`` of each image, from which the
    accuracy at every radius follows.

    Args:
        steps: iterations per start.
        alpha_max: maximum weight of the projection of the clean image, relative to that of the iterate.
        eta: overshoot of a projection; 1 ends on the boundary.
        beta: factor of the perturbation of a misclassified iterate in the backward step towards the clean image.
        restarts: maximum number of starts (per target, if the attack has targets); all but the first start from a
            random point at half the radius.
    """

    steps: Count = 100
    alpha_max: Share = 0.1
    eta: Positive = 1.05
    beta: Share = 0.9
    restarts: Count = 1

    norms = ("Linf", "L2")
    minimises = "minimal_distance"
    precise = "tf32"  # at the decision boundary two logits are equal, and bfloat16 cannot resolve which is larger
    records = ("minimal_distance",)

    @property
    def length(self) -> int:
        """Iterations per start."""
        return self.steps

    @abstractmethod
    def boundary(self, model: Forward, x: Tensor, inputs: AttackInputs, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (N, classes), the logit of another class minus that of the label (N,), and its gradient."""

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start from the clean image, or from a random point at half the radius."""
        del model
        attempt = self._attempt(inputs)
        away = inputs.threat.project(inputs.x + 0.5 * inputs.threat.radius(inputs.x) * self._ray(inputs), inputs.x)
        x = choose(attempt > 0, away, inputs.x)
        count = torch.zeros_like(inputs.y)
        return {"x": x, "iteration": count, "done": count > 0, **initial_best(inputs)}

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Project the iterate and the clean image onto the linearised boundary, combine the two, and evaluate."""
        x, clean = state["x"], inputs.x
        logits, value, normal = self.boundary(model, x, inputs, state)
        moved = self._mixed(x, clean, value, normal, inputs)
        with torch.no_grad():
            margin = losses.margin(model(moved), inputs.y)
        here = losses.margin(logits, inputs.y)
        # An iterate after a backward step may still be misclassified: then it is the nearer of the two points.
        far = torch.where(margin < 0, inputs.threat.distance(moved, clean), torch.inf)
        near = torch.where(here < 0, inputs.threat.distance(x, clean), torch.inf)
        first = near < far
        point = choose(first, x, moved)
        best = updated_best(state, point, torch.minimum(near, far))
        iteration = state["iteration"] + 1
        done = iteration >= self.steps
        following = choose(margin < 0, clean + self.beta * (moved - clean), moved)
        return {
            **state,
            **best,
            **evaluated(inputs, point, torch.where(first, here, margin)),
            "x": choose(done & best["minimal_distance"].isfinite(), best["best"], following),
            "iteration": iteration,
            "done": done,
        }

    def confirm(self, model: Forward, inputs: AttackInputs, state: State, image: Tensor) -> State:
        """Set ``best`` to the nearest point misclassified in true float32: the image, or one near the old ``best``."""
        clean = inputs.x
        found = {**initial_best(inputs), "best": image}
        for point in (image, *((clean + factor * (state["best"] - clean)).clamp(0, 1) for factor in _FACTORS)):
            misclassified = losses.margin(model(point), inputs.y) < 0
            found = updated_best(
                found, point, torch.where(misclassified, inputs.threat.distance(point, clean), torch.inf)
            )
        return {**state, **found, "x": found["best"]}

    def _mixed(self, x: Tensor, clean: Tensor, value: Tensor, normal: Tensor, inputs: AttackInputs) -> Tensor:
        """The next point: a weighted mean of the two projections, each with the overshoot ``eta``."""
        flat, back = normal.flatten(1), (clean - x).flatten(1)
        # Value at the iterate plus the change along the shift: avoids cancellation.
        at_clean = value + torch.linalg.vecdot(flat, back)
        points = torch.cat([x.flatten(1), clean.flatten(1)])
        shifts = shift_onto(points, torch.cat([flat, flat]), torch.cat([value, at_clean]), inputs.threat.norm)
        from_x, from_clean = shifts.view(2, *x.shape).unbind(0)
        reach_x, reach_clean = (
            inputs.threat.distance(shift, torch.zeros_like(shift)).clamp_min(1e-8) for shift in (from_x, from_clean)
        )
        weight = (reach_x / (reach_x + reach_clean)).clamp_max(self.alpha_max).view(-1, *[1] * (x.ndim - 1))
        mixed: Tensor = (x + self.eta * from_x) * (1 - weight) + (clean + self.eta * from_clean) * weight
        return mixed.clamp(0, 1)

    def _attempt(self, inputs: AttackInputs) -> Tensor:
        """Index of the current restart (of its target), int64 (N,)."""
        return torch.zeros_like(inputs.y) if inputs.restart is None else inputs.restart % self.restarts

    def _ray(self, inputs: AttackInputs) -> Tensor:
        """A random direction of norm 1, (N, C, H, W)."""
        shape = tuple(inputs.x.shape[1:])
        ray = inputs.uniform(shape) * 2 - 1 if inputs.threat.norm == "Linf" else inputs.normal(shape)
        size = inputs.threat.distance(ray, torch.zeros_like(ray)).clamp_min(1e-12)
        return ray / size.view(-1, *[1] * len(shape))


@configurable
class FAB(_Boundary):
    """Untargeted FAB: each step projects onto the nearest of the linearised boundaries to all other classes.

    An iteration takes 2 forward passes and classes - 1 backward passes (`FABTargeted`: 2 and 1), so use `FABTargeted`
    for many classes, as AutoAttack does. A row with a target uses the boundary to that class only.
    """

    source = ("croce2020minimally",)
    example = "fab:steps=50,restarts=2"

    def boundary(self, model: Forward, x: Tensor, inputs: AttackInputs, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """The nearest linearised boundary; only one gradient is in memory at a time."""
        del state
        dual = 1 if inputs.threat.norm == "Linf" else 2
        y = inputs.y

        def gap_to(rank: Tensor) -> Callable[[Tensor], Tensor]:
            return lambda logits: (logits.gather(1, rank[:, None]) - logits.gather(1, y[:, None])).squeeze(1)

        gradients = ImageGradients(model, x)
        logits = gradients.logits.detach()
        own = logits.gather(1, y[:, None])
        least = torch.full_like(logits[:, 0], torch.inf)
        value, normal = torch.zeros_like(least), torch.zeros_like(x)
        others = logits.shape[1] - 1
        for other in range(others):
            rank = other + (other >= y).to(torch.int64)  # skips the label
            gradient = gradients.of(gap_to(rank), retain=other + 1 < others)
            gap = (logits.gather(1, rank[:, None]) - own).squeeze(1).nan_to_num(0.0)
            size = torch.linalg.vector_norm(gradient.flatten(1), ord=dual, dim=1)
            length = gap.abs() / (size + 1e-12)
            if inputs.target is not None:
                length = torch.where((inputs.target < 0) | (inputs.target == rank), length, torch.inf)
            nearer = length < least
            least = torch.where(nearer, length, least)
            value = torch.where(nearer, gap, value)
            normal = choose(nearer, gradient, normal)
        return logits, value, normal


@configurable
class FABTargeted(TargetedAttack, _Boundary):
    """Targeted FAB: one target class per start, in the order of the clean logits, highest first.

    An iteration takes 2 forward passes and 1 backward pass for any number of classes. A row with a target uses only
    that one.

    Args:
        targets: maximum number of target classes, capped at C - 1.
    """

    source = ("croce2020minimally", "croce2020reliable")
    example = "fab-t:steps=50,targets=3"

    targets: Count = 9

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start from the clean image or a point near it, with the target class of this start."""
        assert inputs.reference is not None
        state = super().start(model, inputs)
        others = inputs.reference.shape[1] - 1
        rank = torch.zeros_like(inputs.y) if inputs.restart is None else inputs.restart // self.restarts
        target = losses.nth_other(inputs.reference, inputs.y, rank.clamp_max(others - 1))
        spare = rank >= others  # a start without a target is done
        if inputs.target is not None:
            target = torch.where(inputs.target >= 0, inputs.target, target)
            spare = spare | ((inputs.target >= 0) & (rank > 0))
        state["iteration"] = torch.where(spare, self.steps, state["iteration"])
        return {**state, "target": target, "done": spare}

    def boundary(self, model: Forward, x: Tensor, inputs: AttackInputs, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """The linearised boundary between label and target."""
        pair = torch.stack([state["target"], inputs.y], 1)

        def gap(logits: Tensor) -> Tensor:
            toward_target, own = logits.gather(1, pair).unbind(1)
            return toward_target - own

        logits, gradient = value_and_gradient(model, x, gap)
        return logits, gap(logits).nan_to_num(0.0), gradient
