"""Change of the worst class between adjacent epochs, and the choice of an epoch: cfa23/F4, E1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import pandas as pd
import torch

from classwise.analysis.epochs import images_of, measured
from classwise.analysis.fluctuation import Fluctuation as FluctuationOfRuns
from classwise.analysis.fluctuation import fluctuation
from classwise.core.config import Spec
from classwise.papers import catalogue
from classwise.papers.bootstrap import Resampled
from classwise.papers.claims import Test
from classwise.papers.context import Context, Training, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.estimates import paired_models, worst
from classwise.papers.experiments.fair_methods import (
    LEAST_ADMITTED,
    NOTE,
    PAPER_GATE,
    PGD_ATTACKS,
    RELATIVE,
    closed_gate,
    gate,
    pair_cell,
)
from classwise.papers.experiments.saved_epochs import (
    ATTACK,
    audit_epochs,
    epochs_text,
    epochs_within,
    with_checkpoints,
)
from classwise.papers.interval_estimators import exactly, plus
from classwise.papers.scales import DEFAULT_SCALES, MANY_TRAININGS, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.reporting.figures.lines import Series, line_chart
from classwise.reporting.palette import SERIES
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray
from classwise.stats.intervals import Estimate
from classwise.training.folder import Run, epoch_weights
from classwise.training.selection import Rule, overall, overall_plus_worst

WINDOW: Mapping[Name, tuple[float, float]] = {"smoke": (0.5, 1.0), "reduced": (0.5, 1.0), "full": (0.5, 0.6)}
"""Range of epochs as fractions; the paper uses 101 to 120 of 200, which are too few in a short training."""
RULES: Mapping[str, tuple[Rule, str]] = {
    "overall": (overall, "epoch_108"),
    "overall + worst": (overall_plus_worst, "epoch_110"),
}
"""Selection rules, each with the epoch that the paper selects by it."""


class Fluctuation(Experiment):
    """cfa23 Figure 4: change of the worst class from epoch to epoch on the test set, with and without FAWA."""

    scales: ClassVar[Mapping[Name, Scale]] = MANY_TRAININGS

    def trainings(self, scale: Scale) -> Trainings:
        """AT with FAWA, which also gives the plain model; with a short budget also with a relative gate."""
        declared = {"AT + FAWA": Training(recipe="cfa-at", overrides={"schedules": [], **PAPER_GATE})}
        if scale.budget is not None:
            declared[f"AT + FAWA{RELATIVE}"] = Training(recipe="cfa-at", overrides={"schedules": []})
        return {
            name: with_checkpoints(one, epochs_within(scale, one, WINDOW[scale.name])) for name, one in declared.items()
        }

    def run(self, context: Context) -> Findings:
        """Audit every epoch of the window; test claims C9, C20 and C24."""
        declared = self.trainings(context.scale)
        trained = context.train_all(declared)
        epochs = epochs_within(context.scale, declared["AT + FAWA"], WINDOW[context.scale.name])
        correct = {"AT": audit_epochs(context, trained["AT + FAWA"], epochs).correct(ATTACK, epochs)}
        correct |= {
            name: audit_epochs(context, one, epochs, "average").correct(ATTACK, epochs) for name, one in trained.items()
        }
        labels = context.test_images.y.numpy()
        classes = len(context.test_images.class_names)
        changes = fluctuation(correct, labels, classes)
        images = {name: Resampled(table, labels, classes) for name, table in correct.items()}
        admitted = {name: gate(one.run) for name, one in trained.items()}
        rows = [
            Row(
                name,
                [
                    estimate_cell(one.estimate(_overall_change)),
                    estimate_cell(_worst_change(changes, name)),
                    estimate_cell(one.estimate(lambda a: a.mean(axis=(-1, -2)))),
                    estimate_cell(one.estimate(lambda a: a.min(axis=-1).mean(axis=-1))),
                ],
            )
            for name, one in images.items()
        ]
        note = f"Test images under PGD-10, {epochs_text(epochs)}. "
        note += "; ".join(f"{name} admitted {sum(found)} of {len(found)} epochs" for name, found in admitted.items())
        note += ". Before the first admitted epoch, FAWA equals the plain average. "
        note += "Small print: 95 % confidence intervals."
        heads = ("model", "change, overall", "change, worst class", "mean, overall", "mean, worst class")
        drawing = line_chart("Worst class of each epoch, in percent", _worst_lines(correct, labels, epochs), "epoch")
        tests, not_tested = self.claims(context, images, correct, admitted["AT + FAWA"], trained["AT + FAWA"].run)
        return Findings(
            tables=(Table("Adjacent epochs: mean absolute change in points, and mean accuracy", heads, rows, note),),
            figures=((drawing, "Test images under PGD-10."),),
            tests=tests,
            not_tested=not_tested,
        )

    def claims(
        self,
        context: Context,
        images: Mapping[str, Resampled],
        correct: Mapping[str, BoolArray],
        admitted: Sequence[bool],
        run: Run,
    ) -> tuple[list[Test], dict[str, str]]:
        """Tests of C9, C20 and C24, and the claims that are not tested."""
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
            return tests, {"cfa23/C20": closed_gate(["AT + FAWA"])}
        calm = images["AT + FAWA"].part(lambda a: 0.01 - _change_of(a.min(axis=-1)), 100)
        pair = Resampled(np.concatenate([correct["AT + FAWA"], correct["AT"]]), images["AT"].labels, classes)
        half = len(correct["AT"])
        tests += [
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
        return tests, {}


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


class UnfairChoice(Experiment):
    """cfa23 section 3.3: selection of the epoch by overall robustness, or by its sum with the worst class."""

    scales: ClassVar[Mapping[Name, Scale]] = DEFAULT_SCALES
    attacks: ClassVar[Mapping[Name, Mapping[str, Spec]]] = PGD_ATTACKS

    def trainings(self, scale: Scale) -> Trainings:
        """AT, whose second half is saved epoch by epoch."""
        training = Training(recipe="at")
        return {"AT": with_checkpoints(training, epochs_within(scale, training, (0.5, 1.0)))}

    def run(self, context: Context) -> Findings:
        """Select an epoch by each rule on the validation split, and evaluate both on the test images; test C10."""
        declared = self.trainings(context.scale)
        trained = context.train_all(declared)["AT"]
        choices = epochs_within(context.scale, declared["AT"], (0.5, 1.0))
        robust, images = measured(trained.run, "valid", "robust").loc[list(choices)], images_of(trained.run, "valid")
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
        each = [counts_at(int(epoch), robust, images) for epoch in robust.index]
        lines = [
            Series("average", places, [metric_intervals.macro(one).value for one in each], "stroke-main"),
            Series("worst class", places, [metric_intervals.worst(one).value for one in each], "line-weak"),
        ]
        drawing = line_chart("Robust accuracy on the validation split, in percent", lines, "epoch")
        tests, not_tested = [], {}
        if len(set(epochs.values())) == 1:
            not_tested["cfa23/C10"] = f"both rules select epoch {epochs['overall']} of this training"
        else:
            pair = paired_models(audits["overall + worst"], audits["overall"])
            tests.append(
                Test(
                    claim="cfa23/C10",
                    estimand="worst class on test images at the epoch selected by the sum minus that at the epoch "
                    "selected by the overall accuracy",
                    estimators=[worst(pair)],
                    note=f"both selected on the validation split; {NOTE}",
                )
            )
        return Findings(
            tables=(table,), figures=((drawing, "Adversarial training."),), tests=tests, not_tested=not_tested
        )
