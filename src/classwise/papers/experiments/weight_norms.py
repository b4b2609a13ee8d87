"""Class accuracies and row norms of the classifier, and equalised norms: iclr21/F4, E1, E2, E7."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from classwise.analysis.norm_link import NormLink, norm_link, row_norms
from classwise.papers.claims import CORRELATION, Test
from classwise.papers.context import Context, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.data_set_audits import (
    SCALES,
    DataSetAudits,
    audit_each,
    data_tables,
    declare,
    no_verdict,
)
from classwise.papers.experiments.estimates import average, paired_models, worst
from classwise.papers.experiments.protocol import AT, under_pgd
from classwise.papers.interval_estimators import interval, raised, wider
from classwise.papers.scales import CLASSWISE, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.reporting import formatting
from classwise.reporting.figures.bars import class_bars
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.intervals import Estimate
from classwise.training.posthoc.equal_norms import equalise_norms

ATTACKS: Mapping[str, str] = {"adversarial": "PGD", "standard": "clean"}
"""The attack under which each model is evaluated."""
NONE = 0.5
"""Absolute rank correlation below which there is no correlation."""


class NormsAndRobustness(Experiment):
    """iclr21 Figure 4: robust classes have rows of large norm in adversarial training, not in standard training."""

    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def trainings(self, scale: Scale) -> Trainings:
        """A standard and an adversarially trained model of each data set."""
        return declare(scale)

    def run(self, context: Context) -> Findings:
        """Evaluate the adversarial models under PGD and the standard ones on clean images; test claims C5 and C6."""
        found, absent = audit_each(context)
        audited = [one.by_class for one in found]
        rows, figures, tests = [], [], []
        for one in audited:
            links = {kind: _link(one, kind) for kind in ATTACKS}
            own = [test for test in _norm_tests(one.data, links) if one.judges(test.claim)]
            for kind, link in links.items():
                cells = [estimate_cell(each, 1, 2, tests=own) for each in link.intervals]
                p_value = Cell(formatting.probability(link.spearman.p_value))
                rows.append(Row(f"{one.data}, {kind}, {ATTACKS[kind]}", [*cells, p_value]))
                figures.append((link.figure(), f"{one.data}: the {kind} model, {ATTACKS[kind]}."))
            tests += own
        heads = ("model", "Pearson", "Spearman", "Kendall", "p of Spearman")
        note = "Over all classes; the figures of data sets with many classes show the 12 of the paper. "
        note += "Small print: 95 % confidence intervals for new images. p by permutation of the classes."
        table = Table("Correlation of class accuracy with the norm of the class's row", heads, rows, note)
        not_tested = {**no_verdict("iclr21/C5", audited), **no_verdict("iclr21/C6", audited)}
        return Findings(
            tables=(table, *data_tables(audited, absent)), figures=figures, tests=tests, not_tested=not_tested
        )


def _link(one: DataSetAudits, kind: str) -> NormLink:
    """Correlations over all classes with images; the classes of the result are the sampled ones, if there are any."""
    link = norm_link(one.outcomes(kind), ATTACKS[kind], row_norms(one.trained[kind].run.model()))
    if one.sampled is None:
        return link
    return replace(link, classes=link.classes.loc[list(one.shown(kind, ATTACKS[kind])[1])])


def _norm_tests(data: str, links: Mapping[str, NormLink]) -> list[Test]:
    size = links["standard"].intervals[1]
    ends = sorted(abs(end) for end in (size.low, size.high))
    weak = Estimate(NONE - abs(size.value), NONE - ends[1], NONE - (0.0 if size.low <= 0 <= size.high else ends[0]))
    return [
        Test(
            claim="iclr21/C5",
            covers=(data,),
            estimand=f"Spearman's correlation of robustness and norm, adversarial training on {data}",
            estimators=[interval(links["adversarial"].intervals[1])],
            unit="",
            limits=CORRELATION,
        ),
        Test(
            claim="iclr21/C6",
            covers=(data,),
            estimand=f"0.5 minus the absolute Spearman correlation of clean accuracy and norm, standard model, {data}",
            estimators=[raised(interval(weak), NONE - 1)],
            unit="",
            limits=(NONE - 1, NONE),
            note="'none' is interpreted as below 0.5; sampling noise lowers the correlation, so the claim cannot be "
            "supported",
        ),
    ]


class EqualNorms(Experiment):
    """iclr21 section 5: rows of equal norm, by rescaling those of a trained model (no penalty, no training)."""

    scales: ClassVar[Mapping[Name, Scale]] = CLASSWISE
    declared: ClassVar[Trainings] = {"AT": AT}

    def run(self, context: Context) -> Findings:
        """Audit adversarial training before and after rescaling; test claim C22."""
        trained = context.train_all(self.trainings(context.scale))["AT"]
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
        test = Test(
            claim="iclr21/C22",
            covers=("norms of rows",),
            estimand="worst class under PGD: rows rescaled to equal norms minus as trained",
            estimators=[gains["worst class"]],
            note="one of the three guidelines, applied after training; a penalty during training is not tested",
        )
        changes = [Row(name, [estimate_cell(part(0.05), 1, tests=[test])]) for name, part in gains.items()]
        heads = ("model", "clean average", "PGD average", "PGD worst class", "PGD gap", "norms of the rows")
        names = context.test_images.class_names
        note = "Small print: 95 % confidence intervals for new images with this one training fixed."
        return Findings(
            tables=(
                Table("Adversarial training, in percent", heads, rows, note),
                Table("Equal norms minus as trained, under PGD, in points", ("quantity", "change"), changes, note),
            ),
            figures=((class_bars(names, counts, range(len(names))), "Under PGD-20."),),
            tests=[test],
        )
