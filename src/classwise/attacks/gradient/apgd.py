"""Auto-PGD: gradient ascent that finds its own step size, image by image.

APGD, its losses and its targets: Croce and Hein, ICML 2020, algorithm 1. The variant for L1: Croce and Hein, ICML 2021.
Every image's step, checkpoint, target and best point are columns, so an image may begin while its neighbours end.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State, value_and_gradient
from classwise.core.config import Count, Share, configurable
from classwise.core.precision import Forward
from classwise.core.threat import Threat

_FIRST, _SHRINK, _SHORTEST = 22, 3, 6
"""The wait for the first checkpoint, what each next wait is shorter by, and the shortest, in percent of the steps."""


@configurable
class AutoPGD(Attack):
    """What the family shares: the moves, the checkpoints and the best point.

    A start makes ``steps`` moves and ``steps + 1`` evaluations, and ends at the point of highest loss.

    Linf and L2: a step of 2 eps with momentum; it is halved, and the image returns to its best point, where the loss
    rose too seldom since the last checkpoint or the best loss stood still.

    L1: steps of at most eps along the signs of the largest gradients, of which fewer are used as the perturbation gets
    sparser; radii of 3, 2 and 1 eps over 30, 30 and 40 % of the steps. Points outside the true ball never count.

    Args:
        steps: how many moves a start makes.
        restarts: how many starts an image gets (per target, if the attack has targets).
        rho: the share of the moves between two checkpoints that must raise the loss, in [0, 1] (Linf and L2).
        samples: passes that are averaged at each point, for models that draw at random (EOT).
    """

    steps: Count = 100
    restarts: Count = 1
    rho: Share = 0.75
    samples: Count = 1

    records = ("zero_gradients",)

    @property
    def length(self) -> int:
        """Evaluations of one start: one more than its moves."""
        return self.steps + 1

    @property
    def starts(self) -> int:
        """Starts of an image."""
        return self.restarts

    @abstractmethod
    def loss(self, logits: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        """What to maximise, (N,), given logits (N, classes)."""

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """A random point on the surface of the (for L1: enlarged) ball, moved into [0, 1]."""
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
        """Evaluate the point, remember it if it is the best, move."""
        x = state["x"]
        logits, value, gradient = self._evaluate(model, inputs, state)
        better = value > state["best_loss"]
        iteration = state["iteration"]
        last = iteration >= self.steps
        state = {
            **state,
            "seen": x,
            "margin": losses.margin(logits, inputs.y),
            "best_x": _pick(better, x, state["best_x"]),
            "best_gradient": _pick(better, gradient, state["best_gradient"]),
            "best_loss": torch.where(better, value, state["best_loss"]),
            "zero_gradients": state["zero_gradients"] + (gradient.flatten(1).abs().amax(1) == 0),
            "moves": state["moves"] + 1,
        }
        best_x = state["best_x"]
        moved = (self._sparse if inputs.threat.norm == "L1" else self._dense)(inputs, state, value, gradient)
        return {
            **moved,
            "x": _pick(last, best_x, moved["x"]),
            "iteration": (iteration + 1).clamp_max(self.steps),
            "done": last,
        }

    def _evaluate(self, model: Forward, inputs: AttackInputs, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (N, classes), losses (N,) and gradients at the point, each a mean over the samples."""

        def loss(logits: Tensor) -> Tensor:
            return self.loss(logits, inputs, state)

        logits, gradient = value_and_gradient(model, state["x"], loss)
        value = loss(logits)
        for _ in range(self.samples - 1):
            more, slope = value_and_gradient(model, state["x"], loss)
            logits, value, gradient = logits + more, value + loss(more), gradient + slope
        return logits / self.samples, value / self.samples, gradient / self.samples

    def _dense(self, inputs: AttackInputs, state: State, value: Tensor, gradient: Tensor) -> State:
        """The move for Linf and L2."""
        threat, moves = inputs.threat, state["moves"]
        rises = state["rises"] + (value > state["loss"])
        check = moves == state["wait"]
        stalled = ~state["halved"] & (state["checked_loss"] >= state["best_loss"])
        halve = check & ((rises <= self.rho * moves) | stalled)
        step_size = _pick(halve, state["step_size"] / 2, state["step_size"])
        here = _pick(halve, state["best_x"], state["x"])
        direction = threat.steepest(_pick(halve, state["best_gradient"], gradient))
        toward = threat.project(here + step_size * direction, inputs.x)
        fresh = torch.where(state["iteration"] > 0, 0.75, 1.0).to(here.dtype).view_as(step_size)
        shortest, shrink = max(_SHORTEST * self.steps // 100, 1), max(_SHRINK * self.steps // 100, 1)
        moved = here + fresh * (toward - here) + (1 - fresh) * (here - state["previous"])
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
        """The move for L1; where a radius ends, the image goes on from the best point that it found there."""
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
        step_size = _pick(sparser, full, _pick(check, shorter, state["step_size"]))
        active = torch.where(check, changed, state["active"])
        share = torch.where(check, changed / size / 1.5, state["share"])

        here = _pick(sparser, state["best_x"], state["x"])
        signs = _largest_signs(_pick(sparser, state["best_gradient"], gradient), share)
        length = signs.flatten(1).abs().sum(1).clamp_min(1).view_as(step_size)
        moved = _pick(turns, state["best_x"], here + step_size * signs / length)
        x = next_enlarged.project(moved, inputs.x)

        begun = _changed(x, inputs.x)
        return {
            **state,
            "x": x,
            "margin": torch.where(phase == 2, state["margin"], torch.inf),
            "moves": torch.where(turns, -1, torch.where(check, 0, state["moves"])),
            "active": torch.where(turns, begun, active),
            "share": torch.where(turns, begun / size / 1.5, share),
            "step_size": _pick(turns, self._full_step(inputs, next_enlarged), step_size),
            "best_loss": torch.where(turns, -torch.inf, state["best_loss"]),
        }

    @property
    def _turns(self) -> tuple[int, int]:
        """The evaluations with which the radii of 2 eps and of eps begin."""
        return 3 * self.steps // 10, 6 * self.steps // 10

    def _phase(self, iteration: Tensor) -> Tensor:
        """Which of the three radii an evaluation is made at, int64 (N,)."""
        first, second = self._turns
        return (iteration >= first).long() + (iteration >= second).long()

    def _enlarged(self, inputs: AttackInputs, iteration: Tensor) -> Threat:
        """The ball of each row at its evaluation."""
        radius = inputs.threat.radius(inputs.x).flatten()
        return inputs.threat.with_epsilon(radius * (3 - self._phase(iteration)))

    def _full_step(self, inputs: AttackInputs, threat: Threat) -> Tensor:
        """The longest step of each row, (N, 1, ...)."""
        shape = (-1, *[1] * (inputs.x.ndim - 1))
        if inputs.step_size is not None:
            return inputs.step_size.to(inputs.x.dtype).reshape(shape).clone()
        return (1.0 if threat.norm == "L1" else 2.0) * threat.radius(inputs.x).expand(len(inputs.x), *shape[1:])

    def _start_point(self, inputs: AttackInputs) -> Tensor:
        shape, threat = tuple(inputs.x.shape[1:]), inputs.threat
        if threat.norm == "L1":
            begin = torch.zeros(len(inputs.x), dtype=torch.int64, device=inputs.x.device)
            return self._enlarged(inputs, begin).project(inputs.x + inputs.normal(shape), inputs.x)
        if threat.norm == "Linf":
            ray = inputs.uniform(shape).mul(2).sub(1)
            ray = ray / ray.flatten(1).abs().amax(1).clamp_min(1e-12).view(-1, *[1] * len(shape))
        else:
            ray = threat.steepest(inputs.normal(shape))
        return threat.project(inputs.x + threat.radius(inputs.x) * ray, inputs.x)


@configurable
class APGD(AutoPGD):
    """Auto-PGD on the cross-entropy, or on the difference of logits ratio.

    Args:
        steps: how many moves a start makes.
        restarts: how many starts an image gets.
        rho: the share of the moves between two checkpoints that must raise the loss, in [0, 1] (Linf and L2).
        samples: passes that are averaged at each point, for models that draw at random (EOT).
        objective: ``"ce"``, or ``"dlr"`` (with 2 classes: the margin, and a notice).
    """

    source = ("croce2020reliable", "croce2021mind")
    example = "apgd-ce:steps=50,restarts=2"

    objective: Literal["ce", "dlr"] = "ce"

    def loss(self, logits: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        """The objective against the label; for rows with a target, towards the target."""
        del state
        y, target = inputs.y, inputs.target
        if self.objective == "ce":
            if target is None:
                return losses.cross_entropy(logits, y)
            aimed = target >= 0
            value = losses.cross_entropy(logits, torch.where(aimed, target, y))
            return torch.where(aimed, -value, value)
        if target is None:
            return losses.dlr(logits, y)
        aimed = target >= 0
        toward = losses.targeted_dlr(logits, y, target.clamp_min(0))
        return torch.where(aimed, toward, losses.dlr(logits, y))


@configurable
class APGDDLR(APGD):
    """Auto-PGD on the difference of logits ratio unless ``objective`` says else."""

    source = ("croce2020reliable", "croce2021mind")
    example = "apgd-dlr:steps=50,restarts=2"

    objective: Literal["ce", "dlr"] = "dlr"


@configurable
class APGDT(AutoPGD):
    """Auto-PGD on the targeted difference of logits ratio, one target after the other.

    The targets are the wrong classes with the highest logits on the clean image, the highest first: at most C - 1 of
    them with C classes. A row with a target of its own keeps to that. With 2 or 3 classes the loss is the margin
    z_t - z_y, since the ratio is undefined or constant there (`losses.targeted_dlr`); a notice says so once. The
    reference implementation takes 9 targets whatever C is and has no form of the loss for C < 4: below 10 classes it
    needs another number of targets, and below 4 it fails. From 4 classes on the loss is the reference's.

    Args:
        steps: how many moves a start makes.
        restarts: how many starts an image gets for each target.
        rho: the share of the moves between two checkpoints that must raise the loss, in [0, 1] (Linf and L2).
        samples: passes that are averaged at each point, for models that draw at random (EOT).
        targets: how many wrong classes are tried; never more than there are.
    """

    source = ("croce2020reliable", "croce2021mind")
    example = "apgd-t:steps=50,targets=3"

    targets: Count = 9

    @property
    def needs_reference(self) -> bool:
        """The clean logits rank the targets."""
        return True

    @property
    def starts(self) -> int:
        """Starts of an image if there are classes enough."""
        return self.targets * self.restarts

    def starts_for(self, classes: int) -> int:
        """Starts of an image: one for each target and restart."""
        return min(self.targets, classes - 1) * self.restarts

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """The random point, and the class that this start aims at."""
        return super().start(model, inputs) | {"aim": self._aim(inputs)}

    def loss(self, logits: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        """The ratio for the class that the row aims at."""
        return losses.targeted_dlr(logits, inputs.y, state["aim"])

    def _aim(self, inputs: AttackInputs) -> Tensor:
        assert inputs.reference is not None
        others = inputs.reference.scatter(1, inputs.y[:, None], -torch.inf)
        ranked = others.sort(dim=1, descending=True, stable=True).indices
        turn = torch.zeros_like(inputs.y) if inputs.restart is None else inputs.restart // self.restarts
        aim = ranked.gather(1, turn[:, None] % (ranked.shape[1] - 1)).squeeze(1)
        return aim if inputs.target is None else torch.where(inputs.target >= 0, inputs.target, aim)


def _pick(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """``torch.where`` with a mask of rows."""
    return torch.where(mask.view(-1, *[1] * (no.ndim - 1)), yes, no)


def _changed(x: Tensor, x0: Tensor) -> Tensor:
    """How many entries of each image differ from the clean one, float (N,)."""
    return (x != x0).flatten(1).sum(1).to(x0.dtype)


def _largest_signs(gradient: Tensor, share: Tensor) -> Tensor:
    """The signs of each row's largest entries, a share of them in [0, 1], (N,), and at least one; elsewhere 0."""
    size = gradient.abs().flatten(1)
    count = (share * size.shape[1]).long().clamp(1, size.shape[1])
    threshold = size.sort(1, descending=True).values.gather(1, count[:, None] - 1)
    return torch.where(size >= threshold, gradient.flatten(1).sign(), 0).view_as(gradient)
