"""Confidence sequences for a count under sampling without replacement.

Waudby-Smith and Ramdas, "Confidence sequences for sampling without replacement", NeurIPS 2020: the intervals cover the
count at all times together, whatever rule stops the sampling.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.stats.counts import BoolArray, FloatArray, IntArray


def log_prior_posterior_ratio(
    successes: ArrayLike, pool: ArrayLike, drawn: ArrayLike, hits: ArrayLike, prior: tuple[ArrayLike, ArrayLike]
) -> FloatArray:
    """Log of the prior over the posterior of "the attacks succeed on ``successes`` of the pool", after some draws.

    The prior is beta-binomial with parameters a and b; so is the posterior of what is left. At the true number the
    ratio is a supermartingale that begins at 1, so that it ever reaches 1/alpha has probability at most alpha.

    Args:
        successes: K, on how many of the pool the attacks succeed; any shape that broadcasts with the others.
        pool: B, how many there are.
        drawn: t, how many were drawn, without replacement.
        hits: k, on how many of these they succeeded.
        prior: a and b, positive.

    Returns:
        log(BB(K; B, a, b) / BB(K-k; B-t, a+k, b+t-k)); infinity where K is impossible after the draws.
    """
    K, B, t, k = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (successes, pool, drawn, hits)))  # noqa: N806
    a, b = (np.asarray(parameter, dtype=np.float64) for parameter in prior)
    possible = (k <= K) & (B - (t - k) >= K)
    K = np.where(possible, K, k)  # noqa: N806
    # The ratio is the evidence over the likelihood of the very sequence that was drawn.
    evidence = special.betaln(a + k, b + t - k) - special.betaln(a, b)
    likelihood = _log_falling(K, k) + _log_falling(B - K, t - k) - _log_falling(B, t)
    return np.where(possible, evidence - likelihood, np.inf)


def _log_falling(n: FloatArray, k: FloatArray) -> FloatArray:
    """Log n (n-1) ... (n-k+1)."""
    return np.asarray(special.gammaln(n + 1) - special.gammaln(n - k + 1))


class SuccessBounds(NamedTuple):
    """On how many of a pool the attacks succeed: the least and the largest plausible number, int64 arrays."""

    least: IntArray
    most: IntArray


def success_bounds(
    pool: ArrayLike, drawn: ArrayLike, hits: ArrayLike, prior: tuple[ArrayLike, ArrayLike], alpha: float
) -> SuccessBounds:
    """The prior-posterior-ratio set {K : ratio < 1/alpha}, which covers K at all times with probability 1 - alpha.

    The likelihood is log-concave in K, so the set is a range around its mode, whose ends are found by bisection for
    all pools at once.

    Args:
        pool: B, any shape that broadcasts with the next two.
        drawn: t.
        hits: k.
        prior: a and b of the beta-binomial prior, numbers or of the same shape.
        alpha: the probability of ever losing K; divide it by the number of pools that are to hold together.
    """
    given = (np.asarray(values, dtype=np.int64) for values in (pool, drawn, hits))
    B, t, k = np.broadcast_arrays(*given)  # noqa: N806
    limit = -math.log(alpha)
    first, last = k, B - (t - k)
    mode = np.clip(k * (B + 1) // np.maximum(t, 1), first, last)

    def inside(K: IntArray) -> BoolArray:  # noqa: N803
        return log_prior_posterior_ratio(K, B, t, k, prior) < limit

    low, high = first, mode
    while (low < high).any():
        middle = (low + high) // 2
        good = inside(middle)
        low, high = np.where(good, low, np.minimum(middle + 1, high)), np.where(good, middle, high)
    least = low
    low, high = mode, last
    while (low < high).any():
        middle = (low + high + 1) // 2
        good = inside(middle)
        low, high = np.where(good, middle, low), np.where(good, high, np.maximum(middle - 1, low))
    return SuccessBounds(least, low)


def intersected(least: ArrayLike, most: ArrayLike, found: SuccessBounds, known: ArrayLike) -> SuccessBounds:
    """Earlier bounds and new ones (on the pool, beside ``known`` outside it) together.

    Both hold unless the true number was lost; then they may exclude each other, and the new ones remain.
    """
    outside = np.asarray(known, dtype=np.int64)
    fresh = SuccessBounds(np.asarray(outside + found.least), np.asarray(outside + found.most))
    lower, upper = np.maximum(least, fresh.least), np.minimum(most, fresh.most)
    agree = lower <= upper
    return SuccessBounds(np.where(agree, lower, fresh.least), np.where(agree, upper, fresh.most))
