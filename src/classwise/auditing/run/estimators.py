"""Estimators: what an audit reports, by how far its outcomes are known.

Of complete outcomes the accuracies are counted (`CompleteEstimator`), and intervals are for new images. Of incomplete
outcomes there are bounds over all possible verdicts (`BoundsEstimator`); if the missing ones are outside a random
sample, also estimates (`classwise.auditing.run.sampling.TwoPhaseEstimator`). With repeated passes, the
probability of a correct one is estimated beside them (`Estimator.probabilities`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from classwise.auditing.outcomes.meta import ALL
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError
from classwise.stats import metrics
from classwise.stats.bounded_means import mean_intervals
from classwise.stats.bounds import BoundedCounts
from classwise.stats.counts import ratio
from classwise.stats.intervals import class_intervals
from classwise.stats.registry import MetricInputs, all_metrics, arranged

LOWER, UPPER = "lower_bound", "upper_bound"
"""Suffixes of the columns of an incomplete audit: bounds over all possible verdicts on images not judged."""


@dataclass(frozen=True, eq=False)
class Estimator(ABC):
    """Accuracies of the classes (or groups) of an outcomes table.

    Args:
        outcomes: a row for each image and attack.
        group: the grouping that tables use instead of the class; None: the class.
        alpha: 1 minus the coverage of the intervals.
    """

    outcomes: Outcomes
    group: str | None
    alpha: float

    @property
    def finished(self) -> bool:
        """Whether the estimates are as precise as the audit was to make them."""
        return False

    @abstractmethod
    def counts_of(self, name: str) -> BoundedCounts:
        """The counts under an attack, from which its metrics are computed."""

    @property
    @abstractmethod
    def by_class(self) -> pd.DataFrame:
        """See `classwise.Audit.by_class`."""

    @abstractmethod
    def row(self, inputs: MetricInputs) -> dict[str, Any]:
        """The row of an attack in `by_attack`."""

    @cached_property
    def by_attack(self) -> pd.DataFrame:
        """See `classwise.Audit.by_attack`."""
        names = self.outcomes.names
        return pd.DataFrame([self.row(self.inputs(name)) for name in names], index=pd.Index(names, name="attack"))

    @cached_property
    def group_names(self) -> tuple[str, ...]:
        """Names of the classes, or of the groups."""
        return self.outcomes.grouping(self.group).names

    def inputs(self, name: str) -> MetricInputs:
        """What metrics under an attack are computed from."""
        if name not in self._inputs:
            self._inputs[name] = self.outcomes.inputs(name, self.counts_of(name), self.group)
        return self._inputs[name]

    @cached_property
    def _inputs(self) -> dict[str, MetricInputs]:
        """What `inputs` has returned, by the attack's name."""
        return {}

    def _table(self, columns: dict[str, Any], *, overall: bool = False) -> pd.DataFrame:
        names = ("all images",) if overall else self.group_names
        return pd.DataFrame(columns, index=pd.Index(names, name=self.group or "class"))

    def probabilities(self, *, overall: bool = False) -> pd.DataFrame:
        """See `classwise.Audit.probabilities`."""
        outcomes = self.outcomes
        if outcomes.meta.repeats == 1:
            raise ClasswiseError(
                "each image was evaluated in one pass; for probabilities, audit with repeats=8 (--repeats 8)"
            )
        outcomes.require_complete()
        ids = np.zeros_like(outcomes.labels) if overall else outcomes.grouping(self.group).ids
        size = 1 if overall else len(self.group_names)
        columns: dict[str, Any] = {"n": np.bincount(ids, minlength=size)}
        for name in (*outcomes.attacks, ALL):
            shares = outcomes.correct_shares(name)
            mean = ratio(np.bincount(ids, weights=shares, minlength=size), columns["n"])
            low, high = mean_intervals(shares, ids, size, self.alpha)
            columns |= {name: mean, f"{name}_low": low, f"{name}_high": high}
        frame = self._table(columns, overall=overall)
        return frame[frame["n"] > 0]


class CompleteEstimator(Estimator):
    """Counts of complete outcomes, with intervals for new images of the same classes."""

    @property
    def finished(self) -> bool:
        """True: nothing is left to do."""
        return True

    def counts_of(self, name: str) -> BoundedCounts:
        """The counts of all images."""
        return BoundedCounts.of(self.outcomes.counts(name, self.group))

    @cached_property
    def by_class(self) -> pd.DataFrame:
        """Accuracies with their intervals."""
        counts = {name: self.inputs(name).counts.low for name in self.outcomes.names}
        columns: dict[str, Any] = {"n": np.max([under.count for under in counts.values()], axis=0)}
        for name, under in counts.items():
            low, high = class_intervals(under, self.alpha)
            columns |= {name: under.accuracy, f"{name}_low": low, f"{name}_high": high}
        frame = self._table(columns)
        return frame[frame["n"] > 0]

    def row(self, inputs: MetricInputs) -> dict[str, Any]:
        """Estimates of all metrics, with the intervals of those that have one of their own."""
        counts = inputs.counts.low
        row: dict[str, Any] = {"n": int(counts.count.sum())}
        for metric in arranged("overall", "macro", "worst"):
            if metric.name == "worst":
                row["worst_class"] = self.group_names[metrics.worst_class(counts.accuracy).label]
            row[metric.name] = metric.value_in_table(inputs)
            if metric.interval is not None:
                _, row[f"{metric.name}_low"], row[f"{metric.name}_high"] = metric.estimate_in_table(inputs, self.alpha)
        return row


class BoundsEstimator(Estimator):
    """Bounds over all possible verdicts on the images that are not judged; there are no estimates."""

    def counts_of(self, name: str) -> BoundedCounts:
        """The counts of judged images."""
        return self.outcomes.bounds(name, self.group)

    @cached_property
    def by_class(self) -> pd.DataFrame:
        """Bounds of the accuracies, and numbers of judged images."""
        bounds = {name: self.inputs(name).counts for name in self.outcomes.names}
        columns: dict[str, Any] = {"n": next(iter(bounds.values())).count}
        for name, counts in bounds.items():
            low, high = counts.accuracy
            columns |= {f"{name}_judged": counts.judged, f"{name}_{LOWER}": low, f"{name}_{UPPER}": high}
        frame = self._table(columns)
        return frame if any(counts.unplaced for counts in bounds.values()) else frame[frame["n"] > 0]

    def row(self, inputs: MetricInputs) -> dict[str, Any]:
        """Bounds of all metrics."""
        counts = inputs.counts
        row: dict[str, Any] = {"n": counts.total, "judged": int(counts.judged.sum())}
        for name, metric in all_metrics().items():
            low, high = metric.possible_in_table(inputs)
            row |= {f"{name}_{LOWER}": float(low), f"{name}_{UPPER}": float(high)}
        return row
