"""Class accuracies over the epochs of training: kdd21/F1, benz20/P1.11."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from classwise.analysis.epochs import images_of, measured
from classwise.analysis.trend import trend
from classwise.papers.claims import Test
from classwise.papers.context import Context, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.adjacent_epochs import counts_at
from classwise.papers.experiments.data_set_audits import (
    ADVERSARIAL,
    DRAWN,
    SCALES,
    DataSetAudits,
    audit_each,
    data_tables,
    declare,
    no_verdict,
)
from classwise.papers.experiments.protocol import AT
from classwise.papers.interval_estimators import IntervalEstimator, wider, widest
from classwise.papers.measurements import Measurement
from classwise.papers.scales import MNIST, PLANS, Name, Scale
from classwise.papers.tables import class_table, estimate_cell
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Estimate

LARGE, VISIBLE = 10, 1
"""Thresholds in points of a large and of a visible gap between classes (paper: 40 to 50 on CIFAR-10, 6 on MNIST)."""
_SMALL_PRINT = "Small print: 95 % confidence intervals for new images."
HIGH = 95
"""Lower bound of the total on MNIST in the paper, in percent."""


class GapsOverEpochs(Experiment):
    """kdd21 Figure 1: class-wise robustness over the epochs of adversarial training, on each data set."""

    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def trainings(self, scale: Scale) -> Trainings:
        """An adversarially trained model of each data set."""
        return declare(scale, (ADVERSARIAL,))

    def run(self, context: Context) -> Findings:
        """Draw the validation accuracy over the epochs; test claims C1 to C3 on each data set."""
        audited, absent = audit_each(context, (ADVERSARIAL,))
        rows, tables, figures = [], list[Table](), []
        for one in audited:
            history = trend({"AT": one.trained[ADVERSARIAL].run}, labels=None if one.superclasses else one.sampled)
            caption = f"{one.data}: validation split; the band spans the lowest to the highest class."
            figures.append((history.figure(), caption))
            counts, names = one.shown()
            metrics = (metric_intervals.macro, metric_intervals.worst, metric_intervals.discrepancy)
            weakest = Cell(names[metric_intervals.worst_label(counts)])
            rows.append(Row(f"{one.data}, {len(names)}", [*(estimate_cell(of(counts)) for of in metrics), weakest]))
            if len(names) <= DRAWN:
                title = f"{one.data}: test images at the end of training, in percent"
                tables.append(class_table(title, {("AT",): counts}, names))
        heads = ("data set, classes", "average under PGD", "worst class", "MCD", "weakest class")
        summary = Table("Test images at the end of training, in percent and points", heads, rows, _SMALL_PRINT)
        tests, not_tested = _gap_tests(audited)
        tables = [summary, *data_tables(audited, absent), *tables]
        return Findings(tables=tables, figures=figures, tests=tests, not_tested=not_tested)


def _gap_tests(audited: Sequence[DataSetAudits]) -> tuple[list[Test], dict[str, str]]:
    """Tests of C1 to C3 on the data sets that give a verdict, and the claims that are not tested."""
    fit = {one.data: one for one in audited if one.judges("kdd21/C1")}
    tests = [_gap_test("kdd21/C1", "large", one, (one.data,)) for one in fit.values()]
    not_tested = no_verdict("kdd21/C1", audited)
    if MNIST not in fit:
        not_tested["kdd21/C2"] = f"the claim is about MNIST; this run used {', '.join(one.data for one in audited)}"
    else:
        total = _beyond_high(fit[MNIST].counts())
        estimand = f"total under PGD at the end of training on {MNIST}, minus {HIGH} percent"
        covers = (f"more than {HIGH} percent overall",)
        tests.append(Test(claim="kdd21/C2", covers=covers, estimand=estimand, estimators=[total]))
        if total(0.05).value > 0:
            tests.append(_gap_test("kdd21/C2", "visible", fit[MNIST], ("visible gap",)))
        else:
            not_tested["kdd21/C2"] = f"the gap is that of a model above {HIGH} percent, which this one is not"
    if "imagenet" in fit:
        tests.append(_growth(fit["imagenet"]))
    else:
        not_tested["kdd21/C3"] = "the claim is about ImageNet, whose training takes days on a GPU"
    return tests, not_tested


def _gap_test(claim: str, word: str, one: DataSetAudits, covers: Sequence[str] = ()) -> Test:
    """Test that the MCD of the shown classes exceeds the threshold of the data set."""
    threshold = VISIBLE if one.data == MNIST else LARGE
    return Test(
        claim=claim,
        estimand=f"MCD under PGD at the end of training on {one.data}, minus {threshold}",
        estimators=[widest(one.shown()[0], threshold)],
        note=f"{word!r} is interpreted as more than {threshold} points by simultaneous intervals for all classes"
        + (", since the paper reports 6" if one.data == MNIST else ""),
        covers=covers,
    )


def _beyond_high(counts: ClassCounts) -> IntervalEstimator:
    """Total minus the total of the paper on MNIST, in points."""

    def at(level: float) -> Estimate:
        return Estimate(*(100 * end - HIGH for end in metric_intervals.overall(counts, level)))

    return at


def _growth(one: DataSetAudits) -> Test:
    """Test of C3: the gap of the shown classes on the validation split grows from the first epoch to the last."""
    run = one.trained[ADVERSARIAL].run
    robust, images = measured(run, "valid", "robust"), images_of(run, "valid")
    chosen = robust if one.sampled is None else robust[list(one.sampled)]
    first, last = (counts_at(int(epoch), chosen, images) for epoch in (chosen.index[0], chosen.index[-1]))
    estimand = "MCD on the validation split under the attack of the training: last epoch minus first"
    return Test(claim="kdd21/C3", estimand=estimand, estimators=[wider(last, first)])


class ClassTrend(Experiment):
    """benz20 plan: accuracy and robustness of each class over training; does the weakest class change?"""

    scales: ClassVar[Mapping[Name, Scale]] = PLANS
    declared: ClassVar[Trainings] = {"AT": AT}

    def run(self, context: Context) -> Findings:
        """Draw both measures over the epochs of adversarial training, and count changes of the weakest class."""
        run = context.train_all(self.trainings(context.scale))["AT"].run
        figures, rows, measurements = [], [], []
        for measure in ("robust", "clean"):
            history = trend({"AT": run}, measure, window=(0.5, 1.0))
            figures.append((history.figure(), f"Validation split, {measure}."))
            turns, epochs = history.summary["turns"]["AT"], history.epochs
            late = epochs[epochs["epoch"] > run.recipe.epochs / 2]
            weakest = dict.fromkeys(map(str, late["worst_class"]))
            rows.append(Row(measure, [Cell(f"{turns:.0f}"), Cell(", ".join(weakest))]))
            quantity = f"changes of the weakest class in the second half of one training, {measure}"
            measurements.append(Measurement(question="benz20/C4", quantity=quantity, value=turns))
        heads = ("measure", "changes of the weakest class", "weakest classes")
        return Findings(
            tables=(Table("Second half of training", heads, rows),),
            figures=figures,
            measurements=measurements,
        )
