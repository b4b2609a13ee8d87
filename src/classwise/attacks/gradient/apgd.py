"""Auto-PGD: projected gradient ascent with a step size adapted to each image.

APGD, its losses and its targets: Croce and Hein, ICML 2020, algorithm 1. The variant for L1: Croce and Hein, ICML 2021.
Step size, checkpoint, target and best point are columns of the state, so images of a batch may be at different steps.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.base import Attack, TargetedAttack
from classwise.attacks.engine import AttackInputs, ImageGradients, State, value_and_gradient
from classwise.attacks.engine.rows import choose
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import Count, Share, configurable
from classwise.threat.ball import NORM_BALLS, Threat

_FIRST, _SHRINK, _SHORTEST = 22, 3, 6
"""Length of the first checkpoint interval, decrement of each further one, and minimum; in percent of the steps."""
_TINY = 1e-12


@configurable
class AutoPGD(Attack):
    """Base class of the Auto-PGD attacks.

    A start takes ``steps`` steps and ``steps + 1`` evaluations, and returns the point of highest loss.

    Linf and L2: the step size is 2 eps at first, with momentum. At a checkpoint it is halved, and the iterate is set to
    the best point, if too few steps since the last checkpoint increased the loss or the best loss did not improve.

    L1: steps of at most eps along the signs of the largest gradient entries, of which fewer are used as the
    perturbation becomes sparser. The radius is 3, 2 and 1 eps over 30, 30 and 40 % of the steps; only points within
    eps count.

    Args:
        steps: number of steps per start.
        restarts: maximum number of starts per image (per target, if the attack has targets).
        rho: fraction of the steps between two checkpoints that must increase the loss, in [0, 1] (Linf and L2).
        eot_iter: number of passes averaged at each point, for randomised models (expectation over transformation).
    """

    steps: Count = 100
    restarts: Count = 1
    rho: Share = 0.75
    eot_iter: Count = 1

    records = ("zero_gradients",)
    norms = (*NORM_BALLS, "recolour")

    @property
    def length(self) -> int:
        """Evaluations per start."""
        return self.steps + 1

    @abstractmethod
    def loss(self, logits: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        """The loss to maximise, (N,), of logits (N, classes)."""

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start from a random point on the surface of the ball (for L1: the enlarged ball), projected to [0, 1]."""
        del model
        x, threat = self._start_point(inputs), inputs.threat
        count = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        lowest = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
        state = {
            "x": x,
            "best_x": x.clone(),
            "best_gradient": torch.zeros_like(x),
            "best_loss": lowest,
            "moves": count - 1,
            "iteration": count,
            "zero_gradients": count.clone(),
            "done": count > 0,
        }
        if threat.norm == "L1":
            active = _changed(x, inputs.x)
            return state | {
                "active": active,
                "share": active / inputs.x[0].numel() / 1.5,
                "step_size": self._full_step(inputs, self._enlarged(inputs, count)),
            }
        return state | {
            "previous": x.clone(),
            "loss": -lowest,
            "rises": count.clone(),
            "wait": count + max(_FIRST * self.steps // 100, 1),
            "step_size": self._full_step(inputs, threat),
            "halved": count == 0,
            "checked_loss": lowest.clone(),
        }

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Evaluate the iterate, update the best point, and take a step."""
        x = state["x"]
        logits, value, gradient = self._evaluate(model, inputs, state)
        better = value > state["best_loss"]
        iteration = state["iteration"]
        last = iteration >= self.steps
        state = {
            **state,
            "seen": x,
            "margin": losses.margin(logits, inputs.y),
            "best_x": choose(better, x, state["best_x"]),
            "best_gradient": choose(better, gradient, state["best_gradient"]),
            "best_loss": torch.where(better, value, state["best_loss"]),
            "zero_gradients": torch.add(
                state["zero_gradients"], gradient.flatten(1).abs().amax(1) == 0, alpha=self.eot_iter
            ),
            "moves": state["moves"] + 1,
        }
        best_x = state["best_x"]
        moved = (self._sparse if inputs.threat.norm == "L1" else self._dense)(inputs, state, value, gradient)
        return {
            **moved,
            "x": choose(last, best_x, moved["x"]),
            "iteration": (iteration + 1).clamp_max(self.steps),
            "done": last,
        }

    def _evaluate(self, model: Forward, inputs: AttackInputs, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (N, classes), losses (N,) and gradients at the iterate, each averaged over ``eot_iter`` passes."""

        def loss(logits: Tensor) -> Tensor:
            return self.loss(logits, inputs, state)

        logits, gradient = value_and_gradient(model, state["x"], loss)
        value = loss(logits)
        for _ in range(self.eot_iter - 1):
            more, slope = value_and_gradient(model, state["x"], loss)
            logits, value, gradient = logits + more, value + loss(more), gradient + slope
        return logits / self.eot_iter, value / self.eot_iter, gradient / self.eot_iter

    def _dense(self, inputs: AttackInputs, state: State, value: Tensor, gradient: Tensor) -> State:
        """The step for Linf and L2."""
        threat, moves = inputs.threat, state["moves"]
        rises = state["rises"] + (value > state["loss"])
        check = moves == state["wait"]
        stalled = ~state["halved"] & (state["checked_loss"] >= state["best_loss"])
        halve = check & ((rises <= self.rho * moves) | stalled)
        step_size = choose(halve, state["step_size"] / 2, state["step_size"])
        here = choose(halve, state["best_x"], state["x"])
        direction = threat.steepest(choose(halve, state["best_gradient"], gradient), inputs.x)
        toward = threat.project(here + step_size * direction, inputs.x)
        weight = torch.where(state["iteration"] > 0, 0.75, 1.0).to(here.dtype).view_as(step_size)
        shortest, shrink = max(_SHORTEST * self.steps // 100, 1), max(_SHRINK * self.steps // 100, 1)
        moved = here + weight * (toward - here) + (1 - weight) * (here - state["previous"])
        return {
            **state,
            "x": threat.project(moved, inputs.x),
            "previous": here,
            "loss": value,
            "rises": torch.where(check, 0, rises),
            "moves": torch.where(check, 0, moves),
            "wait": torch.where(check, (state["wait"] - shrink).clamp_min(shortest), state["wait"]),
            "step_size": step_size,
            "halved": torch.where(check, halve, state["halved"]),
            "checked_loss": torch.where(check, state["best_loss"], state["checked_loss"]),
        }

    def _sparse(self, inputs: AttackInputs, state: State, value: Tensor, gradient: Tensor) -> State:
        """The step for L1; where the radius changes, the best point at the old radius is projected."""
        del value
        iteration, size = state["iteration"], inputs.x[0].numel()
        phase, next_phase = self._phase(iteration), self._phase(iteration + 1)
        enlarged, next_enlarged = self._enlarged(inputs, iteration), self._enlarged(inputs, iteration + 1)
        turns = next_phase > phase
        first, second = self._turns
        waits = [max(4 * steps // 100, 1) for steps in (first, second - first, self.steps - second)]
        wait = torch.where(phase == 0, waits[0], torch.where(phase == 1, waits[1], waits[2]))
        check = state["moves"] == wait

        changed, full = _changed(state["best_x"], inputs.x), self._full_step(inputs, enlarged)
        sparser = check & (changed < 0.95 * state["active"])
        shorter = torch.minimum(torch.maximum(state["step_size"] / 1.5, full / 10), full)
        step_size = choose(sparser, full, choose(check, shorter, state["step_size"]))
        active = torch.where(check, changed, state["active"])
        share = torch.where(check, changed / size / 1.5, state["share"])

        here = choose(sparser, state["best_x"], state["x"])
        signs = _largest_signs(choose(sparser, state["best_gradient"], gradient), share)
        length = signs.flatten(1).abs().sum(1).clamp_min(1).view_as(step_size)
        moved = choose(turns, state["best_x"], here + step_size * signs / length)
        x = next_enlarged.project(moved, inputs.x)

        changed_at_turn = _changed(x, inputs.x)
        return {
            **state,
            "x": x,
            "margin": torch.where(phase == 2, state["margin"], torch.inf),
            "moves": torch.where(turns, -1, torch.where(check, 0, state["moves"])),
            "active": torch.where(turns, changed_at_turn, active),
            "share": torch.where(turns, changed_at_turn / size / 1.5, share),
            "step_size": choose(turns, self._full_step(inputs, next_enlarged), step_size),
            "best_loss": torch.where(turns, -torch.inf, state["best_loss"]),
        }

    @property
    def _turns(self) -> tuple[int, int]:
        """The evaluations at which the radius becomes 2 eps and eps."""
        return 3 * self.steps // 10, 6 * self.steps // 10

    def _phase(self, iteration: Tensor) -> Tensor:
        """Index of the radius at an evaluation (0: 3 eps, 1: 2 eps, 2: eps), int64 (N,)."""
        first, second = self._turns
        return (iteration >= first).long() + (iteration >= second).long()

    def _enlarged(self, inputs: AttackInputs, iteration: Tensor) -> Threat:
        """The ball of each row at an evaluation."""
        radius = inputs.threat.radius(inputs.x).flatten()
        return inputs.threat.with_epsilon(radius * (3 - self._phase(iteration)))

    def _full_step(self, inputs: AttackInputs, threat: Threat) -> Tensor:
        """The initial and largest step size of each row, (N, 1, ...)."""
        shape = (-1, *[1] * (inputs.x.ndim - 1))
        if inputs.step_size is not None:
            return inputs.step_size.to(inputs.x.dtype).reshape(shape).clone()
        return (1.0 if threat.norm == "L1" else 2.0) * threat.radius(inputs.x).expand(len(inputs.x), *shape[1:])

    def _start_point(self, inputs: AttackInputs) -> Tensor:
        shape, threat = tuple(inputs.x.shape[1:]), inputs.threat
        if threat.norm == "L1":
            first = torch.zeros(len(inputs.x), dtype=torch.int64, device=inputs.x.device)
            return self._enlarged(inputs, first).project(inputs.x + inputs.normal(shape), inputs.x)
        if threat.norm == "Linf":
            ray = inputs.uniform(shape).mul(2).sub(1)
            ray = ray / ray.flatten(1).abs().amax(1).clamp_min(1e-12).view(-1, *[1] * len(shape))
        else:
            ray = threat.steepest(inputs.normal(shape), inputs.x)
        return threat.project(inputs.x + threat.radius(inputs.x) * ray, inputs.x)


@configurable
class APGD(AutoPGD):
    """Auto-PGD on the cross-entropy, or on the difference of logits ratio.

    Args:
        steps: number of steps per start.
        restarts: maximum number of starts per image.
        rho: fraction of the steps between two checkpoints that must increase the loss, in [0, 1] (Linf and L2).
        eot_iter: number of passes averaged at each point, for randomised models (expectation over transformation).
        objective: ``"ce"``, or ``"dlr"`` (with 2 classes the margin, with a warning).
    """

    source = ("croce2020reliable", "croce2021mind")
    example = "apgd-ce:steps=50,restarts=2"

    objective: Literal["ce", "dlr"] = "ce"

    @property
    def cross_entropy(self) -> bool:
        """Decided by the ``objective``."""
        return self.objective == "ce"

    def loss(self, logits: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        """The untargeted loss; for rows with a target, the targeted one."""
        del state
        y, target = inputs.y, inputs.target
        if self.objective == "ce":
            if target is None:
                return losses.cross_entropy(logits, y)
            is_targeted = target >= 0
            value = losses.cross_entropy(logits, torch.where(is_targeted, target, y))
            return torch.where(is_targeted, -value, value)
        if target is None:
            return losses.dlr(logits, y)
        targeted = losses.targeted_dlr(logits, y, target.clamp_min(0))
        return torch.where(target >= 0, targeted, losses.dlr(logits, y))


@configurable
class APGDDLR(APGD):
    """Auto-PGD with the difference of logits ratio as the default ``objective``."""

    source = ("croce2020reliable", "croce2021mind")
    example = "apgd-dlr:steps=50,restarts=2"

    objective: Literal["ce", "dlr"] = "dlr"


@configurable
class APGDT(TargetedAttack, AutoPGD):
    """Auto-PGD on the targeted difference of logits ratio, one target after the other.

    The targets are the other classes in the order of their logits on the clean image, highest first; at most C - 1 for
    C classes. ``order="linearised"`` sorts the same targets by the distance of the decision boundary to each of them
    in the linearised model, nearest first: (z_y - z_t) / ‖∇(z_y - z_t)‖ with the dual norm of the threat. This takes
    one forward pass and a backward pass per target, once. MALT (Melamed, Yehudai and Shamir, NeurIPS 2024) chooses its
    targets by such a ratio among 100 classes. A row with a target uses only that one.

    With 2 or 3 classes the difference of logits ratio is undefined or constant (`losses.targeted_dlr`), so the loss is
    the margin z_t - z_y, with one warning per process. With 4 or more classes the loss equals that of the reference
    implementation, which always takes 9 targets, needs another number of targets below 10 classes, and fails below 4
    classes.

    Args:
        steps: number of steps per start.
        restarts: maximum number of starts per target.
        rho: fraction of the steps between two checkpoints that must increase the loss, in [0, 1] (Linf and L2).
        eot_iter: number of passes averaged at each point, for randomised models (expectation over transformation).
        targets: maximum number of target classes, capped at C - 1.
        order: ``"logits"``, or ``"linearised"`` (the distance to the linearised decision boundary).
    """

    source = ("croce2020reliable", "croce2021mind")
    example = "apgd-t:steps=50,targets=3"

    targets: Count = 9
    order: Literal["logits", "linearised"] = "logits"

    def described(self) -> dict[str, Any]:
        """The fields as in a spec; the default order is left out, as in audits written before the option existed."""
        fields: dict[str, Any] = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if name != "order" or self.orders_targets}

    @property
    def orders_targets(self) -> bool:
        """The linearised order takes passes."""
        return self.order == "linearised"

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Start from a random point, with the target class of this start."""
        order = self.target_order(model, inputs) if inputs.target_order is None else inputs.target_order
        rank = torch.zeros_like(inputs.y) if inputs.restart is None else inputs.restart // self.restarts
        target = order.gather(1, rank[:, None] % order.shape[1]).squeeze(1)
        if inputs.target is not None:
            target = torch.where(inputs.target >= 0, inputs.target, target)
        return super().start(model, inputs) | {"target": target}

    def loss(self, logits: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        """The targeted difference of logits ratio for the row's target."""
        return losses.targeted_dlr(logits, inputs.y, state["target"])

    def target_order(self, model: Forward, inputs: AttackInputs) -> Tensor:
        """The target classes in the chosen order."""
        reference, y = inputs.reference, inputs.y
        assert reference is not None
        others = reference.scatter(1, y[:, None], -torch.inf)
        ranked = others.sort(dim=1, descending=True, stable=True).indices[:, :-1]
        if not self.orders_targets:
            return ranked
        targets = ranked[:, : self.targets]
        margins = reference.gather(1, y[:, None]) - reference.gather(1, targets)
        slopes = [_slope(gradient, inputs) for gradient in _margin_gradients(model, inputs, targets)]
        distances = margins / torch.stack(slopes, 1).clamp_min(_TINY)
        return targets.gather(1, distances.sort(dim=1, stable=True).indices)


def _margin_gradients(model: Forward, inputs: AttackInputs, targets: Tensor) -> Iterator[Tensor]:
    """Yield the gradients of z_y - z_t at the clean images for each column of targets, from one forward pass."""
    gradients = ImageGradients(model, inputs.x)
    for target in targets.unbind(1):

        def margins(logits: Tensor, target: Tensor = target) -> Tensor:
            return -losses.towards(logits, inputs.y, target)

        yield gradients.of(margins, retain=True)


def _slope(gradient: Tensor, inputs: AttackInputs) -> Tensor:
    """The dual norm of a gradient, (N,): the most that a linear function changes within a ball of radius 1."""
    if inputs.threat.norm == "L1":
        return gradient.flatten(1).abs().amax(1)
    return (gradient * inputs.threat.steepest(gradient, inputs.x)).flatten(1).sum(1)


def _changed(x: Tensor, x0: Tensor) -> Tensor:
    """Number of entries of each image that differ from the clean one, float (N,)."""
    return (x != x0).flatten(1).sum(1).to(x0.dtype)


def _largest_signs(gradient: Tensor, share: Tensor) -> Tensor:
    """The signs of a fraction ``share`` in [0, 1], (N,), of each row's largest entries (at least one), else zero."""
    size = gradient.abs().flatten(1)
    count = (share * size.shape[1]).long().clamp(1, size.shape[1])
    threshold = size.sort(1, descending=True).values.gather(1, count[:, None] - 1)
    return torch.where(size >= threshold, gradient.flatten(1).sign(), 0).view_as(gradient)
