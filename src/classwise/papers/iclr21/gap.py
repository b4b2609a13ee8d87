"""iclr21/F7 and E3, kdd21/E1, benz20/F2: standard against adversarial training, class by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from classwise.analysis.gap import Gap, gap
from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.attacks import under_pgd
from classwise.papers.scales import CLASSWISE, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.report.tables import Row, Table
from classwise.stats.interval_estimators import interval
from classwise.stats.intervals import Estimate


class StandardAgainstAdversarial(Experiment):
    """iclr21 Figure 7: standard accuracy beside adversarial robustness, for each class."""

    item = "iclr21/F7"
    scales: ClassVar[Mapping[Name, Scale]] = CLASSWISE

    def run(self, bench: Bench) -> Findings:
        """Gap, variance and order of the classes of the two models."""
        standard = under_pgd(bench, bench.trained("standard", {"seed": 1})).outcomes
        adversarial = under_pgd(bench, bench.trained("at")).outcomes
        found, clean = gap(standard, adversarial, "PGD"), gap(standard, adversarial, "clean")
        rows = [
            Row("MCD, points", [*map(estimate_cell, found.discrepancy), estimate_cell(found.discrepancy_ratio, 1)]),
            Row(
                "CV, percent squared",
                [*(estimate_cell(one, 1e4) for one in found.variance), estimate_cell(found.variance_ratio, 1)],
            ),
        ]
        heads = ("gap between classes", "standard, clean", "adversarial, PGD", "ratio")
        note = f"Order of the classes: Spearman {found.order.value:.2f}. Small: 95 % intervals, which lie high."
        table = Table("Standard against adversarial training", heads, rows, note)
        return Findings(
            tables=(table,), figures=((found.figure(), "Test images, PGD-20."),), tests=self.claims(found, clean)
        )

    def claims(self, found: Gap, clean: Gap) -> Sequence[Test]:
        """iclr21 C14: the same order, a larger gap under attack; ``clean`` is the same of the images as they are."""
        del clean
        parts = [interval(found.order_interval), interval(_beyond_one(found.discrepancy_ratio))]
        estimand = "Spearman's correlation of the two class orders; ratio of the gaps minus 1"
        return [Test(claim="iclr21/C14", estimand=estimand, parts=parts, unit="")]


class ClassOrder(StandardAgainstAdversarial):
    """iclr21 Appendix C: the order of the classes."""

    item = "iclr21/E3"


class LargerGaps(StandardAgainstAdversarial):
    """kdd21 section 4.3: CV and MCD of adversarial training beside those of standard training."""

    item = "kdd21/E1"

    def run(self, bench: Bench) -> Findings:
        """As for the other items; the claim is about all data sets, and this is one of them."""
        found = super().run(bench)
        return replace(found, tests=[replace(test, covers=(bench.scale.data,)) for test in found.tests])

    def claims(self, found: Gap, clean: Gap) -> Sequence[Test]:
        """kdd21 C4: both far larger; read as twice as large."""
        del clean
        parts = [interval(_beyond_one(one, 2)) for one in (found.variance_ratio, found.discrepancy_ratio)]
        note = "'far larger' is read as: more than twice"
        estimand = "ratio of CV, and of MCD, minus 2"
        return [Test(claim="kdd21/C4", estimand=estimand, parts=parts, unit="", note=note)]


class AdversarialModel(StandardAgainstAdversarial):
    """benz20 Figure 2: accuracy and robustness of the adversarially trained model, beside the standard one."""

    item = "benz20/F2"

    def claims(self, found: Gap, clean: Gap) -> Sequence[Test]:
        """benz20 C2: a larger discrepancy, in accuracy and in robustness."""
        return [
            Test(
                claim="benz20/C2",
                covers=(what,),
                estimand=f"{what} of the adversarial model: ratio of CV, and of MCD, to standard accuracy's, minus 1",
                parts=[interval(_beyond_one(ratio)) for ratio in (one.variance_ratio, one.discrepancy_ratio)],
                unit="",
            )
            for what, one in (("robustness", found), ("accuracy", clean))
        ]


def _beyond_one(one: Estimate, what: float = 1.0) -> Estimate:
    return Estimate(*(end - what for end in one))
