"""Gaffke's bounds of the expectation of bounded values, for classes of values on a common grid.

The lower bound of n values adds the least possible value to them and gives the n + 1 values Dirichlet(1, ..., 1)
weights: it is the quantile of the weighted mean (Gaffke 2005; Learned-Miller and Thomas 2019). For two possible values
it is Clopper and Pearson's. Otherwise its validity is conjectured; it was simulated at error levels down to 0.0003.
The distribution of the weighted mean is a saddlepoint approximation (Barndorff-Nielsen 1990; Butler and Paolella 2002):
at most 10 % above the exact probability of a tail, so that bounds are slightly conservative. Two moments would not do:
at the small levels of simultaneous intervals, errors of skewed values were up to six times the level.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.stats.counts import FloatArray

_STEPS = 100
"""Most steps of a search for a root; each halves the bracket at least every third step."""
_TOLERANCE = 1e-8
"""Largest difference of a normal quantile at a root."""
_PRECISION = 1e-10
"""Of a saddlepoint, in units of the standard deviation there; the score's error is of the order of its square."""


def lower_bounds(values: FloatArray, counts: FloatArray, error: ArrayLike) -> FloatArray:
    """Lower bound of the expectation of each class.

    Args:
        values: (K,) ascending; the first is the least possible value, observed or not.
        counts: (C, K) how often each value was observed.
        error: probability that a bound is above the expectation, below 1/2; a number or (C,).

    Returns:
        (C,) bounds of at most the means; NaN for classes without a value.

    Example:
        >>> found = lower_bounds(np.array([0.0, 1.0]), np.array([[13.0, 27.0]]), 0.025)
        >>> round(float(found[0]), 2)  # Clopper and Pearson: 0.51
        0.51
    """
    images = counts.sum(axis=1)
    mean = np.where(images > 0, counts @ values / np.maximum(images, 1), np.nan)
    target = special.ndtri(np.broadcast_to(np.asarray(error, dtype=np.float64), mean.shape))
    least = np.full(mean.shape, values[0])
    found = root(lambda at: np.clip(score_below(values, counts, at), -40, 40) - target, least, np.nan_to_num(mean))
    return np.where(images > 0, np.minimum(found, mean), np.nan)


def score_below(values: FloatArray, counts: FloatArray, at: FloatArray) -> FloatArray:
    """Normal quantile of the error at which the lower bound of each class is ``at``.

    Args:
        values: (K,) ascending; the first is the least possible value, observed or not.
        counts: (C, K) how often each value was observed.
        at: (C,) bounds.

    Returns:
        (C,): minus infinity at or below the least possible value, infinity at or above the largest observed value.
    """
    weight = counts + (np.arange(len(values)) == 0)
    seen = weight > 0
    largest = np.where(seen, values, values[0]).max(axis=1)
    inside = (at > values[0]) & (at < largest)
    outside = np.where(at >= largest, np.inf, -np.inf)
    # The weighted mean is at most ``at`` if a sum of gamma variables with scales y is at most 0
    y = np.where(seen & inside[:, None], values - at[:, None], 0.0)
    y[~inside, 0], y[~inside, -1], weight[~inside, -1] = -1.0, 1.0, 1.0
    low, high = 1 / y.min(axis=1), 1 / y.max(axis=1)
    point = _saddlepoint_of_two(weight, y)
    point = np.where((point > low) & (point < high), point, 0.0)
    for _ in range(_STEPS):
        scaled = y / (1 - point[:, None] * y)
        weighted = weight * scaled
        slope, curvature = weighted.sum(axis=1), (weighted * scaled).sum(axis=1)
        low, high = np.where(slope <= 0, point, low), np.where(slope >= 0, point, high)
        step = point - slope / curvature
        step = np.where((step > low) & (step < high), step, (low + high) / 2)
        moved = np.abs(step - point) * np.sqrt(curvature) > _PRECISION
        point = step
        if not moved.any():
            break
    scaled = y / (1 - point[:, None] * y)
    curvature = (weight * scaled**2).sum(axis=1)
    log_moment = -(weight * np.log1p(-point[:, None] * y)).sum(axis=1)
    root_of_ratio = np.sign(point) * np.sqrt(np.maximum(-2 * log_moment, 0))
    centre = np.abs(root_of_ratio) < 1e-5
    r = np.where(centre, 1.0, root_of_ratio)
    u = np.where(centre, 1.0, point * np.sqrt(curvature))
    at_centre = root_of_ratio + (weight * scaled**3).sum(axis=1) / (3 * curvature**1.5)
    return np.where(inside, np.where(centre, at_centre, r + np.log(u / r) / r), outside)


def _saddlepoint_of_two(weight: FloatArray, y: FloatArray) -> FloatArray:
    """The saddlepoint if all scales of one sign were their mean."""
    above, below = np.where(y > 0, weight, 0.0), np.where(y < 0, weight, 0.0)
    images = above.sum(axis=1), below.sum(axis=1)
    sums = (above * y).sum(axis=1), (below * y).sum(axis=1)
    return np.asarray((sums[0] + sums[1]) * images[0] * images[1] / ((images[0] + images[1]) * sums[0] * sums[1]))


def root(function: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray) -> FloatArray:
    """Where an increasing function of each element is 0: regula falsi with the Illinois rule (Dowell and Jarratt 1971).

    Args:
        function: of an array of the shape of the ends.
        low: where the function is at most 0.
        high: where it is at least 0; if it is negative there, this is the result.
    """
    below, above = function(low), function(high)
    first, last, side = low.copy(), high.copy(), np.zeros(low.shape)
    found, unknown = np.where(below < 0, high, low), (below < 0) & (above > 0)
    for step in range(_STEPS):
        share = below / np.where(unknown, below - above, 1.0) if step % 3 else 0.5
        found = np.where(unknown, first + (last - first) * share, found)
        value = function(found)
        left, right = unknown & (value < 0), unknown & (value >= 0)
        above = np.where(right, value, np.where(left & (side > 0), above / 2, above))
        below = np.where(left, value, np.where(right & (side < 0), below / 2, below))
        first, last = np.where(left, found, first), np.where(right, found, last)
        side = np.where(left, 1, -1)
        unknown &= np.abs(value) > _TOLERANCE
        if not unknown.any():
            break
    return found
