"""iclr21/F6: how many classes are how robust."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from classwise.analysis.spread import spread
from classwise.papers.claims import Test, interval
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.attacks import under_pgd
from classwise.papers.scales import USUAL, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.report.analyses import figure
from classwise.report.tables import Row, Table
from classwise.stats.intervals import Estimate

MANY = 4
"""Intervals of ten points that count as many."""


class RobustnessHistogram(Experiment):
    """iclr21 Figure 6: classes by their robustness, in ten intervals."""

    item = "iclr21/F6"
    scales: ClassVar[Mapping[Name, Scale]] = USUAL

    def run(self, bench: Bench) -> Findings:
        """Counts with intervals, and claim C16."""
        found = spread(under_pgd(bench, bench.trained("at")).outcomes, "PGD")
        ends = (100 * found.edges).round().astype(int).tolist()
        edges = [f"{low} to {high} %" for low, high in itertools.pairwise(ends)]
        counts = [Estimate(*ends) for ends in zip(found.count, found.low, found.high, strict=True)]
        rows = [Row(name, [estimate_cell(one, 1, 0)]) for name, one in zip(edges, counts, strict=True)]
        # At least as many as have a lower end above zero, at most as many as have an upper one.
        filled = [float(np.count_nonzero(side > 0)) - MANY for side in (found.count, found.low, found.high)]
        return Findings(
            tables=(Table("Classes by their robustness", ("interval", "classes"), rows, "Small: 95 % intervals."),),
            figures=((figure(found), "Adversarial training under PGD."),),
            tests=(
                Test(
                    claim="iclr21/C16",
                    estimand="intervals of ten points that hold a class, minus 4",
                    parts=[interval(Estimate(*filled))],
                    unit="",
                    note=f"the claim is about CIFAR-100 and ImageNet; this is {bench.scale.data}",
                ),
            ),
        )
