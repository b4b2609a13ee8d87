"""Metrics of class accuracies and confidences, as reported in the papers.

Accuracies are fractions, so `class_variance` is a fraction squared: multiply it by 10^4 for percent squared, the unit
of the papers. The accuracy of an absent class is NaN; every metric here excludes absent classes.

Example:
    >>> from classwise import metrics
    >>> accuracy = metrics.class_accuracy([0, 0, 1, 1, 2], [True, True, True, False, False], num_classes=3)
    >>> accuracy
    array([1. , 0.5, 0. ])
    >>> metrics.worst_class(accuracy)
    LowestAccuracy(label=2, accuracy=0.0)
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import checked
from classwise.stats.confusion import (
    AsymmetricPair,
    Leakage,
    Symmetry,
    asymmetry_penalty,
    confusion,
    confusion_rates,
    max_asymmetry,
    misclassified,
    superclass_leakage,
    symmetry,
    target_shares,
)
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, class_labels, ratio

Number = TypeVar("Number", Fraction, float)

__all__ = [
    "AsymmetricPair",
    "Leakage",
    "LowestAccuracy",
    "Symmetry",
    "asymmetry_penalty",
    "class_accuracy",
    "class_confidence_variance",
    "class_variance",
    "confidence_variance",
    "confusion",
    "confusion_rates",
    "hmw",
    "max_asymmetry",
    "max_class_discrepancy",
    "misclassified",
    "nrr",
    "overall_macro",
    "overall_micro",
    "robust_classes",
    "superclass_leakage",
    "symmetry",
    "target_shares",
    "trade",
    "vulnerable_classes",
    "worst_class",
    "worst_share",
]


@checked
def class_accuracy(labels: ArrayLike, correct: ArrayLike, num_classes: int) -> FloatArray:
    """The accuracy of each class.

    Args:
        labels: (N,) integers in 0 .. C-1.
        correct: (N,) true where the prediction is correct.
        num_classes: C.

    Returns:
        (C,) fractions; NaN for absent classes.

    Raises:
        ClasswiseError: if a label is out of range, or the lengths differ.

    Example:
        >>> from classwise import metrics
        >>> metrics.class_accuracy([0, 0, 1, 1], [True, False, True, True], num_classes=3)
        array([0.5, 1. , nan])
    """
    return ClassCounts.from_labels(labels, correct, num_classes).accuracy


@checked
def overall_micro(counts: ClassCounts) -> float:
    """The accuracy over all images; NaN without images.

    Example:
        >>> from classwise import metrics
        >>> from classwise.stats.counts import ClassCounts
        >>> counts = ClassCounts.from_labels([0, 0, 0, 1], [True, True, True, False], num_classes=2)
        >>> metrics.overall_micro(counts)
        0.75
    """
    return float(ratio(counts.correct.sum(), counts.count.sum()))


@checked
def overall_macro(accuracy: ArrayLike) -> float:
    """The mean of the class accuracies (C,); equal to `overall_micro` if the classes have equal sizes.

    Example:
        >>> from classwise import metrics
        >>> metrics.overall_macro([1.0, 0.0, float("nan")])
        0.5
    """
    return float(_present(accuracy).mean())


@checked
def class_variance(accuracy: ArrayLike) -> float:
    """CV: the population variance of the class accuracies (kdd21 Definition 4.1).

    Args:
        accuracy: (C,) fractions.

    Returns:
        (1/C) sum_c (a_c - mean)^2, a fraction squared; times 10^4 it is in percent squared.

    Example:
        >>> from classwise import metrics
        >>> round(1e4 * metrics.class_variance([0.9, 0.5, 0.1]), 2)
        1066.67
    """
    return float(_present(accuracy).var())


@checked
def max_class_discrepancy(accuracy: ArrayLike) -> float:
    """MCD: the highest class accuracy (C,) minus the lowest, a fraction (kdd21 Definition 4.2).

    Example:
        >>> from classwise import metrics
        >>> metrics.max_class_discrepancy([0.9, 0.5, 0.1])
        0.8
    """
    return float(np.ptp(_present(accuracy)))


class LowestAccuracy(NamedTuple):
    """The class with the lowest accuracy: its label and its accuracy (a fraction).

    Example:
        >>> from classwise import metrics
        >>> metrics.worst_class([0.9, 0.5, 0.1]).label
        2
    """

    label: int
    accuracy: float


@checked
def worst_class(accuracy: ArrayLike) -> LowestAccuracy:
    """Find the lowest of the class accuracies (C,); among ties the first.

    Example:
        >>> from classwise import metrics
        >>> metrics.worst_class([0.9, 0.5, 0.1])
        LowestAccuracy(label=2, accuracy=0.1)
    """
    lowest = float(_present(accuracy).min())
    return LowestAccuracy(int(np.flatnonzero(np.asarray(accuracy) == lowest)[0]), lowest)


@checked
def worst_share(accuracy: ArrayLike, share: float) -> float:
    """The mean accuracy of the lowest ceil(``share`` C) classes (cfa23 Appendix C.1: the worst 20 % of 200 classes).

    Args:
        accuracy: (C,) fractions.
        share: share of the classes, in (0, 1].

    Raises:
        ClasswiseError: if ``share`` is out of range.

    Example:
        >>> from classwise import metrics
        >>> metrics.worst_share([0.9, 0.5, 0.1, 0.3, 0.7], share=0.4)
        0.2
    """
    present = np.sort(_present(accuracy))
    return float(present[: classes_of_share(len(present), share)].mean())


@checked
def classes_of_share(classes: int, share: float) -> int:
    """The number of classes in a share of them, rounded up: ceil(``share`` C).

    Raises:
        ClasswiseError: if ``share`` is out of range.
    """
    if not 0 < share <= 1:
        raise ClasswiseError(f"worst share {share}: must be a share of the classes in (0, 1], such as 0.2")
    # 0.07 * 100 is slightly above 7 in floating point, which must not add an eighth class.
    return math.ceil(share * classes - 1e-9)


@checked
def nrr(clean: float, robust: float) -> float:
    """NRR: the harmonic mean of clean and robust accuracy; 0 if either is 0.

    Example:
        >>> from classwise import metrics
        >>> round(metrics.nrr(clean=0.8, robust=0.4), 3)
        0.533
    """
    return harmonic_mean(clean, robust)


@checked
def hmw(overall: float, worst: float) -> float:
    """HMW: the harmonic mean of overall and worst-class accuracy; 0 if either is 0.

    Example:
        >>> from classwise import metrics
        >>> round(metrics.hmw(overall=0.5, worst=0.2), 3)
        0.286
    """
    return harmonic_mean(overall, worst)


@checked
def robust_classes(accuracy: ArrayLike, overall: float) -> BoolArray:
    """Find the classes whose robust accuracy is above the overall one (kdd21 Definition 3.3).

    Args:
        accuracy: (C,) robust accuracies.
        overall: robust accuracy over all images.

    Returns:
        (C,) true where a_c > overall; a class with a_c = overall is neither robust nor vulnerable.

    Example:
        >>> from classwise import metrics
        >>> metrics.robust_classes([0.9, 0.5, 0.1], overall=0.5)
        array([ True, False, False])
    """
    return np.asarray(np.asarray(accuracy, dtype=np.float64) > overall)


@checked
def vulnerable_classes(accuracy: ArrayLike, overall: float) -> BoolArray:
    """Find the classes whose robust accuracy is below the overall one (kdd21 Definition 3.3).

    Args:
        accuracy: (C,) robust accuracies.
        overall: robust accuracy over all images.

    Returns:
        (C,) true where a_c < overall.

    Example:
        >>> from classwise import metrics
        >>> metrics.vulnerable_classes([0.9, 0.5, 0.1], overall=0.5)
        array([False, False,  True])
    """
    return np.asarray(np.asarray(accuracy, dtype=np.float64) < overall)


@checked
def confidence_variance(probabilities: ArrayLike) -> FloatArray:
    """The population variance over the classes of each image's confidences (the inner part of kdd21 Definition 5.1).

    The paper prints 1/N for the inner mean where 1/C is meant; the mean of the confidences is then 1/C.

    Args:
        probabilities: (N, C) softmax outputs.

    Returns:
        (N,) in 0 .. (C-1)/C^2.

    Raises:
        ClasswiseError: if the rows are not probability vectors.

    Example:
        >>> from classwise import metrics
        >>> metrics.confidence_variance([[0.5, 0.5], [1.0, 0.0]])
        array([0.  , 0.25])
    """
    confidences = np.asarray(probabilities, dtype=np.float64)
    if confidences.ndim != 2:
        raise ClasswiseError(f"probabilities: expected shape (N, C), got {confidences.shape}")
    # The sum of bfloat16 confidences deviates from 1 by less than a percent.
    if not ((confidences >= 0).all() and (np.abs(confidences.sum(axis=1) - 1) < 0.02).all()):
        raise ClasswiseError("probabilities: each row must be non-negative and sum to 1; apply a softmax to the logits")
    return np.asarray(confidences.var(axis=1))


@checked
def class_confidence_variance(labels: ArrayLike, variance: ArrayLike, num_classes: int) -> FloatArray:
    """CVC: the mean `confidence_variance` of each class (kdd21 Definition 5.1).

    Args:
        labels: (N,) integers in 0 .. C-1.
        variance: (N,) values of `confidence_variance`.
        num_classes: C.

    Returns:
        (C,) in 0 .. (C-1)/C^2; NaN for absent classes.

    Raises:
        ClasswiseError: if a label is out of range, or the lengths differ.

    Example:
        >>> from classwise import metrics
        >>> variance = metrics.confidence_variance([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
        >>> metrics.class_confidence_variance([0, 0, 1], variance, num_classes=2)
        array([0.125, 0.25 ])
    """
    index = class_labels(labels, num_classes)
    values = np.asarray(variance, dtype=np.float64)
    if values.shape != index.shape:
        raise ClasswiseError(
            f"confidence variance: expected one value for each of the {len(index)} labels, got shape {values.shape}"
        )
    count = np.bincount(index, minlength=num_classes)
    return ratio(np.bincount(index, weights=values, minlength=num_classes), count)


@checked
def trade(
    *, worst: float, average: float, baseline_worst: float, baseline_average: float, standard_error: float
) -> float:
    """The change of the worst-class accuracy per point of change of the average accuracy, relative to a baseline run.

    Args:
        worst: worst-class accuracy of the run.
        average: average accuracy of the run.
        baseline_worst: worst-class accuracy of the baseline.
        baseline_average: average accuracy of the baseline.
        standard_error: standard error of the change of the average.

    Returns:
        (worst - baseline_worst) / (average - baseline_average); NaN if the average changed by less than
        ``standard_error``, because the quotient would be noise.

    Example:
        >>> from classwise import metrics
        >>> change = metrics.trade(
        ...     worst=0.25, average=0.48, baseline_worst=0.20, baseline_average=0.50, standard_error=0.005
        ... )
        >>> round(change, 2)
        -2.5
    """
    change = average - baseline_average
    if change == 0 or abs(change) < standard_error:
        return math.nan
    return (worst - baseline_worst) / change


def _present(accuracy: ArrayLike) -> FloatArray:
    values = np.asarray(accuracy, dtype=np.float64)
    if values.ndim != 1:
        raise ClasswiseError(f"class accuracies: expected shape (C,), got {values.shape}")
    present = values[~np.isnan(values)]
    if not present.size:
        raise ClasswiseError("class accuracies: no class has an image; at least one value must not be NaN")
    return present


@checked
def harmonic_mean(first: Number, second: Number) -> Number:
    """The harmonic mean of two numbers of at least 0; 0 if either is 0."""
    total = first + second
    return 2 * first * second / total if total else total
