"""The two ends of an interval for the lowest class accuracy over several runs: statistics that err to one side only.

- From below: each run's minimum of lower bounds of its classes. The truly lowest class of a run is among them, so the
  minimum is too high only if the bound of that class is: no correction for the number of classes is needed.
- From above: classes chosen on one half of the images and evaluated on the other half. Given the choice, the expected
  accuracy of any classes is at least that of the lowest class, also if classes tie.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from classwise.stats.counts import BoolArray, FloatArray, IntArray
from classwise.stats.crossed import Crossed, upper_bound

HALVINGS = 50
"""Random halvings of the images. The upper end varies by at most 3 % of the interval's width with their seed."""
_NEVER = 9.0
"""In place of the accuracy of a class with one image, which cannot be chosen: above every accuracy."""
_LEAST_DOUBT = 0.02
"""The accuracy from which the error of a choice is predicted is at least this over n away from 0 and 1."""


@dataclass(frozen=True)
class End:
    """A statistic that errs to one side only, for new images and these runs.

    Attributes:
        value: the estimate.
        bound: its bound on that side for new images.
        by_run: (S,) the part of each run, whose mean is ``value``.
        count: effective number of images.
        images: variance of ``value`` over new images.
        noise: the part of the variance of ``by_run`` over S that is caused by images.
    """

    value: float
    bound: float
    by_run: FloatArray
    count: float
    images: float
    noise: float


@dataclass(frozen=True)
class Split:
    """The choices behind the end from above: a row for each choosing half, 2R in all; S' is 1 or S.

    Attributes:
        weights: (C,) weight of each class, averaged.
        variance: of the random mean behind the bound (`classwise.stats.crossed.MeanBound`).
        seen: (2R, S') weighted accuracy on the choosing half.
        seen_class: (2R, S', C) accuracy of each class there.
        held_out: (2R, S) weighted accuracy on the evaluating half.
        held_out_class: (2R, S, C) accuracy of each class there.
    """

    weights: FloatArray
    variance: float
    seen: FloatArray
    seen_class: FloatArray
    held_out: FloatArray
    held_out_class: FloatArray


def from_below(table: Crossed, error: float) -> End:
    """Mean over the runs of the least lower bound of a class, each with the reach of that class alone.

    Args:
        table: outcomes of the runs; every class has an image.
        error: probability that the bound is too high.
    """
    shifted = table.by_run - np.maximum(table.mean - table.lower(error).bound, 0)
    lowest, run = shifted.argmin(axis=1), np.arange(table.runs)
    by_run = shifted[run, lowest]
    value, bound = float(table.by_run[run, lowest].mean()), float(by_run.mean())
    count, images, noise = (float(part[lowest].mean()) for part in (table.count, table.images, table.noise))
    return End(value, bound, by_run - bound + value, count, images, noise)


@dataclass(frozen=True)
class Halves:
    """Random halves of the images of each class, each of which chooses once: 2R in all.

    Attributes:
        size: (C,) images of each class in the first R halves; the others have the rest.
        correct: (2R, S, C) correct predictions of each run.
        squares: (2R, C) sum over images of the squared mean over the runs.
    """

    size: FloatArray
    correct: FloatArray
    squares: FloatArray

    @classmethod
    def draw(cls, right: BoolArray, index: IntArray, halvings: int, seed: int) -> Halves:
        """Draw halves of (S, N) outcomes with (N,) labels; every class of 0 .. max has an image.

        The halves are drawn from the numbers of images with equal outcomes in all runs, which are multivariate
        hypergeometric, so that the order of the images does not matter; nor does that of runs with other accuracies.
        """
        counts = np.stack([np.bincount(index, weights=run) for run in right])
        order = np.lexsort((*right[np.lexsort(counts.T)], index))
        sorted_right, sorted_index = right[:, order], index[order]
        changes = (sorted_right[:, 1:] != sorted_right[:, :-1]).any(axis=0) | (np.diff(sorted_index) > 0)
        first = np.flatnonzero(np.r_[True, changes])
        pattern, images = sorted_right[:, first].astype(np.float64), np.diff(np.r_[first, len(index)])
        start = np.flatnonzero(np.r_[True, np.diff(sorted_index[first]) > 0])
        ends = np.r_[start[1:], len(first)]
        rng = np.random.default_rng(seed)
        size = np.add.reduceat(images, start) // 2
        drawn = np.concatenate(
            [
                rng.multivariate_hypergeometric(images[begin:end], int(half), size=halvings, method="marginals")
                for begin, end, half in zip(start, ends, size, strict=True)
            ],
            axis=1,
        )
        both = np.concatenate([drawn, images - drawn])
        correct = np.stack([np.add.reduceat(both * run, start, axis=1) for run in pattern], axis=1)
        squares = np.add.reduceat(both * pattern.mean(axis=0) ** 2, start, axis=1)
        return cls(size.astype(np.float64), correct, squares)


def hedged_weights(accuracy: FloatArray, variance: FloatArray, z: float) -> FloatArray:
    """Weights of the classes with the least predicted upper bound, w.a + z sqrt(sum_c w_c^2 v_c), over the last axis.

    The solution is w_c proportional to max(t - a_c, 0) / v_c, with sum_c max(t - a_c, 0)^2 / v_c = z^2. A class that is
    clearly the lowest has weight 1; classes that do not differ clearly share the weight.

    Args:
        accuracy: a, (..., C).
        variance: v, (..., C), positive.
        z: normal quantile.
    """
    order = np.argsort(accuracy, axis=-1, kind="stable")
    a, precision = np.take_along_axis(accuracy, order, -1), 1 / np.take_along_axis(variance, order, -1)
    sums = [(precision * a**power).cumsum(axis=-1) for power in range(3)]
    # The left side of the equation at t = a_c, by the classes below c
    below = [total - precision * a**power for power, total in enumerate(sums)]
    used = a**2 * below[0] - 2 * a * below[1] + below[2]
    last = np.maximum((used < z**2).sum(axis=-1, keepdims=True) - 1, 0)
    s0, s1, s2 = (np.take_along_axis(total, last, -1) for total in sums)
    level = (s1 + np.sqrt(np.maximum(s1**2 - s0 * (s2 - z**2), 0))) / s0
    weights = np.maximum(level - accuracy, 0) / variance
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def from_above(table: Crossed, halves: Halves, error: float) -> tuple[End, Split] | None:
    """Accuracy of the classes that one half of the images chooses, on the other half, averaged over the choices.

    The choice for a run may depend on that run, as far as runs differ more than their images explain. With two runs it
    depends on the other run only, which is valid, too, and narrower.

    Args:
        table: outcomes of the runs; every class has an image.
        halves: of the same images.
        error: probability that the bound is too low.

    Returns:
        The end and its choices; None if no class has two images.
    """
    runs, z, n = table.runs, float(special.ndtri(1 - error)), table.count
    usable = n >= 2
    if not usable.any():
        return None
    size = np.repeat([halves.size, n - halves.size], len(halves.correct) // 2, axis=0)
    size, rest = np.where(usable, size, 1.0), np.where(usable, n - size, 1.0)
    # Variance of the runs over S, mean over the classes
    between_runs = max(float((table.over_runs - table.noise)[usable].mean()), 0.0)
    unknown_runs = 0.0
    if runs == 2:
        chooser = halves.correct[:, ::-1]
        unknown_runs = between_runs * (float(special.stdtrit(runs - 1, 1 - error)) / z) ** 2
    else:
        mean = halves.correct.mean(axis=1, keepdims=True)
        own = between_runs / (between_runs + 2 * float(table.noise[usable].mean())) if between_runs > 0 else 0.0
        chooser = mean + own * (halves.correct - mean)
    guess = np.clip((chooser + 0.5) / (size[:, None] + 1), _LEAST_DOUBT / n, 1 - _LEAST_DOUBT / n)
    predicted = guess * (1 - guess) / n
    seen_class = np.where(usable, chooser / size[:, None], _NEVER)
    weights = hedged_weights(seen_class, predicted + unknown_runs, z)

    held_out_class = (table.by_run * n - halves.correct) / rest[:, None]
    squares = (table.square * n - halves.squares) / rest
    unbiased = np.maximum(squares - held_out_class.mean(axis=1) ** 2, 0) * rest / np.maximum(rest - 1, 1)
    of_a_class = np.where(rest > 1, unbiased * (1 - 1 / n) / n, predicted.mean(axis=1))
    held_out = (weights * held_out_class).sum(axis=2)
    by_run = held_out.mean(axis=0)
    value, squared = float(by_run.mean()), (weights**2).mean(axis=1)
    images = float((squared * of_a_class).sum(axis=1).mean())
    effective = 1 / float((squared / n).sum(axis=1).mean())
    bound, variance = upper_bound(effective, value, min(value, images * effective + value**2), error)
    noise = float((squared.mean(axis=0) * table.noise).sum())
    end = End(value, max(float(bound), value), by_run, effective, images, noise)
    seen = (weights * seen_class).sum(axis=2)
    return end, Split(weights.mean(axis=(0, 1)), float(variance), seen, seen_class, held_out, held_out_class)
