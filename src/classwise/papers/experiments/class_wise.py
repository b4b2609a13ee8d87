"""Class-wise analysis of standard and adversarial training, on several data sets and of models that the user names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from torch import nn

from classwise.analysis.confusion import Confused, confused, contrast, excess, rate_correlation
from classwise.analysis.embedding import embedding
from classwise.analysis.gap import Gap, gap, gap_of, order_of
from classwise.analysis.norm_link import NormLink, norm_link, row_norms
from classwise.analysis.spread import spread, spread_of
from classwise.analysis.trend import trend, trend_of
from classwise.auditing.outcomes.table import CLEAN, Outcomes
from classwise.auditing.run.result import Audit
from classwise.core.compute.rng import CounterRNG
from classwise.core.rounding import in_percent
from classwise.core.settings.config import configurable
from classwise.data.splits import stratified_subset
from classwise.papers import catalogue
from classwise.papers.claims import Measurement, Test, not_tested, unless
from classwise.papers.declared import DeclaredTest, Measures, declared_tests
from classwise.papers.experiment import Context, Experiment, Findings, Training, Trainings
from classwise.papers.experiments.fair_training import with_checkpoints
from classwise.papers.experiments.protocol import (
    AT,
    PGD,
    SETUP_STEP,
    STANDARD,
    paired_models,
    pgd,
    pgd_name,
    resampled,
    under_pgd,
    unmet_precondition,
    unmet_preconditions,
)
from classwise.papers.interval_estimators import (
    ALPHA,
    IntervalEstimator,
    difference,
    in_points,
    more_varied,
    negative,
    plus,
    wider,
    widest,
)
from classwise.papers.scales import (
    CIFAR,
    CLASSWISE,
    MNIST,
    OWN_DATA,
    PAPER_DATA,
    PLANS,
    PRELIMINARY,
    REDUCED,
    RESNET18,
    SMALL,
    SMOKE,
    TIAN,
    Name,
    Scale,
    radius,
)
from classwise.papers.tables import (
    HEADS_OF_BOTH,
    class_table,
    elsewhere,
    estimate_cell,
    metric_cells,
    skipped_table,
)
from classwise.posthoc.equal_norms import equalise_norms
from classwise.reporting import formatting
from classwise.reporting.figures.bars import class_bars
from classwise.reporting.figures.dots import ROW_WIDTH, Value, dot_rows
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import ClassCounts, FloatArray, IntArray
from classwise.stats.intervals import Estimate, class_intervals, proportion_estimate
from classwise.stats.metrics import averages, discrepancy, lowest, variance
from classwise.stats.stratified import class_mean, sum_of_class_means
from classwise.training.folder import Run, epoch_weights

DATA_SETS: Mapping[Name, Sequence[str]] = {
    "smoke": (SMOKE.data,),
    "small": (*PAPER_DATA, *OWN_DATA),
    "reduced": (CIFAR,),
    "medium": [data for data in PAPER_DATA if data != "imagenet"],  # its trainings have their own budget
    "full": PAPER_DATA,
}
"""The data sets of each scale; unavailable ones are skipped."""
SCALES: Mapping[Name, Scale] = {
    "smoke": SMOKE,
    "small": replace(SMALL, about=f"{SMALL.about}; and the other available data sets, see their table"),
    "reduced": REDUCED,
    "full": replace(TIAN, about=f"{TIAN.about}, and its other data sets; unavailable ones are skipped"),
}
"""Scales of the class-wise analysis on all data sets."""
FAST = Training(recipe="fast-at-three-stage")
"""Adversarial training on ImageNet, kdd21 A.1."""
STANDARD_IMAGENET = replace(
    STANDARD, overrides={**STANDARD.overrides, "optimizer.lr": 0.4, "lr_schedule": "three-stage"}
)
"""Standard training on ImageNet with the learning rates of `FAST`."""
PRETRAINED = "imagenet"
"""The data set on which iclr21 has a standard model that others trained."""
DRAWN = 20
"""Largest number of classes listed as columns of a table, or as rows of a figure."""
KINDS = ("standard", "adversarial")
ADVERSARIAL, ROBUST = "adversarial", "PGD"


def declare(
    scale: Scale, kinds: Sequence[str] = KINDS, *, data_sets: Sequence[str] | None = None, network: str = ""
) -> dict[str, Training]:
    """Declare a training of each kind on each data set, those of the scale by default, named ``kind, data``.

    Args:
        scale: scale of the experiment.
        kinds: kinds of training.
        data_sets: names of the data sets; None for those of the scale.
        network: network for all data sets; empty for that of each.
    """
    return {
        f"{kind}, {data}": replace(_training(kind, data, network), data=data)
        for data in data_sets or scale.entry(DATA_SETS)
        for kind in kinds
    }


def _training(kind: str, data: str, network: str = "") -> Training:
    adversarial, standard = (FAST, STANDARD_IMAGENET) if data == "imagenet" else (AT, STANDARD)
    own = standard if kind == "standard" else adversarial
    return replace(own, overrides={**own.overrides, "model.name": network}) if network else own


@dataclass(frozen=True)
class DataSetAudits:
    """Models of one data set and their audits under PGD.

    Attributes:
        data: name of the data set.
        context: context of the data set.
        trained: trainings by kind.
        audits: audits by kind.
        superclasses: whether statements are about superclasses.
        given: the standard model that the user names, with its name; None if it is trained.
    """

    data: str
    context: Context
    trained: Mapping[str, Run]
    audits: Mapping[str, Audit]
    superclasses: bool
    given: tuple[str, nn.Module] | None = None

    def model(self, kind: str) -> nn.Module:
        """The model of a kind."""
        return self.given[1] if self.given and kind not in self.trained else self.trained[kind].model()

    @property
    def by_class(self) -> DataSetAudits:
        """The same with statements about classes."""
        return replace(self, superclasses=False)

    def outcomes(self, kind: str = ADVERSARIAL) -> Outcomes:
        """Outcomes of a model, by superclass where statements are about superclasses."""
        outcomes = self.audits[kind].outcomes
        return by_superclass(outcomes) if self.superclasses else outcomes

    def counts(self, kind: str = ADVERSARIAL, attack: str = ROBUST) -> ClassCounts:
        """Per-class counts of `outcomes`."""
        return self.outcomes(kind).counts(attack)

    @cached_property
    def sampled(self) -> Sequence[int] | None:
        """Labels of the 12 classes that the papers show on this data set; None for all classes."""
        outcomes = self.outcomes()
        return sampled_classes(self.data) if outcomes.num_classes == _CLASSES.get(self.data) else None

    def shown(self, kind: str = ADVERSARIAL, attack: str = ROBUST) -> tuple[ClassCounts, Sequence[str]]:
        """Per-class counts and names of the sampled classes, or of all classes with images."""
        counts, names = self.counts(kind, attack), self.outcomes(kind).class_names
        return ClassCounts(counts.count[self.rows], counts.correct[self.rows]), [names[row] for row in self.rows]

    @cached_property
    def rows(self) -> Sequence[int]:
        """Labels of the classes of `shown`."""
        return np.flatnonzero(self.counts().present).tolist() if self.sampled is None else list(self.sampled)

    @cached_property
    def fault(self) -> str:
        """The `unmet_precondition` of the adversarial model under PGD; empty if there is none."""
        return unmet_precondition(self.context.scale, self.counts())

    @property
    def unfit(self) -> str:
        """`fault`, or that the data set is not one of the class-wise analysis of the papers."""
        own = self.context.scale.name != "smoke" and self.data not in PAPER_DATA
        return "not a data set of the papers" if own else self.fault

    def judges(self, claim: str) -> bool:
        """Whether this data set gives a verdict on a claim: it is `named_by` the claim, and there is no `fault`."""
        return not self.fault and self.named_by(claim)

    def named_by(self, claim: str) -> bool:
        """Whether this data set is a part of a claim. At smoke scale, it replaces those of the claims."""
        return (claim, self.data) in catalogue.claim_parts(claim) or self.context.scale.name == "smoke"


_CLASSES: Mapping[str, int] = {"cifar100": 100, "imagenet": 1000}
_LISTS: Mapping[str, str] = {"cifar100": "CIFAR-100", "imagenet": "ImageNet"}


def sampled_classes(data: str) -> Sequence[int] | None:
    """The 12 classes of a data set in the figures of the papers (iclr21/D1); None if the figures show all.

    One label of ImageNet is unreadable except for its first digit, 8: a seeded choice replaces it.
    """
    if data not in _LISTS:
        return None
    labels = catalogue.paper("iclr21").sampled_classes[_LISTS[data]]["classes"]
    order = CounterRNG(0, "unreadable class of iclr21 Figure 7").permutation(100).tolist()
    spare = next(label for label in (800 + place for place in order) if label not in labels)
    return [spare if label is None else int(label) for label in labels]


def by_superclass(outcomes: Outcomes) -> Outcomes:
    """Outcomes with superclasses as labels and predictions: an image is correct if its superclass is predicted."""
    parents = np.asarray(outcomes.meta.superclasses)
    rows = {attack: outcomes.rows(attack).sort_values("index") for attack in outcomes.attacks}
    predictions = {attack: parents[frame["prediction"].to_numpy(dtype=np.int64)] for attack, frame in rows.items()}
    clean = predictions.pop("clean")
    return Outcomes.from_predictions(
        parents[outcomes.labels], clean, predictions, outcomes.meta.superclass_names, threat=outcomes.meta.threat
    )


def audit_each(
    context: Context, declared: Trainings, *, last: bool = False
) -> tuple[list[DataSetAudits], dict[str, str]]:
    """Train and audit the models of `declare` on each available data set.

    Args:
        context: context of the experiment.
        declared: the trainings, each with its data set, by kind and data set.
        last: whether to audit the last saved epoch in place of the selected weights.

    Returns:
        The audits, and for each unavailable data set the reason.

    Raises:
        ClasswiseError: if no data set is available.
    """
    contexts, absent = context.for_data_sets(list(dict.fromkeys(training.data for training in declared.values())))
    audited = []
    for data, own in contexts.items():
        kinds = {name.partition(",")[0]: training for name, training in declared.items() if training.data == data}
        given = None
        if own.inputs and data == PRETRAINED and "standard" in kinds:
            ((name, model),) = own.inputs.load_models(own.test_images, own.device).items()
            given = name, model
        trained = own.train_all({kind: training for kind, training in kinds.items() if not given or kind != "standard"})
        audits = {"standard": own.audit_model(given[1], {"PGD": pgd(own, SETUP_STEP)})} if given else {}
        for kind, run in trained.items():
            which = epoch_weights("last", max(run.recipe.checkpoint_epochs)) if last else None
            audits[kind] = under_pgd(own, run, which=which)
        audited.append(DataSetAudits(data, own, trained, audits, own.scale.superclasses, given))
    return audited, absent


def no_verdict(claim: str, audited: Sequence[DataSetAudits]) -> list[Test]:
    """The claim as not tested with the reason of each data set, if none of them gives a verdict on it; else empty."""
    if any(data_set.judges(claim) for data_set in audited):
        return []
    named = [data_set for data_set in audited if data_set.named_by(claim)]
    other = "; ".join(f"{data_set.data}: not a data set of the claim" for data_set in audited)
    return [not_tested(claim, "; ".join(f"{data_set.data}: {data_set.fault}" for data_set in named) or other)]


@configurable
class OnDataSets(Experiment, scales=SCALES):
    """An experiment on each available data set, whose name is the placeholder ``data`` of the tests.

    Attributes:
        together: tests of claims on named or on several data sets; those that give no verdict are left out.
    """

    together: tuple[DeclaredTest, ...] = ()

    def tested(self, one: DataSetAudits, measures: Measures, **lists: Any) -> list[Test]:
        """Tests of the claims on which a data set gives a verdict."""
        judged = [test for test in self.tests if one.judges(test.claim)]
        return declared_tests(judged, measures, lists={"data": one.data, **lists})

    def jointly(self, audited: Sequence[DataSetAudits], measures: Measures, **options: Any) -> list[Test]:
        """Tests of `together`; their placeholder ``used`` has the names of the data sets of this run.

        Args:
            audited: audits of the data sets.
            measures: interval estimators.
            options: ``lists`` and ``excluded`` of `declared_tests`.
        """
        lists = {"used": ", ".join(one.data for one in audited), **options.pop("lists", {})}
        fit = [one.data for one in audited if not one.unfit]
        return declared_tests(self.together, measures, lists=lists, known=fit, **options)

    def untested(self, audited: Sequence[DataSetAudits]) -> list[Test]:
        """The claims on which no data set gives a verdict."""
        claims = dict.fromkeys(test.claim for test in self.tests)
        return [test for claim in claims for test in no_verdict(claim, audited)]


def data_tables(audited: Sequence[DataSetAudits], absent: Mapping[str, str]) -> list[Table]:
    """Table of the data sets with their sizes, network, radius and accuracy, and a table of the skipped ones."""
    rows = []
    for data_set in audited:
        counts, recipe = data_set.counts(), data_set.trained[ADVERSARIAL].recipe
        groups = "superclasses" if data_set.superclasses else "classes"
        cells = [
            Cell(f"{int(counts.present.sum())} {groups}"),
            Cell(f"{len(data_set.context.train_images):,}"),
            Cell(_range(counts)),
            Cell(f"{recipe.model.name}, width {recipe.model.width or 1:g}"),
            Cell(data_set.context.scale.threat),
            *(estimate_cell(averages.overall_estimate(data_set.counts(attack=attack))) for attack in ("clean", ROBUST)),
            Cell(data_set.unfit or "yes"),
        ]
        rows.append(Row(data_set.data, cells))
    heads = ("data set", "statements about", "training images", "test images a class", "network", "threat")
    note = "95 % confidence intervals for new images. A data set without verdicts is measured only."
    named = {data_set.data: data_set.given[0] for data_set in audited if data_set.given}
    note += "".join(
        f" The standard model of {data} is {model}, which was not trained here." for data, model in named.items()
    )
    table = Table("Data sets", (*heads, "clean, percent", "PGD, percent", "verdicts"), rows, note)
    return [table, *skipped_table(absent)]


def _range(counts: ClassCounts) -> str:
    present = counts.count[counts.present]
    least, most = int(present.min()), int(present.max())
    return str(least) if least == most else f"{least} to {most}"


RADII: Sequence[float] = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1)
"""Multiples of the radius of the scale: 0.25, 0.5, 1, 2 and 8 of 8/255, where a standard model has accuracy 0."""
HALF = 0.5
"""Average accuracy at which classes are compared."""


LARGE, VISIBLE = 10, 1
"""Thresholds in points of a large and of a visible gap between classes (paper: 40 to 50 on CIFAR-10, 6 on MNIST)."""
HIGH = 95
"""Lower bound of the total on MNIST in the paper, in percent."""


class StandardAgainstAdversarial(OnDataSets, trainings=declare):
    """iclr21 Figure 7, kdd21 section 4: standard accuracy and adversarial robustness of each class, by data set."""

    pretrained = PRETRAINED

    def run(self, context: Context) -> Findings:
        """Compare gap, variance and order of the classes of both models, and test the claims on each data set."""
        audited, absent = audit_each(context, self.trainings(context.scale))
        gaps = {data_set.data: gap_on(data_set) for data_set in audited}
        tests, rows, figures = self.claims(audited, gaps), [], []
        for data, robust in gaps.items():
            rows += gap_rows(robust, f"{data}: ")
            order = [Cell(""), Cell(""), estimate_cell(robust.order_interval, 1, 2, tests=tests)]
            rows.append(Row(f"{data}: order of the classes", order))
            drawing = robust.figure() if len(robust.classes) <= DRAWN else spread_of(robust.counts[1], "PGD").figure()
            figures.append((drawing, f"{data}: test images, PGD."))
        return Findings(tables=(gap_table(rows), *data_tables(audited, absent)), figures=figures, tests=tests)

    def claims(self, audited: Sequence[DataSetAudits], gaps: Mapping[str, Gap]) -> list[Test]:
        """Tests of the claims on the data sets that give a verdict; ``gaps``: the comparison of both models of each."""
        tests = list[Test]()
        for one in audited:
            paper = ", since the paper reports 6" if one.data == MNIST else ""
            threshold = VISIBLE if one.data == MNIST else LARGE
            tests += self.tested(one, partial(_gap_estimator, gaps[one.data]), threshold=threshold, paper=paper)
        low = any(100 * averages.overall_estimate(one.counts()).value <= HIGH for one in audited if one.data == MNIST)
        reason = f"the gap is that of a model above {HIGH} percent, which this one is not"
        return [
            *tests,
            *self.untested(audited),
            *self.jointly(
                audited,
                lambda measure, data, *factor: _gap_estimator(gaps[data], measure, *factor),
                excluded={"high total": reason} if low else {},
            ),
        ]


def gap_on(one: DataSetAudits) -> Gap:
    """Compare the standard model on clean images with the adversarial one under PGD."""
    (standard, names), (adversarial, _) = one.shown("standard", CLEAN), one.shown()
    order = order_of(one.outcomes("standard"), one.outcomes(), ROBUST, one.rows)
    return gap_of(standard, adversarial, list(names), order)


def _gap_estimator(one: Gap, measure: str, factor: str = "1") -> IntervalEstimator:
    """A measure of the robust model, the order of the classes, or the gap minus a multiple of the standard model's."""
    standard, robust = one.counts
    if measure == "order of the classes":
        return one.ranked.estimate
    if measure == "gap":
        return widest(robust)
    if measure == "total":
        return lambda level: in_points(averages.overall_estimate(robust, level))
    if measure == "MCD, fraction":
        return lambda level: discrepancy.discrepancy_difference(robust, standard, alpha=level)
    return {"CV": more_varied, "MCD": wider}[measure](robust, standard, float(factor))


def gap_rows(one: Gap, prefix: str = "", tests: Sequence[Test] = ()) -> list[Row]:
    """Rows of MCD and CV of the standard and of the robust model, with their ratios.

    Args:
        one: comparison of the two models.
        prefix: beginning of the names of the rows.
        tests: tests of the MCD.
    """
    variances = (estimate_cell(estimate, 1e4) for estimate in one.variance)
    gaps = (estimate_cell(estimate, tests=tests) for estimate in one.discrepancy)
    return [
        Row(f"{prefix}MCD, points", [*gaps, estimate_cell(one.discrepancy_ratio, 1)]),
        Row(f"{prefix}CV, percent squared", [*variances, estimate_cell(one.variance_ratio, 1)]),
    ]


def gap_table(rows: Sequence[Row]) -> Table:
    """Table of `gap_rows`."""
    heads = ("gap between classes", "standard, clean", "adversarial, PGD", "ratio or correlation")
    note = (
        "CV is corrected for its upward bias by sampling error. MCD is not; its bounds are valid for equal classes. "
        "Order: Spearman's correlation of the two class rankings. 95 % confidence intervals."
    )
    return Table("Standard and adversarial training", heads, rows, note)


class AdversarialModel(Experiment, scales=CLASSWISE, trainings={"standard": STANDARD, "adversarial": AT}):
    """benz20 Figure 2: accuracy and robustness of the adversarially trained and the standard model."""

    def run(self, context: Context) -> Findings:
        """Compare both models in accuracy and in robustness."""
        trained = context.train_all(self.trainings(context.scale))
        standard, adversarial = (under_pgd(context, model).outcomes for model in trained.values())
        robust, clean = gap(standard, adversarial, "PGD"), gap(standard, adversarial, "clean")
        gaps = [elsewhere("benz20/C1", widest(standard.counts("clean")))]
        table = gap_table([*gap_rows(robust, tests=gaps), *gap_rows(clean, "adversarial training, clean: ", gaps)])
        return Findings(
            tables=(table,),
            figures=[
                *discrepancy_panels("Adversarial training", adversarial, ("clean", "PGD")),
                (robust.figure(), "Test images, PGD."),
            ],
            tests=declared_tests(
                self.tests,
                _of_gaps({"robustness": robust, "accuracy": clean}),
                excluded=_unmet_of_gaps(context.scale, adversarial),
            ),
        )


def discrepancy_panels(model: str, outcomes: Outcomes, attacks: Sequence[str]) -> list[tuple[Drawing, str]]:
    """Panels of benz20 Figures 1 and 2: class accuracies under each attack, and the same minus their mean.

    Args:
        model: name of the model.
        outcomes: outcomes of the model.
        attacks: ``clean`` for accuracy, and an attack for robustness.
    """
    names = outcomes.class_names
    panels = list[tuple[Drawing, str]]()
    for row, attack in enumerate(attacks, 1):
        counts = [outcomes.counts(attack)]
        panels.append((class_dots(f"{model}, {attack}, in percent", counts, [attack], names), f"Row {row}, left."))
        centred = _centred(f"{model}, {attack}, class minus mean, in points", counts, [attack], names)
        panels.append((centred, f"Row {row}, right: difference from the mean over classes."))
    return panels


def _unmet_of_gaps(scale: Scale, adversarial: Outcomes) -> dict[str, str]:
    """Unmet preconditions of the comparisons in robustness and in accuracy, by their names."""
    return {
        **unmet_preconditions(scale, {"robustness": adversarial}),
        **unmet_preconditions(scale, {"accuracy": adversarial}, CLEAN),
    }


def _of_gaps(gaps: Mapping[str, Gap]) -> Callable[..., IntervalEstimator]:
    """Measures of several comparisons of two models, by their names."""
    return lambda measure, name, *factor: _gap_estimator(gaps[name], measure, *factor)


class RobustnessHistogram(OnDataSets, trainings=lambda scale: declare(scale, ("adversarial",))):
    """iclr21 Figure 6: histogram of class robustness in ten intervals, on the data sets with many classes."""

    def run(self, context: Context) -> Findings:
        """Count the classes per interval on each data set; the claim is about CIFAR-100 and ImageNet."""
        found, absent = audit_each(context, self.trainings(context.scale))
        audited = [data_set.by_class for data_set in found]
        rows, figures, tests = [], [], []
        for data_set in audited:
            counts = data_set.counts()
            histogram = spread_of(counts, "PGD")
            bins = [Estimate(*ends) for ends in zip(histogram.count, histogram.low, histogram.high, strict=True)]
            rows.append(Row(data_set.data, [estimate_cell(estimate, 1, 0) for estimate in bins]))
            figures.append((histogram.figure(), f"{data_set.data}: adversarial training under PGD."))
            tests += self.tested(data_set, {"filled bins": partial(filled_bins, counts, histogram.edges)})
        edges = (100 * histogram.edges).round().astype(int).tolist()
        heads = ("data set", *(f"{low} to {high} %" for low, high in itertools.pairwise(edges)))
        note = "95 % confidence intervals."
        return Findings(
            tables=(Table("Number of classes by their robustness", heads, rows, note), *data_tables(audited, absent)),
            figures=figures,
            tests=[*tests, *self.untested(audited)],
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


def at_radius(context: Context, trained: Run, share: float) -> Audit:
    """Audit a run under PGD at a fraction of the radius of the scale, on the same images."""
    scale = replace(context.scale, threat=context.scale.threat_at(share))
    return under_pgd(Context(scale, context.store, device=context.device, progress=context.progress), trained)


class StandardModel(Experiment, scales=PRELIMINARY, trainings={"standard": STANDARD, "adversarial": AT}):
    """benz20 Figure 1: a standard model, clean and under PGD of several radii; raw and minus the mean."""

    weights: ClassVar[Mapping[str, int]] = {"standard": len(RADII)}

    def run(self, context: Context) -> Findings:
        """Audit the model at each radius; test claims C1, and C3 and C11 at one radius."""
        models = context.train_all(self.trainings(context.scale))
        trained = models["standard"]
        audits = {share: at_radius(context, trained, share) for share in RADII}
        first = next(iter(audits.values()))
        counts = {"clean": first.counts("clean")}
        counts |= {radius_name(context.scale, share): audit.counts("PGD") for share, audit in audits.items()}
        robust = {share: float(audit.counts("PGD").accuracy.mean()) for share, audit in audits.items()}
        nearest = min(RADII, key=lambda share: abs(robust[share] - HALF))
        shown = ("clean", radius_name(context.scale, nearest))
        drawn = [counts[name] for name in shown]
        table = first.outcomes
        adversarial = under_pgd(context, models["adversarial"]).outcomes
        tables = {
            "standard clean": (table, CLEAN),
            "standard attacked": (audits[nearest].outcomes, "PGD"),
            "adversarial clean": (adversarial, CLEAN),
            "adversarial attacked": (adversarial, "PGD"),
        }

        def counts_of(name: str) -> ClassCounts:
            outcomes, attack = tables[name]
            return outcomes.counts(attack)

        def beyond(name: str, one: str, other: str) -> IntervalEstimator:
            outcomes, attack = tables[name]
            return resampled(outcomes, [attack]).part(lambda a: a[..., 0, int(one)] - a[..., 0, int(other)], 100)

        measures: Measures = {
            "MCD": lambda name: widest(counts_of(name)),
            "difference of the MCD": lambda one, other: wider(counts_of(one), counts_of(other)),
            "class": beyond,
        }
        unmet = {
            name: reason
            for name, (outcomes, attack) in tables.items()
            for reason in unmet_preconditions(context.scale, {name: outcomes}, attack).values()
        }
        tests = declared_tests(self.tests, measures, lists={"attack": shown[1]}, excluded=unmet)
        rows = [
            Row(
                name,
                [
                    estimate_cell(class_mean(class_counts)),
                    estimate_cell(discrepancy.mcd_estimate(class_counts), tests=tests if name == "clean" else ()),
                    estimate_cell(variance.cv_estimate(class_counts), 1e4),
                ],
            )
            for name, class_counts in counts.items()
        ]
        note = (
            f"C3 is tested at {shown[1]}, where the average is nearest 50 percent. "
            "95 % confidence intervals for new images."
        )
        return Findings(
            tables=(
                Table("Summary over classes", ("images", "average", "MCD", "CV, percent squared"), rows, note),
                class_table("Class accuracy, in percent", counts, table.class_names),
            ),
            figures=(
                (class_dots("Standard training, in percent", drawn, shown, table.class_names), "Test images."),
                (
                    _centred("Standard training, class minus mean, in points", drawn, shown, table.class_names),
                    "Difference from the mean over classes.",
                ),
            ),
            tests=tests,
        )


def radius_name(scale: Scale, share: float) -> str:
    """Name of the attack at a fraction of the radius of the scale."""
    return f"PGD at {255 * share * radius(scale.threat):.3g}/255"


def class_dots(title: str, counts: Sequence[ClassCounts], shown: Sequence[str], names: Sequence[str]) -> Drawing:
    """Dot plot with a row for each class: its accuracy in each of several counts with 95 % intervals."""
    ends = [class_intervals(class_counts) for class_counts in counts]
    values = [
        [
            Value(float(class_counts.accuracy[c]), float(low[c]), float(high[c]), int(class_counts.count[c]))
            for class_counts, (low, high) in zip(counts, ends, strict=True)
        ]
        for c in range(len(names))
    ]
    return dot_rows(title, names, shown, values, width=ROW_WIDTH)


def _centred(title: str, counts: Sequence[ClassCounts], shown: Sequence[str], names: Sequence[str]) -> Drawing:
    sides = [(*averages.beyond_mean(class_counts), class_counts.count) for class_counts in counts]
    values = [
        [Value(float(value[c]), float(low[c]), float(high[c]), int(count[c])) for value, low, high, count in sides]
        for c in range(len(names))
    ]
    return dot_rows(title, names, shown, values, difference=True, width=ROW_WIDTH)


DATA: Sequence[str] = (MNIST, "svhn", CIFAR, "cifar100", "tiny-imagenet")
"""The data sets of the plan."""


class DataSets(Experiment, trainings=lambda scale: declare(scale, data_sets=_data(scale), network=_network(scale))):
    """benz20 plan: a standard and an adversarially trained model on each of five data sets."""

    scales: ClassVar[Mapping[Name, Scale]] = {
        **SCALES,
        "full": replace(
            RESNET18, about="ResNet-18 on five data sets, each with its radius; unavailable ones are skipped"
        ),
    }

    def run(self, context: Context) -> Findings:
        """Tabulate averages and gaps of both models on each available data set; test claims C1 and C4."""
        audited, absent = audit_each(context, self.trainings(context.scale))
        fit = [data_set for data_set in audited if not data_set.fault]
        note = f"on {', '.join(data_set.data for data_set in fit)}"
        any_gap = Test(
            claim="benz20/C1",
            estimand="MCD of clean accuracy, standard training, each data set",
            estimators=[widest(data_set.counts("standard", "clean")) for data_set in fit],
            note=f"{note}; 'non-trivial' is interpreted as above zero by simultaneous intervals for all classes",
        )
        tests = [any_gap] if fit else []
        for data_set in audited:
            if data_set.judges("benz20/C4"):
                estimand = f"MCD under PGD, adversarial training on {data_set.data}"
                gaps = [widest(data_set.counts())]
                tests.append(Test(claim="benz20/C4", covers=(data_set.data,), estimand=estimand, estimators=gaps))
        rows = [
            Row(f"{data_set.data}, {kind}", _metric_cells(data_set, kind, tests))
            for data_set in audited
            for kind in data_set.audits
        ]
        table = Table("In percent and points", ("model", *HEADS_OF_BOTH, "weakest"), rows, INTERVALS_NOTE)
        reason = "; ".join(f"{data_set.data}: {data_set.fault}" for data_set in audited)
        return Findings(
            tables=(table, *data_tables(audited, absent)),
            figures=[
                (_drawn(data_set), f"{data_set.data}: standard clean, adversarial under PGD.") for data_set in audited
            ],
            tests=tests if fit else [*tests, not_tested("benz20/C1", reason), not_tested("benz20/C4", reason)],
        )


def _data(scale: Scale) -> Sequence[str]:
    return (SMOKE.data,) if scale.name == "smoke" else DATA


def _network(scale: Scale) -> str:
    """ResNet-18 on all data sets, as in the plan; at smaller scales the network of each."""
    return str(scale.overrides["model.name"]) if scale.as_published else ""


def _metric_cells(one: DataSetAudits, kind: str, tests: Sequence[Test]) -> list[Cell]:
    label = lowest.worst_class(one.counts(kind).accuracy).label
    return [
        *metric_cells(one.counts(kind, "clean"), tests if kind == "standard" else ()),
        *metric_cells(one.counts(kind, "PGD"), tests if kind == "adversarial" else ()),
        Cell(one.outcomes(kind).class_names[label]),
    ]


def _drawn(one: DataSetAudits) -> Drawing:
    """Draw the accuracy of each class; for many classes, a histogram."""
    standard, adversarial = (one.outcomes(kind) for kind in ("standard", "adversarial"))
    if adversarial.num_classes <= DRAWN:
        return gap(standard, adversarial, "PGD").figure()
    return spread(adversarial, "PGD").figure()


WEAKEST = 5
"""Number of weakest classes listed for each model."""
BOTH = ("clean", "PGD")
IMAGENET = Scale(
    name="full", about="the named models on all named images, PGD-20 at Linf 4/255", data="", threat="Linf:4/255"
)
IMAGENET_SMALL = replace(
    IMAGENET,
    name="small",
    about="the named models on at most 1,000 of the named images, PGD-5 at Linf 4/255",
    test=1000,
    attack_steps=5,
)


class PretrainedModels(
    Experiment, trainings=lambda scale: {"standard": STANDARD, "adversarial": AT} if scale.name == "smoke" else {}
):
    """benz20 plan: public models of ImageNet, standard and adversarially trained, without training."""

    takes_models: ClassVar[bool] = True
    scales: ClassVar[Mapping[Name, Scale]] = {
        "smoke": replace(SMOKE, about=f"{SMOKE.about}; without --model, a standard and a robust model are trained"),
        "small": IMAGENET_SMALL,
        "full": IMAGENET,
    }

    def run(self, context: Context) -> Findings:
        """Tabulate accuracy and robustness of each model; test claim C1 on each model, and C2 on two models."""
        outcomes = _outcomes(context, self.trainings(context.scale))
        rows = [Row(f"{name}, {attack}", _cells(table, attack)) for name, table in outcomes.items() for attack in BOTH]
        counts = next(iter(outcomes.values())).counts("clean")
        heads = ("model, images", "average", "worst class", "MCD", f"the {WEAKEST} weakest classes, percent")
        note = (
            f"{int(counts.count.sum()):,} images of {int(counts.present.sum())} classes, {context.scale.threat}. "
            "95 % confidence intervals for new images."
        )
        hashes = [Row(name, [Cell(str(table.meta.model_hash)[:12])]) for name, table in outcomes.items()]
        return Findings(
            tables=(Table("In percent and points", heads, rows, note), Table("Models", ("model", "SHA-256"), hashes)),
            figures=_figures(outcomes),
            tests=self.claims(list(outcomes.values()), context.scale),
        )

    def claims(self, tables: Sequence[Outcomes], scale: Scale) -> list[Test]:
        """Tests of the claims: on the first model, and on a standard and an adversarially trained one."""
        counts, gaps = tables[0].counts(CLEAN), dict[str, Gap]()
        reasons = unmet_preconditions(scale, {"first model": tables[0]}, CLEAN)
        if len(tables) == 2:
            standard, adversarial = tables
            attacks = {"robustness": ROBUST, "accuracy": CLEAN}
            gaps = {name: gap(standard, adversarial, attack) for name, attack in attacks.items()}
            reasons |= _unmet_of_gaps(scale, adversarial)

        def measure(of: str, name: str, *factor: str) -> IntervalEstimator:
            return widest(counts) if name == "first model" else _gap_estimator(gaps[name], of, *factor)

        return declared_tests(self.tests, measure, known={"first model", *gaps}, excluded=reasons)


def _outcomes(context: Context, trainings: Mapping[str, Training]) -> dict[str, Outcomes]:
    """Outcomes by model: of the named models on the named images, or of two trained ones at smoke scale."""
    if not context.inputs:
        models = context.train_all(trainings)
        return {name: under_pgd(context, trained).outcomes for name, trained in models.items()}
    scale = context.scale
    images = context.inputs.load_images(scale.test)
    if scale.test is not None and scale.test < len(images):
        images = images.take(stratified_subset(images.y, scale.test))
    attacks = {"PGD": context.pgd(PGD)}
    return {
        name: context.audit_model(model, attacks, images=images).outcomes
        for name, model in context.inputs.load_models(images, context.device).items()
    }


def _cells(table: Outcomes, attack: str) -> list[Cell]:
    counts = table.counts(attack)
    weakest = np.argsort(np.where(counts.present, counts.accuracy, np.inf), kind="stable")[:WEAKEST]
    shown = [label for label in weakest.tolist() if counts.present[label]]
    names = [f"{table.class_names[label]} {100 * counts.accuracy[label]:.0f}" for label in shown]
    return [*metric_cells(counts), Cell(", ".join(names))]


def _figures(outcomes: Mapping[str, Outcomes]) -> list[tuple[Drawing, str]]:
    """A drawing of the classes with one point for each model; for many classes, a histogram of each model."""
    figures = []
    for attack in BOTH:
        tables = list(outcomes.values())
        present = np.flatnonzero(tables[0].counts(attack).present)
        if len(present) > DRAWN:
            figures += [(spread(table, attack).figure(), f"{name}, {attack}.") for name, table in outcomes.items()]
            continue
        shown = [
            ClassCounts(counts.count[present], counts.correct[present]) for counts in (t.counts(attack) for t in tables)
        ]
        names = [tables[0].class_names[label] for label in present]
        figures.append((class_dots(f"{attack}, in percent", shown, list(outcomes), names), f"All models, {attack}."))
    return figures


SVHN = "svhn"
NAMED_PAIRS: Mapping[str, tuple[str, Sequence[tuple[int, int]]]] = {
    SVHN: ("SVHN", ((6, 8), (8, 6))),
    CIFAR: ("CIFAR-10", ((3, 5), (5, 3))),
    "stl10": ("STL-10", ((5, 9),)),
}
"""The data set's name in the facts of kdd21/F2, and the pairs (class, prediction) whose rates its text describes."""


RARELY = 0.5
"""Share of the errors across superclasses by chance that is interpreted as rare."""


@configurable
class ConfusionUnderAttack(OnDataSets, trainings=lambda scale: declare(scale, (ADVERSARIAL,))):
    """kdd21 Figure 2, benz20 section 3.2: confusion matrix of adversarial training under PGD, on each data set.

    Attributes:
        together: tests of claims on several data sets: ``inside``, with superclasses and a verdict.
        with_pairs: whether the pairs of classes that kdd21 names are shown.
    """

    with_pairs: bool = False

    def run(self, context: Context) -> Findings:
        """Measure the symmetry, and the errors inside superclasses relative to chance; test the claims."""
        audited, absent = audit_each(context, self.trainings(context.scale))
        classes = {data_set.data: _confused(data_set.by_class) for data_set in audited}
        matrices = {
            data_set.data: _confused(data_set) if data_set.superclasses else classes[data_set.data]
            for data_set in audited
        }
        tests = self.claims(audited, matrices, classes)
        caption = "rows: truth; columns: prediction on the attacked image; percent of the row."
        return Findings(
            tables=(
                *structure_tables(matrices, classes, tests),
                *pair_tables(NAMED_PAIRS if self.with_pairs else {}, classes),
                *data_tables(audited, absent),
            ),
            figures=[(matrix.figure(), f"{data}: {caption}") for data, matrix in matrices.items()],
            tests=tests,
        )

    def claims(
        self, audited: Sequence[DataSetAudits], matrices: Mapping[str, Confused], classes: Mapping[str, Confused]
    ) -> list[Test]:
        """Tests of the claims.

        Args:
            audited: audits of the data sets.
            matrices: confusion matrices by data set, of superclasses where statements are about superclasses.
            classes: confusion matrices of the classes, by data set.
        """
        fit = {data_set.data: data_set for data_set in audited if not data_set.unfit}
        inside = [data for data in fit if classes[data].inside is not None]

        def grouped(statistic: Callable[[IntArray, IntArray, float], Estimate], data: str) -> IntervalEstimator:
            matrix, group = classes[data].matrix, np.asarray(classes[data].superclasses)
            return lambda level: in_points(statistic(matrix, group, level))

        def mutual(data: str) -> IntervalEstimator:
            return rate_correlation(classes[data].matrix, np.asarray(classes[data].superclasses)).estimate

        measures: Measures = {
            "symmetry": lambda data: matrices[data].correlation.estimate,
            "rate inside minus across": partial(grouped, contrast),
            "errors across below chance": partial(grouped, excess),
            "errors across below half of chance": partial(grouped, partial(excess, part=RARELY)),
            "symmetry inside": mutual,
            "rate": lambda data, label, predicted: _beyond_mean(matrices[data].matrix, int(label), int(predicted)),
        }
        tests = [test for one in fit.values() for test in self.tested(one, measures)] + self.untested(audited)
        return [*tests, *self.jointly(audited, measures, lists={"inside": inside, "names": ", ".join(inside)})]


def _confused(one: DataSetAudits) -> Confused:
    return confused(one.outcomes(), ROBUST)


def structure_tables(
    matrices: Mapping[str, Confused], classes: Mapping[str, Confused], tests: Sequence[Test] = ()
) -> list[Table]:
    """Tables of the symmetry of each matrix, and of the errors inside superclasses where there are any."""
    rows = [
        Row(data, [estimate_cell(matrix.pearson, 1, 2, tests=tests), estimate_cell(matrix.overlap, 1, 2)])
        for data, matrix in matrices.items()
    ]
    heads = ("data set", "correlation of M_ij with M_ji", "1 - sum |M - M^T| / sum (M + M^T)")
    note = "95 % confidence intervals."
    tables = [Table("Symmetry of the confusion matrix", heads, rows, note)]
    rows = [
        Row(
            data,
            [
                estimate_cell(matrix.inside.share),
                *(estimate_cell(estimate, tests=tests) for estimate in (matrix.inside.excess, matrix.inside.contrast)),
            ],
        )
        for data, matrix in classes.items()
        if matrix.inside is not None
    ]
    heads_of_groups = ("data set", "errors inside, percent", "beyond chance, points", "mean rate inside minus across")
    return [*tables, *([Table("Errors inside the superclasses", heads_of_groups, rows, note)] if rows else [])]


def pair_tables(
    pairs: Mapping[str, tuple[str, Sequence[tuple[int, int]]]], classes: Mapping[str, Confused]
) -> list[Table]:
    """Table of the rates of pairs of classes that kdd21 names, for the data sets that have all of their ten classes."""
    printed = catalogue.printed("kdd21/F2")["numbers_in_text"]
    rows = []
    for data, (title, named) in pairs.items():
        if data not in classes or len(classes[data].class_names) != 10:
            continue
        matrix, names = classes[data].matrix, classes[data].class_names
        rates = matrix / matrix.sum(axis=1, keepdims=True)
        mean_rate = Cell(f"{in_percent(rates[~np.eye(len(matrix), dtype=np.bool_)].mean()):.1f}")
        for label, predicted in named:
            rate = estimate_cell(proportion_estimate(matrix[label, predicted], matrix[label].sum()))
            rows.append(Row(f"{data}: {names[label]} as {names[predicted]}", [rate, mean_rate, Cell(printed[title])]))
    heads = ("class and prediction", "percent of the class", "mean of all pairs", "paper")
    note = "95 % confidence intervals for new images."
    return [Table("Pairs of classes that the paper names", heads, rows, note)] if rows else []


def _beyond_mean(matrix: IntArray, truth: int, predicted: int) -> IntervalEstimator:
    """Rate of one pair of classes minus the mean rate of all pairs, in points; every class has images."""
    weights = (np.eye(len(matrix)) - 1) / (len(matrix) * (len(matrix) - 1))
    weights[truth, predicted] += 1
    labels, predictions = np.indices(matrix.shape).reshape(2, -1).repeat(matrix.ravel(), axis=1)
    values, low, high = weights[labels, predictions], weights.min(axis=1), weights.max(axis=1)
    return lambda level: in_points(sum_of_class_means(values, labels, low, high, level))


INTERVALS_NOTE = "95 % confidence intervals for new images."


class GapsOverEpochs(
    OnDataSets,
    trainings=lambda scale: {
        name: with_checkpoints(scale, training) for name, training in declare(scale, (ADVERSARIAL,)).items()
    },
):
    """kdd21 Figure 1: class-wise robustness over the epochs of adversarial training, on each data set."""

    def run(self, context: Context) -> Findings:
        """Draw the accuracy of the test images over the epochs; test claim C3 about its growth."""
        audited, absent = audit_each(context, self.trainings(context.scale), last=True)
        rows, tables, figures, curves = [], list[Table](), [], dict[str, Mapping[int, ClassCounts]]()
        for data_set in audited:
            counts, names = data_set.shown()
            curves[data_set.data] = _over_epochs(data_set)
            history = trend_of({"AT": curves[data_set.data]}, names)
            caption = f"{data_set.data}: test images, PGD; the band spans the lowest to the highest class."
            figures.append((history.figure(), caption))
            weakest = Cell(names[lowest.worst_class(counts.accuracy).label])
            rows.append(Row(f"{data_set.data}, {len(names)}", [*metric_cells(counts), weakest]))
            if len(names) <= DRAWN:
                title = f"{data_set.data}: test images at the end of training, in percent"
                tables.append(class_table(title, {"AT": counts}, names))
        heads = ("data set, classes", "average under PGD", "worst class", "MCD", "weakest class")
        summary = Table("Test images at the end of training, in percent and points", heads, rows, INTERVALS_NOTE)
        tables = [summary, *data_tables(audited, absent), *tables]
        growth: Measures = {
            "growth": lambda data: wider(curves[data][max(curves[data])], curves[data][min(curves[data])])
        }
        return Findings(tables=tables, figures=figures, tests=self.jointly(audited, growth))


def _over_epochs(one: DataSetAudits) -> Mapping[int, ClassCounts]:
    """Counts of the shown classes of the test images after each saved epoch, from 1."""
    run = one.trained[ADVERSARIAL]
    epochs = run.recipe.checkpoint_epochs
    audits = {epoch: under_pgd(one.context, run, which=epoch_weights("last", epoch)) for epoch in epochs}
    return {epoch: replace(one, audits={ADVERSARIAL: audit}).shown()[0] for epoch, audit in audits.items()}


class ClassTrend(Experiment, scales=PLANS, trainings={"AT": AT}):
    """benz20 plan: accuracy and robustness of each class over training; does the weakest class change?"""

    split = "validation"

    def run(self, context: Context) -> Findings:
        """Draw both measures over the epochs of adversarial training, and count changes of the weakest class."""
        run = context.train_all(self.trainings(context.scale))["AT"]
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


EVALUATED_UNDER: Mapping[str, str] = {"adversarial": "PGD", "standard": "clean"}
"""The attack under which each model is evaluated."""
NONE = 0.5
"""Absolute rank correlation below which there is no correlation."""


class NormsAndRobustness(OnDataSets, trainings=declare):
    """iclr21 Figure 4: robust classes have rows of large norm in adversarial training, not in standard training."""

    pretrained = PRETRAINED

    def run(self, context: Context) -> Findings:
        """Evaluate the adversarial models under PGD and the standard ones on clean images; test claims C5 and C6."""
        found, absent = audit_each(context, self.trainings(context.scale))
        audited = [data_set.by_class for data_set in found]
        rows, figures, tests, correlations = [], [], list[Test](), dict[str, IntervalEstimator]()
        for data_set in audited:
            links = {kind: _link(data_set, kind) for kind in EVALUATED_UNDER}
            measures: Measures = {
                "correlation": lambda link=links["adversarial"]: link.ranked.estimate,
                "no correlation": partial(_weak, links["standard"]),
            }
            correlations[data_set.data] = links["adversarial"].ranked.estimate
            own = self.tested(data_set, measures)
            for kind, link in links.items():
                kendall = Estimate(link.kendall.value, math.nan, math.nan)
                cells = [estimate_cell(estimate, 1, 2, tests=own) for estimate in (*link.intervals, kendall)]
                p_value = Cell(formatting.probability(link.spearman.p_value))
                rows.append(Row(f"{data_set.data}, {kind}, {EVALUATED_UNDER[kind]}", [*cells, p_value]))
                model = f"{data_set.data}: the {kind} model, {EVALUATED_UNDER[kind]}"
                figures += [(link.curves(), f"{model}; {_order(data_set)}."), (link.figure(), f"{model}.")]
            tests += own
        heads = ("model", "Pearson", "Spearman", "Kendall", "p of Spearman")
        note = (
            "Over all classes; the figures of data sets with many classes show the 12 of the paper. "
            "95 % confidence intervals for new images. p by permutation of the classes."
        )
        table = Table("Correlation of class accuracy with the norm of the class's row", heads, rows, note)
        ranked: Measures = {"correlation": lambda data: correlations[data]}
        tests += [*self.untested(audited), *self.jointly(audited, ranked)]
        return Findings(tables=(table, *data_tables(audited, absent)), figures=figures, tests=tests)


def _order(one: DataSetAudits) -> str:
    """The order of the classes in a figure of `NormLink`."""
    if one.sampled is None:
        return "classes in the order of their labels"
    return f"the {len(one.sampled)} classes of the paper in its order, labels {', '.join(map(str, one.sampled))}"


def _link(one: DataSetAudits, kind: str) -> NormLink:
    """Correlations over all classes with images; the classes of the result are the sampled ones, if there are any."""
    link = norm_link(one.outcomes(kind), EVALUATED_UNDER[kind], row_norms(one.model(kind)))
    if one.sampled is None:
        return link
    return replace(link, classes=link.classes.loc[list(one.shown(kind, EVALUATED_UNDER[kind])[1])])


def _weak(link: NormLink) -> IntervalEstimator:
    """`NONE` minus the absolute rank correlation."""

    def at(level: float) -> Estimate:
        value, low, high = link.ranked.estimate(level)
        nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
        return Estimate(NONE - abs(value), NONE - max(abs(low), abs(high)), NONE - nearest)

    return at


EQUAL, GROUPED, WEIGHTED = "equal norms", "TRADES, beta lowered in a pair", "weighted by error"
GUIDELINES: Mapping[str, tuple[str, str, str]] = {
    "norms of rows": (EQUAL, "as trained", "rows rescaled to equal norms minus as trained"),
    "groups of classes": (GROUPED, "TRADES", "lower beta of the class that absorbs the worst class, minus TRADES"),
    "weak classes": (WEIGHTED, "as trained", "losses weighted by the robust error of each class, minus as trained"),
}
"""Parts of claim C22: the model that follows a guideline, the one that it is compared with, and the difference."""
METHODS: Mapping[str, Training] = {
    "as trained": AT,
    "TRADES": Training(recipe="trades"),
    GROUPED: Training(recipe="auto-beta"),
    WEIGHTED: Training(recipe="robust-error", overrides={"schedules.0.strength": 1}),
}


class Guidelines(Experiment, scales=CLASSWISE, trainings=METHODS):
    """iclr21 section 5: the three guidelines, each by a method of the library, since the paper names none.

    Norms of rows: those of a trained model are rescaled. Groups of classes: a pair is treated together, as in kdd21
    section 6.1, with the pair found in training. Weak classes: they have larger losses.
    """

    weights: ClassVar[Mapping[str, int]] = dict.fromkeys(METHODS, 2)

    def run(self, context: Context) -> Findings:
        """Audit each method and the one that it changes; test claim C22, guideline by guideline."""
        trained = context.train_all(self.trainings(context.scale))
        plain = trained["as trained"]
        equalise_norms(plain)
        audits = {name: under_pgd(context, run) for name, run in trained.items()}
        audits[EQUAL] = under_pgd(context, plain, which="equal-norms")
        norms = {name: row_norms(run.model()) for name, run in trained.items()}
        norms[EQUAL] = row_norms(plain.model("equal-norms"))
        counts = {name: audit.counts("PGD") for name, audit in audits.items()}
        rows = []
        for name, class_counts in counts.items():
            summary = (
                class_mean(audits[name].counts("clean")),
                class_mean(class_counts),
                lowest.worst_estimate(class_counts),
                discrepancy.mcd_estimate(class_counts),
            )
            ends = f"{norms[name].min():.3g} to {norms[name].max():.3g}"
            rows.append(Row(name, [*map(estimate_cell, summary), Cell(ends)]))
        unmet = unmet_preconditions(context.scale, {name: audit.outcomes for name, audit in audits.items()})
        tests, changes = list[Test](), list[Row]()
        for part, (name, base, change) in GUIDELINES.items():
            pair, gap = paired_models(audits[name], audits[base], "PGD"), wider(counts[name], counts[base])
            test = Test(
                claim="iclr21/C22",
                covers=(part,),
                estimand=f"worst class under PGD: {change}",
                estimators=[pair.worst()],
                note="one of the three guidelines, by one of several methods",
            )
            own = unless("; ".join(unmet[model] for model in (name, base) if model in unmet), [test])
            cells = [estimate_cell(gain(ALPHA), 1, tests=own) for gain in (pair.total(), pair.worst(), gap)]
            tests += own
            changes.append(Row(f"{part}: {name} minus {base}", cells))
        heads = ("model", "clean average", "PGD average", "PGD worst class", "PGD gap", "norms of the rows")
        names = context.test_images.class_names
        note = "95 % confidence intervals for new images with the models fixed."
        return Findings(
            tables=(
                Table("Methods after the three guidelines, in percent", heads, rows, note),
                Table("Changes under PGD, in points", ("guideline", "average", "worst class", "gap"), changes, note),
            ),
            figures=((class_bars(names, counts, range(len(names))), f"Under {pgd_name(audits[EQUAL].outcomes)}."),),
            tests=tests,
        )


def beyond_chance(purity: Estimate, chance: float) -> Estimate:
    """Chance-corrected purity (purity - chance) / (1 - chance): 0 for random, 1 for pure neighbourhoods."""
    return Estimate(*((end - chance) / (1 - chance) for end in purity))


class FeaturesOnAPlane(Experiment, scales=CLASSWISE, trainings={"AT": AT}):
    """iclr21 Figure 8: t-SNE of penultimate features of an adversarially trained model, clean and attacked."""

    def run(self, context: Context) -> Findings:
        """Compute the embedding and the purity of neighbourhoods; test claim C15."""
        trained = context.train_all(self.trainings(context.scale))["AT"]
        audit = under_pgd(context, trained, save=("features",))
        projection = embedding(audit, "PGD")
        purity = {
            place: (Estimate(*ends), chance)
            for place, *ends, chance in projection.purity[["purity", "low", "high", "chance"]].itertuples()
        }
        rows = [
            Row(f"{kind}, {level}", [estimate_cell(share), Cell(f"{in_percent(chance):.1f}")])
            for (kind, level), (share, chance) in purity.items()
        ]
        heads = ("images, neighbours of the same", "percent", "by chance")
        note = "95 % confidence intervals for new images. Neighbours are found in feature space, not in the plane."
        table = Table("Share of the ten nearest neighbours", heads, rows, note)
        caption = "Penultimate features; the paper does not state the layer."

        def corrected(kind: str, level: str, alpha: float) -> Estimate:
            return beyond_chance(projection.share(kind, level, alpha=alpha), purity[kind, level][1])

        def separates(kind: str) -> IntervalEstimator:
            """Chance-corrected share of neighbours of the superclass minus that of the class."""
            return lambda alpha: difference(*(corrected(kind, level, alpha) for level in ("superclass", "class")))

        def others(kind: str, labels: str) -> IntervalEstimator:
            """Share of the neighbours of images of some classes that are of other classes, in percent."""
            classes = [int(label) for label in labels.split()]
            mixed = negative(lambda alpha: in_points(projection.share(kind, classes=classes, alpha=alpha)))
            return plus(mixed, 100)

        lacking = f"{context.scale.data} has no superclasses" if ("clean", "superclass") not in purity else ""
        reason = lacking or unmet_precondition(context.scale, audit.counts("PGD"))
        return Findings(
            tables=(table,),
            figures=((projection.figure(), caption),),
            tests=declared_tests(
                self.tests,
                {"superclass beyond class": separates, "other classes": others},
                excluded=dict.fromkeys(BOTH, reason) if reason else {},
            ),
        )
