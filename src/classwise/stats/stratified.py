"""Confidence intervals of weighted sums of class means, such as the class mean, valid with one image in a class.

Population P: new images of the same classes. The images of a class are independent, and so are the classes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import Level, checked
from classwise.stats.counts import ClassCounts, FloatArray, IntArray, ratio
from classwise.stats.intervals import Estimate

_RATIO = 2.0
"""Classes whose images have weights within this factor form a group."""
_FEW, _CERTAIN = 5, 2.0
"""From this number of values on, a mean is certainly beyond one half at this many standard errors."""
_ROUNDING = 1e-12
"""Means and variances that are this near to 0 or 1 are 0 or 1."""
_OUTSIDE = 1e-9
"""Rounding of values at an end of their range."""
_HALVINGS = 40
"""Bisection steps for a p-value."""
_LEAST_P = 1e-100
"""The smallest p-value that the bisection finds."""


@checked
def weighted_mean(
    count: ArrayLike, mean: ArrayLike, square: ArrayLike, weights: ArrayLike, alpha: Level = 0.05
) -> Estimate:
    """Interval of sum_c w_c mu_c, from independent values in [0, 1] with expectation mu_c in class c.

    The classes are grouped by the weight w_c / n_c of an image, within a factor of two, and by whether their mean is
    certainly below or above one half, since the errors of means near 0 and near 1 are skewed to opposite sides.

    - A group has the interval of Clopper and Pearson for the effective number of images of a stratified sample (after
      Korn and Graubard 1998). The image that they add has the largest weight of the group (as in Fay and Feuer 1997).
    - The variance is the unbiased one within classes. Classes with one image have none: their variances are at most
      that of all of them about their common mean (collapsed strata; Cochran 1977, section 5A.12).
    - The intervals of the groups are combined in quadrature (MOVER; Zou, Huang and Zhang 2009).

    For the values 0 and 1 in one class, or in classes of equal weight with one image each, it is the interval of
    Clopper and Pearson, which is valid for different probabilities, too (Hoeffding 1956).

    Args:
        count: (C,) numbers of values, at least 1.
        mean: (C,) means of the values.
        square: (C,) means of their squares.
        weights: (C,) w_c, at least 0, with a positive sum.
        alpha: 1 minus the coverage.

    Returns:
        The weighted sum of the means with its interval, within [0, sum_c w_c].

    Raises:
        ClasswiseError: if no weight is positive.

    Example:
        >>> found = weighted_mean([1, 1, 100], [1.0, 0.0, 0.5], [1.0, 0.0, 0.5], [1 / 3, 1 / 3, 1 / 3])
        >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
        (0.5, 0.173, 0.827)
    """
    arrays = (np.asarray(values, dtype=np.float64) for values in (count, mean, square, weights))
    n, m, q, w = np.broadcast_arrays(*arrays)
    n, m, q, w = (values[w > 0] for values in (n, m, q, w))
    if not w.size:
        raise ClasswiseError("weights: none is positive")
    of_image = w / n
    by_weight = np.floor(np.log(of_image.max() / of_image) / np.log(_RATIO) + _ROUNDING).astype(np.int64)
    group = 3 * by_weight + _side(n, m)
    below = above = 0.0
    for number in np.unique(group):
        mine = group == number
        share = float(w[mine].sum())
        low, value, high = _group(n[mine], m[mine], q[mine], w[mine] / share, alpha / 2)
        below, above = below + (share * (value - low)) ** 2, above + (share * (high - value)) ** 2
    total = float(w @ m)
    return Estimate(total, max(total - below**0.5, 0.0), min(total + above**0.5, float(w.sum())))


def _side(n: FloatArray, m: FloatArray) -> IntArray:
    """0 or 2 for classes whose expectation is certainly below or above one half; 1 for others, and for few values."""
    centre = (n * m + 0.5) / (n + 1)
    distance = (centre - 0.5) / np.sqrt(centre * (1 - centre) / (n + 2))
    return np.where(n < _FEW, 1, 1 + (distance > _CERTAIN) - (distance < -_CERTAIN).astype(np.int64)).astype(np.int64)


def _group(n: FloatArray, m: FloatArray, q: FloatArray, w: FloatArray, error: float) -> tuple[float, float, float]:
    """Lower end, value and upper end of a group; its weights (C,) have the sum 1."""
    spread, single = np.maximum(q - m**2, 0), n == 1
    variance = float((w**2 * ratio(spread, n - 1))[~single].sum())
    if single.any():
        squares = w[single] ** 2
        pooled, second = (float(squares @ values[single] / squares.sum()) for values in (m, q))
        # The variance about the mean of few values is too small by 1 / (their effective number)
        unbiased = 1 - float(squares @ squares) / float(squares.sum()) ** 2
        variance += float(squares.sum()) * max(second - pooled**2, 0.0) / unbiased if unbiased > _ROUNDING else 0.0
    largest, value = float((w / n).max()), float(w @ m)
    variance *= 1 - largest
    return 1 - _upper(1 - value, variance, largest, error), value, _upper(value, variance, largest, error)


def _upper(mean: float, variance: float, weight: float, error: float) -> float:
    """Upper bound of the expectation: a value 1 of this weight is added, and a beta distribution has the moments."""
    if mean > 1 - _ROUNDING:
        return 1.0
    first = (mean + weight) / (1 + weight)
    second = (variance * (1 + weight) + (weight * (1 - mean)) ** 2) / ((1 + weight) ** 2 * (1 + 2 * weight))
    size = max(first * (1 - first) / second - 1, _ROUNDING)
    return max(float(special.betaincinv(first * size, (1 - first) * size, 1 - error)), mean)


@checked
def class_mean(counts: ClassCounts, alpha: Level = 0.05) -> Estimate:
    """The mean of the class accuracies with the interval of `weighted_mean`; absent classes are excluded.

    Example:
        >>> found = class_mean(ClassCounts(count=[1, 2, 50], correct=[1, 2, 40]))
        >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
        (0.933, 0.502, 0.967)

    Raises:
        ClasswiseError: if no class has an image.
    """
    present, accuracy = counts.present, counts.accuracy[counts.present]
    if not accuracy.size:
        raise ClasswiseError("counts: no class has an image")
    return weighted_mean(counts.count[present], accuracy, accuracy, np.full(len(accuracy), 1 / len(accuracy)), alpha)


@checked
def sum_of_class_means(
    values: ArrayLike, index: IntArray, low: ArrayLike, high: ArrayLike, alpha: Level = 0.05
) -> Estimate:
    """Sum over the classes of the expectation of a class's values, with the interval of `weighted_mean`.

    Args:
        values: (N,) values, each between the ``low`` and ``high`` of its class.
        index: (N,) classes, in 0 .. C-1.
        low: (C,) least possible values of a class.
        high: (C,) greatest possible values; a class where both are equal is a constant.
        alpha: 1 minus the coverage.

    Raises:
        ClasswiseError: if a class with different ``low`` and ``high`` has no value, or a value is out of its range.

    Example:
        >>> import numpy as np
        >>> change = np.array([-1, 0, 0, 0, 1, 1, 1, 1])
        >>> found = sum_of_class_means(change, np.repeat([0, 1], 4), [-1, -1], [1, 1])
        >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
        (0.75, -0.24, 1.31)
    """
    least, most = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    width, count = most - least, np.bincount(index, minlength=len(least))
    for label in np.flatnonzero((width > 0) & (count == 0))[:1]:
        raise ClasswiseError(f"class {label} has no image; the interval requires at least one image per class")
    sample, start = np.asarray(values, dtype=np.float64), float(least.sum())
    for place in np.flatnonzero((sample < least[index] - _OUTSIDE) | (sample > most[index] + _OUTSIDE))[:1]:
        ends = f"{least[index[place]]:g} to {most[index[place]]:g}"
        raise ClasswiseError(f"value {sample[place]:g}: outside the range of its class, {ends}")
    sample = np.nan_to_num(np.clip(ratio(sample - least[index], width[index]), 0, 1))
    if not width.any():
        return Estimate(start, start, start)
    mean, square = (ratio(np.bincount(index, power, minlength=len(least)), count) for power in (sample, sample**2))
    used = width > 0
    found = weighted_mean(count[used], mean[used], square[used], width[used], alpha)
    return Estimate(*(start + end for end in found))


def p_value(interval: Callable[[float], Estimate], hypothesis: float = 0.0) -> float:
    """The smallest level at which an interval excludes the hypothesis, two-sided; 1 if there is none.

    Args:
        interval: maps alpha to an estimate with its interval, which widens as alpha decreases.
        hypothesis: the value under test.
    """

    def rejects(logarithm: float) -> bool:
        _, low, high = interval(float(np.exp(logarithm)))
        return not low <= hypothesis <= high

    low, high = float(np.log(_LEAST_P)), float(np.log1p(-1e-9))
    if not rejects(high):
        return 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if rejects(middle) else (middle, high)
    return float(np.exp(high))
