"""Asymmetry of confusions: of a pair of classes, and summed over the pairs (Najjar et al. 2026)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.settings.arguments import checked
from classwise.stats.confusion import confusion_rates
from classwise.stats.counts import FloatArray, IntArray, ratio
from classwise.stats.intervals import Estimate, clopper_pearson, sidak
from classwise.stats.registry import Metric


class AsymmetricPair(NamedTuple):
    """The pair of classes whose confusion rates C_ij and C_ji differ most.

    Attributes:
        label: i, the class that is misclassified as the other one more often.
        predicted: j.
        gap: C_ij - C_ji, in 0 .. 1.

    Example:
        >>> from classwise import metrics
        >>> round(metrics.max_asymmetry([[7, 3], [1, 9]]).gap, 2)
        0.2
    """

    label: int
    predicted: int
    gap: float


@checked
def max_asymmetry(matrix: ArrayLike) -> AsymmetricPair:
    """Find the largest abs(C_ij - C_ji) over pairs of classes (Najjar et al. 2026); among ties the first.

    Args:
        matrix: (C, C) confusion counts or rates, label by prediction; its rows are normalised.

    Returns:
        The pair and its gap, a fraction. Pairs with an absent class are excluded; without any pair the gap is NaN.

    Example:
        >>> from classwise import metrics
        >>> metrics.max_asymmetry([[7, 3, 0], [1, 8, 1], [0, 5, 5]])
        AsymmetricPair(label=2, predicted=1, gap=0.4)
    """
    rates = confusion_rates(matrix)
    gaps = rates - rates.T
    np.fill_diagonal(gaps, np.nan)
    if np.isnan(gaps).all():
        return AsymmetricPair(0, 0, float("nan"))
    label, predicted = np.unravel_index(np.nanargmax(gaps), gaps.shape)
    return AsymmetricPair(int(label), int(predicted), float(gaps[label, predicted]))


def asymmetry_estimate(matrix: IntArray, alpha: float = 0.05) -> Estimate:
    """The largest abs(C_ij - C_ji) over pairs of classes, from bounds of the rates by Clopper and Pearson.

    The two rates of a pair are of images of two classes, so they are independent. The lower end is the largest of the
    lower bounds of the pairs, which combine the distances to the bounds of the two rates in quadrature (MOVER; Zou and
    Donner 2008) and are corrected for the number of pairs (Sidak). The upper end is the largest difference of an upper
    and a lower bound; it fails only if a bound of the truly largest pair fails, so it needs no such correction.

    Args:
        matrix: (C, C) confusion counts, label by prediction.
        alpha: 1 minus the coverage.

    Returns:
        Fractions; NaN without two classes that have images.
    """
    value, images = max_asymmetry(matrix).gap, matrix.sum(axis=1, keepdims=True)
    if math.isnan(value):
        return Estimate(value, value, value)
    base = int(images.max()) + 1
    cells, place = np.unique(base * images + matrix, return_inverse=True)  # most cells of many classes are equal
    count, correct = np.divmod(cells, base)

    def bounds(level: float) -> list[FloatArray]:
        return [end[place].reshape(matrix.shape) for end in clopper_pearson(correct, count, level)]

    rates, other = ratio(matrix, images), ~np.eye(len(matrix), dtype=np.bool_)
    low, high = bounds(sidak(alpha, math.comb(np.count_nonzero(images), 2)))
    lower = np.nanmax((rates - rates.T - np.hypot(rates - low, (high - rates).T))[other])
    low, high = bounds(2 * sidak(alpha / 2, 2))
    return Estimate(value, max(float(lower), 0.0), float(np.nanmax((high - low.T)[other])))


ASYMMETRY = Metric(
    "asymmetry",
    lambda matrix: max_asymmetry(matrix).gap,
    title="asymmetry",
    about="largest difference of two classes in the rate at which each is predicted as the other, in percentage points",
    reads="confusion",
    higher_is_better=False,
    interval=asymmetry_estimate,
)


@checked
def asymmetry_penalty(matrix: ArrayLike, smoothing: float | None = None) -> float:
    """Compute the sum over i < j of (C_ij + C_ji) abs(C_ij - C_ji) / (C_ij + C_ji + smoothing) (Najjar et al. 2026).

    Args:
        matrix: (C, C) confusion counts or rates, label by prediction; its rows are normalised.
        smoothing: the constant in the denominator, above 0; None: 1 / C.

    Returns:
        At least 0; pairs with an absent class are excluded.

    Example:
        >>> from classwise import metrics
        >>> round(metrics.asymmetry_penalty([[7, 3], [1, 9]], smoothing=0.1), 2)
        0.16
    """
    rates = confusion_rates(matrix)
    both = rates + rates.T
    terms = both * np.abs(rates - rates.T) / (both + (1 / len(rates) if smoothing is None else smoothing))
    return float(np.nansum(np.triu(terms, k=1)))
