"""Long-tail techniques on balanced data, for all classes or for one: benz20/P3.1 to P3.8."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from classwise.analysis.epochs import measured
from classwise.auditing.run.result import Audit
from classwise.core.settings.config import configurable
from classwise.papers.claims import IMAGES, Measurement, Test
from classwise.papers.experiment import Context, Experiment, Findings, Training, Trainings
from classwise.papers.experiments.protocol import AT, pgd_name, resampled_models, under_pgd
from classwise.papers.interval_estimators import IntervalEstimator, Resampled, Statistic, negative, wider
from classwise.papers.scales import PLANS, Name, Scale
from classwise.papers.tables import Key, class_table, elsewhere, estimate_cell, metric_cells
from classwise.reporting.figures.points import scatter
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.pareto import pareto_front
from classwise.training.folder import Run

PLAIN = "AT"
NOTE = "one training of each setting: intervals cover the sampling of images, not the variation between trainings"


@dataclass(frozen=True)
class Grid:
    """A training for each value of a field of a recipe.

    Attributes:
        recipe: name of the recipe.
        field: dotted field.
        name: format of the name of a training, with a place for the value.
        values: values at each scale.
    """

    recipe: str
    field: str
    name: str
    values: Mapping[Name, Sequence[float]]

    def __call__(self, scale: Scale, weak: str) -> Trainings:
        """The trainings by name; they do not depend on the weakest class."""
        del weak
        return _each(self.recipe, self.field, {self.name.format(value): value for value in scale.entry(self.values)})


BY_ERROR = Grid(
    "robust-error", "schedules.0.strength", "by error, k = {}", {"smoke": (), "reduced": (1, 2), "full": (1, 2, 4)}
)
"""Losses weighted by the robust error of each class."""


def class_weights(scale: Scale, weak: str) -> Trainings:
    """Losses weighted by the robust error of each class, or of the weakest class alone."""
    return {**BY_ERROR(scale, weak), **critical_weights(scale, weak)}


def critical_weights(scale: Scale, weak: str) -> Trainings:
    """Losses of the weakest class weighted by k."""
    weights = scale.entry({"smoke": (4,), "reduced": (2, 4), "full": (2, 4, 8)})
    schedules = {f"weakest x {k}": [{"name": "critical-class", "critical": weak, "weight": k}] for k in weights}
    return _each("critical-class", "schedules", schedules)


def towards_weakest(scale: Scale, weak: str) -> Trainings:
    """Training attacks targeted at the weakest class."""
    del scale
    return _each("towards-class", "schedules", {"towards weakest": [{"name": "towards-class", "target": weak}]})


def _each(recipe: str, field: str, values: Mapping[str, Any]) -> Trainings:
    """A training of a recipe for each value of a field, by name."""
    return {name: Training(recipe=recipe, overrides={field: value}) for name, value in values.items()}


def in_validation(run: Run) -> FloatArray:
    """Robust accuracies on the validation split at the best epoch of a run: (C,), NaN for absent classes."""
    table = measured(run, "valid", "robust")
    best = run.best_epoch()
    row = table.loc[best + 1] if best is not None and best + 1 in table.index else table.iloc[-1]
    return row.to_numpy(dtype=np.float64)


def weakest(run: Run) -> int:
    """Label of the class with the lowest accuracy of `in_validation`."""
    return int(np.nanargmin(in_validation(run)))


@dataclass(frozen=True)
class Compared:
    """Plain adversarial training and several techniques, evaluated on the same images.

    Attributes:
        trained: runs by name, plain training first.
        audits: audits of the runs under PGD.
        weak: label of the weakest class of plain training on its validation split, not on test images.
        names: class names.
    """

    trained: Mapping[str, Run]
    audits: Mapping[str, Audit]
    weak: int
    names: Sequence[str]

    @property
    def attack(self) -> str:
        """The attack of the audits."""
        return pgd_name(self.audits[PLAIN].outcomes)

    @property
    def techniques(self) -> Sequence[str]:
        """Names of all runs but plain training."""
        return [name for name in self.audits if name != PLAIN]

    @cached_property
    def images(self) -> Resampled:
        """Resample all runs on the test images jointly, in the order of `audits`."""
        return resampled_models([audit.outcomes for audit in self.audits.values()], "PGD")

    def gain(self, name: str, metric: Statistic) -> IntervalEstimator:
        """Metric (..., C) -> (...) of one technique minus that of plain training, in points."""
        return self.images.part(self._difference(name, metric), 100)

    def worst_gain(self, name: str) -> IntervalEstimator:
        """Worst class of one technique minus that of plain training, in points."""
        places = list(self.audits)
        return self.images.worst(places.index(name), places.index(PLAIN))

    def mcd_reduction(self, name: str) -> IntervalEstimator:
        """MCD of plain training minus that of one technique, in points."""
        return wider(self.audits[PLAIN].counts("PGD"), self.audits[name].counts("PGD"))

    def part(self, name: str, metric: Statistic) -> IntervalEstimator:
        """Metric (..., C) -> (...) of one run, in points."""
        place = list(self.audits).index(name)
        return self.images.part(lambda a: metric(a[..., place, :]), 100)

    def measurements(self) -> list[Measurement]:
        """Gain of the worst class and reduction of the MCD by each technique, for benz20 C7."""
        gains = [question(f"worst class: {name} minus {PLAIN}", self.worst_gain(name)) for name in self.techniques]
        return gains + [question(f"MCD: {PLAIN} minus {name}", self.mcd_reduction(name)) for name in self.techniques]

    def table(self) -> Table:
        """Table of average, worst class and MCD of each run, with the differences from plain training."""
        rows = []
        for name, audit in self.audits.items():
            cells = metric_cells(audit.counts("PGD"))
            changes = (self.gain(name, average), self.worst_gain(name), negative(self.mcd_reduction(name)))
            cells += [Cell("") if name == PLAIN else estimate_cell(change(0.05), 1) for change in changes]
            rows.append(Row(name, cells))
        heads = ("training", "average", "worst class", "MCD", "average, change", "worst, change", "MCD, change")
        note = (
            f"Changes are relative to {PLAIN}, on the same images. Weakest class of {PLAIN} on its validation split: "
            f"{self.names[self.weak]}. 95 % confidence intervals for new images with the models fixed."
        )
        return Table(f"Robust accuracy under {self.attack}, in percent and points", heads, rows, note)

    def classes(self) -> Table:
        """Table of class accuracies of each run."""
        counts: dict[Key, ClassCounts] = {(name,): audit.counts("PGD") for name, audit in self.audits.items()}
        return class_table(f"Class accuracy under {self.attack}, in percent", counts, self.names)

    def _difference(self, name: str, metric: Statistic) -> Statistic:
        places = list(self.audits)
        one, plain = places.index(name), places.index(PLAIN)
        return lambda a: np.asarray(metric(a[..., one, :]) - metric(a[..., plain, :]))


def question(quantity: str, estimator: IntervalEstimator) -> Measurement:
    """Measurement for benz20 C7, whether long-tail techniques reduce the discrepancy."""
    population = f"{IMAGES}, one training of each"
    return Measurement.of("benz20/C7", quantity, estimator(0.05), population=population, limits=(-100, 100))


def average(accuracy: FloatArray) -> FloatArray:
    """Mean over classes: (..., C) to (...)."""
    return np.asarray(accuracy.mean(axis=-1))


def compare(context: Context, *grids: Callable[[Scale, str], Trainings]) -> Compared:
    """Train the plain model, then the settings of the grids for its weakest class, and audit all of them."""
    trained = context.train_all({PLAIN: AT})
    weak = weakest(trained[PLAIN])
    for grid in grids:
        trained |= context.train_all(grid(context.scale, str(weak)))
    audits = {name: under_pgd(context, model) for name, model in trained.items()}
    return Compared(trained, audits, weak, context.test_images.class_names)


def _others(label: int) -> Statistic:
    return lambda a: np.asarray(np.delete(a, label, axis=-1).mean(axis=-1))


def _of(label: int) -> Statistic:
    return lambda a: np.asarray(a[..., label])


def _below(label: int) -> Statistic:
    return lambda a: average(a) - a[..., label]


TECHNIQUES: Mapping[str, Callable[[Scale, str], Trainings]] = {
    "class weights": class_weights,
    "effective numbers": Grid(
        "effective-number",
        "schedules.0.base",
        "effective {:g}",
        {"smoke": (0.9999,), "reduced": (0.999, 0.9999), "full": (0.9, 0.99, 0.999, 0.9999)},
    ),
    "LDAM margins": Grid(
        "ldam", "schedules.0.max_margin", "LDAM {:g}", {"smoke": (0.5,), "reduced": (0.5, 2.0), "full": (0.5, 1.0, 2.0)}
    ),
    "resampled classes": Grid(
        "robust-error-sampling",
        "schedules.0.strength",
        "drawn, k = {}",
        {"smoke": (1,), "reduced": (1, 2), "full": (1, 2, 4)},
    ),
    "cosine penalties": Grid(
        "logit-similarity",
        "reduction.strength",
        "cosine {:g}",
        {"smoke": (1,), "reduced": (0.1, 1), "full": (0.01, 0.1, 1)},
    ),
    "towards weakest": towards_weakest,
}


@configurable
class Technique(Experiment, scales=PLANS):
    """benz20 plan: several settings of one technique compared with plain adversarial training.

    Attributes:
        technique: name of the technique, a key of `TECHNIQUES`.
        for_weakest: whether its settings name the weakest class of plain training, which is known only after it.
    """

    technique: Literal[
        "class weights",
        "effective numbers",
        "LDAM margins",
        "resampled classes",
        "cosine penalties",
        "towards weakest",
    ]
    for_weakest: bool = False

    def trainings(self, scale: Scale) -> Trainings:
        """Plain training and each setting; empty if settings name the weakest class of the plain training."""
        return {} if self.for_weakest else {PLAIN: AT, **TECHNIQUES[self.technique](scale, "")}

    def conditional_trainings(self, scale: Scale) -> Trainings:
        """The trainings of `trainings` if it is empty, here for the first class in place of the weakest."""
        return {PLAIN: AT, **TECHNIQUES[self.technique](scale, "0")} if self.for_weakest else {}

    def run(self, context: Context) -> Findings:
        """Tabulate average, worst class and MCD of each setting; measure the open question C7, and test claims."""
        comparison = compare(context, TECHNIQUES[self.technique])
        return Findings(
            tables=(comparison.table(), comparison.classes()),
            tests=self.claims(comparison),
            measurements=comparison.measurements(),
        )

    def claims(self, comparison: Compared) -> Sequence[Test]:
        """Tests of claims; none for a technique of the open question alone."""
        del comparison
        return ()


class TowardsWeakest(Technique):
    """benz20 plan: training attacks targeted at the vulnerable class."""

    def claims(self, comparison: Compared) -> Sequence[Test]:
        """Test benz20 C8: the target class becomes more robust."""
        parts = [comparison.gain(name, _of(comparison.weak)) for name in comparison.techniques]
        estimand = f"robust accuracy of the target class of the attacks, minus that of {PLAIN}"
        return [Test(claim="benz20/C8", estimand=estimand, estimators=parts, note=NOTE)]


class EqualClasses(Experiment, scales=PLANS):
    """benz20 plan, scenario 1: all classes are equally important; worst class against average."""

    def conditional_trainings(self, scale: Scale) -> Trainings:
        """All techniques, here for the first class in place of the weakest."""
        grids = (grid(scale, "0") for grid in TECHNIQUES.values())
        return {PLAIN: AT, **{name: training for grid in grids for name, training in grid.items()}}

    def run(self, context: Context) -> Findings:
        """Compare all techniques; the one selected on validation images is tested on the test images."""
        comparison = compare(context, *TECHNIQUES.values())
        chosen = max(comparison.techniques, key=lambda name: float(np.nanmin(in_validation(comparison.trained[name]))))
        accuracy = [audit.counts("PGD").accuracy for audit in comparison.audits.values()]
        drawing = scatter(
            "All classes equal: worst class against average",
            list(comparison.audits),
            [100 * float(row.mean()) for row in accuracy],
            [float(row.min()) for row in accuracy],
            (f"average under {comparison.attack}, percent", "worst class, percent"),
            f"{chosen} has the best worst class on validation images",
        )
        selected = f"{chosen}, selected by the worst class on validation images, minus {PLAIN}"
        return Findings(
            tables=(comparison.table(),),
            figures=((drawing, "Up and right is better."),),
            tests=[
                Test(
                    claim="benz20/C9",
                    estimand="average minus the class that is weakest on validation images, each training",
                    estimators=[
                        comparison.part(name, _below(weakest(model))) for name, model in comparison.trained.items()
                    ],
                    note=NOTE,
                ),
            ],
            measurements=[
                question(f"worst class: {selected}", comparison.worst_gain(chosen)),
                question(f"average: {selected}", comparison.gain(chosen, average)),
            ],
        )


class OneClass(Experiment, scales=PLANS):
    """benz20 plan, scenario 2: one class is critical, and the others should lose little."""

    def conditional_trainings(self, scale: Scale) -> Trainings:
        """The techniques for one class, here the first in place of the weakest."""
        return {PLAIN: AT, **critical_weights(scale, "0"), **towards_weakest(scale, "0")}

    def run(self, context: Context) -> Findings:
        """Compare techniques for the critical class, which is the weakest class of plain training."""
        comparison = compare(context, critical_weights, towards_weakest)
        weak, name = comparison.weak, comparison.names[comparison.weak]
        accuracy = np.stack([audit.counts("PGD").accuracy for audit in comparison.audits.values()])
        others = _others(weak)
        targeted = towards_weakest(context.scale, str(weak))
        tested = elsewhere("benz20/C8", *(comparison.gain(training, _of(weak)) for training in targeted))
        rows = []
        for place, (training, optimal) in enumerate(zip(comparison.audits, pareto_front(accuracy, weak), strict=True)):
            cells = [estimate_cell(comparison.part(training, metric)(0.05), 1) for metric in (_of(weak), others)]
            cells += [
                Cell("") if not place else estimate_cell(comparison.gain(training, metric)(0.05), 1, tests=[tested])
                for metric in (_of(weak), others)
            ]
            rows.append(Row(training, [*cells, Cell("yes" if optimal else "no")]))
        heads = ("training", name, "the others", f"{name}, change", "the others, change", "Pareto-optimal")
        note = f"Changes are relative to {PLAIN}, on the same images. 95 % confidence intervals for new images."
        drawing = scatter(
            f"One critical class, {name}, against the others",
            list(comparison.audits),
            100 * others(accuracy),
            accuracy[:, weak],
            (f"average of the others under {comparison.attack}, percent", f"{name}, percent"),
            "the class that is weakest for plain training on validation images",
        )
        weighted = critical_weights(context.scale, str(weak))
        measurements = [
            question(f"{what}: {training} minus {PLAIN}", comparison.gain(training, metric))
            for training in weighted
            for what, metric in (("critical class", _of(weak)), ("average of the others", others))
        ]
        table = Table(f"Robust accuracy under {comparison.attack}, in percent and points", heads, rows, note)
        return Findings(tables=(table,), figures=((drawing, "Up and right is better."),), measurements=measurements)
