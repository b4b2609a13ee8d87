"""iclr21/E7: a guideline that the paper gives and does not try: balance the norms of the classifier's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from classwise.analysis.norm_link import row_norms
from classwise.papers.cfa23.methods import average, both, worst
from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.attacks import under_pgd
from classwise.papers.scales import CLASSWISE, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.report.figures.bars import class_bars
from classwise.report.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.interval_estimators import wider
from classwise.training.posthoc.equal_norms import equalise_norms


class EqualNorms(Experiment):
    """iclr21 section 5: rows of equal length, by rescaling those of a trained model; no penalty, no training."""

    item = "iclr21/E7"
    scales: ClassVar[Mapping[Name, Scale]] = CLASSWISE

    def run(self, bench: Bench) -> Findings:
        """Adversarial training before and after, each attacked on its own; claim C22."""
        trained = bench.trained("at")
        equalise_norms(trained.run)
        audits = {
            "as trained": under_pgd(bench, trained),
            "equal norms": under_pgd(bench, trained, which="equal-norms"),
        }
        norms = {
            "as trained": row_norms(trained.run.model()),
            "equal norms": row_norms(trained.run.model("equal-norms")),
        }
        counts = {name: audit.counts("PGD") for name, audit in audits.items()}
        rows = []
        for name, one in counts.items():
            clean = metric_intervals.macro(audits[name].counts("clean"))
            found = (clean, metric_intervals.macro(one), metric_intervals.worst(one), metric_intervals.discrepancy(one))
            ends = f"{norms[name].min():.3g} to {norms[name].max():.3g}"
            rows.append(Row(name, [*map(estimate_cell, found), Cell(ends)]))
        pair = both(audits["equal norms"], audits["as trained"], "PGD")
        gap = wider(counts["equal norms"], counts["as trained"])
        gains = {"average": average(pair), "worst class": worst(pair), "gap": gap}
        changes = [Row(name, [estimate_cell(part(0.05), 1)]) for name, part in gains.items()]
        heads = ("model", "clean average", "PGD average", "PGD worst class", "PGD gap", "norms of the rows")
        names = bench.test_images.class_names
        note = "Small: 95 % intervals for new images, the one training fixed."
        return Findings(
            tables=(
                Table("Adversarial training, in percent", heads, rows, note),
                Table(
                    "Equal norms minus as trained, under PGD, in points", ("of the classes", "change"), changes, note
                ),
            ),
            figures=((class_bars(names, counts, range(len(names))), "Under PGD-20."),),
            tests=(
                Test(
                    claim="iclr21/C22",
                    covers=("norms of rows",),
                    estimand="worst class under PGD: rows rescaled to equal norms minus as trained",
                    parts=[worst(pair)],
                    note="one of the three guidelines, applied after training; a penalty during training is not tried",
                ),
            ),
        )
