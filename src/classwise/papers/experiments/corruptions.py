"""Class accuracies under common corruptions, compared with robustness: benz20/P4.1, P4.2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pandas as pd
import torch

from classwise.attacks.engine import Engine
from classwise.data import CORRUPTIONS, corrupt
from classwise.data.images import Images
from classwise.papers.bootstrap import Resampled
from classwise.papers.claims import CORRELATION
from classwise.papers.context import Context, Training, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.protocol import AT, STANDARD, under_pgd
from classwise.papers.measurements import Measurement
from classwise.papers.scales import PRELIMINARY, Name, Scale
from classwise.papers.store import Trained
from classwise.papers.tables import Key, class_table, estimate_cell
from classwise.reporting.figures.lines import class_lines, line_chart
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray
from classwise.stats.intervals import Estimate
from classwise.stats.ranks import ranks

COLOUR = ("saturate",)
"""Corruptions that require three channels."""
GRID: Mapping[Name, tuple[Sequence[str], Sequence[int]]] = {
    "smoke": (("contrast", "fog"), (1, 5)),
    "reduced": (tuple(CORRUPTIONS), (1, 3, 5)),
    "full": (tuple(CORRUPTIONS), (1, 2, 3, 4, 5)),
}
"""Corruptions and severities; the plan names fog and contrast."""
MODELS: Mapping[str, Training] = {"standard": STANDARD, "adversarial": AT}


@dataclass(frozen=True, eq=False)
class Corrupted:
    """Predictions of a model on corrupted images.

    Attributes:
        correct: (corruption, severity) to (N,) bool, whether the prediction is correct.
        labels: (N,) int64.
        names: class names.
    """

    correct: Mapping[tuple[str, int], BoolArray]
    labels: np.ndarray[tuple[int], np.dtype[np.int64]]
    names: tuple[str, ...]

    def counts(self, severity: int) -> ClassCounts:
        """Per-class counts over all corruptions at a severity; each image counts once per corruption."""
        rows = [right for (_, level), right in self.correct.items() if level == severity]
        each = [ClassCounts.from_labels(self.labels, right, len(self.names)) for right in rows]
        return sum(each[1:], start=each[0])


def evaluate_corruptions(context: Context, trained: Trained) -> Corrupted:
    """Evaluate the model of a run on the test images under every corruption and severity of the scale."""
    images = context.test_images
    context.note_audit(images, {})
    model = trained.run.model().to(context.device)
    engine = Engine(model, precision=context.scale.precision)

    def right(corrupt_images: Images) -> BoolArray:
        batches = corrupt_images.to(torch.device(context.device)).batches(engine.batch_size)
        predicted = torch.cat([logits.argmax(1).cpu() for logits in engine.predict(batch.x for batch in batches)])
        correct: BoolArray = (predicted == images.y).numpy()
        return correct

    kinds, severities = GRID[context.scale.name]
    applicable = [kind for kind in kinds if kind not in COLOUR or images.shape[0] == 3]
    correct = {(kind, level): right(corrupt(images, kind, level)) for kind in applicable for level in severities}
    return Corrupted(correct, images.y.numpy(), tuple(images.class_names))


class ClassesUnderCorruptions(Experiment):
    """benz20 plan: class accuracy under corruptions, of a standard and an adversarially trained model."""

    scales: ClassVar[Mapping[Name, Scale]] = PRELIMINARY
    declared: ClassVar[Trainings] = MODELS

    def run(self, context: Context) -> Findings:
        """Draw class accuracies over the severity, averaged over corruptions, and tabulate each corruption.

        The gap between the classes is a measurement for the open question C10.
        """
        tables, figures, measurements = [], [], []
        _, severities = GRID[context.scale.name]
        for name, trained in context.train_all(MODELS).items():
            predictions = evaluate_corruptions(context, trained)
            lines = pd.DataFrame(
                [predictions.counts(at).accuracy for at in severities], list(severities), list(predictions.names)
            )
            title = f"{name.capitalize()} model: accuracy under corruptions, in percent"
            figures.append((line_chart(title, class_lines(lines), "severity"), "Mean over all corruptions."))
            counts: dict[Key, ClassCounts] = {
                (kind, f"severity {level}"): ClassCounts.from_labels(predictions.labels, right, len(predictions.names))
                for (kind, level), right in predictions.correct.items()
                if level == severities[-1]
            }
            tables.append(class_table(f"{name.capitalize()} model, by class, in percent", counts, predictions.names))
            rows = Resampled(np.stack([*predictions.correct.values()]), predictions.labels, len(predictions.names))
            mcd = rows.part(lambda a: np.ptp(a.mean(axis=-2), axis=-1), 100)(0.05)
            quantity = f"MCD of the accuracy under corruptions, mean over kinds and severities, {name} model"
            measurements.append(Measurement.of("benz20/C10", quantity, mcd, limits=(0, 100)))
        return Findings(tables=tables, figures=figures, measurements=measurements)


class CorruptionsAndAttacks(Experiment):
    """benz20 plan: are the classes weak under corruptions also weak under attack?"""

    scales: ClassVar[Mapping[Name, Scale]] = PRELIMINARY
    declared: ClassVar[Trainings] = MODELS

    def run(self, context: Context) -> Findings:
        """Correlate the ranks of class accuracies under corruptions and under PGD, for the open question C10."""
        models = context.train_all(MODELS)
        attacked = under_pgd(context, models["adversarial"]).outcomes.correct("PGD")
        rows, measurements = [], []
        for name, trained in models.items():
            predictions = evaluate_corruptions(context, trained)
            stack = Resampled(
                np.stack([*predictions.correct.values(), attacked]), predictions.labels, len(predictions.names)
            )
            overall = _clipped(stack.estimate(agreement))
            rows.append(Row(f"{name}, all", [_correlation(overall)]))
            quantity = f"Spearman's correlation of the classes under corruptions ({name} model) and under PGD"
            measurements.append(Measurement.of("benz20/C10", quantity, overall, unit=""))
            places = [kind for kind, _ in predictions.correct]
            for kind in dict.fromkeys(places):
                selected = [at for at, other in enumerate(places) if other == kind]
                rows.append(Row(f"{name}, {kind}", [_correlation(stack.estimate(partial(agreement, rows=selected)))]))
        note = "Over the classes, averaged over severities. Small print: 95 % confidence intervals. PGD is run on the "
        note += "adversarially trained model."
        note += " Sampling noise lowers a correlation."
        table = Table("Rank correlation with robustness", ("model, corruption", "Spearman"), rows, note)
        return Findings(tables=(table,), measurements=measurements)


def _correlation(correlation: Estimate) -> Cell:
    """Cell of a correlation with its interval, clipped to -1 and 1."""
    return estimate_cell(_clipped(correlation), 1, 2)


def _clipped(correlation: Estimate) -> Estimate:
    return Estimate(*np.clip(correlation, *CORRELATION).tolist())


def agreement(accuracy: FloatArray, rows: Sequence[int] | None = None) -> FloatArray:
    """Spearman's correlation over classes between the mean of some rows and the last row; 0 if either is constant.

    Args:
        accuracy: (..., K + 1, C).
        rows: indices among the first K rows; None for all.
    """
    chosen = accuracy[..., :-1, :] if rows is None else accuracy[..., list(rows), :]
    # Equal means may differ in the last bits, so the values are rounded before ranking.
    first, second = (ranks(one.round(9)) for one in (chosen.mean(axis=-2), accuracy[..., -1, :]))
    first, second = (one - one.mean(axis=-1, keepdims=True) for one in (first, second))
    size = np.sqrt((first**2).sum(axis=-1) * (second**2).sum(axis=-1))
    correlation: FloatArray = np.divide(
        (first * second).sum(axis=-1), size, out=np.zeros(np.shape(size)), where=size > 0
    )
    return correlation
