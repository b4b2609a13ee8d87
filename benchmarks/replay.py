"""Worst-class searches replayed on recorded outcomes over many random orders: their cost and their error rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.errors import ClasswiseError
from classwise.stats.best_arm import ROUNDING, Rules, contenders
from classwise.stats.confidence_sequence import intersect_bounds, success_bounds
from classwise.stats.counts import BoolArray, FloatArray, IntArray, class_labels, outcomes

LANES = 250
"""Maximal number of orders that are replayed side by side."""
LANES_CELLS = 4_000_000
"""Maximal number of survivors over all lanes; more images mean fewer lanes."""

STAGES = ("clean", "first", "escalation", "rest")


@dataclass(frozen=True)
class RecordedAudit:
    """Outcomes of a full audit on each image, and the cost of each stage.

    Args:
        labels: (N,) label of each image.
        clean: (N,) whether it is classified correctly without an attack.
        first: (N,) success of the first attack.
        escalation: (N,) success of the second attack.
        rest: (N,) success of one of the other attacks.
        passes: (N, 4) passes of each of `STAGES`, if the stage is run on the image.
        num_classes: C; by default the largest label + 1.

    Raises:
        ClasswiseError: if the lengths differ, or a label is out of range.
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
        columns = {"clean": clean, "first": first, "escalation": escalation, "rest": rest}
        for name, values in columns.items():
            object.__setattr__(self, name, outcomes(values, len(truth)))
        cost = np.asarray(passes, dtype=np.float64)
        if cost.shape != (len(truth), len(STAGES)):
            raise ClasswiseError(f"passes: expected shape ({len(truth)}, {len(STAGES)}), got {cost.shape}")
        for name, value in (("labels", truth), ("passes", cost), ("num_classes", classes)):
            object.__setattr__(self, name, value)

    @property
    def images(self) -> IntArray:
        """(C,) number of images of each class."""
        return np.bincount(self.labels, minlength=self.num_classes)

    @property
    def survives(self) -> BoolArray:
        """(N,) whether an image is robust against the first attack."""
        return self.clean & ~self.first

    @property
    def accuracy(self) -> FloatArray:
        """(C,) robust accuracies of a full audit; infinity for absent classes."""
        is_robust = self.survives & ~self.escalation & ~self.rest
        robust = np.bincount(self.labels[is_robust], minlength=self.num_classes)
        return np.where(self.images > 0, robust / np.maximum(self.images, 1), np.inf)

    @property
    def initial_passes(self) -> float:
        """Passes of the clean predictions and of the first attack on all correctly classified images."""
        return float(self.passes[:, 0].sum() + self.passes[self.clean, 1].sum())

    @property
    def full(self) -> float:
        """Passes of a full audit as a cascade, in which each attack runs on the survivors of the one before."""
        robust = self.survives & ~self.escalation
        return float(self.initial_passes + self.passes[self.survives, 2].sum() + self.passes[robust, 3].sum())


@dataclass(frozen=True)
class Replay:
    """Results of searches over R orders.

    Attributes:
        worst: (R,) the returned classes.
        low: (R,) lower ends of their intervals.
        high: (R,) upper ends.
        passes: (R,) passes of each search.
        unsettled: (R,) survivors that the whole suite did not attack.
        rounds: (R,) number of rounds.
        right: (R,) whether the accuracy of the returned class is within the tolerance of the lowest.
        covered: (R,) whether the interval covers the accuracy of the returned class.
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
        """(R,) passes as a fraction of those of a full audit."""
        return self.passes / self.full


def replay(recorded: RecordedAudit, orders: int, seed: int = 0, rules: Rules | None = None) -> Replay:
    """Replay the worst-class search on recorded outcomes over random orders of the survivors.

    Args:
        recorded: outcomes of a full audit.
        orders: number of orders.
        seed: seed of the orders.
        rules: rules of the search; None for the defaults.

    Raises:
        ClasswiseError: if ``orders`` is below 1.
    """
    if orders < 1:
        raise ClasswiseError(f"orders = {orders}: must be at least 1")
    generator = np.random.default_rng(seed)
    survivors = np.flatnonzero(recorded.survives)
    survivors = survivors[np.argsort(recorded.labels[survivors], kind="stable")]
    lanes = max(1, min(LANES, LANES_CELLS // max(len(survivors), 1)))
    parts = []
    for start in range(0, orders, lanes):
        keys = generator.random((min(lanes, orders - start), len(survivors)))
        order = survivors[np.argsort(recorded.labels[survivors] + keys, axis=1)]
        parts.append(_Lanes(recorded, order, rules or Rules()).run())
    joined = [np.concatenate([part[place] for part in parts]) for place in range(len(parts[0]))]
    worst, low, high, passes, unsettled, rounds = joined
    truth = recorded.accuracy
    tolerance = (rules or Rules()).tolerance
    accuracy = truth[worst.astype(np.int64)]
    return Replay(
        worst=worst.astype(np.int64),
        low=low,
        high=high,
        passes=passes,
        unsettled=unsettled.astype(np.int64),
        rounds=rounds.astype(np.int64),
        right=accuracy <= truth.min() + tolerance + ROUNDING,
        covered=(low <= accuracy + ROUNDING) & (accuracy <= high + ROUNDING),
        full=recorded.full,
    )


class _Lanes:
    """Searches over several orders side by side: a vectorised `classwise.stats.best_arm.BestArmSearch`.

    Args:
        recorded: outcomes of a full audit.
        order: (R, S) the survivors of the first attack, sorted by class, in random order within each class.
        rules: rules of the search.
    """

    def __init__(self, recorded: RecordedAudit, order: IntArray, rules: Rules) -> None:
        self.rules, self.images = rules, recorded.images
        lanes, classes = len(order), recorded.num_classes
        survivors = np.bincount(recorded.labels[recorded.survives], minlength=classes)
        self.survivors = np.broadcast_to(survivors, (lanes, classes))
        self.present = self.images > 0
        self.alpha = rules.share(int(self.present.sum()))
        self.priors = np.asarray(rules.priors)

        # Cumulative sums along each order: the result of a sample is the difference of two of them.
        escalates, success = recorded.escalation[order], (recorded.escalation | recorded.rest)[order]
        cost = recorded.passes[:, 2][order]
        rest_cost = recorded.passes[:, 3][order]
        self.first_hits, self.first_cost = _totals(success), _totals(cost + np.where(escalates, 0, rest_cost))
        self.falls, self.fall_cost = _totals(escalates), _totals(cost)
        robust = order[~escalates].reshape(lanes, -1)
        self.later_hits, self.later_cost = _totals(recorded.rest[robust]), _totals(recorded.passes[:, 3][robust])
        remaining = np.bincount(recorded.labels[robust[0]], minlength=classes) if lanes else survivors
        self.begin = np.concatenate([[0], np.cumsum(survivors)])[:-1]
        self.later_begin = np.concatenate([[0], np.cumsum(remaining)])[:-1]

        self.pool = self.survivors.copy()
        self.level, self.drawn, self.hits, self.known, self.skipped = (np.zeros_like(self.pool) for _ in range(5))
        self.least, self.most = np.zeros_like(self.pool), self.pool.copy()
        self.passes = np.full(lanes, recorded.initial_passes)
        self.rounds = np.zeros(lanes, dtype=np.int64)
        self.estimate, self.low, self.high = (np.full(self.pool.shape, np.inf) for _ in range(3))
        self._figures(*np.nonzero(np.ones_like(self.pool, dtype=np.bool_)))

    def run(self) -> tuple[FloatArray | IntArray, ...]:
        """Run all searches to their ends and return the columns of `Replay`."""
        rules, active = self.rules, np.arange(len(self.pool))
        first = True
        while len(active):
            figures = self.estimate[active], self.low[active], self.high[active]
            current = contenders(*figures, rules.tolerance, rules.classes_per_round)
            lane, label = active[np.nonzero(current.valid)[0]], current.labels[current.valid]
            active = active[current.valid.any(-1)]
            if first:
                row, label = np.nonzero(self.pool[active])
                lane = active[row]
            self.rounds[active] += 1
            at = lane, label
            up = (
                (self.level[at] + 1 < rules.levels)
                & (self.drawn[at] >= rules.escalation_share * self.pool[at])
                & (not first)
            )
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
        count = np.minimum(self.rules.sample_size, (self.pool - self.drawn)[at])
        later = self.level[at] > 0
        place = np.where(later, self.later_begin[label] + self.skipped[at], self.begin[label]) + self.drawn[at]
        before = self.first_hits, self.first_cost, ~later
        after = self.later_hits, self.later_cost, later
        for hits, cost, mask in (before, after):
            rows, columns, start, end = lane[mask], label[mask], place[mask], (place + count)[mask]
            self.hits[rows, columns] += (hits[rows, end] - hits[rows, start]).astype(np.int64)
            np.add.at(self.passes, rows, cost[rows, end] - cost[rows, start])
        self.drawn[at] += count

    def _escalate(self, lane: IntArray, label: IntArray) -> None:
        at = lane, label
        start = self.begin[label]
        here, end = start + self.drawn[at], start + self.pool[at]
        success = (self.falls[lane, end] - self.falls[lane, here]).astype(np.int64)
        # Survivors of the escalating attack that were sampled before are skipped in the later order.
        self.skipped[at] = self.drawn[at] - (self.falls[lane, here] - self.falls[lane, start]).astype(np.int64)
        np.add.at(self.passes, lane, self.fall_cost[lane, end] - self.fall_cost[lane, here])
        self.known[at] += self.hits[at] + success
        self.pool[at] -= self.drawn[at] + success
        self.drawn[at], self.hits[at] = 0, 0
        self.level[at] += 1

    def _bound(self, lane: IntArray, label: IntArray) -> None:
        at = lane, label
        a, b = self.priors[self.level[at]].T
        new = success_bounds(self.pool[at], self.drawn[at], self.hits[at], (a, b), self.alpha)
        self.least[at], self.most[at] = intersect_bounds(self.least[at], self.most[at], new, self.known[at])
        self._figures(lane, label)

    def _figures(self, lane: IntArray, label: IntArray) -> None:
        """Update estimates and bounds of the accuracies of some classes in some lanes."""
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
    """(R, S + 1) exclusive cumulative sums of each row."""
    return np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1, dtype=np.float64)], axis=1)
