"""iclr21/F6: how many classes are how robust."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import ClassVar

from classwise.analysis.spread import spread
from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.attacks import under_pgd
from classwise.papers.scales import CLASSWISE, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.report.tables import Row, Table
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.interval_estimators import IntervalEstimator, plus
from classwise.stats.intervals import Estimate, class_intervals

MANY = 4
"""Intervals of ten points that count as many."""


class RobustnessHistogram(Experiment):
    """iclr21 Figure 6: classes by their robustness, in ten intervals."""

    item = "iclr21/F6"
    scales: ClassVar[Mapping[Name, Scale]] = CLASSWISE

    def run(self, bench: Bench) -> Findings:
        """Counts with intervals, and claim C16."""
        audit = under_pgd(bench, bench.trained("at"))
        found = spread(audit.outcomes, "PGD")
        ends = (100 * found.edges).round().astype(int).tolist()
        edges = [f"{low} to {high} %" for low, high in itertools.pairwise(ends)]
        counts = [Estimate(*ends) for ends in zip(found.count, found.low, found.high, strict=True)]
        rows = [Row(name, [estimate_cell(one, 1, 0)]) for name, one in zip(edges, counts, strict=True)]
        accuracies = audit.counts("PGD")
        return Findings(
            tables=(Table("Classes by their robustness", ("interval", "classes"), rows, "Small: 95 % intervals."),),
            figures=((found.figure(), "Adversarial training under PGD."),),
            tests=(
                Test(
                    claim="iclr21/C16",
                    covers=(bench.scale.data,),
                    estimand="intervals of ten points that hold a class, minus 4",
                    parts=[plus(filled(accuracies, found.edges), -MANY)],
                    unit="",
                    note=f"the claim is about CIFAR-100 and ImageNet; this is {bench.scale.data}",
                ),
            ),
        )


def filled(counts: ClassCounts, edges: FloatArray) -> IntervalEstimator:
    """How many of the bins of `spread` hold a class.

    By intervals for all classes at once: the bins in which one of these lies wholly, and those that one touches.
    """
    bottom, top = edges[:-1, None].copy(), edges[1:, None]
    bottom[0] = -1  # the first bin holds its lower end, the others do not

    def at(level: float) -> Estimate:
        low, high = (end[counts.present] for end in class_intervals(counts, level, simultaneous=True))
        value = counts.accuracy[counts.present]
        ends = ((value, value), (low, high), (high, low))  # held, held for sure, touched
        return Estimate(*(float(((a > bottom) & (b <= top)).any(axis=1).sum()) for a, b in ends))

    return at
