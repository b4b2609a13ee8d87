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
from classwise.papers.declared import Measures, declared_tests
from classwise.papers.experiment import Context, Experiment, Findings, Training, Trainings
from classwise.papers.experiments.protocol import AT, pgd_name, resampled_models, under_pgd, unmet_preconditions
from classwise.papers.interval_estimators import IntervalEstimator, Resampled, Statistic, negative, wider
from classwise.papers.scales import PLANS, Name, Scale
from classwise.papers.tables import class_table, elsewhere, estimate_cell, metric_cells
from classwise.reporting.figures.points import scatter
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import FloatArray
from classwise.stats.pareto import pareto_front
from classwise.training.folder import Run

PLAIN = "AT"


@dataclass(frozen=True)
class Grid:
    """A training for each value of a field of a recipe.

    Attributes:
        recipe: name of the recipe.
        field: dotted field.
        name: format of the name of a training, with a place for the value.
        values: values at each scale.
        setting: value of the field, from that of the grid and the weakest class; by default that of the grid.
    """

    recipe: str
    field: str
    name: str
    values: Mapping[Name, Sequence[float]]
    setting: Callable[[float, str], Any] = lambda value, _: value

    def __call__(self, scale: Scale, weak: str) -> Trainings:
        """The trainings by name."""
        return {
            self.name.format(value): Training(recipe=self.recipe, overrides={self.field: self.setting(value, weak)})
            for value in scale.entry(self.values)
        }


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
        one, plain = (self.places[run] for run in (name, PLAIN))
        return self.images.part(lambda a: np.asarray(metric(a[..., one, :]) - metric(a[..., plain, :])), 100)

    def worst_gain(self, name: str) -> IntervalEstimator:
        """Worst class of one technique minus that of plain training, in points."""
        return self.images.worst(self.places[name], self.places[PLAIN])

    def mcd_reduction(self, name: str) -> IntervalEstimator:
        """MCD of plain training minus that of one technique, in points."""
        return wider(self.audits[PLAIN].counts("PGD"), self.audits[name].counts("PGD"))

    def part(self, name: str, metric: Statistic) -> IntervalEstimator:
        """Metric (..., C) -> (...) of one run, in points."""
        return self.images.part(lambda a: metric(a[..., self.places[name], :]), 100)

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
        counts = {name: audit.counts("PGD") for name, audit in self.audits.items()}
        return class_table(f"Class accuracy under {self.attack}, in percent", counts, self.names)

    @property
    def places(self) -> Mapping[str, int]:
        """Row of each run in `images`."""
        return {name: place for place, name in enumerate(self.audits)}


def question(quantity: str, estimator: IntervalEstimator) -> Measurement:
    """Measurement for benz20 C7, whether long-tail techniques reduce the discrepancy."""
    population = f"{IMAGES}, one training of each"
    return Measurement.of("benz20/C7", quantity, estimator(0.05), population=population, limits=(-100, 100))


def average(accuracy: FloatArray) -> FloatArray:
    """Mean over classes: (..., C) to (...)."""
    return np.asarray(accuracy.mean(axis=-1))


def _others(label: int) -> Statistic:
    return lambda a: np.asarray(np.delete(a, label, axis=-1).mean(axis=-1))


def _of(label: int) -> Statistic:
    return lambda a: np.asarray(a[..., label])


def _below(label: int) -> Statistic:
    return lambda a: average(a) - a[..., label]


TECHNIQUES: Mapping[str, Grid] = {
    "weights by error": Grid(
        "robust-error", "schedules.0.strength", "by error, k = {}", {"smoke": (), "small": (1, 2), "full": (1, 2, 4)}
    ),
    "critical weights": Grid(
        "critical-class",
        "schedules",
        "weakest x {}",
        {"smoke": (4,), "small": (2, 4), "full": (2, 4, 8)},
        lambda weight, weak: [{"name": "critical-class", "critical": weak, "weight": weight}],
    ),
    "effective numbers": Grid(
        "effective-number",
        "schedules.0.base",
        "effective {:g}",
        {"smoke": (0.9999,), "small": (0.999, 0.9999), "full": (0.9, 0.99, 0.999, 0.9999)},
    ),
    "LDAM margins": Grid(
        "ldam", "schedules.0.max_margin", "LDAM {:g}", {"smoke": (0.5,), "small": (0.5, 2.0), "full": (0.5, 1.0, 2.0)}
    ),
    "resampled classes": Grid(
        "robust-error-sampling",
        "schedules.0.strength",
        "drawn, k = {}",
        {"smoke": (1,), "small": (1, 2), "full": (1, 2, 4)},
    ),
    "cosine penalties": Grid(
        "logit-similarity",
        "reduction.strength",
        "cosine {:g}",
        {"smoke": (1,), "small": (0.1, 1), "full": (0.01, 0.1, 1)},
    ),
    "towards weakest": Grid(
        "towards-class",
        "schedules",
        "towards weakest",
        {"smoke": (1,), "small": (1,), "full": (1,)},
        lambda _, weak: [{"name": "towards-class", "target": weak}],
    ),
}
"""Losses weighted by the robust error of each class, or of the weakest alone; attacks targeted at it; and others."""


@configurable
class _Compared(Experiment, scales=PLANS):
    """An experiment on plain adversarial training and several techniques.

    Attributes:
        techniques: names of the techniques, keys of `TECHNIQUES`.
        for_weakest: whether some settings name the weakest class of plain training, which is known only after it.
    """

    techniques: tuple[
        Literal[
            "weights by error",
            "critical weights",
            "effective numbers",
            "LDAM margins",
            "resampled classes",
            "cosine penalties",
            "towards weakest",
        ],
        ...,
    ]
    for_weakest: bool = False

    def settings(self, scale: Scale, weak: str) -> Trainings:
        """Plain training and each setting, for a weakest class."""
        grids = (TECHNIQUES[name](scale, weak) for name in self.techniques)
        return {PLAIN: AT, **{name: training for grid in grids for name, training in grid.items()}}

    def trainings(self, scale: Scale) -> Trainings:
        """The settings; empty if they name the weakest class of the plain training."""
        return {} if self.for_weakest else self.settings(scale, "")

    def conditional_trainings(self, scale: Scale) -> Trainings:
        """The settings for the first class in place of the weakest, if they name it."""
        return self.settings(scale, "0") if self.for_weakest else {}

    def compare(self, context: Context) -> Compared:
        """Train the plain model, then the settings for its weakest class, and audit all of them."""
        trained = context.train_all({PLAIN: AT})
        weak = weakest(trained[PLAIN])
        settings = {name: one for name, one in self.settings(context.scale, str(weak)).items() if name != PLAIN}
        trained |= context.train_all(settings)
        audits = {name: under_pgd(context, model) for name, model in trained.items()}
        return Compared(trained, audits, weak, context.test_images.class_names)

    def tested(self, comparison: Compared, scale: Scale) -> list[Test]:
        """Tests of the declared claims."""
        measures: Measures = {
            "gain of the weakest class": lambda name: comparison.gain(name, _of(comparison.weak)),
            "average minus the weakest class": lambda name: comparison.part(
                name, _below(weakest(comparison.trained[name]))
            ),
        }
        return declared_tests(
            self.tests,
            measures,
            lists={"techniques": comparison.techniques, "trainings": list(comparison.audits)},
            excluded=unmet_preconditions(scale, {name: one.outcomes for name, one in comparison.audits.items()}),
        )


class Technique(_Compared):
    """benz20 plan: several settings of one technique compared with plain adversarial training."""

    def run(self, context: Context) -> Findings:
        """Tabulate average, worst class and MCD of each setting; measure the open question C7."""
        comparison = self.compare(context)
        return Findings(
            tables=(comparison.table(), comparison.classes()),
            tests=self.tested(comparison, context.scale),
            measurements=comparison.measurements(),
        )


class EqualClasses(_Compared):
    """benz20 plan, scenario 1: all classes are equally important; worst class against average."""

    def run(self, context: Context) -> Findings:
        """Compare all techniques; the one selected on validation images is tested on the test images."""
        comparison = self.compare(context)
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
            tests=self.tested(comparison, context.scale),
            measurements=[
                question(f"worst class: {selected}", comparison.worst_gain(chosen)),
                question(f"average: {selected}", comparison.gain(chosen, average)),
            ],
        )


class OneClass(_Compared):
    """benz20 plan, scenario 2: one class is critical, and the others should lose little."""

    def run(self, context: Context) -> Findings:
        """Compare techniques for the critical class, which is the weakest class of plain training."""
        comparison = self.compare(context)
        weak, name = comparison.weak, comparison.names[comparison.weak]
        accuracy = np.stack([audit.counts("PGD").accuracy for audit in comparison.audits.values()])
        others = _others(weak)
        targeted = TECHNIQUES["towards weakest"](context.scale, str(weak))
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
        weighted = TECHNIQUES["critical weights"](context.scale, str(weak))
        measurements = [
            question(f"{what}: {training} minus {PLAIN}", comparison.gain(training, metric))
            for training in weighted
            for what, metric in (("critical class", _of(weak)), ("average of the others", others))
        ]
        table = Table(f"Robust accuracy under {comparison.attack}, in percent and points", heads, rows, note)
        return Findings(tables=(table,), figures=((drawing, "Up and right is better."),), measurements=measurements)
