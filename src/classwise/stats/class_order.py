"""Tests of the order of the classes: is a classifier right up to a permutation, or less accurate than chance?"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse, special

from classwise.stats.confusion import confusion
from classwise.stats.counts import BoolArray, FloatArray, IntArray
from classwise.stats.intervals import Estimate, clopper_pearson
from classwise.stats.resampling import halves

LEVEL = 0.005
"""The probability that `likely_order`, and that `below_chance`, reports a sound model or one at chance."""
FACTOR = 3
"""An order must explain more than this multiple of the images that the present order explains."""
MODAL_SHARE = 0.75
"""An order must explain this share of the images that the most frequent output of each class explains."""
SHUFFLES = 999
"""Number of permutations of the predictions in a test of independence."""
MOST_CLASSES = 2_000
"""The largest number of classes for which the best order is searched; the confusion matrix takes 32 MB."""


class ClassOrder(NamedTuple):
    """An order of the classes that explains the predictions far better than the present one.

    Attributes:
        order: (C,) the output that belongs to each class of the data.
        name: the description of a usual order; empty for any other.
        images: number of held-out images.
        accuracy: accuracy on these images in this order, with its 95 % interval.
        present: their accuracy in the present order.
    """

    order: IntArray
    name: str
    images: int
    accuracy: Estimate
    present: float


class Chance(NamedTuple):
    """An accuracy, and its expectation if labels and predictions were independent; both are fractions."""

    accuracy: float
    expected: float


def images_needed() -> int:
    """The number of images below which `likely_order` returns None even if an order explains all of them."""
    return 2 * math.ceil(math.log(LEVEL / 2) / math.log(FACTOR / (1 + FACTOR)))


def below_chance(labels: IntArray, predictions: IntArray) -> Chance | None:
    """Test whether the accuracy is below that of predictions which are independent of the labels.

    The expectation of n images with n_c labels and m_c predictions of class c is sum_c n_c m_c / n^2: 1/C for balanced
    classes, the share of a class for a constant predictor. The test permutes the predictions, so that it is exact.

    Args:
        labels: (N,) integers from 0.
        predictions: (N,) predicted classes.

    Returns:
        The accuracy and its expectation; None if the accuracy is not below it at `LEVEL`.

    Example:
        >>> below_chance(np.repeat([0, 1], 20), np.repeat([1, 0], 20))
        Chance(accuracy=0.0, expected=0.5)
        >>> below_chance(np.repeat([0, 1], 20), np.zeros(40, dtype=int)) is None
        True
    """
    hits, expected = int((labels == predictions).sum()), _by_chance(labels, predictions)
    if hits >= expected or not _is_rare(labels, predictions, lambda shuffled: shuffled <= hits, LEVEL):
        return None
    return Chance(hits / len(labels), expected / len(labels))


def at_chance(labels: IntArray, predictions: IntArray) -> Chance | None:
    """Test whether the accuracy is above that of predictions which are independent of the labels.

    The test is binomial and one-sided, with the expectation of `below_chance`.

    Args:
        labels: (N,) integers from 0.
        predictions: (N,) predicted classes; -1 for an image without a prediction.

    Returns:
        The accuracy and its expectation; None if the accuracy is above it at `LEVEL`, or the images are of fewer than
        two classes, so that no predictions depend on the labels.

    Example:
        >>> labels = np.repeat([0, 1], 20)
        >>> at_chance(labels, np.zeros(40, dtype=int))
        Chance(accuracy=0.5, expected=0.5)
        >>> at_chance(labels, labels) is None
        True
    """
    hits, images = int((labels == predictions).sum()), len(labels)
    if (labels == labels[:1]).all():
        return None
    expected = _by_chance(labels, predictions) / images
    # I_p(k, n - k + 1) is the probability of k or more of n.
    is_above = hits > 0 and special.betainc(hits, images - hits + 1, expected) < LEVEL
    return None if is_above else Chance(hits / images, expected)


def _by_chance(labels: IntArray, predictions: IntArray) -> float:
    """The expected number of hits of predictions with the same frequencies that are independent of the labels."""
    classes = int(max(labels.max(initial=0), predictions.max(initial=0))) + 1
    images, outputs = (np.bincount(values[values >= 0], minlength=classes) for values in (labels, predictions))
    return float(images @ outputs) / max(len(labels), 1)


def occurring_classes(labels: IntArray, predictions: IntArray) -> int:
    """Number of classes with images or predictions."""
    return len(np.union1d(labels, predictions))


def explains_best(labels: IntArray, predictions: IntArray) -> bool:
    """Whether no order of at most `MOST_CLASSES` classes explains more of these images than the present one."""
    classes, (truth, predicted) = _occurring(labels, predictions)
    return bool((_best_order(confusion(truth, predicted, len(classes))) == np.arange(len(classes))).all())


def likely_order(labels: IntArray, predictions: IntArray, class_names: Sequence[str]) -> ClassOrder | None:
    """Find an order of the classes that explains the predictions far better than the present one.

    Two orders are selected on one half of the images of each class: the best of the usual ones (shifted, reversed,
    sorted by name), and the best of all (a linear assignment), reduced to its cycles that explain more than `FACTOR`
    times as many images as the present order and meet condition 3. The second one is omitted for more than
    `MOST_CLASSES` classes. The other half decides: an order is reported if, on the images of the classes that it moves,

    1. predictions depend on labels: it explains more images than when the predictions are permuted;
    2. it explains significantly more than `FACTOR` times as many images as the present order (binomial test);
    3. its mean accuracy over classes is at least `MODAL_SHARE` of that of the most frequent output of each class.

    By the first two conditions, predictions that are independent of the labels, and predictions of which no order
    explains more than `FACTOR` times as many as the present one, are reported with a probability of at most `LEVEL`,
    whatever the confusions. By the third one, a model with a few outputs for all classes has no order.

    Args:
        labels: (N,) integers in 0 .. C-1.
        predictions: (N,) predicted classes, integers in 0 .. C-1.
        class_names: one for each class.

    Example:
        >>> labels = np.repeat(np.arange(10), 10)
        >>> found = likely_order(labels, (labels + 1) % 10, [str(label) for label in range(10)])
        >>> found.name, found.accuracy.value, found.present
        ('class i of the data is output i + 1 of the model', 1.0, 0.0)
    """
    first = halves(labels)
    selection, test = (labels[first], predictions[first]), (labels[~first], predictions[~first])
    orders = [_usual_order(*selection, class_names)]
    if occurring_classes(labels, predictions) <= MOST_CLASSES:
        orders.append(_searched_order(*selection, len(class_names)))
    for name, order in orders:
        if _confirmed(order, selection, test):
            hits, present = int((order[test[0]] == test[1]).sum()), float((test[0] == test[1]).mean())
            low, high = clopper_pearson(hits, len(test[0]))
            accuracy = Estimate(hits / len(test[0]), float(low), float(high))
            return ClassOrder(order, name, len(test[0]), accuracy, present)
    return None


def _usual_order(labels: IntArray, predictions: IntArray, names: Sequence[str]) -> tuple[str, IntArray]:
    """Of the usual orders, the one that explains most images, with its description."""
    index = np.arange(len(names))
    shifted = np.bincount((predictions - labels) % len(names), minlength=len(names))
    shift = int(np.append(-1, shifted[1:]).argmax())
    nearest = shift if 2 * shift <= len(names) else shift - len(names)
    text = f"class i of the data is output i {'+' if nearest > 0 else '-'} {abs(nearest)} of the model"
    orders = {text: (index + shift) % len(names), "the outputs are in reverse order": index[::-1]}
    sortings: dict[str, Callable[[str], Any]] = {
        "the outputs are sorted by name as text": str,
        "the outputs are sorted by name as text in lower case": str.casefold,
        "the outputs are sorted by name with numbers in numeric order": _natural,
    }
    for text, key in sortings.items():
        orders[text] = np.argsort(sorted(range(len(names)), key=[key(name) for name in names].__getitem__))
    hits = {text: int((order[labels] == predictions).sum()) for text, order in orders.items()}
    best = max(hits, key=hits.__getitem__)
    return best, orders[best]


def _natural(name: str) -> list[tuple[int, str]]:
    """The key of a sorting in which 2 precedes 10."""
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def _searched_order(labels: IntArray, predictions: IntArray, num_classes: int) -> tuple[str, IntArray]:
    """The order that explains most images, reduced to its cycles that explain far more than the present order."""
    classes, (truth, predicted) = _occurring(labels, predictions)
    best = _best_order(confusion(truth, predicted, len(classes)))
    fit = _Fit.of(best, (truth, predicted), (truth, predicted))
    reduced = np.arange(len(classes))
    for cycle in _cycles(best):
        if fit.part(cycle).is_far_better:
            reduced[cycle] = best[cycle]
    order = np.arange(num_classes)
    order[classes] = classes[reduced]
    return "", order


class _Fit(NamedTuple):
    """How an order explains images; every field is an array (C,).

    Attributes:
        moved: number of images that the order explains.
        present: number of images that the present order explains.
        share: share of images that the order explains; NaN where it or the modal share is unknown.
        modal: share of images with the most frequent output of their class among the selection.
    """

    moved: IntArray
    present: IntArray
    share: FloatArray
    modal: FloatArray

    @staticmethod
    def of(order: IntArray, selection: tuple[IntArray, IntArray], test: tuple[IntArray, IntArray]) -> _Fit:
        """The fit to the images of a test; the most frequent outputs are those of the selection."""
        labels, predictions = test
        mode = _modes(*selection, len(order))
        count, moved, present, modal = (
            np.bincount(labels[which], minlength=len(order))
            for which in (
                np.ones_like(labels, dtype=np.bool_),
                order[labels] == predictions,
                labels == predictions,
                mode[labels] == predictions,
            )
        )
        images = np.where((count > 0) & (mode >= 0), count, np.nan)
        return _Fit(moved, present, moved / images, modal / images)

    def part(self, classes: IntArray | BoolArray) -> _Fit:
        """The fit to the images of some classes."""
        return _Fit(self.moved[classes], self.present[classes], self.share[classes], self.modal[classes])

    @property
    def is_far_better(self) -> bool:
        """Whether the order explains `FACTOR` times as many images, and nearly as many as the most frequent outputs."""
        return bool(
            self.moved.sum() > FACTOR * self.present.sum()
            and np.nansum(self.share) >= MODAL_SHARE * np.nansum(self.modal)
        )


def _confirmed(order: IntArray, selection: tuple[IntArray, IntArray], test: tuple[IntArray, IntArray]) -> bool:
    """Whether the images of a test confirm an order that was selected on others; see `likely_order`."""
    moves = order != np.arange(len(order))
    fit = _Fit.of(order, selection, test).part(moves)
    hits, present = int(fit.moved.sum()), int(fit.present.sum())
    # I_p(k, n - k + 1) is the probability of k or more of n.
    if not fit.is_far_better or special.betainc(hits, present + 1, FACTOR / (1 + FACTOR)) > LEVEL / 2:
        return False
    labels, predictions = (values[moves[test[0]]] for values in test)
    return _is_rare(order[labels], predictions, lambda shuffled: shuffled >= hits, LEVEL / 2)


def _is_rare(labels: IntArray, predictions: IntArray, is_extreme: Callable[[int], bool], level: float) -> bool:
    """Permutation test of a number of equal labels and predictions, whose p-value counts the observation, too.

    Args:
        labels: (N,) integers.
        predictions: (N,) predicted classes, which are permuted at random.
        is_extreme: whether a number is at least as extreme as the observed one.
        level: the p-value up to which the observation is rare.
    """
    generator, extreme = np.random.default_rng(0), 1
    for _ in range(SHUFFLES):
        extreme += is_extreme(int((labels == generator.permutation(predictions)).sum()))
        if extreme > level * (1 + SHUFFLES):
            return False
    return True


def _occurring(labels: IntArray, predictions: IntArray) -> tuple[IntArray, tuple[IntArray, IntArray]]:
    """The classes with images or predictions, and labels and predictions as their places."""
    classes = np.union1d(labels, predictions)
    return classes, (np.searchsorted(classes, labels), np.searchsorted(classes, predictions))


def _best_order(matrix: IntArray) -> IntArray:
    """The order (C,) that explains most images of a confusion matrix; of equal ones, one with the fewest moves."""
    if (matrix.diagonal() == matrix.max(axis=1, initial=0)).all():
        return np.arange(len(matrix))
    from scipy.optimize import linear_sum_assignment  # takes a tenth of a second

    best: IntArray = linear_sum_assignment(matrix + np.eye(len(matrix)) / (2 * len(matrix) + 1), maximize=True)[1]
    return best


def _modes(labels: IntArray, predictions: IntArray, num_classes: int) -> IntArray:
    """(C,) the most frequent prediction of each class; -1 for a class without images."""
    pairs, counts = np.unique(np.stack([labels, predictions]), axis=1, return_counts=True)
    modes = np.full(num_classes, -1)
    order = np.argsort(counts, kind="stable")  # the last assignment to a class is that of its largest count
    modes[pairs[0, order]] = pairs[1, order]
    return modes


def _cycles(order: IntArray) -> list[IntArray]:
    """The cycles of a permutation that move classes, each as ascending labels."""
    from scipy.sparse import csgraph

    index = np.arange(len(order))
    moves = sparse.csr_array((np.ones(len(order)), (index, order)), shape=(len(order), len(order)))
    cycle = csgraph.connected_components(moves)[1]
    return [np.flatnonzero(cycle == number) for number in np.unique(cycle[order != index])]
