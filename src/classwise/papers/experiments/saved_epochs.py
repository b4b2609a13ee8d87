"""Evaluations of the saved epochs of a training on the test images, and means over windows of epochs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from classwise.analysis.epochs import inside
from classwise.auditing.outcomes.table import Outcomes
from classwise.papers.bootstrap import Resampled
from classwise.papers.context import Context, Training, recipe_at
from classwise.papers.experiments.fair_methods import PGD_10
from classwise.papers.interval_estimators import IntervalEstimator
from classwise.papers.scales import Scale
from classwise.papers.store import Trained
from classwise.reporting.figures.lines import OVERALL
from classwise.stats.counts import BoolArray, FloatArray, IntArray
from classwise.stats.intervals import Estimate
from classwise.training.folder import Which, epoch_weights

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


def audit_epochs(context: Context, trained: Trained, epochs: Sequence[int], which: Which = "last") -> SavedEpochs:
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
