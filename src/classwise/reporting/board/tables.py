"""`BoardTable`: the models that were audited under the same conditions, with their ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import CROSS_ENTROPY, cross_entropy_only
from classwise.reporting.board.entries import Conditions, Entry
from classwise.stats.bounds import BoundedCounts
from classwise.stats.counts import BoolArray, IntArray
from classwise.stats.intervals import Estimate, clopper_pearson, lowest_interval
from classwise.stats.metrics import worst_class
from classwise.stats.metrics.averages import overall_estimate
from classwise.stats.model_ranks import Ranks, Verdicts, worst_class_ranks
from classwise.stats.registry import NO_ESTIMATE, Metric, MetricInputs, arranged
from classwise.stats.selection import Selected, selected_interval
from classwise.stats.worst_class import possibly_worst


def board_metrics() -> list[Metric]:
    """The metrics of a leaderboard."""
    return arranged("worst", "overall", "worst20", "mcd", "cv", without=("macro", "nrr", "hmw"))


def measures() -> list[str]:
    """The columns with an interval: `board_metrics`, and ``clean``, the overall accuracy without an attack."""
    return [*(metric.name for metric in board_metrics()), "clean"]


def not_guarded(guards: str | None) -> str:
    """Why a model has no warnings although it was not checked for problems, by the mode of its guards; else empty."""
    return "not checked" if guards is None else "guards off" if guards == "off" else ""


@dataclass(frozen=True, eq=False)
class BoardTable:
    """Models that were audited under the same conditions.

    Attributes:
        conditions: what all rows share.
        entries: the models, in the order of reading.
        audits: the audit of each model; None for a model read from a JSON file.
        labels: (N,) the classes of these images; None if there are none.
        alpha: 1 minus the coverage of the intervals, and of the ranks of this table jointly.
    """

    conditions: Conditions
    entries: tuple[Entry, ...]
    audits: tuple[Audit | None, ...]
    labels: IntArray | None = None
    alpha: float = 0.05

    @cached_property
    def correct(self) -> tuple[BoolArray | None, ...]:
        """For each model (N,) which images are correct under all attacks; None without its audit."""
        return tuple(None if audit is None else audit.outcomes.correct(ALL) for audit in self.audits)

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
    def selected(self) -> Selected | None:
        """The model of the first row, with intervals that account for its selection; None without another model."""
        number, counts = len(self.entries), [entry.counts(self.conditions) for entry in self.entries]
        if number < 2:
            return None

        def worst(place: int, alpha: float) -> tuple[float, float]:
            return lowest_interval(counts[place], alpha)

        def overall(place: int, alpha: float) -> tuple[float, float]:
            low, high = clopper_pearson(counts[place].correct.sum(), counts[place].count.sum(), alpha)
            return float(low), float(high)

        first = self.order[0]
        row = self._rows[first]
        return Selected(
            self.entries[first].name,
            number,
            Estimate(row["worst"], *selected_interval(worst, number, first, self.alpha)),
            Estimate(row["overall"], *selected_interval(overall, number, first, self.alpha, criterion=False)),
            tied=sum(other["worst"] == row["worst"] for other in self._rows) - 1,
        )

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each model in the order of the ranks; accuracies are fractions.

        Columns: ``rank`` and ``rank_high``, the confidence set of the rank; ``model``; ``n``; ``worst_class`` (name);
        each of `measures` with ``_low`` and ``_high``, NaN if unknown; ``may_be_worst``, names joined by ``", "``;
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
        counts = entry.counts(self.conditions)
        return {
            "rank": int(self.ranks.low[place]),
            "rank_high": int(self.ranks.high[place]),
            "model": entry.name,
            "n": self.conditions.images,
            "worst_class": names[worst_class(counts.accuracy).label],
            **self._estimates(place),
            "may_be_worst": ", ".join(self.may_be_worst(place)),
            "warnings": ", ".join(warning.name for warning in entry.warnings),
            "guards": entry.guards,
            "extra_data": entry.extra_data,
            "teacher": entry.teacher,
            "network": entry.network,
            "model_sha256": entry.model_sha256,
            "version": entry.version,
        }

    def _estimates(self, place: int) -> Mapping[str, float]:
        """The metrics with their intervals, from the audit if there is one, else from the counts of the entry."""
        entry, audit = self.entries[place], self.audits[place]
        counts, clean = entry.counts(self.conditions), entry.clean_counts(self.conditions)
        inputs = MetricInputs(BoundedCounts.of(counts), None if clean is None else BoundedCounts.of(clean))
        if audit is not None:
            inputs = audit.outcomes.inputs(ALL, inputs.counts)
        estimates = {metric.name: metric.estimate_in_table(inputs, self.alpha) for metric in board_metrics()}
        estimates["clean"] = NO_ESTIMATE if clean is None else overall_estimate(clean, self.alpha)
        return {
            f"{name}{end}": float(value)
            for name in measures()
            for end, value in zip(("", "_low", "_high"), estimates[name], strict=True)
        }

    def may_be_worst(self, place: int) -> list[str]:
        """Names of the classes that may be the worst of the model at a position of `entries`."""
        possible = possibly_worst(self.entries[place].counts(self.conditions), self.alpha)
        return [self.conditions.classes[label] for label in np.flatnonzero(possible)]

    def better_than(self, place: int) -> list[str]:
        """Names of the models that are significantly better than the one at a position of `entries`."""
        return [self.entries[other].name for other in self.order if self.ranks.better[other, place]]

    @property
    def caveat(self) -> str:
        """`CROSS_ENTROPY`, if every attack maximises the cross-entropy only; else empty."""
        only = cross_entropy_only({attack.label: attack.spec for attack in self.conditions.attacks})
        return CROSS_ENTROPY if only else ""

    @property
    def attacks(self) -> str:
        """The labels of the attacks, such as ``pgd, apgd-ce``; ``clean`` without attacks."""
        labels = [attack.label for attack in self.conditions.attacks if attack.label != CLEAN]
        return ", ".join(labels) or CLEAN
