"""Confusion matrix under attack, its symmetry and its superclass structure: kdd21/F2, E2, benz20/P2.3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from classwise.analysis.confusion import confused
from classwise.papers.claims import CORRELATION, Test
from classwise.papers.context import Context
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.protocol import under_pgd
from classwise.papers.scales import CLASSWISE, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.reporting.tables import Row, Table
from classwise.stats.interval_estimators import interval


class ConfusionUnderAttack(Experiment):
    """kdd21 Figure 2: confusion matrix of adversarial training under PGD."""

    item = "kdd21/F2"
    symmetric: ClassVar[str] = "kdd21/C5"
    related: ClassVar[str] = "kdd21/C6"
    others: ClassVar[Mapping[str, str]] = {"kdd21/C7": "the claim is about SVHN"}
    note: ClassVar[str] = ""
    scales: ClassVar[Mapping[Name, Scale]] = CLASSWISE

    def run(self, context: Context) -> Findings:
        """Measure the symmetry, the share of errors inside superclasses relative to chance, and the mean rates."""
        matrix = confused(under_pgd(context, context.train("at")).outcomes, "PGD")
        rows = [
            Row("correlation of M_ij with M_ji", [estimate_cell(matrix.pearson, 1, 2)]),
            Row("1 - sum |M - M^T| / sum (M + M^T)", [estimate_cell(matrix.overlap, 1, 2)]),
        ]
        tests = [
            Test(
                claim=self.symmetric,
                estimand="correlation of M_ij with M_ji over pairs of classes",
                estimators=[interval(matrix.pearson)],
                unit="",
                limits=CORRELATION,
                note=self.note.format(context.scale.data),
            )
        ]
        not_tested = dict(self.others)
        if matrix.inside is None:
            not_tested[self.related] = f"{context.scale.data} has no superclasses"
        else:
            rows.append(Row("errors inside the superclass, percent", [estimate_cell(matrix.inside.share)]))
            rows.append(Row("beyond chance, points", [estimate_cell(matrix.inside.excess)]))
            contrast = [estimate_cell(matrix.inside.contrast)]
            rows.append(Row("mean rate inside the superclasses minus across, points", contrast))
            tests.append(
                Test(
                    claim=self.related,
                    estimand="mean rate M_ij of pairs inside the superclasses minus that of pairs across",
                    estimators=[interval(matrix.inside.contrast, 100)],
                )
            )
        table = Table(
            "Structure of the confusion matrix",
            ("quantity", "this run"),
            rows,
            "Small print: 95 % confidence intervals.",
        )
        caption = "Rows: truth; columns: prediction on the attacked image; percent of the row."
        return Findings(tables=(table,), figures=((matrix.figure(), caption),), tests=tests, not_tested=not_tested)


class Symmetry(ConfusionUnderAttack):
    """kdd21 section 4.2 in numbers: symmetry, and rates inside and across superclasses."""

    item = "kdd21/E2"


class ConfusedLabels(ConfusionUnderAttack):
    """benz20 section 3.2: semantically similar classes are mutually confused."""

    item = "benz20/P2.3"
    symmetric = "benz20/C5"
    related = "benz20/C5"
    others: ClassVar[Mapping[str, str]] = {}
    note = "on {}, all pairs of classes; the plan asks for CIFAR-100, inside its superclasses"
