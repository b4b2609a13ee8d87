"""`BoardTable`: the models that were audited under the same conditions, with their ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from classwise.auditing.outcomes import CLEAN
from classwise.reporting.board.entries import Conditions, Entry
from classwise.stats import metric_intervals
from classwise.stats.counts import BoolArray, ClassCounts, IntArray
from classwise.stats.intervals import Estimate
from classwise.stats.metrics import worst_class
from classwise.stats.model_ranks import Ranks, Verdicts, worst_class_ranks
from classwise.stats.worst_class import possibly_worst

MEASURES = ("worst", "overall", "worst20", "mcd", "cv", "clean")
"""The measures with an interval."""
_OF_COUNTS = {
    "worst": metric_intervals.worst,
    "overall": metric_intervals.overall,
    "worst20": metric_intervals.worst_fifth,
    "mcd": metric_intervals.discrepancy,
    "cv": metric_intervals.variance,
}
_UNKNOWN = Estimate(float("nan"), float("nan"), float("nan"))


@dataclass(frozen=True, eq=False)
class BoardTable:
    """Models that were audited under the same conditions.

    Attributes:
        conditions: what all rows share.
        entries: the models, in the order of reading.
        correct: for each model (N,) which images are correct under all attacks; None for a model read from a JSON file.
        labels: (N,) the classes of these images; None if there are none.
        alpha: 1 minus the coverage of the intervals, and of the ranks of this table jointly.
    """

    conditions: Conditions
    entries: tuple[Entry, ...]
    correct: tuple[BoolArray | None, ...]
    labels: IntArray | None = None
    alpha: float = 0.05

    @cached_property
    def ranks(self) -> Ranks:
        """The ranks, in the order of `entries`."""
        models = [
            Verdicts(entry.counts(self.conditions), correct)
            for entry, correct in zip(self.entries, self.correct, strict=True)
        ]
        return worst_class_ranks(models, self.labels, self.alpha)

    @property
    def paired(self) -> str:
        """Which pairs of models are compared image by image: ``"all"``, ``"some"`` or ``"none"``."""
        known = sum(correct is not None for correct in self.correct)
        return "all" if known == len(self.entries) else "some" if known > 1 else "none"

    @cached_property
    def order(self) -> list[int]:
        """Positions of `entries` by rank, then by the lower end of the worst-class interval, then by name."""
        low = [row["worst_low"] for row in self._rows]
        return sorted(
            range(len(self.entries)),
            key=lambda place: (int(self.ranks.low[place]), -low[place], self.entries[place].name),
        )

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each model in the order of the ranks; accuracies are fractions.

        Columns: ``rank`` and ``rank_high``, the confidence set of the rank; ``model``; ``n``; ``worst_class`` (name);
        each of `MEASURES` with ``_low`` and ``_high``, NaN if unknown; ``may_be_worst``, names joined by ``", "``;
        ``warnings``, names of guards joined likewise; ``guards``, their mode; ``extra_data``; ``teacher``;
        ``network``; ``model_sha256``; ``version``.
        """
        frame = pd.DataFrame([self._rows[place] for place in self.order])
        for name in ("guards", "extra_data"):
            frame[name] = frame[name].astype(object)
        return frame

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return [self._row(place) for place in range(len(self.entries))]

    def _row(self, place: int) -> dict[str, Any]:
        entry, names = self.entries[place], self.conditions.classes
        counts, clean = entry.counts(self.conditions), entry.clean_counts(self.conditions)
        return {
            "rank": int(self.ranks.low[place]),
            "rank_high": int(self.ranks.high[place]),
            "model": entry.name,
            "n": self.conditions.images,
            "worst_class": names[worst_class(counts.accuracy).label],
            **_estimates(counts, clean, self.alpha),
            "may_be_worst": ", ".join(self.may_be_worst(place)),
            "warnings": ", ".join(warning.name for warning in entry.warnings),
            "guards": entry.guards,
            "extra_data": entry.extra_data,
            "teacher": entry.teacher,
            "network": entry.network,
            "model_sha256": entry.model_sha256,
            "version": entry.version,
        }

    def may_be_worst(self, place: int) -> list[str]:
        """Names of the classes that may be the worst of the model at a position of `entries`."""
        possible = possibly_worst(self.entries[place].counts(self.conditions), self.alpha)
        return [self.conditions.classes[label] for label in np.flatnonzero(possible)]

    def better_than(self, place: int) -> list[str]:
        """Names of the models that are significantly better than the one at a position of `entries`."""
        return [self.entries[other].name for other in self.order if self.ranks.better[other, place]]

    @property
    def attacks(self) -> str:
        """The labels of the attacks, such as ``pgd, apgd-ce``; ``clean`` without attacks."""
        labels = [attack.label for attack in self.conditions.attacks if attack.label != CLEAN]
        return ", ".join(labels) or CLEAN


def _estimates(counts: ClassCounts, clean: ClassCounts | None, alpha: float) -> Mapping[str, float]:
    estimates = {name: measure(counts, alpha) for name, measure in _OF_COUNTS.items()}
    estimates["clean"] = _UNKNOWN if clean is None else metric_intervals.overall(clean, alpha)
    return {
        f"{name}{end}": float(value)
        for name in MEASURES
        for end, value in zip(("", "_low", "_high"), estimates[name], strict=True)
    }
