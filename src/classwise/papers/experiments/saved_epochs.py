"""Evaluations of the saved epochs of a training: training radius, beta, adjacent epochs, choice of an epoch (cfa23)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from classwise.analysis.epochs import images_of, inside, measured
from classwise.analysis.fluctuation import Fluctuation as FluctuationOfRuns
from classwise.analysis.fluctuation import fluctuation
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.threat import Threat
from classwise.papers import catalogue
from classwise.papers.claims import Test, not_tested
from classwise.papers.experiment import Context, Experiment, Findings, Training, Trainings, recipe_at
from classwise.papers.experiments.fair_training import (
    LEAST_ADMITTED,
    NOTE,
    PAPER_GATE,
    PGD_10,
    PGD_ATTACKS,
    RELATIVE,
    closed_gate,
    gate,
    pair_cell,
)
from classwise.papers.experiments.protocol import paired_models, worst
from classwise.papers.interval_estimators import IntervalEstimator, Resampled, exactly, plus
from classwise.papers.scales import MANY_TRAININGS, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.reporting.figures.lines import OVERALL, Series, class_lines, line_chart
from classwise.reporting.palette import SERIES
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray
from classwise.stats.intervals import Estimate
from classwise.training.folder import Run, Which, epoch_weights
from classwise.training.selection import Rule, overall, overall_plus_worst

ATTACK = "PGD"


def epochs_within(scale: Scale, training: Training, window: tuple[float, float]) -> tuple[int, ...]:
    """Epochs (from 1) of a training in a window (start, end] of fractions of its epochs."""
    epochs = recipe_at(scale, training).epochs
    return tuple(epoch for epoch in range(1, epochs + 1) if inside(epoch, epochs, window))


def with_checkpoints(training: Training, epochs: Sequence[int]) -> Training:
    """Copy of a training that also saves the weights after the given epochs."""
    return replace(training, overrides={**training.overrides, "checkpoint_epochs": sorted(set(epochs))})


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

    def overall(self, attack: str) -> pd.Series[float]:
        """Accuracy of all images by epoch."""
        return pd.Series({epoch: float(table.correct(attack).mean()) for epoch, table in self.outcomes.items()})


def audit_epochs(context: Context, trained: Run, epochs: Sequence[int], which: Which = "last") -> SavedEpochs:
    """Audit saved epochs of the online model (``last``) or of the average (``average``) on the test images."""
    attack = {ATTACK: context.pgd(PGD_10)}
    return SavedEpochs(
        {epoch: context.audit(trained, attack, which=epoch_weights(which, epoch)).outcomes for epoch in epochs}
    )


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
        epochs: E.
    """

    def __init__(self, context: Context, rows: Mapping[float, BoolArray], epochs: int) -> None:
        images = context.test_images
        self.names, self.values, self.epochs = images.class_names, list(rows), epochs
        self.images = Resampled(np.concatenate(list(rows.values())), images.y.numpy(), len(self.names))
        accuracy = self.means(self.images.accuracy)
        self.table = pd.DataFrame(accuracy, index=self.values, columns=list(self.names))
        count = self.images.count
        self.table[OVERALL] = (accuracy * count).sum(axis=1) / count.sum()

    def means(self, accuracy: FloatArray) -> FloatArray:
        """Means over the window: (..., values * E, C) to (..., values, C)."""
        shape = (*accuracy.shape[:-2], len(self.values), self.epochs, accuracy.shape[-1])
        return np.asarray(accuracy.reshape(shape).mean(axis=-2))

    def change(self, first: float, second: float, statistic: Callable[[FloatArray], FloatArray]) -> IntervalEstimator:
        """A statistic of the changes (..., C) of the class accuracies from one value to another, in points."""
        start, end = self.values.index(first), self.values.index(second)

        def change(accuracy: FloatArray) -> FloatArray:
            means = self.means(accuracy)
            return statistic(means[..., end, :] - means[..., start, :])

        return self.images.part(change, 100)


def epochs_text(epochs: Sequence[int]) -> str:
    """Text of a window of epochs."""
    return f"epochs {epochs[0]} to {epochs[-1]}" if len(epochs) > 1 else f"epoch {epochs[0]}"


def as_share(one: Estimate) -> Estimate:
    """Clip the interval of an accuracy to 0 and 1."""
    return Estimate(one.value, max(one.low, 0.0), min(one.high, 1.0))


RADII: Mapping[Name, Sequence[float]] = {
    "smoke": (1.0, 2.0),
    "reduced": (0.5, 1.0, 1.5),
    "full": tuple(factor / 4 for factor in range(1, 9)),
}
"""Training radii as multiples of the evaluation radius: 2/255 .. 16/255 at 8/255 in the paper."""
BETAS: Mapping[Name, Sequence[float]] = {"smoke": (6, 8), "reduced": (1, 6, 8), "full": tuple(range(1, 9))}
Window = tuple[float, float]
AFTER_DROP: Mapping[Name, Window] = {"smoke": (0.5, 1.0), "reduced": (0.5, 0.75), "full": (0.5, 0.6)}
"""Epochs 101 to 120 of 200, as fractions; a short training has too few epochs for so narrow a window."""
AT_END: Mapping[Name, Window] = {"smoke": (0.5, 1.0), "reduced": (0.75, 1.0), "full": (0.9, 1.0)}
"""Epochs 181 to 200 of 200."""
LATE: Mapping[Name, Window] = {"smoke": (0.5, 1.0), "reduced": (0.75, 1.0), "full": (0.75, 0.85)}
"""Epochs 151 to 170 of 200."""
RADIUS = "training radius, in test radii"
TOLERANCE = 1
"""Rise in points below which the best epoch is not considered to be raised."""
HARD = (2, 3, 4)
"""The classes of CIFAR-10 that the paper calls hard."""
SWEEP_NOTE = "one training at each value: intervals cover the sampling of images only"


def radius_trainings(scale: Scale) -> dict[str, Training]:
    """Adversarial training at each radius, by the radius in test radii; each saves every epoch (9 GB at full scale)."""
    threat = Threat.parse(scale.threat)
    assert isinstance(threat.epsilon, float)
    declared = {}
    for factor in RADII[scale.name]:
        own = {} if factor == 1 else {"threat": f"{threat.norm}:{factor * threat.epsilon!r}"}
        training = Training(recipe="at", overrides=own)
        declared[f"{factor:g}"] = with_checkpoints(training, every_epoch(scale, training))
    return declared


def every_epoch(scale: Scale, training: Training) -> Sequence[int]:
    """Epochs of the curve of cfa23 Figure 2a, among them both windows of Figures 2b and 2c."""
    return epochs_within(scale, training, (0.0, 1.0))


class _Radii(Experiment, trainings=radius_trainings):
    """Adversarial training over its radius; all models are evaluated at the radius of the scale."""


def evaluate_radii(context: Context) -> dict[float, SavedEpochs]:
    """Train at each radius, and audit every epoch."""
    declared = radius_trainings(context.scale)
    return {
        float(name): audit_epochs(context, trained, every_epoch(context.scale, declared[name]))
        for name, trained in context.train_all(declared).items()
    }


class RadiusSweep(_Radii):
    """cfa23 Figure 2a: overall robustness over the epochs, a line for each training radius."""

    def run(self, context: Context) -> Findings:
        """Test claim C5: a training radius above the evaluation radius helps the last epoch, not the best."""
        sweep = evaluate_radii(context)
        first = next(iter(next(iter(sweep.values())).outcomes.values()))
        labels, classes = first.labels, first.num_classes
        lines = []
        for factor, saved in sweep.items():
            overall = saved.overall(ATTACK)
            lines.append(Series(f"{factor:g}", [float(epoch) for epoch in overall.index], overall.tolist()))
        drawing = line_chart("Robust accuracy of all test images, PGD-10, in percent", lines, "epoch")
        tables = {factor: saved.correct(ATTACK, list(saved.outcomes)) for factor, saved in sweep.items()}
        best = {factor: best_by_other_half(table, labels) for factor, table in tables.items()}
        last = {factor: table[-1] for factor, table in tables.items()}
        rows = []
        for factor in sweep:
            pair = Resampled(np.stack([best[factor], last[factor]]), labels, classes)
            estimates = [pair.estimate(lambda a, row=row: a[..., row, :].mean(-1)) for row in (0, 1)]  # type: ignore[misc]
            cells = [estimate_cell(as_share(estimate)) for estimate in estimates]
            rows.append(Row(f"{factor:g} of the test radius", cells))
        larger = [factor for factor in sweep if factor > 1]
        gains = {
            kind: [Resampled(np.stack([right[factor], right[1.0]]), labels, classes) for factor in larger]
            for kind, right in (("last", last), ("best", best))
        }
        return Findings(
            tables=(
                Table(
                    "Robust accuracy of all test images under PGD-10, in percent",
                    ("training radius", "best epoch", "last epoch"),
                    rows,
                    "The best epoch of one half of the images is evaluated on the other half, so its accuracy is not "
                    "biased upwards. Small print: 95 % confidence intervals.",
                ),
            ),
            figures=(
                (drawing, "A line for each training radius, in test radii; all are evaluated at the test radius."),
            ),
            tests=(
                Test(
                    claim="cfa23/C5",
                    covers=("last epoch",),
                    estimand="overall accuracy at each larger training radius minus at the test radius, last epoch",
                    estimators=[pair.total() for pair in gains["last"]],
                    note=SWEEP_NOTE,
                ),
                Test(
                    claim="cfa23/C5",
                    covers=("best epoch",),
                    estimand="overall accuracy at the test radius minus at each larger training radius, best epoch, "
                    "plus 1 point",
                    estimators=[plus(pair.total(1, 0), TOLERANCE) for pair in gains["best"]],
                    note=f"'do not raise' is interpreted as a rise of less than {TOLERANCE} point; {SWEEP_NOTE}",
                ),
            ),
        )


class RadiusSweepByClass(_Radii):
    """cfa23 Figures 2b and 2c: robustness of each class over the training radius, averaged over windows of epochs."""

    def run(self, context: Context) -> Findings:
        """Test claims C6 and C7: after the drop hard classes lose beyond the test radius, at the end all gain."""
        sweep = evaluate_radii(context)
        base = radius_trainings(context.scale)["1"]
        windows = {
            name: epochs_within(context.scale, base, window[context.scale.name])
            for name, window in (("after the first drop", AFTER_DROP), ("at the end", AT_END))
        }
        figures, ends = [], {}
        for name, epochs in windows.items():
            rows = {factor: saved.correct(ATTACK, epochs) for factor, saved in sweep.items()}
            averaged = WindowMeans(context, rows, len(epochs))
            drawing = line_chart(f"PGD-10, {name}, in percent", class_lines(averaged.table), RADIUS)
            figures.append((drawing, f"One line per class, mean over {epochs_text(epochs)}."))
            ends[name] = averaged
        middle, end = ends.values()
        easy = [c for c in range(len(end.names)) if c not in HARD]
        tests = [
            Test(
                claim="cfa23/C7",
                estimand="class accuracy at the largest training radius minus at the test radius, mean over the last "
                "window of epochs, each class",
                estimators=[
                    end.change(1.0, max(sweep), lambda change, c=c: change[..., c])  # type: ignore[misc]
                    for c in range(len(end.names))
                ],
                note=SWEEP_NOTE,
            ),
            Test(
                claim="cfa23/C6",
                estimand="change beyond the test radius after the first drop: hard classes fall, the others rise",
                estimators=[
                    middle.change(1.0, max(sweep), lambda change: -_mean_of(change, HARD)),
                    middle.change(1.0, max(sweep), lambda change: _mean_of(change, easy)),
                ],
                note=SWEEP_NOTE,
                cifar10=True,
            ),
        ]
        return Findings(figures=figures, tests=tests)


class BetaSweep(Experiment):
    """cfa23 Figure 3: robust and clean accuracy of each class over the beta of TRADES, averaged over 20 epochs.

    The loss is divided by 1 + beta, as in the public code, so that all betas have the same learning rate.
    """

    def trainings(self, scale: Scale) -> Trainings:
        """One training for each beta."""
        declared = {}
        for beta in BETAS[scale.name]:
            training = Training(recipe="trades-scaled", overrides={"objective.beta": beta})
            epochs = epochs_within(scale, training, LATE[scale.name])
            declared[f"{beta:g}"] = with_checkpoints(training, epochs)
        return declared

    def run(self, context: Context) -> Findings:
        """Test claim C8: a large beta favours the easy classes at the expense of the hard ones."""
        declared = self.trainings(context.scale)
        epochs = epochs_within(context.scale, next(iter(declared.values())), LATE[context.scale.name])
        sweep = {
            float(name): audit_epochs(context, trained, epochs) for name, trained in context.train_all(declared).items()
        }
        figures, rows, averaged = [], [], {}
        for title, attack in (("Robust accuracy, PGD-10", ATTACK), ("Clean accuracy", "clean")):
            rows_of = {beta: saved.correct(attack, epochs) for beta, saved in sweep.items()}
            averaged[attack] = means = WindowMeans(context, rows_of, len(epochs))
            drawing = line_chart(f"{title}, in percent", class_lines(means.table), "beta of TRADES")
            figures.append((drawing, f"One line per class, mean over {epochs_text(epochs)}."))
            for place, beta in enumerate(sweep):
                estimates = [
                    means.images.estimate(lambda a, c=c, p=place, m=means: m.means(a)[..., p, c])  # type: ignore[misc]
                    for c in range(len(means.names))
                ]
                rows.append(
                    Row(f"beta {beta:g}, {attack}", [estimate_cell(as_share(estimate)) for estimate in estimates])
                )
        table = Table(
            f"Class accuracy, mean over {epochs_text(epochs)}, in percent",
            ("training", *averaged[ATTACK].names),
            rows,
            "Small print: 95 % confidence intervals for new images.",
        )
        easy = [c for c in range(len(table.heads) - 1) if c not in HARD]
        ends = (min(sweep), max(sweep))
        test = Test(
            claim="cfa23/C8",
            estimand="from the smallest to the largest beta: clean loss of hard classes minus that of "
            "the others; robust gain of the others minus that of hard classes",
            estimators=[
                averaged[attack].change(*ends, lambda change: _mean_of(change, easy) - _mean_of(change, HARD))
                for attack in ("clean", ATTACK)
            ],
            note=SWEEP_NOTE,
            cifar10=True,
        )
        return Findings(tables=(table,), figures=figures, tests=[test])


def _mean_of(change: FloatArray, classes: Sequence[int]) -> FloatArray:
    return np.asarray(change[..., list(classes)].mean(axis=-1))


WINDOW: Mapping[Name, tuple[float, float]] = {"smoke": (0.5, 1.0), "reduced": (0.5, 1.0), "full": (0.5, 0.6)}
"""Range of epochs as fractions; the paper uses 101 to 120 of 200, which are too few in a short training."""
RULES: Mapping[str, tuple[Rule, str]] = {
    "overall": (overall, "epoch_108"),
    "overall + worst": (overall_plus_worst, "epoch_110"),
}
"""Selection rules, each with the epoch that the paper selects by it."""


class Fluctuation(Experiment, scales=MANY_TRAININGS):
    """cfa23 Figure 4: change of the worst class from epoch to epoch on the test set, with and without FAWA."""

    def trainings(self, scale: Scale) -> Trainings:
        """AT with FAWA, which also gives the plain model; with a short budget also with a relative gate."""
        declared = {"AT + FAWA": Training(recipe="cfa-at", overrides={"schedules": [], **PAPER_GATE})}
        if scale.budget is not None:
            declared[f"AT + FAWA{RELATIVE}"] = Training(recipe="cfa-at", overrides={"schedules": []})
        return {
            name: with_checkpoints(training, epochs_within(scale, training, WINDOW[scale.name]))
            for name, training in declared.items()
        }

    def run(self, context: Context) -> Findings:
        """Audit every epoch of the window; test claims C9, C20 and C24."""
        declared = self.trainings(context.scale)
        trained = context.train_all(declared)
        epochs = epochs_within(context.scale, declared["AT + FAWA"], WINDOW[context.scale.name])
        correct = {"AT": audit_epochs(context, trained["AT + FAWA"], epochs).correct(ATTACK, epochs)}
        correct |= {
            name: audit_epochs(context, model, epochs, "average").correct(ATTACK, epochs)
            for name, model in trained.items()
        }
        labels = context.test_images.y.numpy()
        classes = len(context.test_images.class_names)
        changes = fluctuation(correct, labels, classes)
        images = {name: Resampled(table, labels, classes) for name, table in correct.items()}
        admitted = {name: gate(model) for name, model in trained.items()}
        rows = [
            Row(
                name,
                [
                    estimate_cell(resampled.estimate(_overall_change)),
                    estimate_cell(_worst_change(changes, name)),
                    estimate_cell(resampled.estimate(lambda a: a.mean(axis=(-1, -2)))),
                    estimate_cell(resampled.estimate(lambda a: a.min(axis=-1).mean(axis=-1))),
                ],
            )
            for name, resampled in images.items()
        ]
        note = f"Test images under PGD-10, {epochs_text(epochs)}. "
        note += "; ".join(f"{name} admitted {sum(found)} of {len(found)} epochs" for name, found in admitted.items())
        note += ". Before the first admitted epoch, FAWA equals the plain average. "
        note += "Small print: 95 % confidence intervals."
        heads = ("model", "change, overall", "change, worst class", "mean, overall", "mean, worst class")
        drawing = line_chart("Worst class of each epoch, in percent", _worst_lines(correct, labels, epochs), "epoch")
        tests = self.claims(context, images, correct, admitted["AT + FAWA"], trained["AT + FAWA"])
        return Findings(
            tables=(Table("Adjacent epochs: mean absolute change in points, and mean accuracy", heads, rows, note),),
            figures=((drawing, "Test images under PGD-10."),),
            tests=tests,
        )

    def claims(
        self,
        context: Context,
        images: Mapping[str, Resampled],
        correct: Mapping[str, BoolArray],
        admitted: Sequence[bool],
        run: Run,
    ) -> list[Test]:
        """Tests of C9, C20 and C24."""
        classes = len(context.test_images.class_names)
        few = int(np.bincount(context.test_images.y.numpy(), minlength=classes).min())
        noise = _sampling_change(few, float(images["AT"].accuracy.min(axis=-1).mean()))
        caveat = f"over the epochs of one training; sampling of images alone can cause {noise:.1f} points of change"
        excess = images["AT"].part(lambda a: _change_of(a.min(axis=-1)) - _overall_change(a), 100)
        tests = [
            Test(
                claim="cfa23/C9",
                estimand="mean change of the worst class, minus the sampling change, minus that of the "
                "overall accuracy, AT",
                estimators=[plus(excess, -noise)],
                note=caveat,
            ),
            Test(
                claim="cfa23/C24",
                estimand="passes saved in training minus passes to evaluate FAWA, for each held-out image and epoch",
                estimators=[exactly(_saved_passes(run))],
                unit="forward passes",
                exact=True,
                basis="computation",
                note="a gradient of activations or weights counts as one pass; this library also evaluates "
                "the online model",
            ),
        ]
        if sum(admitted) < LEAST_ADMITTED:
            return [*tests, not_tested("cfa23/C20", closed_gate(["AT + FAWA"]))]
        calm = images["AT + FAWA"].part(lambda a: 0.01 - _change_of(a.min(axis=-1)), 100)
        pair = Resampled(np.concatenate([correct["AT + FAWA"], correct["AT"]]), images["AT"].labels, classes)
        half = len(correct["AT"])
        return [
            *tests,
            Test(
                claim="cfa23/C20",
                covers=("adjacent epochs",),
                estimand="1 point minus the mean change of the worst class with FAWA",
                estimators=[lambda level: calm(level)._replace(high=calm(level).high + noise)],
                note=caveat,
            ),
            Test(
                claim="cfa23/C20",
                covers=("overall",),
                estimand="overall accuracy of AT + FAWA minus that of AT, mean over the epochs of the window",
                estimators=[pair.part(lambda a: (a[..., :half, :] - a[..., half:, :]).mean(axis=(-1, -2)), 100)],
                note=NOTE,
            ),
        ]


def _change_of(accuracy: FloatArray) -> FloatArray:
    """Mean absolute change between adjacent epochs: (..., E) to (...)."""
    return np.asarray(np.abs(np.diff(accuracy, axis=-1)).mean(axis=-1))


def _overall_change(accuracy: FloatArray) -> FloatArray:
    """`_change_of` the mean over the classes: (..., E, C) to (...)."""
    return _change_of(accuracy.mean(axis=-1))


def _worst_change(changes: FluctuationOfRuns, name: str) -> Estimate:
    row = changes.runs.loc[[name]].iloc[0].to_dict()
    return Estimate(*(float(row[f"change{end}"]) for end in ("", "_low", "_high")))


def _worst_lines(correct: Mapping[str, BoolArray], labels: IntArray, epochs: Sequence[int]) -> list[Series]:
    places = [float(epoch) for epoch in epochs]
    values = {
        name: [min(float(row[labels == label].mean()) for label in np.unique(labels)) for row in table]
        for name, table in correct.items()
    }
    return [
        Series(name, places, line, f"stroke-{colour}")
        for (name, line), colour in zip(values.items(), SERIES, strict=False)
    ]


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

    def trainings(self, scale: Scale) -> Trainings:
        """AT, whose second half is saved epoch by epoch."""
        training = Training(recipe="at")
        return {"AT": with_checkpoints(training, epochs_within(scale, training, (0.5, 1.0)))}

    def run(self, context: Context) -> Findings:
        """Select an epoch by each rule on the validation split, and evaluate both on the test images; test C10."""
        declared = self.trainings(context.scale)
        trained = context.train_all(declared)["AT"]
        choices = epochs_within(context.scale, declared["AT"], (0.5, 1.0))
        robust, images = measured(trained, "valid", "robust").loc[list(choices)], images_of(trained, "valid")
        epochs = {name: selected_epoch(rule, robust, images) for name, (rule, _) in RULES.items()}
        attacks = self.attacks[context.scale.name]
        audits = {
            name: context.audit(trained, attacks, which=epoch_weights("last", epoch), early_stop=True)
            for name, epoch in epochs.items()
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
            "table of settings, on other images. Small print: 95 % confidence intervals.",
        )
        places = [float(epoch) for epoch in robust.index]
        by_epoch = [counts_at(int(epoch), robust, images) for epoch in robust.index]
        lines = [
            Series("average", places, [metric_intervals.macro(counts).value for counts in by_epoch], "stroke-main"),
            Series("worst class", places, [metric_intervals.worst(counts).value for counts in by_epoch], "line-weak"),
        ]
        drawing = line_chart("Robust accuracy on the validation split, in percent", lines, "epoch")
        test = not_tested("cfa23/C10", f"both rules select epoch {epochs['overall']} of this training")
        if len(set(epochs.values())) > 1:
            test = Test(
                claim="cfa23/C10",
                estimand="worst class on test images at the epoch selected by the sum minus that at the epoch "
                "selected by the overall accuracy",
                estimators=[worst(paired_models(audits["overall + worst"], audits["overall"]))],
                note=f"both selected on the validation split; {NOTE}",
            )
        return Findings(tables=(table,), figures=((drawing, "Adversarial training."),), tests=[test])
