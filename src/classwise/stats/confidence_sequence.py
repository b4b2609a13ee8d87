"""Confidence sequences for a count under sampling without replacement.

The intervals cover the count simultaneously at all times, so they are valid under any stopping rule. Source:
Waudby-Smith and Ramdas, "Confidence sequences for sampling without replacement", NeurIPS 2020.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.stats.counts import BoolArray, FloatArray, IntArray

SAMPLING_SHARE = 0.2
"""Share of the error level of an interval for new images that is for the sampling of these images."""


def log_prior_posterior_ratio(
    successes: ArrayLike, pool: ArrayLike, drawn: ArrayLike, hits: ArrayLike, prior: tuple[ArrayLike, ArrayLike]
) -> FloatArray:
    """Log of the prior-posterior ratio of the number of successes in a pool, after a sample without replacement.

    The prior is beta-binomial with parameters a and b; so is the posterior for the rest of the pool. At the true number
    the ratio is a supermartingale that starts at 1. The probability that it ever reaches 1/alpha is therefore at most
    alpha (Ville's inequality).

    Args:
        successes: K, number of images of the pool on which the attacks succeed; broadcasts with the other arguments.
        pool: B, size of the pool.
        drawn: t, number of images sampled without replacement.
        hits: k, number of sampled images on which the attacks succeeded.
        prior: a and b, positive.

    Returns:
        log(BB(K; B, a, b) / BB(K-k; B-t, a+k, b+t-k)); infinity where K is impossible given the sample.
    """
    K, B, t, k = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (successes, pool, drawn, hits)))  # noqa: N806
    a, b = (np.asarray(parameter, dtype=np.float64) for parameter in prior)
    possible = (k <= K) & (B - (t - k) >= K)
    K = np.where(possible, K, k)  # noqa: N806
    # The ratio equals the evidence over the likelihood of the sampled sequence.
    evidence = special.betaln(a + k, b + t - k) - special.betaln(a, b)
    likelihood = _log_falling(K, k) + _log_falling(B - K, t - k) - _log_falling(B, t)
    return np.where(possible, evidence - likelihood, np.inf)


def _log_falling(n: FloatArray, k: FloatArray) -> FloatArray:
    """Log n (n-1) ... (n-k+1)."""
    return np.asarray(special.gammaln(n + 1) - special.gammaln(n - k + 1))


class SuccessBounds(NamedTuple):
    """Lower (``least``) and upper (``most``) confidence bound of the number of successes in a pool, int64 arrays."""

    least: IntArray
    most: IntArray


def success_bounds(
    pool: ArrayLike, drawn: ArrayLike, hits: ArrayLike, prior: tuple[ArrayLike, ArrayLike], alpha: float
) -> SuccessBounds:
    """Confidence set {K : prior-posterior ratio < 1/alpha}, which covers K at all times with probability 1 - alpha.

    The likelihood is log-concave in K, so the set is an interval around its mode. Its ends are found by bisection, for
    all pools at once.

    Args:
        pool: B, any shape that broadcasts with ``drawn`` and ``hits``.
        drawn: t.
        hits: k.
        prior: a and b of the beta-binomial prior, numbers or arrays of the same shape.
        alpha: probability that K is ever outside; for simultaneous coverage divide it by the number of pools.
    """
    arrays = (np.asarray(values, dtype=np.int64) for values in (pool, drawn, hits))
    B, t, k = np.broadcast_arrays(*arrays)  # noqa: N806
    limit = -math.log(alpha)
    first, last = k, B - (t - k)
    mode = np.clip(k * (B + 1) // np.maximum(t, 1), first, last)

    def inside(K: IntArray) -> BoolArray:  # noqa: N803
        return log_prior_posterior_ratio(K, B, t, k, prior) < limit

    def end(outer: IntArray, inner: IntArray) -> IntArray:
        """The number inside the set that is nearest to ``outer``; all beyond it up to ``inner`` are inside."""
        while (outer != inner).any():
            step = np.sign(inner - outer)
            middle = outer + step * (np.abs(inner - outer) // 2)
            good = inside(middle)
            outer, inner = np.where(good, outer, middle + step), np.where(good, middle, inner)
        return outer

    return SuccessBounds(end(first, mode), end(last, mode))


def intersect_bounds(least: ArrayLike, most: ArrayLike, new: SuccessBounds, known: ArrayLike) -> SuccessBounds:
    """Intersect earlier bounds with new ones.

    The intersection is empty only if one of the two intervals does not cover the true number; then the new bounds are
    returned.

    Args:
        least: earlier lower bound of the number of successes.
        most: earlier upper bound.
        new: new bounds of the number of successes in the pool.
        known: number of successes outside the pool.
    """
    outside = np.asarray(known, dtype=np.int64)
    shifted = SuccessBounds(np.asarray(outside + new.least), np.asarray(outside + new.most))
    lower, upper = np.maximum(least, shifted.least), np.minimum(most, shifted.most)
    overlap = lower <= upper
    return SuccessBounds(np.where(overlap, lower, shifted.least), np.where(overlap, upper, shifted.most))
