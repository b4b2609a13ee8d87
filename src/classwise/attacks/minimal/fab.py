"""FAB: walk along the linearised decision boundary, always towards the point of it that is nearest to the image.

Croce and Hein, "Minimally distorted adversarial examples with a fast adaptive boundary attack", ICML 2020; targets as
in AutoAttack (Croce and Hein, ICML 2020).
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, NoGradientError, State, image_gradient, value_and_gradient
from classwise.attacks.engine.rows import choose
from classwise.attacks.minimal.base import check_norm, remembered, reported, unfound
from classwise.attacks.minimal.hyperplane import toward
from classwise.core.config import Count, Positive, Share, configurable
from classwise.core.precision import Forward


@configurable
class _Boundary(Attack):
    """What both members share: where they step, given the boundary they look at.

    An attack of minimal distance: the radius plays no part in the steps, it only decides which points count. So a run
    with ``early_stop=False`` gives each image's ``minimal_distance``, from which accuracy at every radius follows.

    Args:
        steps: iterations of a start.
        alpha_max: the largest weight of the step from the clean image, against that from the iterate.
        eta: how far a step goes, as a multiple of the way to the boundary.
        beta: how much of its shift a misclassified iterate keeps when it is pulled back to the image.
        restarts: how many starts (a target); all but the first begin at random, half the radius away.
    """

    steps: Count = 100
    alpha_max: Share = 0.1
    eta: Positive = 1.05
    beta: Share = 0.9
    restarts: Count = 1

    norms = ("Linf", "L2")
    minimises = True
    precise = True  # it steps to where two logits are equal, and bfloat16 does not know which is larger there
    records = ("minimal_distance",)
    carries = ("minimal_distance", "best")

    @property
    def length(self) -> int:
        """Iterations of one start."""
        return self.steps

    @abstractmethod
    def boundary(self, model: Forward, x: Tensor, inputs: AttackInputs, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (N, classes); another class's logit minus the label's (N,), and its gradient, shaped like ``x``."""

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """The image itself, or a point half the radius away."""
        del model
        check_norm(self, "FAB", inputs.threat.norm, "take APGD for L1")
        attempt = self._attempt(inputs)
        away = inputs.threat.project(inputs.x + 0.5 * inputs.threat.radius(inputs.x) * self._ray(inputs), inputs.x)
        x = choose(attempt > 0, away, inputs.x)
        count = torch.zeros_like(inputs.y)
        return {"x": x, "iteration": count, "done": count > 0, **unfound(inputs)}

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Linearise, go to the boundary from the iterate and from the image, mix the two, look where that leads."""
        x, clean = state["x"], inputs.x
        logits, value, normal = self.boundary(model, x, inputs, state)
        moved = self._mixed(x, clean, value, normal, inputs)
        with torch.no_grad():
            margin = losses.margin(model(moved), inputs.y)
        here = losses.margin(logits, inputs.y)
        # A point that was pulled back may be misclassified still: then it is the nearer of the two, and costs nothing.
        far = torch.where(margin < 0, inputs.threat.distance(moved, clean), torch.inf)
        near = torch.where(here < 0, inputs.threat.distance(x, clean), torch.inf)
        first = near < far
        point = choose(first, x, moved)
        found = remembered(state, point, torch.minimum(near, far))
        iteration = state["iteration"] + 1
        done = iteration >= self.steps
        following = choose(margin < 0, clean + self.beta * (moved - clean), moved)
        return {
            **state,
            **found,
            **reported(inputs, point, torch.where(first, here, margin)),
            "x": choose(done & found["minimal_distance"].isfinite(), found["best"], following),
            "iteration": iteration,
            "done": done,
        }

    def _mixed(self, x: Tensor, clean: Tensor, value: Tensor, normal: Tensor, inputs: AttackInputs) -> Tensor:
        """The next point: a mean of the two projections, each overshooting by ``eta``."""
        flat, back = normal.flatten(1), (clean - x).flatten(1)
        # The affine function at the image is its value at the iterate plus what changes on the way: no cancellation.
        at_clean = value + torch.linalg.vecdot(flat, back)
        points = torch.cat([x.flatten(1), clean.flatten(1)])
        shifts = toward(points, torch.cat([flat, flat]), torch.cat([value, at_clean]), inputs.threat.norm)
        from_x, from_clean = shifts.view(2, *x.shape).unbind(0)
        reach_x, reach_clean = (
            inputs.threat.distance(shift, torch.zeros_like(shift)).clamp_min(1e-8) for shift in (from_x, from_clean)
        )
        weight = (reach_x / (reach_x + reach_clean)).clamp_max(self.alpha_max).view(-1, *[1] * (x.ndim - 1))
        mixed: Tensor = (x + self.eta * from_x) * (1 - weight) + (clean + self.eta * from_clean) * weight
        return mixed.clamp(0, 1)

    def _attempt(self, inputs: AttackInputs) -> Tensor:
        """Which restart (of its target) a row is in, int64 (N,)."""
        return torch.zeros_like(inputs.y) if inputs.restart is None else inputs.restart % self.restarts

    def _ray(self, inputs: AttackInputs) -> Tensor:
        """A random direction of norm 1, shaped like the images."""
        shape = tuple(inputs.x.shape[1:])
        ray = inputs.uniform(shape) * 2 - 1 if inputs.threat.norm == "Linf" else inputs.normal(shape)
        size = inputs.threat.distance(ray, torch.zeros_like(ray)).clamp_min(1e-12)
        return ray / size.view(-1, *[1] * len(shape))


@configurable
class FAB(_Boundary):
    """FAB against every class at once: each step takes the boundary that looks nearest.

    It needs the gradient of every class's logit: an iteration costs 2 forward passes and classes - 1 backward passes,
    against 2 and 1 for `FABTargeted`. With many classes take that one, as AutoAttack does. A row with a target looks at
    that target's boundary only.
    """

    source = ("croce2020minimally",)
    example = "fab:steps=50,restarts=2"

    @property
    def starts(self) -> int:
        """Starts of an image."""
        return self.restarts

    def boundary(self, model: Forward, x: Tensor, inputs: AttackInputs, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """The nearest of the linearised boundaries; one gradient is held at a time, whatever the number of classes."""
        del state
        dual = 1 if inputs.threat.norm == "Linf" else 2
        with torch.enable_grad():
            leaf = x.detach().requires_grad_(True)
            logits = model(leaf)
            own = logits.gather(1, inputs.y[:, None])
            least = torch.full_like(own[:, 0], torch.inf).detach()
            value, normal = torch.zeros_like(least), torch.zeros_like(x)
            others = logits.shape[1] - 1
            for other in range(others):
                rank = other + (other >= inputs.y).to(torch.int64)  # the label itself is passed over
                gap = (logits.gather(1, rank[:, None]) - own).squeeze(1)
                found = image_gradient(gap, leaf, retain=other + 1 < others) if logits.requires_grad else None
                if found is None:
                    raise NoGradientError
                gradient, gap = found.nan_to_num(0.0, 0.0, 0.0), gap.detach().nan_to_num(0.0)
                size = torch.linalg.vector_norm(gradient.flatten(1), ord=dual, dim=1)
                length = gap.abs() / (size + 1e-12)
                if inputs.target is not None:
                    length = torch.where((inputs.target < 0) | (inputs.target == rank), length, torch.inf)
                nearer = length < least
                least = torch.where(nearer, length, least)
                value = torch.where(nearer, gap, value)
                normal = choose(nearer, gradient, normal)
        return logits.detach(), value, normal


@configurable
class FABTargeted(_Boundary):
    """FAB against one class at a time: the likeliest other class on the clean image, then the second, and so on.

    An iteration costs 2 forward passes and 1 backward pass, whatever the number of classes. A row with a target of its
    own has that one only.

    Args:
        targets: how many classes to try; fewer where the model has fewer others.
    """

    source = ("croce2020minimally", "croce2020reliable")
    example = "fab-t:steps=50,targets=3"

    targets: Count = 9

    @property
    def needs_reference(self) -> bool:
        """The targets are ranked by the clean logits."""
        return True

    @property
    def starts(self) -> int:
        """Targets times restarts."""
        return self.targets * self.restarts

    def starts_for(self, classes: int) -> int:
        """A start for each target that there is, and restart."""
        return min(self.targets, classes - 1) * self.restarts

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """The image (or a point near it) and the target of this start."""
        assert inputs.reference is not None
        state = super().start(model, inputs)
        others = inputs.reference.shape[1] - 1
        rank = torch.zeros_like(inputs.y) if inputs.restart is None else inputs.restart // self.restarts
        target = losses.nth_other(inputs.reference, inputs.y, rank.clamp_max(others - 1))
        spare = rank >= others  # a start for which there is no class left ends at once
        if inputs.target is not None:
            target = torch.where(inputs.target >= 0, inputs.target, target)
            spare = spare | ((inputs.target >= 0) & (rank > 0))
        state["iteration"] = torch.where(spare, self.steps, state["iteration"])
        return {**state, "target": target, "done": spare}

    def boundary(self, model: Forward, x: Tensor, inputs: AttackInputs, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """The linearised boundary to the target."""
        pair = torch.stack([state["target"], inputs.y], 1)

        def gap(logits: Tensor) -> Tensor:
            toward_target, own = logits.gather(1, pair).unbind(1)
            return toward_target - own

        logits, gradient = value_and_gradient(model, x, gap)
        return logits, gap(logits).nan_to_num(0.0), gradient
