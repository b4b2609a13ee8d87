"""Class accuracies and row norms of the classifier, and equalised norms: iclr21/F4, E1, E2, E7."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from classwise.analysis.norm_link import norm_link, row_norms
from classwise.papers.claims import CORRELATION, Test
from classwise.papers.context import Context
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.estimates import average, paired_models, worst
from classwise.papers.experiments.protocol import under_pgd
from classwise.papers.scales import CLASSWISE, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.reporting import formatting
from classwise.reporting.figures.bars import class_bars
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.interval_estimators import interval, raised, wider
from classwise.stats.intervals import Estimate
from classwise.training.posthoc.equal_norms import equalise_norms

NONE = 0.5
"""Absolute rank correlation below which there is no correlation."""


class NormsAndRobustness(Experiment):
    """iclr21 Figure 4: robust classes have rows of large norm in adversarial training, not in standard training."""

    item = "iclr21/F4"
    scales: ClassVar[Mapping[Name, Scale]] = CLASSWISE

    def run(self, context: Context) -> Findings:
        """Evaluate the adversarial model under PGD and the standard one on clean images; test claims C5 and C6."""
        rows, figures, links = [], [], {}
        for name, recipe, attack in (("adversarial", "at", "PGD"), ("standard", "standard", "clean")):
            trained = context.train(recipe, {"seed": 1} if recipe == "standard" else None)
            audit = under_pgd(context, trained)
            link = links[name] = norm_link(audit.outcomes, attack, row_norms(trained.run.model()))
            cells = [estimate_cell(one, 1, 2) for one in link.intervals]
            rows.append(Row(f"{name}, {attack}", [*cells, Cell(formatting.probability(link.spearman.p_value))]))
            figures.append((link.figure(), f"The {name} model, {attack}."))
        heads = ("model", "Pearson", "Spearman", "Kendall", "p of Spearman")
        note = "Small print: 95 % confidence intervals for new images. p by permutation of the classes."
        size = links["standard"].intervals[1]
        ends = sorted(abs(end) for end in (size.low, size.high))
        weak = Estimate(NONE - abs(size.value), NONE - ends[1], NONE - (0.0 if size.low <= 0 <= size.high else ends[0]))
        return Findings(
            tables=(Table("Correlation of class accuracy with the norm of the class's row", heads, rows, note),),
            figures=figures,
            tests=(
                Test(
                    claim="iclr21/C5",
                    covers=(context.scale.data,),
                    estimand="Spearman's correlation of robustness and norm, adversarial training",
                    estimators=[interval(links["adversarial"].intervals[1])],
                    unit="",
                    limits=CORRELATION,
                    note=f"on {context.scale.data} of the six data sets",
                ),
                Test(
                    claim="iclr21/C6",
                    estimand="0.5 minus the absolute Spearman correlation of clean accuracy and norm, standard "
                    "training",
                    estimators=[raised(interval(weak), NONE - 1)],
                    unit="",
                    limits=(NONE - 1, NONE),
                    note="'none' is interpreted as below 0.5; sampling noise lowers the correlation, so the "
                    "claim cannot be supported",
                ),
            ),
        )


class NormsOfRobustModels(NormsAndRobustness):
    """iclr21 section 3.2: correlation of norm and robustness in adversarial training."""

    item = "iclr21/E1"


class NormsOfStandardModels(NormsAndRobustness):
    """iclr21 section 3.2: correlation of norm and clean accuracy in standard training."""

    item = "iclr21/E2"


class EqualNorms(Experiment):
    """iclr21 section 5: rows of equal norm, by rescaling those of a trained model (no penalty, no training)."""

    item = "iclr21/E7"
    scales: ClassVar[Mapping[Name, Scale]] = CLASSWISE

    def run(self, context: Context) -> Findings:
        """Audit adversarial training before and after rescaling; test claim C22."""
        trained = context.train("at")
        equalise_norms(trained.run)
        audits = {
            "as trained": under_pgd(context, trained),
            "equal norms": under_pgd(context, trained, which="equal-norms"),
        }
        norms = {
            "as trained": row_norms(trained.run.model()),
            "equal norms": row_norms(trained.run.model("equal-norms")),
        }
        counts = {name: audit.counts("PGD") for name, audit in audits.items()}
        rows = []
        for name, one in counts.items():
            clean = metric_intervals.macro(audits[name].counts("clean"))
            summary = (
                clean,
                metric_intervals.macro(one),
                metric_intervals.worst(one),
                metric_intervals.discrepancy(one),
            )
            ends = f"{norms[name].min():.3g} to {norms[name].max():.3g}"
            rows.append(Row(name, [*map(estimate_cell, summary), Cell(ends)]))
        pair = paired_models(audits["equal norms"], audits["as trained"], "PGD")
        gap = wider(counts["equal norms"], counts["as trained"])
        gains = {"average": average(pair), "worst class": worst(pair), "gap": gap}
        changes = [Row(name, [estimate_cell(part(0.05), 1)]) for name, part in gains.items()]
        heads = ("model", "clean average", "PGD average", "PGD worst class", "PGD gap", "norms of the rows")
        names = context.test_images.class_names
        note = "Small print: 95 % confidence intervals for new images with this one training fixed."
        return Findings(
            tables=(
                Table("Adversarial training, in percent", heads, rows, note),
                Table("Equal norms minus as trained, under PGD, in points", ("quantity", "change"), changes, note),
            ),
            figures=((class_bars(names, counts, range(len(names))), "Under PGD-20."),),
            tests=(
                Test(
                    claim="iclr21/C22",
                    covers=("norms of rows",),
                    estimand="worst class under PGD: rows rescaled to equal norms minus as trained",
                    estimators=[worst(pair)],
                    note="one of the three guidelines, applied after training; a penalty during training is not tested",
                ),
            ),
        )
