"""Fair training (cfa23): CFA, EMA and FRL, the ablation of CFA, and the saved epochs of a training."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from classwise.analysis.epochs import images_of, inside, measured
from classwise.analysis.fluctuation import fluctuation
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.core.settings.config import Spec, configurable
from classwise.papers import catalogue
from classwise.papers.claims import Measurement, Test, not_tested
from classwise.papers.declared import Measures, declared_tests
from classwise.papers.experiment import (
    Context,
    Evaluation,
    Experiment,
    Findings,
    Training,
    Trainings,
    recipe_at,
)
from classwise.papers.experiments.protocol import paired_models, pgd_name
from classwise.papers.interval_estimators import ALPHA, IntervalEstimator, Resampled, exactly, plus
from classwise.papers.scales import DEFAULT_SCALES, FULL, MANY_TRAININGS, Name, Scale, radius
from classwise.papers.tables import PRINTED, class_table, estimate_cell
from classwise.reporting import formatting
from classwise.reporting.figures.bars import class_bars
from classwise.reporting.figures.lines import OVERALL, Series, class_lines, line_chart
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray
from classwise.stats.intervals import Estimate
from classwise.stats.metrics.lowest import worst20_estimate, worst_estimate
from classwise.stats.stratified import class_mean
from classwise.training.folder import Run, Which, epoch_weights
from classwise.training.selection import Rule, overall, overall_plus_worst

ATTACKS: Mapping[Name, Mapping[str, Spec]] = {
    "smoke": {"robust": "pgd:steps=2,step_size=1eps"},
    "small": {"robust": "pgd:steps=20,step_size=0.1eps,objective=margin"},
    "full": {"apgd-ce": "apgd-ce", "apgd-t": "apgd-t", "fab-t": "fab-t", "square": "square"},
}
"""Attacks of the tables: AutoAttack at full scale, a PGD as its substitute at smaller scales.

An image is robust if no step of them succeeds (``early_stop``), as in AutoAttack.
"""
PGD_10: Mapping[str, Any] = {"name": "pgd", "steps": 10, "step_size": "0.25eps"}
"""PGD-10 with step 2/255 at 8/255, for training and evaluation."""
PGD_ATTACKS: Mapping[Name, Mapping[str, Spec]] = {**ATTACKS, "full": {"robust": PGD_10}}
"""Attacks of the figures: PGD-10 at full scale. An image is robust if the last iterate is correctly classified."""
LAST_ITERATE = "An image is robust if the last iterate of the attack is correctly classified."
LEAST_ADMITTED = 2
"""Epochs that FAWA admits at least for a test of its claims: an average of one epoch is no average."""
RUNS = {"cfa23/T1": ", mean of five runs"}
"""Number of trainings that the printed numbers average, if the paper states it."""
FIVE_TRAININGS = replace(FULL, trainings=5)
"""Full scale of the tables, whose numbers are means over five trainings of each method."""
CHOSEN: Mapping[str, tuple[Which, Which]] = {"best": ("best", "best-average"), "last": ("last", "average")}
PAPERS_GATE = ", paper's gate"
"""End of the name of a method with the gate of the paper, beside the same with the relative gate."""
RELATIVE = "; FAWA with the relative gate, ours, since short runs do not reach the constant of the paper"
"""End of the notes of tests of FAWA at scales with methods that end with `PAPERS_GATE`."""
CLOSED = "the gate of FAWA admitted at most one epoch of {}, so the average is a plain EMA or the weights of one epoch"
"""Reason why a claim about FAWA is not tested on methods whose gate admitted fewer than `LEAST_ADMITTED` epochs."""


@configurable
class Method:
    """A method: a training, and whether its averaged weights are evaluated.

    Averaging does not change the model, so one training gives the plain method and the one with EMA.

    Attributes:
        recipe: recipe name; empty for a method that uses the training of another one.
        overrides: recipe fields.
        at: further recipe fields at some scales.
        start: name of the training that provides the initial weights.
        training: name of the training; empty for that of the method.
        averaged: whether the averaged weights are used.
        evaluated: whether it is evaluated, rather than a training that others use.
        scales: the scales that have it; empty for all.
    """

    recipe: str = ""
    overrides: dict[str, Any] = field(default_factory=dict)
    at: dict[Name, dict[str, Any]] = field(default_factory=dict)
    start: str = ""
    training: str = ""
    averaged: bool = False
    evaluated: bool = True
    scales: tuple[Name, ...] = ()


@configurable
class _Trained(Experiment):
    """An experiment on methods.

    Attributes:
        methods: the methods by name.
    """

    methods: dict[str, Method]

    def evaluated(self, scale: Scale) -> dict[str, Method]:
        """The evaluated methods at a scale."""
        return {name: method for name, method in self._at(scale).items() if method.evaluated}

    def training_of(self, name: str) -> str:
        """Name of the training of a method."""
        return self.methods[name].training or name

    def trainings(self, scale: Scale) -> Trainings:
        """The trainings of the methods."""
        return {
            self.training_of(name): Training(
                recipe=method.recipe,
                overrides={**method.overrides, **method.at.get(scale.name, {})},
                start=method.start,
            )
            for name, method in self._at(scale).items()
            if method.recipe
        }

    def gate_note(self, scale: Scale) -> str:
        """`RELATIVE` at the scales with the relative gate, otherwise empty."""
        return RELATIVE if any(name.endswith(PAPERS_GATE) for name in self._at(scale)) else ""

    def _at(self, scale: Scale) -> dict[str, Method]:
        names = {scale.name, "full"} if scale.as_published else {scale.name}
        return {name: method for name, method in self.methods.items() if not method.scales or names & {*method.scales}}


@dataclass(frozen=True)
class Evaluated:
    """Trained and audited methods.

    Attributes:
        runs: run of each method.
        audits: audits by method and kind of epoch.
    """

    runs: Mapping[str, Run]
    audits: Mapping[tuple[str, str], Audit]

    @property
    def closed(self) -> dict[str, str]:
        """Methods with FAWA whose gate admitted fewer than `LEAST_ADMITTED` epochs, with the reason of no test."""
        gates = {name: gate(run) for name, run in self.runs.items()}
        return {name: CLOSED for name, admitted in gates.items() if admitted and sum(admitted) < LEAST_ADMITTED}

    def estimator(self, measure: str, one: str, other: str) -> IntervalEstimator:
        """One method minus another by a measure such as ``worst class`` or ``average, last, clean``."""
        name, *where = measure.split(", ")
        kind, attack = ("last" if "last" in where else "best"), ("clean" if "clean" in where else "all")
        pair = paired_models(self.audits[one, kind], self.audits[other, kind], attack)
        if name.startswith("class "):
            label = int(name.removeprefix("class "))
            return pair.part(lambda a: np.asarray(a[..., 0, label] - a[..., 1, label]), 100)
        return MEASURES[name](pair)


@configurable
class Methods(_Trained, scales={**MANY_TRAININGS, "full": FIVE_TRAININGS}, attacks=ATTACKS):
    """cfa23 Tables 1 and 4, section 5.2: average and weak classes of methods, clean and attacked, at both epochs.

    Attributes:
        weak: name of the measure of weak classes.
        with_cost: whether the cost of the robust model from which FRL starts is measured.
        rows_of: the item whose rows it has; empty for its own.
        whatever_gate: whether claims are also tested on methods whose gate admitted fewer than `LEAST_ADMITTED` epochs.
    """

    kinds: ClassVar[Sequence[str]] = tuple(CHOSEN)
    weak: str = "worst class"
    with_cost: bool = False
    rows_of: str = ""
    whatever_gate: bool = False

    def evaluations(self, scale: Scale, name: str, training: Training) -> Sequence[Evaluation]:
        """The epochs of each method that uses the training."""
        rows = sum(self.training_of(method) == name for method in self.evaluated(scale))
        return [Evaluation(attacks=scale.entry(self.attacks), weights=len(self.kinds) * rows)] if rows else []

    def evaluate(self, context: Context, kinds: Sequence[str] = ()) -> Evaluated:
        """Train each method, and audit its model of the best and of the last epoch, or of one of the two.

        In the figures the last iterate of an attack counts.

        Args:
            context: source of models and audits.
            kinds: ``best``, ``last`` or both; empty for those of the class.
        """
        trained = context.train_all(self.trainings(context.scale))
        runs = {name: trained[self.training_of(name)] for name in self.evaluated(context.scale)}
        weights = {kind: kind for kind in kinds or self.kinds}
        if context.last_weights and len(weights) == 1:
            weights = dict.fromkeys(weights, "last")
        attacks, early_stop = context.scale.entry(self.attacks), self.attacks is ATTACKS
        audits = {
            (name, kind): context.audit(run, attacks, which=self._weights(name, run, which), early_stop=early_stop)
            for name, run in runs.items()
            for kind, which in weights.items()
        }
        return Evaluated(runs, audits)

    def _weights(self, name: str, trained: Run, kind: str) -> Which:
        """The weights of a method; the online ones if averaging starts after the end of its training."""
        which = CHOSEN[kind][self.methods[name].averaged]
        return which if which in trained.saved_weights() else CHOSEN[kind][0]

    def tested(self, evaluated: Evaluated, scale: Scale) -> list[Test]:
        """Tests of the declared claims."""
        on = "" if scale.data in ("cifar10", "tiny-imagenet") else f"; on {scale.data}"
        lists = {"data": scale.data, "on": on, "gate": self.gate_note(scale)}
        excluded = {} if self.whatever_gate else evaluated.closed
        return declared_tests(self.tests, evaluated.estimator, lists=lists, known=evaluated.runs, excluded=excluded)

    def run(self, context: Context) -> Findings:
        """Tabulate clean and attacked accuracy at the best and last epoch of each method."""
        evaluated = self.evaluate(context)
        cost = [cost_of_start(context.scale, self.trainings(context.scale))] if self.with_cost else []
        return Findings(
            tables=(self.table(evaluated, context.scale), *(table for table, _ in cost)),
            tests=self.tested(evaluated, context.scale),
            measurements=[measurement for _, measurement in cost],
        )

    def table(self, evaluated: Evaluated, scale: Scale) -> Table:
        """Table of clean and attacked accuracy at the best and last epoch, next to the printed numbers of T1 or T4."""
        heads, rows = ["method"], []
        for kind in self.kinds:
            heads += [f"clean, {kind}", f"{PRINTED}, clean", f"attacked, {kind}", PRINTED]
        item = self.rows_of or self.item
        for name in evaluated.runs:
            cells, reported = [], printed_row(item, name)
            for kind in self.kinds:
                for attack, key in (("clean", f"clean_{kind}"), ("all", f"aa_{kind}")):
                    counts = evaluated.audits[name, kind].counts(attack)
                    cells += [pair_cell(counts, LEAST[self.weak]), printed_pair(reported, key)]
            rows.append(Row(name, cells))
        under = ", ".join(str(spec) for spec in scale.entry(ATTACKS).values())
        note = (
            f"Attacked: correctly classified both clean and under {under}; printed: AutoAttack{RUNS.get(item, '')}. "
            "95 % confidence intervals for new images with the one model of each method fixed."
        )
        caption = f"Average / {self.weak} of {len(rows)} methods, in percent"
        return with_gate_note(evaluated, Table(caption, heads, rows, note))


LEAST: Mapping[str, Callable[[ClassCounts], Estimate]] = {
    "worst class": worst_estimate,
    "worst fifth": worst20_estimate,
}
"""Measures of weak classes."""


def pair_cell(counts: ClassCounts, least: Callable[[ClassCounts], Estimate] = worst_estimate) -> Cell:
    """Cell of average and worst class (or another measure of weak classes) in percent, with intervals."""
    mean, low = class_mean(counts), least(counts)
    text = f"{formatting.bare_percent(mean.value)} / {formatting.bare_percent(low.value)}"
    return Cell(text, f"{formatting.span(mean.low, mean.high)} / {formatting.span(low.low, low.high)}")


def printed_row(item: str, name: str) -> Mapping[str, Any]:
    """Printed row of a method; empty for rows of ours. The paper prints one TRADES and one gate."""
    return {row["method"]: row for row in catalogue.printed_rows(item)}.get(name.removesuffix(PAPERS_GATE), {})


def printed_pair(row: Mapping[str, Any], key: str) -> Cell:
    """Cell of a printed pair such as average and worst class, with the printed standard deviations in small print."""
    value, deviation = (" / ".join(f"{value:g}" for value in row.get(name, ())) for name in (key, f"{key}_std"))
    return Cell(value or formatting.NONE, f"std {deviation}" if deviation else "")


def gate(run: Run) -> list[bool]:
    """Whether FAWA admitted each epoch that it evaluated; empty for a run without FAWA."""
    return [event["admitted"] for event in run.events if event["event"] == "fawa"]


def with_gate_note(evaluated: Evaluated, table: Table) -> Table:
    """Add a note to a table on the number of epochs that FAWA admitted for each method."""
    gates = {name: gate(run) for name, run in evaluated.runs.items()}
    admitted = [f"{sum(found)} of {len(found)} ({name})" for name, found in gates.items() if found]
    return replace(table, note=f"{table.note} Epochs admitted by FAWA: {', '.join(admitted)}.") if admitted else table


def cost_of_start(scale: Scale, trainings: Trainings) -> tuple[Table, Measurement]:
    """Passes of FRL with the training of the robust model that it starts from, and of TRADES + CFA (section 4.4)."""
    start, tuning, one = "start of FRL", "FRL", "TRADES + CFA"
    recipes = {name: recipe_at(scale, trainings[name]) for name in (start, tuning, one)}
    passes = {
        name: recipe.epochs * recipe.parts.passes.equivalents * (1 - float(recipe.data.validation))
        for name, recipe in recipes.items()
    }
    together = passes[start] + passes[tuning]
    epochs = [str(recipe.epochs) for recipe in recipes.values()]
    counted = {f"{tuning} and its start": (together, f"{epochs[0]} + {epochs[1]}"), one: (passes[one], epochs[2])}
    table = Table(
        "Cost of a robust start, in forward passes of a training image",
        ("method", "epochs", "passes"),
        [Row(name, [Cell(of), Cell(f"{value:,.0f}")]) for name, (value, of) in counted.items()],
        "A gradient of the activations counts as one forward pass, that of the weights as another. The evaluation of "
        "held-out images after each epoch is not counted.",
    )
    quantity = f"passes of {tuning} with its start, divided by those of {one}, from their recipes"
    return table, Measurement(
        question="cfa23/C15", quantity=quantity, value=together / passes[one], unit="times", population=""
    )


class TinyImageNet(Methods):
    """cfa23 Table 4: nine methods on Tiny-ImageNet, average and worst fifth of the classes.

    There is no small scale: 200 classes need more images and epochs than two cores can process.
    """

    scales: ClassVar[Mapping[Name, Scale]] = {
        "smoke": DEFAULT_SCALES["smoke"],
        "full": replace(
            DEFAULT_SCALES["full"],
            about="ResNet-18 on Tiny-ImageNet; 200 classes, of which the validation split has few images each",
            data="tiny-imagenet",
            overrides={"model.name": "resnet18"},
        ),
    }


class ClassesOfAverages(Methods, scales=MANY_TRAININGS):
    """cfa23 Figure 6: class-wise robustness of CFA and of EMA; the paper does not name their base method."""

    def run(self, context: Context) -> Findings:
        """Use the audits of T1, best epoch, for adversarial training and TRADES."""
        evaluated = self.evaluate(context, ("best",))
        names = context.test_images.class_names
        counts = {name: evaluated.audits[name, "best"].counts("all") for name in evaluated.runs}
        tests = self.tested(evaluated, context.scale)
        rows = []
        for base in ("AT", "TRADES"):
            both = [f"{base} + {average}" for average in ("EMA", "CFA")]
            change = evaluated.estimator("narrowing", *reversed(both))(ALPHA)
            cells = [Cell(f"{float(counts[name].accuracy.std()):.3f}") for name in both]
            rows.append(Row(base, [*cells, estimate_cell(change, 1, 3, tests=tests)]))
        printed = catalogue.printed(self.item)["numbers_in_text"]["printed_variance"]
        rows.append(Row("printed", [Cell(f"{printed['EMA']:g}"), Cell(f"{printed['CFA']:g}"), Cell("")]))
        spread = Table(
            "Standard deviation of the class accuracies (fractions)", ("method", "EMA", "CFA", "EMA minus CFA"), rows
        )
        return Findings(
            tables=(spread, class_table("Class accuracy, best epoch, attacked, in percent", counts, names)),
            figures=((class_bars(names, counts, range(len(names))), "Best epoch, attacked as in cfa23/T1."),),
            tests=tests,
        )


def worst_fifth(accuracy: FloatArray) -> FloatArray:
    """Mean over the lowest fifth of the classes: first row minus second row, (..., 2, C) to (...)."""
    size = math.ceil(0.2 * accuracy.shape[-1] - 1e-9)
    low = np.sort(accuracy, axis=-1)[..., :size].mean(axis=-1)
    return np.asarray(low[..., 0] - low[..., 1])


def _narrowed(accuracy: FloatArray) -> FloatArray:
    """Standard deviation over the classes: second row minus first row, (..., 2, C) to (...)."""
    return np.asarray(accuracy[..., 1, :].std(axis=-1) - accuracy[..., 0, :].std(axis=-1))


MEASURES: Mapping[str, Callable[[Resampled], IntervalEstimator]] = {
    "average": Resampled.total,
    "worst class": Resampled.worst,
    "worst fifth": lambda pair: pair.part(worst_fifth, 100),
    "narrowing": lambda pair: pair.part(_narrowed),
}
"""Differences of two models on the same images."""


class Ablation(Methods):
    """cfa23 Tables 2 and 3: average and worst class of parts of CFA at the best epoch, attacked."""

    kinds: ClassVar[Sequence[str]] = ("best",)

    def table(self, evaluated: Evaluated, scale: Scale) -> Table:
        """Table of the methods, next to the printed numbers."""
        rows = []
        for name in evaluated.runs:
            printed = printed_row(self.item, name)
            reference = f"{printed['avg']:g} / {printed['worst']:g}" if printed else formatting.NONE
            rows.append(Row(name, [pair_cell(evaluated.audits[name, "best"].counts("all")), Cell(reference)]))
        note = (
            "95 % confidence intervals for new images. The attack is that of cfa23/T1 at this scale; "
            "printed: AutoAttack."
        )
        caption = "Average / worst class, best epoch, attacked, in percent"
        return with_gate_note(evaluated, Table(caption, ("method", "this run", "printed"), rows, note))


@configurable
class Sweep(Methods, scales=MANY_TRAININGS, attacks=PGD_ATTACKS):
    """cfa23 Figures 5 and 7: a method over lambda, and the resulting radius or beta of each class over the epochs.

    Attributes:
        plain: the method that it is compared with.
        quantity: column of the epochs of a run, by class.
        drawn: the lambda at which the quantity is drawn.
        ends: the smallest and the largest lambda of the paper.
    """

    kinds: ClassVar[Sequence[str]] = ("best",)
    plain: str
    quantity: str
    drawn: str = "0.5"
    ends: tuple[str, str] = ("0.3", "0.7")

    def run(self, context: Context) -> Findings:
        """Evaluate average and worst class over lambda, and the resulting quantity of each class."""
        evaluated = self.evaluate(context)
        audits = {name: audit for (name, _), audit in evaluated.audits.items()}
        counts = {name: audit.counts("all").accuracy for name, audit in audits.items()}
        values = [name for name in audits if not name.startswith(self.plain)]
        places, lines = [float(value) for value in values], []
        for name, what, style, guide in (
            ("average", np.mean, "stroke-main", "guide-main"),
            ("worst", np.min, "line-weak", "guide-weak"),
        ):
            lines.append(Series(name, places, [float(what(counts[value])) for value in values], style))
            level = [float(what(counts[self.plain]))] * len(values)
            lines.append(Series(f"{self.plain}, {name}", places, level, guide))
        run = evaluated.runs[self.drawn]
        rows = run.epochs[run.epochs["split"] == "train"]
        table = rows.pivot_table(index="epoch", columns="class", values=self.quantity, sort=False).astype(float)
        title = f"{self.quantity.capitalize()} of each class"
        drawing = line_chart(title, class_lines(table), "epoch (from 0)", share=False)
        only = [""] if {*self.ends} <= {*values} else [f": {value} only" for value in values]
        tests = declared_tests(
            self.tests,
            partial(self.estimator, evaluated, table.iloc[-1].to_numpy(dtype=np.float64)),
            lists={"values": values, "others": [value for value in values if value != self.drawn], "only": only},
            known={*audits, *map(str, range(len(table.columns)))},
        )
        return Findings(
            tables=(
                Table(
                    "Best epoch, attacked, in percent",
                    ("method or lambda", "average / worst class"),
                    [Row(name, [pair_cell(audit.counts("all"))]) for name, audit in audits.items()],
                    f"{LAST_ITERATE} 95 % confidence intervals for new images.",
                ),
            ),
            figures=(
                (line_chart("Average and worst class, in percent", lines, "lambda"), "Dashed: the base method."),
                (drawing, f"At lambda {self.drawn}."),
            ),
            tests=tests,
        )

    def estimator(self, evaluated: Evaluated, last: FloatArray, measure: str, *names: str) -> IntervalEstimator:
        """A measure of two methods, or of the quantity (C,) at the end of the training whose quantity is drawn."""
        if measure == "radius beyond the default":
            default = radius(str(evaluated.runs[self.drawn].recipe.threat))
            return exactly(float(last[int(names[0])] - default) * 255)
        if measure != "quantity of easy classes":
            return evaluated.estimator(measure, *names)

        def easier(accuracy: FloatArray) -> FloatArray:
            """Mean over the classes above the median of the plain method minus that over the others."""
            upper = accuracy[..., 0, :] > np.median(accuracy[..., 0, :], axis=-1, keepdims=True)
            share = np.where(upper, 1 / upper.sum(-1, keepdims=True).clip(1), -1 / (~upper).sum(-1, keepdims=True))
            return np.asarray((share * last).sum(axis=-1))

        plain = evaluated.audits[names[0], "best"]
        return paired_models(plain, plain).part(easier)


ATTACK = "PGD"


def epochs_within(scale: Scale, training: Training, window: tuple[float, float]) -> tuple[int, ...]:
    """Epochs (from 1) of a training in a window (start, end] of fractions of its epochs."""
    epochs = recipe_at(scale, training).epochs
    return tuple(epoch for epoch in range(1, epochs + 1) if inside(epoch, epochs, window))


def with_checkpoints(scale: Scale, training: Training, window: tuple[float, float] = (0.0, 1.0)) -> Training:
    """Copy of a training that also saves the weights after the epochs of a window, by default after every epoch."""
    epochs = [*epochs_within(scale, training, window)]
    return replace(training, overrides={**training.overrides, "checkpoint_epochs": epochs})


@dataclass(frozen=True)
class SavedEpochs:
    """Evaluations of one training at some of its epochs.

    Attributes:
        outcomes: outcomes by epoch (from 1), all on the same test images.
    """

    outcomes: Mapping[int, Outcomes]

    def correct(self, attack: str, epochs: Sequence[int]) -> BoolArray:
        """(E, N) true where the model of an epoch is correct on a test image."""
        return np.stack([self.outcomes[epoch].correct(attack) for epoch in epochs])

    @property
    def attack(self) -> str:
        """The attack of the audits."""
        return pgd_name(next(iter(self.outcomes.values())), ATTACK)

    def overall(self, attack: str) -> pd.Series[float]:
        """Accuracy of all images by epoch."""
        return pd.Series({epoch: float(table.correct(attack).mean()) for epoch, table in self.outcomes.items()})


def audit_epochs(context: Context, trained: Run, epochs: Sequence[int], which: Which = "last") -> SavedEpochs:
    """Audit saved epochs of the online model (``last``) or of the average (``average``) on the test images.

    Before averaging starts, the average is the online model.
    """
    attack, saved = {ATTACK: context.pgd(PGD_10)}, trained.saved_weights()

    def outcomes(epoch: int) -> Outcomes:
        name = epoch_weights(which, epoch)
        return context.audit(trained, attack, which=name if name in saved else epoch_weights("last", epoch)).outcomes

    return SavedEpochs({epoch: outcomes(epoch) for epoch in epochs})


def best_by_other_half(table: BoolArray, labels: IntArray) -> BoolArray:
    """Correctness of the epoch with the highest accuracy, where each half of the images selects for the other half.

    An epoch that is evaluated on the images that selected it has an accuracy that is biased upwards; here no image
    selects the epoch that it is evaluated at. Every second image of a class is in the first half.

    Args:
        table: (E, N) true where the model of an epoch is correct on an image.
        labels: (N,) labels.

    Returns:
        (N,) correctness at the epoch selected by the other half.
    """
    place = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        place[labels == label] = np.arange((labels == label).sum())
    first = place % 2 == 0
    if first.all():
        return np.asarray(table[int(table.mean(axis=1).argmax())])
    chosen = [int(table[:, half].mean(axis=1).argmax()) for half in (~first, first)]
    return np.asarray(np.where(first, table[chosen[0]], table[chosen[1]]), dtype=np.bool_)


class WindowMeans:
    """Class accuracies of several trainings, each averaged over a window of epochs, on the same images.

    Args:
        context: source of the test images.
        rows: by value of the hyper-parameter: (E, N) true where the model of an epoch is correct on an image.
    """

    def __init__(self, context: Context, rows: Mapping[float, BoolArray]) -> None:
        images = context.test_images
        self.names, self.values = images.class_names, list(rows)
        self.images = Resampled(np.concatenate(list(rows.values())), images.y.numpy(), len(self.names))
        accuracy = self.means(self.images.accuracy)
        self.table = pd.DataFrame(accuracy, index=self.values, columns=list(self.names))
        count = self.images.count
        self.table[OVERALL] = (accuracy * count).sum(axis=1) / count.sum()

    def means(self, accuracy: FloatArray) -> FloatArray:
        """Means over the window: (..., values * E, C) to (..., values, C)."""
        shape = (*accuracy.shape[:-2], len(self.values), -1, accuracy.shape[-1])
        return np.asarray(accuracy.reshape(shape).mean(axis=-2))

    def change(self, first: float, second: float, *classes: str) -> IntervalEstimator:
        """Change of the accuracy of a class from one value to another, in points.

        Args:
            first: the value at the beginning.
            second: the value at the end.
            *classes: the class, or `HARD_CLASSES` or `EASY_CLASSES` for their mean; of two, the difference.
        """
        start, end = self.values.index(first), self.values.index(second)
        easy = [c for c in range(len(self.names)) if c not in HARD]
        groups = [{HARD_CLASSES: list(HARD), EASY_CLASSES: easy}.get(name) or [int(name)] for name in classes]

        def change(accuracy: FloatArray) -> FloatArray:
            means = self.means(accuracy)
            difference = means[..., end, :] - means[..., start, :]
            of_groups = [difference[..., group].mean(axis=-1) for group in groups]
            return np.asarray(of_groups[0] if len(groups) == 1 else of_groups[0] - of_groups[1])

        return self.images.part(change, 100)


def epochs_text(epochs: Sequence[int]) -> str:
    """Text of a window of epochs."""
    return f"epochs {epochs[0]} to {epochs[-1]}" if len(epochs) > 1 else f"epoch {epochs[0]}"


def as_share(one: Estimate) -> Estimate:
    """Clip the interval of an accuracy to 0 and 1."""
    return Estimate(one.value, max(one.low, 0.0), min(one.high, 1.0))


RADII: Mapping[Name, Sequence[float]] = {
    "smoke": (0.5, 1.0, 2.0),
    "small": (0.5, 1.0, 1.5),
    "full": tuple(factor / 4 for factor in range(1, 9)),
}
"""Training radii as multiples of the evaluation radius: 2/255 .. 16/255 at 8/255 in the paper."""
BETAS: Mapping[Name, Sequence[float]] = {"smoke": (6, 8), "small": (1, 6, 8), "full": tuple(range(1, 9))}
Window = tuple[float, float]
AFTER_DROP: Mapping[Name, Window] = {
    "smoke": (0.5, 1.0),
    "small": (0.5, 0.75),
    "medium": (0.5, 0.75),
    "full": (0.5, 0.6),
}
"""Epochs 101 to 120 of 200, as fractions; a short training has too few epochs for so narrow a window."""
AT_END: Mapping[Name, Window] = {"smoke": (0.5, 1.0), "small": (0.75, 1.0), "medium": (0.75, 1.0), "full": (0.9, 1.0)}
"""Epochs 181 to 200 of 200."""
LATE: Mapping[Name, Window] = {"smoke": (0.5, 1.0), "small": (0.75, 1.0), "medium": (0.75, 1.0), "full": (0.75, 0.85)}
"""Epochs 151 to 170 of 200."""
RADIUS = "training radius, in test radii"
HARD = (2, 3, 4)
"""The classes of CIFAR-10 that the paper calls hard."""
HARD_CLASSES, EASY_CLASSES = "hard classes", "easy classes"


class _Window(Experiment):
    """An experiment on trainings over a hyper-parameter, evaluated at some of their epochs."""

    def audit(self, context: Context) -> dict[float, SavedEpochs]:
        """Train at each value, and audit the declared epochs; a run of the store may have saved others, too."""
        declared = self.trainings(context.scale)
        return {
            float(name): audit_epochs(context, trained, declared[name].overrides["checkpoint_epochs"])
            for name, trained in context.train_all(declared).items()
        }

    def tested(
        self, measures: Measures, values: Collection[float], classes: int, excluded: Mapping[str, str] | None = None
    ) -> list[Test]:
        """Tests of the declared claims; ``excluded`` has reasons of no test, as in `declared_tests`."""
        lists = {
            "smaller": [f"{value:g}" for value in values if value < 1],
            "larger": [f"{value:g}" for value in values if value > 1],
            "classes": [*range(classes)],
        }
        return declared_tests(self.tests, measures, lists=lists, excluded=excluded)


def radius_trainings(scale: Scale) -> dict[str, Training]:
    """Adversarial training at each radius, by the radius in test radii; each saves every epoch (9 GB at full scale).

    The step size is that of the paper at every radius, unless the scale has one of its own.
    """
    plain, step = Training(recipe="at"), {"attack.step_size": "2/255", **scale.overrides}["attack.step_size"]
    return {
        f"{factor:g}": with_checkpoints(
            scale,
            plain
            if factor == 1
            else replace(plain, overrides={"threat": scale.threat_at(factor), "attack.step_size": step}),
        )
        for factor in scale.entry(RADII)
    }


def every_epoch(scale: Scale, training: Training) -> Sequence[int]:
    """Epochs of the curve of cfa23 Figure 2a, among them both windows of Figures 2b and 2c."""
    return epochs_within(scale, training, (0.0, 1.0))


def best_and_last(saved: SavedEpochs) -> Resampled:
    """Outcomes of the best epoch, where each half of the images selects for the other half, and of the last one."""
    table, first = saved.correct(ATTACK, list(saved.outcomes)), next(iter(saved.outcomes.values()))
    return Resampled(np.stack([best_by_other_half(table, first.labels), table[-1]]), first.labels, first.num_classes)


def not_over_fitted(scale: Scale, ends: Resampled) -> dict[str, str]:
    """Why claims on ``over-fitting`` are not tested; empty if the accuracy falls significantly after the best epoch.

    At smoke scale, whose numbers mean nothing, they are tested regardless.

    Args:
        scale: scale of the training.
        ends: `best_and_last` of adversarial training at the test radius.
    """
    value, low, high = ends.total()(ALPHA)
    if low > 0 or scale.name == "smoke":
        return {}
    change = f"{-value:+z.1f} points [{-high:+z.1f}, {-low:+z.1f}]"
    return {"over-fitting": f"AT does not over-fit: from the best to the last epoch, its accuracy changes by {change}"}


class RadiusSweep(_Window, trainings=radius_trainings):
    """cfa23 Figure 2a: overall robustness over the epochs, a line for each training radius."""

    def run(self, context: Context) -> Findings:
        """Compare the best and the last epoch of each radius, where each half of the images selects for the other."""
        sweep = self.audit(context)
        attack, first = sweep[1.0].attack, next(iter(sweep[1.0].outcomes.values()))
        ends = {f"{factor:g}": best_and_last(saved) for factor, saved in sweep.items()}
        lines, rows = [], []
        for (name, pair), saved in zip(ends.items(), sweep.values(), strict=True):
            overall = saved.overall(ATTACK)
            lines.append(Series(name, [float(epoch) for epoch in overall.index], overall.tolist()))
            estimates = [pair.estimate(lambda a, row=row: a[..., row, :].mean(-1)) for row in (0, 1)]  # type: ignore[misc]
            cells = [estimate_cell(as_share(estimate)) for estimate in estimates]
            rows.append(Row(f"{name} of the test radius", cells))
        drawing = line_chart(f"Robust accuracy of all test images, {attack}, in percent", lines, "epoch")

        def pair_of(place: int, radius: str) -> Resampled:
            """Best or last epoch at a radius, and at the test radius."""
            rows = np.stack([ends[name].right[place] for name in (radius, "1")])
            return Resampled(rows, first.labels, first.num_classes)

        measures: Measures = {
            "gain at the last epoch": lambda radius: pair_of(1, radius).total(),
            "loss at the best epoch": lambda radius: pair_of(0, radius).total(1, 0),
            "gain of the worst class at the last epoch": lambda: ends["1"].worst(1, 0),
        }
        return Findings(
            tables=(
                Table(
                    f"Robust accuracy of all test images under {attack}, in percent",
                    ("training radius", "best epoch", "last epoch"),
                    rows,
                    "The best epoch of one half of the images is evaluated on the other half, so its accuracy is not "
                    "biased upwards. 95 % confidence intervals.",
                ),
            ),
            figures=(
                (drawing, "A line for each training radius, in test radii; all are evaluated at the test radius."),
            ),
            tests=self.tested(measures, sweep, first.num_classes, not_over_fitted(context.scale, ends["1"])),
        )


class RadiusSweepByClass(_Window, trainings=radius_trainings):
    """cfa23 Figures 2b and 2c: robustness of each class over the training radius, averaged over windows of epochs."""

    def run(self, context: Context) -> Findings:
        """Compare classes after the drop of the learning rate, and at the end."""
        sweep = self.audit(context)
        base = self.trainings(context.scale)["1"]
        figures, measures = [], dict[str, Callable[..., IntervalEstimator]]()
        for name, fractions in (("after the first drop", AFTER_DROP), ("at the end", AT_END)):
            epochs = epochs_within(context.scale, base, context.scale.entry(fractions))
            averaged = WindowMeans(context, {factor: saved.correct(ATTACK, epochs) for factor, saved in sweep.items()})
            drawing = line_chart(f"{sweep[1.0].attack}, {name}, in percent", class_lines(averaged.table), RADIUS)
            figures.append((drawing, f"One line per class, mean over {epochs_text(epochs)}."))
            measures[f"gain {name}"] = partial(averaged.change, 1.0, max(sweep))
            measures[f"loss {name}"] = partial(averaged.change, max(sweep), 1.0)
        excluded = not_over_fitted(context.scale, best_and_last(sweep[1.0]))
        return Findings(figures=figures, tests=self.tested(measures, sweep, len(averaged.names), excluded))


class BetaSweep(_Window):
    """cfa23 Figure 3: robust and clean accuracy of each class over the beta of TRADES, averaged over 20 epochs.

    The loss is divided by 1 + beta, as in the public code, so that all betas have the same learning rate.
    """

    def trainings(self, scale: Scale) -> Trainings:
        """One training for each beta."""
        plain, late = Training(recipe="trades-scaled"), scale.entry(LATE)
        return {
            f"{beta:g}": with_checkpoints(scale, replace(plain, overrides={"objective.beta": beta}), late)
            for beta in scale.entry(BETAS)
        }

    def run(self, context: Context) -> Findings:
        """Compare classes over beta, clean and attacked."""
        sweep = self.audit(context)
        attack, epochs = next((saved.attack, list(saved.outcomes)) for saved in sweep.values())
        figures, rows, averaged = [], [], {}
        for title, name in ((f"Robust accuracy, {attack}", ATTACK), ("Clean accuracy", "clean")):
            averaged[name] = means = WindowMeans(
                context, {beta: saved.correct(name, epochs) for beta, saved in sweep.items()}
            )
            drawing = line_chart(f"{title}, in percent", class_lines(means.table), "beta of TRADES")
            figures.append((drawing, f"One line per class, mean over {epochs_text(epochs)}."))
            for place, beta in enumerate(sweep):
                estimates = [
                    means.images.estimate(lambda a, c=c, p=place, m=means: m.means(a)[..., p, c])  # type: ignore[misc]
                    for c in range(len(means.names))
                ]
                cells = [estimate_cell(as_share(estimate)) for estimate in estimates]
                rows.append(Row(f"beta {beta:g}, {name}", cells))
        table = Table(
            f"Class accuracy, mean over {epochs_text(epochs)}, in percent",
            ("training", *means.names),
            rows,
            "95 % confidence intervals for new images.",
        )
        measures = {name: partial(of.change, min(sweep), max(sweep)) for name, of in averaged.items()}
        return Findings(tables=(table,), figures=figures, tests=self.tested(measures, sweep, len(means.names)))


WINDOW: Mapping[Name, tuple[float, float]] = {
    "smoke": (0.5, 1.0),
    "small": (0.5, 1.0),
    "medium": (0.5, 1.0),
    "full": (0.5, 0.6),
}
"""Range of epochs as fractions; the paper uses 101 to 120 of 200, which are too few in a short training."""
RULES: Mapping[str, tuple[Rule, str]] = {
    "overall": (overall, "epoch_108"),
    "overall + worst": (overall_plus_worst, "epoch_110"),
}
"""Selection rules, each with the epoch that the paper selects by it."""


@configurable
class EpochByEpoch(_Trained, scales=MANY_TRAININGS):
    """cfa23 Figure 4, section 4.4: overall accuracy and worst class of methods after every epoch, under PGD.

    Attributes:
        question: the claim for which the changes of the first method are compared with those of the others, without a
            verdict, since the paper states no number; empty for none.
    """

    question: str = ""

    def trainings(self, scale: Scale) -> Trainings:
        """The trainings of the methods, all with equally many epochs, each of which they save."""
        return {name: with_checkpoints(scale, training) for name, training in super().trainings(scale).items()}

    def evaluations(self, scale: Scale, name: str, training: Training) -> Sequence[Evaluation]:
        """The online model and the average of each epoch of the window."""
        return [replace(one, weights=2 * one.weights) for one in super().evaluations(scale, name, training)]

    def run(self, context: Context) -> Findings:
        """Audit every epoch, draw the whole training, and compare the epochs of the window."""
        declared = self.trainings(context.scale)
        trained = context.train_all(declared)
        first = next(iter(declared.values()))
        window = epochs_within(context.scale, first, context.scale.entry(WINDOW))
        methods = self.evaluated(context.scale)
        runs = {name: trained[self.training_of(name)] for name in methods}
        saved = {
            name: audit_epochs(
                context, run, every_epoch(context.scale, first), "average" if methods[name].averaged else "last"
            )
            for name, run in runs.items()
        }
        attack = next(iter(saved.values())).attack
        correct = {name: epochs.correct(ATTACK, window) for name, epochs in saved.items()}
        labels = context.test_images.y.numpy()
        classes = len(context.test_images.class_names)
        changes = fluctuation(correct, labels, classes).runs
        images = {name: Resampled(table, labels, classes) for name, table in correct.items()}
        rows = []
        for name, resampled in images.items():
            ends = changes.loc[[name]].iloc[0].to_dict()
            estimates = (
                resampled.estimate(_overall_change),
                Estimate(*(float(ends[f"change{end}"]) for end in ("", "_low", "_high"))),
                resampled.estimate(lambda a: a.mean(axis=(-1, -2))),
                resampled.estimate(lambda a: a.min(axis=-1).mean(axis=-1)),
            )
            rows.append(Row(name, [estimate_cell(estimate) for estimate in estimates]))
        gates = {name: gate(run) for name, run in runs.items() if methods[name].averaged}
        admitted = "; ".join(f"{name} admitted {sum(found)} of {len(found)} epochs" for name, found in gates.items())
        note = (
            f"Test images under {attack}, {epochs_text(window)}. {admitted}. Before the first admitted epoch, FAWA "
            "equals the plain average. 95 % confidence intervals."
        )
        heads = ("model", "change, overall", "change, worst class", "mean, overall", "mean, worst class")
        caption = f"Test images under {attack}, whole training; change: of the worst class from the epoch before"
        averaged = ". Before averaging starts, the model is that of the training."
        plain, *others = images
        return Findings(
            tables=(Table("Adjacent epochs: mean absolute change in points, and mean accuracy", heads, rows, note),),
            figures=[
                (
                    line_chart(f"{name}: robust accuracy, in percent", _curves(epochs), "epoch"),
                    caption + (averaged if methods[name].averaged else "."),
                )
                for name, epochs in saved.items()
            ],
            tests=self._tested(
                images,
                runs,
                {name: CLOSED for name in gates if sum(gates[name]) < LEAST_ADMITTED},
                self.gate_note(context.scale),
            ),
            measurements=[
                Measurement.of(
                    self.question,
                    f"mean change of the worst class between adjacent epochs, {plain} minus {other}",
                    _calmer(images[plain], images[other])(ALPHA),
                )
                for other in (others if self.question else ())
            ],
        )

    def _tested(
        self, images: Mapping[str, Resampled], runs: Mapping[str, Run], closed: Mapping[str, str], gate: str
    ) -> list[Test]:
        """Tests of the declared claims; sampling changes worst class and average by up to ``noise``, ``of_all``."""
        plain, *_ = images.values()
        noise = _sampling_change(int(plain.count.min()), float(plain.accuracy.min(axis=-1).mean()))
        of_all = _sampling_change(int(plain.count.sum()), float(plain.accuracy.mean()))

        def excess(name: str) -> IntervalEstimator:
            beyond = images[name].part(lambda a: _worst_change(a) - _overall_change(a), 100)
            return plus(beyond, -noise)

        def calm(change: Callable[[FloatArray], FloatArray], noise: float, name: str) -> IntervalEstimator:
            calmer = images[name].part(lambda a: 0.01 - change(a), 100)
            return lambda level: calmer(level)._replace(high=calmer(level).high + noise)

        def gain(one: str, other: str) -> IntervalEstimator:
            pair, half = jointly(images[one], images[other]), len(images[other].right)
            return pair.part(lambda a: (a[..., :half, :] - a[..., half:, :]).mean(axis=(-1, -2)), 100)

        def passes(name: str) -> IntervalEstimator:
            return exactly(_saved_passes(runs[name]))

        measures: Measures = {
            "excess change": excess,
            "1 point minus change": partial(calm, _worst_change, noise),
            "1 point minus overall change": partial(calm, _overall_change, of_all),
            "average": gain,
            "saved passes": passes,
        }
        lists = {"noise": f"{noise:.1f}", "overall noise": f"{of_all:.1f}", "gate": gate}
        return declared_tests(self.tests, measures, lists=lists, excluded=closed)


def _change_of(accuracy: FloatArray) -> FloatArray:
    """Mean absolute change between adjacent epochs: (..., E) to (...)."""
    return np.asarray(np.abs(np.diff(accuracy, axis=-1)).mean(axis=-1))


def _overall_change(accuracy: FloatArray) -> FloatArray:
    """`_change_of` the mean over the classes: (..., E, C) to (...)."""
    return _change_of(accuracy.mean(axis=-1))


def _worst_change(accuracy: FloatArray) -> FloatArray:
    """`_change_of` the worst class: (..., E, C) to (...)."""
    return _change_of(accuracy.min(axis=-1))


def _curves(saved: SavedEpochs) -> list[Series]:
    """Overall accuracy, worst class, and absolute change of the worst class, by epoch (cfa23 Figure 4)."""
    epochs = [float(epoch) for epoch in saved.outcomes]
    worst = [float(table.counts(ATTACK).accuracy.min()) for table in saved.outcomes.values()]
    return [
        Series("overall", epochs, saved.overall(ATTACK).tolist(), "line-overall"),
        Series("worst class", epochs, worst, "line-weak"),
        Series("change, worst", epochs[1:], np.abs(np.diff(worst)).tolist(), "stroke-main"),
    ]


def jointly(one: Resampled, other: Resampled) -> Resampled:
    """Resample the rows of both on their common images jointly."""
    return Resampled(np.concatenate([one.right, other.right]), one.labels, len(one.count))


def _calmer(one: Resampled, other: Resampled) -> IntervalEstimator:
    """Mean change of the worst class between the epochs of one model minus that of another, in points."""
    pair, half = jointly(one, other), len(one.right)
    return pair.part(lambda a: _worst_change(a[..., :half, :]) - _worst_change(a[..., half:, :]), 100)


def _sampling_change(images: int, worst: float) -> float:
    """Upper bound in points of the mean change of a class accuracy between epochs caused by sampling alone.

    The difference of two independent accuracies on n images has standard deviation sqrt(2 p (1 - p) / n), and its mean
    absolute value is sqrt(2 / pi) times that. Epochs share their images, so the actual change is smaller.
    """
    return 100 * math.sqrt(2 / math.pi) * math.sqrt(2 * worst * (1 - worst) / images)


def _saved_passes(run: Run) -> float:
    """Passes for a held-out image: inner attack and update (three passes), minus one evaluation of the average."""
    parts = run.recipe.parts
    trained = 2 * parts.attack.length + 3
    evaluated = 1 + 2 * parts.validation_attack.length + 1
    return float(trained - evaluated)


def selected_epoch(rule: Rule, robust: pd.DataFrame, images: pd.Series[int]) -> int:
    """Epoch (an index of the table) that a rule selects; the last at a tie.

    Args:
        rule: function of class accuracies and counts to a score.
        robust: accuracies, epochs (rows) by classes (columns), fractions; NaN for absent classes.
        images: number of images of each class.
    """
    count = torch.tensor(images.reindex(robust.columns).fillna(0).to_numpy(dtype=np.float32))
    scores = [rule(torch.tensor(row, dtype=torch.float32), count) for row in robust.to_numpy(dtype=np.float32)]
    return int(robust.index[len(scores) - 1 - int(np.argmax(scores[::-1]))])


def counts_at(epoch: int, robust: pd.DataFrame, images: pd.Series[int]) -> ClassCounts:
    """Per-class counts of robust validation images at an epoch."""
    count: IntArray = np.asarray(images.reindex(robust.columns), dtype=np.int64)
    right: IntArray = (robust.loc[epoch].to_numpy(dtype=np.float64) * count).round().astype(np.int64)
    return ClassCounts(count, right)


class UnfairChoice(Experiment, attacks=PGD_ATTACKS):
    """cfa23 section 3.3: selection of the epoch by overall robustness, or by its sum with the worst class."""

    weights: ClassVar[Mapping[str, int]] = {"AT": len(RULES)}

    def trainings(self, scale: Scale) -> Trainings:
        """AT, whose second half is saved epoch by epoch."""
        return {"AT": with_checkpoints(scale, Training(recipe="at"), (0.5, 1.0))}

    def run(self, context: Context) -> Findings:
        """Select an epoch by each rule on the validation split, and evaluate both on the test images; test C10."""
        declared = self.trainings(context.scale)
        trained = context.train_all(declared)["AT"]
        choices = epochs_within(context.scale, declared["AT"], (0.5, 1.0))
        robust, images = measured(trained, "valid", "robust").loc[list(choices)], images_of(trained, "valid")
        epochs = {name: selected_epoch(rule, robust, images) for name, (rule, _) in RULES.items()}
        attacks = context.scale.entry(self.attacks)
        audits = {
            name: context.audit(trained, attacks, which=epoch_weights("last", epoch)) for name, epoch in epochs.items()
        }
        printed = catalogue.printed("cfa23/F4")["numbers_in_text"]
        rows = []
        for name, epoch in epochs.items():
            printed_row = printed[RULES[name][1]]
            cells = [
                Cell(str(epoch)),
                pair_cell(counts_at(epoch, robust, images)),
                pair_cell(audits[name].counts("all")),
            ]
            rows.append(Row(name, [*cells, Cell(f"{printed_row['overall']:g} / {printed_row['worst']:g}")]))
        table = Table(
            "Average / worst class of the selected epoch, in percent",
            ("selected by", "epoch (from 1)", "validation", "test", "printed"),
            rows,
            f"Validation: PGD of the training on {int(images.sum())} held-out images, which select among the epochs "
            f"{choices[0]} to {choices[-1]}, so these values are biased upwards. Test: the attack of the "
            f"table of settings, on other images. {LAST_ITERATE} 95 % confidence intervals.",
        )
        places = [float(epoch) for epoch in robust.index]
        by_epoch = [counts_at(int(epoch), robust, images) for epoch in robust.index]
        lines = [
            Series("average", places, [class_mean(counts).value for counts in by_epoch], "stroke-main"),
            Series("worst class", places, [worst_estimate(counts).value for counts in by_epoch], "line-weak"),
        ]
        drawing = line_chart("Robust accuracy on the validation split, in percent", lines, "epoch")
        test = not_tested("cfa23/C10", f"both rules select epoch {epochs['overall']} of this training")
        if len(set(epochs.values())) > 1:
            test = Test(
                claim="cfa23/C10",
                estimand="worst class on test images at the epoch selected by the sum minus that at the epoch "
                "selected by the overall accuracy",
                estimators=[paired_models(audits["overall + worst"], audits["overall"]).worst()],
                note="both selected on the validation split",
            )
        return Findings(tables=(table,), figures=((drawing, "Adversarial training."),), tests=[test])
