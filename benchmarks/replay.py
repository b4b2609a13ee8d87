"""Races replayed on recorded outcomes, over many random orders at once: their cost, and how often they are right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.errors import ClasswiseError
from classwise.stats.best_arm import EASE, Rules, contenders
from classwise.stats.confidence_sequence import intersect_bounds, success_bounds
from classwise.stats.counts import BoolArray, FloatArray, IntArray, class_labels, outcomes

LANES = 250
"""Orders that are replayed side by side."""
LANES_CELLS = 4_000_000
"""How many survivors they may hold in all; with more images fewer orders go side by side."""

STAGES = ("clean", "first", "escalation", "rest")


@dataclass(frozen=True)
class RecordedAudit:
    """What a full audit found on each image, and what each stage of it cost.

    Args:
        labels: (N,) the class of each image.
        clean: (N,) whether it is right without an attack.
        first: (N,) whether the first attack breaks it.
        escalation: (N,) whether the second one does.
        rest: (N,) whether one of the others does.
        passes: (N, 4) passes of each of `STAGES`, as if the image came to it.
        num_classes: C; by default the largest label + 1.

    Raises:
        ClasswiseError: for lengths that differ, or a label without a class.
    """

    labels: IntArray
    clean: BoolArray
    first: BoolArray
    escalation: BoolArray
    rest: BoolArray
    passes: FloatArray
    num_classes: int

    def __init__(
        self,
        labels: ArrayLike,
        clean: ArrayLike,
        first: ArrayLike,
        escalation: ArrayLike,
        rest: ArrayLike,
        passes: ArrayLike,
        num_classes: int | None = None,
    ) -> None:
        classes = num_classes or int(np.max(np.asarray(labels), initial=0)) + 1
        truth = class_labels(labels, classes)
        found = {"clean": clean, "first": first, "escalation": escalation, "rest": rest}
        for name, values in found.items():
            object.__setattr__(self, name, outcomes(values, len(truth)))
        cost = np.asarray(passes, dtype=np.float64)
        if cost.shape != (len(truth), len(STAGES)):
            raise ClasswiseError(f"passes: expected shape ({len(truth)}, {len(STAGES)}), got {cost.shape}")
        for name, value in (("labels", truth), ("passes", cost), ("num_classes", classes)):
            object.__setattr__(self, name, value)

    @property
    def images(self) -> IntArray:
        """(C,) images of each class."""
        return np.bincount(self.labels, minlength=self.num_classes)

    @property
    def survives(self) -> BoolArray:
        """(N,) whether an image stands against the first attack."""
        return self.clean & ~self.first

    @property
    def accuracy(self) -> FloatArray:
        """(C,) what a full audit finds; infinity for absent classes."""
        is_robust = self.survives & ~self.escalation & ~self.rest
        right = np.bincount(self.labels[is_robust], minlength=self.num_classes)
        return np.where(self.images > 0, right / np.maximum(self.images, 1), np.inf)

    @property
    def initial_passes(self) -> float:
        """Passes of the clean pass and of the first attack on all images that are right."""
        return float(self.passes[:, 0].sum() + self.passes[self.clean, 1].sum())

    @property
    def full(self) -> float:
        """Passes of a full audit that hands only survivors to the next attack."""
        robust = self.survives & ~self.escalation
        return float(self.initial_passes + self.passes[self.survives, 2].sum() + self.passes[robust, 3].sum())


@dataclass(frozen=True)
class Replay:
    """Races over R orders.

    Attributes:
        worst: (R,) the answers.
        low: (R,) lower ends of their intervals.
        high: (R,) upper ends.
        passes: (R,) what each cost.
        unsettled: (R,) survivors never attacked to the end.
        rounds: (R,) how often the race looked at its figures and went on.
        right: (R,) whether the answer is within the tolerance of the worst class.
        covered: (R,) whether the interval holds the answer's accuracy.
        full: passes of a full audit.
    """

    worst: IntArray
    low: FloatArray
    high: FloatArray
    passes: FloatArray
    unsettled: IntArray
    rounds: IntArray
    right: BoolArray
    covered: BoolArray
    full: float

    @property
    def share(self) -> FloatArray:
        """(R,) passes as a share of a full audit's."""
        return self.passes / self.full


def replay(recorded: RecordedAudit, orders: int, seed: int = 0, rules: Rules | None = None) -> Replay:
    """BestArmSearch on recorded outcomes over many random orders.

    Args:
        recording: what a full audit found.
        orders: how many.
        seed: of the orders.
        rules: of the races.

    Raises:
        ClasswiseError: if there is no order.
    """
    if orders < 1:
        raise ClasswiseError(f"orders = {orders}: a replay needs at least 1")
    generator = np.random.default_rng(seed)
    survivors = np.flatnonzero(recorded.survives)
    survivors = survivors[np.argsort(recorded.labels[survivors], kind="stable")]
    lanes = max(1, min(LANES, LANES_CELLS // max(len(survivors), 1)))
    parts = []
    for begin in range(0, orders, lanes):
        keys = generator.random((min(lanes, orders - begin), len(survivors)))
        order = survivors[np.argsort(recorded.labels[survivors] + keys, axis=1)]
        parts.append(_Lanes(recorded, order, rules or Rules()).run())
    joined = [np.concatenate([part[place] for part in parts]) for place in range(len(parts[0]))]
    worst, low, high, passes, unsettled, rounds = joined
    truth = recorded.accuracy
    tolerance = (rules or Rules()).tolerance
    mine = truth[worst.astype(np.int64)]
    return Replay(
        worst=worst.astype(np.int64),
        low=low,
        high=high,
        passes=passes,
        unsettled=unsettled.astype(np.int64),
        rounds=rounds.astype(np.int64),
        right=mine <= truth.min() + tolerance + EASE,
        covered=(low <= mine + EASE) & (mine <= high + EASE),
        full=recorded.full,
    )


class _Lanes:
    """Races over several orders side by side; `classwise.stats.best_arm.BestArmSearch` is the same for one.

    Args:
        recording: the outcomes.
        order: (R, S) the survivors of the first attack, class after class, each class in its order.
        rules: the rules.
    """

    def __init__(self, recorded: RecordedAudit, order: IntArray, rules: Rules) -> None:
        self.rules, self.images = rules, recorded.images
        lanes, classes = len(order), recorded.num_classes
        survivors = np.bincount(recorded.labels[recorded.survives], minlength=classes)
        self.survivors = np.broadcast_to(survivors, (lanes, classes))
        self.present = self.images > 0
        self.alpha = rules.share(int(self.present.sum()))
        self.priors = np.asarray(rules.priors)

        # Running totals along each order: a draw is a difference of two of them.
        escalates, success = recorded.escalation[order], (recorded.escalation | recorded.rest)[order]
        cost = recorded.passes[:, 2][order]
        rest_cost = recorded.passes[:, 3][order]
        self.first_hits, self.first_cost = _totals(success), _totals(cost + np.where(escalates, 0, rest_cost))
        self.falls, self.fall_cost = _totals(escalates), _totals(cost)
        robust = order[~escalates].reshape(lanes, -1)
        self.later_hits, self.later_cost = _totals(recorded.rest[robust]), _totals(recorded.passes[:, 3][robust])
        left = np.bincount(recorded.labels[robust[0]], minlength=classes) if lanes else survivors
        self.begin = np.concatenate([[0], np.cumsum(survivors)])[:-1]
        self.later_begin = np.concatenate([[0], np.cumsum(left)])[:-1]

        self.pool = self.survivors.copy()
        self.level, self.drawn, self.hits, self.known, self.skipped = (np.zeros_like(self.pool) for _ in range(5))
        self.least, self.most = np.zeros_like(self.pool), self.pool.copy()
        self.passes = np.full(lanes, recorded.initial_passes)
        self.rounds = np.zeros(lanes, dtype=np.int64)
        self.estimate, self.low, self.high = (np.full(self.pool.shape, np.inf) for _ in range(3))
        self._figures(*np.nonzero(np.ones_like(self.pool, dtype=np.bool_)))

    def run(self) -> tuple[FloatArray | IntArray, ...]:
        """All races to their ends: the columns of `Replay`."""
        rules, active = self.rules, np.arange(len(self.pool))
        first = True
        while len(active):
            figures = self.estimate[active], self.low[active], self.high[active]
            who = contenders(*figures, rules.tolerance, rules.together)
            lane, label = active[np.nonzero(who.valid)[0]], who.labels[who.valid]
            active = active[who.valid.any(-1)]
            if first:
                row, label = np.nonzero(self.pool[active])
                lane = active[row]
            self.rounds[active] += 1
            at = lane, label
            up = (self.level[at] + 1 < rules.levels) & (self.drawn[at] >= rules.patience * self.pool[at]) & (not first)
            self._escalate(lane[up], label[up])
            self._draw(lane[~up], label[~up])
            self._bound(lane, label)
            first = False
        worst = contenders(self.estimate, self.low, self.high, rules.tolerance).worst
        rows = np.arange(len(worst))
        unsettled = (self.pool - self.drawn).sum(1)
        return worst, self.low[rows, worst], self.high[rows, worst], self.passes, unsettled, self.rounds

    def _draw(self, lane: IntArray, label: IntArray) -> None:
        at = lane, label
        count = np.minimum(self.rules.draw, (self.pool - self.drawn)[at])
        later = self.level[at] > 0
        place = np.where(later, self.later_begin[label] + self.skipped[at], self.begin[label]) + self.drawn[at]
        early = self.first_hits, self.first_cost, ~later
        late = self.later_hits, self.later_cost, later
        for hits, cost, mine in (early, late):
            rows, columns, here, end = lane[mine], label[mine], place[mine], (place + count)[mine]
            self.hits[rows, columns] += (hits[rows, end] - hits[rows, here]).astype(np.int64)
            np.add.at(self.passes, rows, cost[rows, end] - cost[rows, here])
        self.drawn[at] += count

    def _escalate(self, lane: IntArray, label: IntArray) -> None:
        at = lane, label
        start = self.begin[label]
        here, end = start + self.drawn[at], start + self.pool[at]
        success = (self.falls[lane, end] - self.falls[lane, here]).astype(np.int64)
        # Of those drawn before, the ones that the escalating attack left standing are skipped in the later order.
        self.skipped[at] = self.drawn[at] - (self.falls[lane, here] - self.falls[lane, start]).astype(np.int64)
        np.add.at(self.passes, lane, self.fall_cost[lane, end] - self.fall_cost[lane, here])
        self.known[at] += self.hits[at] + success
        self.pool[at] -= self.drawn[at] + success
        self.drawn[at], self.hits[at] = 0, 0
        self.level[at] += 1

    def _bound(self, lane: IntArray, label: IntArray) -> None:
        at = lane, label
        a, b = self.priors[self.level[at]].T
        found = success_bounds(self.pool[at], self.drawn[at], self.hits[at], (a, b), self.alpha)
        self.least[at], self.most[at] = intersect_bounds(self.least[at], self.most[at], found, self.known[at])
        self._figures(lane, label)

    def _figures(self, lane: IntArray, label: IntArray) -> None:
        """The accuracies again, where something changed."""
        at = lane, label
        a, b = self.priors[self.level[at]].T
        mean = (
            self.known[at]
            + self.hits[at]
            + (self.pool - self.drawn)[at] * (a + self.hits[at]) / (a + b + self.drawn[at])
        )
        success = np.clip(mean, self.least[at], self.most[at]), self.most[at], self.least[at]
        for target, number in zip((self.estimate, self.low, self.high), success, strict=True):
            accuracy = (self.survivors[at] - number) / np.maximum(self.images[label], 1)
            target[at] = np.where(self.present[label], accuracy, np.inf)


def _totals(values: FloatArray | BoolArray) -> FloatArray:
    """(R, S + 1): how much came before each place."""
    return np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1, dtype=np.float64)], axis=1)
