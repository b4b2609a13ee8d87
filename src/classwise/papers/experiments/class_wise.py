"""Class accuracies of standard and adversarial training: iclr21/F6, F7, E3, kdd21/E1, benz20/F1, F2."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from classwise.analysis.gap import Gap, gap, gap_of
from classwise.analysis.spread import spread_of
from classwise.auditing.run.result import Audit
from classwise.core.threat import Threat
from classwise.papers.claims import Test
from classwise.papers.context import Context, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.data_set_audits import DRAWN, SCALES, audit_each, data_tables, declare, no_verdict
from classwise.papers.experiments.protocol import AT, STANDARD, under_pgd
from classwise.papers.interval_estimators import IntervalEstimator, interval, more_varied, plus, wider, widest
from classwise.papers.scales import CLASSWISE, PRELIMINARY, Name, Scale
from classwise.papers.store import Trained
from classwise.papers.tables import Key, class_table, elsewhere, estimate_cell
from classwise.reporting.figures.dots import ROW_WIDTH, Value, dot_rows
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.gap_intervals import discrepancy_difference
from classwise.stats.intervals import Estimate, class_intervals

FILLED_BINS = 4
"""Number of ten-point intervals interpreted as a broad distribution."""
RADII: Sequence[float] = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1)
"""Multiples of the radius of the scale: 0.25, 0.5, 1, 2 and 8 of 8/255, where a standard model has accuracy 0."""
HALF = 0.5
"""Average accuracy at which classes are compared."""


class StandardAgainstAdversarial(Experiment):
    """iclr21 Figure 7: standard accuracy and adversarial robustness of each class, on each data set."""

    claim: ClassVar[str] = "iclr21/C14"
    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def trainings(self, scale: Scale) -> Trainings:
        """A standard and an adversarially trained model of each data set."""
        return declare(scale)

    def run(self, context: Context) -> Findings:
        """Compare gap, variance and order of the classes of both models, and test the claim on each data set."""
        audited, absent = audit_each(context)
        rows, figures, tests = [], [], []
        for one in audited:
            (standard, names), (adversarial, _) = one.shown("standard", "clean"), one.shown()
            robust = gap_of(standard, adversarial, list(names))
            rows += gap_rows(robust, f"{one.data}: ")
            own = self.claims(robust) if one.judges(self.claim) else ()
            rows.append(Row(f"{one.data}: order of the classes", _order_cells(robust, own)))
            drawing = robust.figure() if len(names) <= DRAWN else spread_of(adversarial, "PGD").figure()
            figures.append((drawing, f"{one.data}: test images, PGD."))
            tests += [replace(test, covers=(one.data,)) for test in own]
        return Findings(
            tables=(gap_table(rows), *data_tables(audited, absent)),
            figures=figures,
            tests=tests,
            not_tested=no_verdict(self.claim, audited),
        )

    def claims(self, robust: Gap) -> Sequence[Test]:
        """Test iclr21 C14: the same class order, a larger gap under attack.

        Args:
            robust: standard clean accuracy against adversarial training under PGD.
        """
        one, other = robust.counts
        parts = [interval(robust.order_interval), lambda level: discrepancy_difference(other, one, alpha=level)]
        estimand = "Spearman's correlation of the two class orders; difference of the gaps (fractions)"
        return [Test(claim=self.claim, estimand=estimand, estimators=parts, unit="")]


def gap_rows(one: Gap, prefix: str = "", tests: Sequence[Test] = ()) -> list[Row]:
    """Rows of MCD and CV of the standard and of the robust model, with their ratios.

    Args:
        one: comparison of the two models.
        prefix: beginning of the names of the rows.
        tests: tests of the MCD.
    """
    variances = (estimate_cell(each, 1e4) for each in one.variance)
    gaps = (estimate_cell(each, tests=tests) for each in one.discrepancy)
    return [
        Row(f"{prefix}MCD, points", [*gaps, estimate_cell(one.discrepancy_ratio, 1)]),
        Row(f"{prefix}CV, percent squared", [*variances, estimate_cell(one.variance_ratio, 1)]),
    ]


def _order_cells(one: Gap, tests: Sequence[Test]) -> list[Cell]:
    return [Cell(""), Cell(""), estimate_cell(one.order_interval, 1, 2, tests=tests)]


def gap_table(rows: Sequence[Row]) -> Table:
    """Table of `gap_rows`."""
    heads = ("gap between classes", "standard, clean", "adversarial, PGD", "ratio or correlation")
    note = (
        "CV is corrected for its upward bias by sampling error. MCD is not; its bounds are valid for equal classes. "
        "Order: Spearman's correlation of the two class rankings. Small print: 95 % confidence intervals."
    )
    return Table("Standard and adversarial training", heads, rows, note)


class LargerGaps(StandardAgainstAdversarial):
    """kdd21 section 4.3: CV and MCD of adversarial training compared with standard training."""

    claim = "kdd21/C4"

    def claims(self, robust: Gap) -> Sequence[Test]:
        """Test kdd21 C4: both far larger, interpreted as twice as large."""
        note = "'far larger' is interpreted as more than twice"
        estimand = "root of CV minus that of twice standard training's CV; MCD minus twice standard training's"
        return [Test(claim=self.claim, estimand=estimand, estimators=_more_than(robust, 2), note=note)]


class AdversarialModel(Experiment):
    """benz20 Figure 2: accuracy and robustness of the adversarially trained and the standard model."""

    scales: ClassVar[Mapping[Name, Scale]] = CLASSWISE
    declared: ClassVar[Trainings] = {"standard": STANDARD, "adversarial": AT}

    def run(self, context: Context) -> Findings:
        """Compare both models; test claim C2: a larger discrepancy in accuracy and in robustness."""
        trained = context.train_all(self.trainings(context.scale))
        standard, adversarial = (under_pgd(context, one).outcomes for one in trained.values())
        robust, clean = gap(standard, adversarial, "PGD"), gap(standard, adversarial, "clean")
        gaps = [elsewhere("benz20/C1", widest(standard.counts("clean")))]
        gaps.append(elsewhere("benz20/C4", widest(adversarial.counts("PGD"))))
        rows = [*gap_rows(robust, tests=gaps), *gap_rows(clean, "adversarial training, clean: ", gaps[:1])]
        table = gap_table(rows)
        return Findings(
            tables=(table,), figures=((robust.figure(), "Test images, PGD."),), tests=discrepancy_tests(robust, clean)
        )


def discrepancy_tests(robust: Gap, clean: Gap) -> list[Test]:
    """Test benz20 C2: a larger discrepancy of the adversarial model, in robustness and in accuracy.

    Args:
        robust: standard clean accuracy against the adversarial model under PGD.
        clean: the same comparison on clean images for both models.
    """
    return [
        Test(
            claim="benz20/C2",
            covers=(what,),
            estimand=f"{what} of the adversarial model: root of CV, and MCD, minus those of standard accuracy",
            estimators=_more_than(one, 1),
        )
        for what, one in (("robustness", robust), ("accuracy", clean))
    ]


def _more_than(one: Gap, factor: float) -> list[IntervalEstimator]:
    """Tests that CV and MCD of the robust model are more than ``factor`` times those of the standard model."""
    standard, robust = one.counts
    return [more_varied(robust, standard, factor), wider(robust, standard, factor)]


class RobustnessHistogram(Experiment):
    """iclr21 Figure 6: histogram of class robustness in ten intervals, on the data sets with many classes."""

    claim: ClassVar[str] = "iclr21/C16"
    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def trainings(self, scale: Scale) -> Trainings:
        """An adversarially trained model of each data set."""
        return declare(scale, ("adversarial",))

    def run(self, context: Context) -> Findings:
        """Count the classes per interval on each data set; test claim C16 on CIFAR-100 and ImageNet."""
        found, absent = audit_each(context, ("adversarial",))
        audited = [one.by_class for one in found]
        rows, figures, tests = [], [], []
        for one in audited:
            counts = one.counts()
            histogram = spread_of(counts, "PGD")
            bins = [Estimate(*ends) for ends in zip(histogram.count, histogram.low, histogram.high, strict=True)]
            rows.append(Row(one.data, [estimate_cell(each, 1, 0) for each in bins]))
            figures.append((histogram.figure(), f"{one.data}: adversarial training under PGD."))
            if one.judges(self.claim):
                tests.append(self._test(one.data, counts, histogram.edges))
        edges = (100 * histogram.edges).round().astype(int).tolist()
        heads = ("data set", *(f"{low} to {high} %" for low, high in itertools.pairwise(edges)))
        note = "Small print: 95 % confidence intervals."
        return Findings(
            tables=(Table("Number of classes by their robustness", heads, rows, note), *data_tables(audited, absent)),
            figures=figures,
            tests=tests,
            not_tested=no_verdict(self.claim, audited),
        )

    def _test(self, data: str, counts: ClassCounts, edges: FloatArray) -> Test:
        return Test(
            claim=self.claim,
            covers=(data,),
            estimand="number of ten-point intervals that contain a class, minus 4",
            estimators=[plus(filled_bins(counts, edges), -FILLED_BINS)],
            unit="",
        )


def filled_bins(counts: ClassCounts, edges: FloatArray) -> IntervalEstimator:
    """Number of bins of `spread` that contain a class.

    The bounds use simultaneous intervals for all classes: bins that contain an interval, and bins that overlap one.
    """
    bottom, top = edges[:-1, None].copy(), edges[1:, None]
    bottom[0] = -1  # the first bin includes its lower edge, the others do not

    def at(level: float) -> Estimate:
        low, high = (end[counts.present] for end in class_intervals(counts, level, simultaneous=True))
        value = counts.accuracy[counts.present]
        ends = ((value, value), (low, high), (high, low))  # contained, surely contained, overlapping
        return Estimate(*(float(((a > bottom) & (b <= top)).any(axis=1).sum()) for a, b in ends))

    return at


def at_radius(context: Context, trained: Trained, share: float) -> Audit:
    """Audit a run under PGD at a fraction of the radius of the scale, on the same images."""
    threat = Threat.parse(context.scale.threat)
    assert isinstance(threat.epsilon, float)
    scale = replace(context.scale, threat=f"{threat.norm}:{share * threat.epsilon!r}")
    own = Context(scale, context.store, device=context.device, progress=context.progress)
    return under_pgd(own, trained)


class StandardModel(Experiment):
    """benz20 Figure 1: a standard model, clean and under PGD of several radii; raw and minus the mean."""

    scales: ClassVar[Mapping[Name, Scale]] = PRELIMINARY
    declared: ClassVar[Trainings] = {"standard": STANDARD, "adversarial": AT}

    def run(self, context: Context) -> Findings:
        """Audit the model at each radius; test claims C1, and C3 at one radius."""
        models = context.train_all(self.trainings(context.scale))
        trained = models["standard"]
        audits = {share: at_radius(context, trained, share) for share in RADII}
        first = next(iter(audits.values()))
        counts = {"clean": first.counts("clean")}
        counts |= {radius_name(context.scale, share): audit.counts("PGD") for share, audit in audits.items()}
        robust = {share: float(audit.counts("PGD").accuracy.mean()) for share, audit in audits.items()}
        reference_share = min(RADII, key=lambda share: abs(robust[share] - HALF))
        shown = ("clean", radius_name(context.scale, reference_share))
        drawn = [counts[name] for name in shown]
        table = first.outcomes
        adversarial = under_pgd(context, models["adversarial"]).outcomes
        smaller = [drawn[0], drawn[1], adversarial.counts("clean")]
        tests = [
            Test(
                claim="benz20/C1",
                estimand="MCD of clean accuracy, standard training",
                estimators=[widest(counts["clean"])],
                note="'non-trivial' is interpreted as above zero by simultaneous intervals for all classes",
            ),
            Test(
                claim="benz20/C3",
                estimand="MCD of the adversarial model under PGD minus each of: standard clean, standard under "
                f"{shown[1]}, adversarial clean",
                estimators=[wider(adversarial.counts("PGD"), one) for one in smaller],
                note="the standard model is evaluated at the radius where its average is nearest 50 percent",
            ),
        ]
        rows = [
            Row(
                name,
                [
                    estimate_cell(metric_intervals.macro(one)),
                    estimate_cell(metric_intervals.discrepancy(one), tests=tests if name == "clean" else ()),
                    _spread(one),
                ],
            )
            for name, one in counts.items()
        ]
        note = f"C3 is tested at {shown[1]}, where the average is nearest 50 percent. "
        note += "Small print: 95 % confidence intervals for new images."
        classes: dict[Key, ClassCounts] = {(name,): one for name, one in counts.items()}
        return Findings(
            tables=(
                Table("Summary over classes", ("images", "average", "MCD", "CV, percent squared"), rows, note),
                class_table("Class accuracy, in percent", classes, table.class_names),
            ),
            figures=(
                (class_dots("Standard training, in percent", drawn, shown, table.class_names), "Test images."),
                (_centred(drawn, shown, table.class_names), "Difference from the mean over classes."),
            ),
            tests=tests,
        )


def radius_name(scale: Scale, share: float) -> str:
    """Name of the attack at a fraction of the radius of the scale."""
    radius = Threat.parse(scale.threat).epsilon
    assert isinstance(radius, float)
    return f"PGD at {255 * share * radius:.3g}/255"


def _spread(counts: ClassCounts) -> Cell:
    return estimate_cell(metric_intervals.variance(counts), 1e4)


def class_dots(title: str, counts: Sequence[ClassCounts], shown: Sequence[str], names: Sequence[str]) -> Drawing:
    """Dot plot with a row for each class: its accuracy in each of several counts with 95 % intervals."""
    ends = [class_intervals(one) for one in counts]
    values = [
        [
            Value(float(one.accuracy[c]), float(low[c]), float(high[c]), int(one.count[c]))
            for one, (low, high) in zip(counts, ends, strict=True)
        ]
        for c in range(len(names))
    ]
    return dot_rows(title, names, shown, values, width=ROW_WIDTH)


def _centred(counts: Sequence[ClassCounts], shown: Sequence[str], names: Sequence[str]) -> Drawing:
    sides = [(*metric_intervals.beyond_mean(one), one.count) for one in counts]
    values = [
        [Value(float(value[c]), float(low[c]), float(high[c]), int(count[c])) for value, low, high, count in sides]
        for c in range(len(names))
    ]
    title = "Standard training, class minus mean, in points"
    return dot_rows(title, names, shown, values, difference=True, width=ROW_WIDTH)
