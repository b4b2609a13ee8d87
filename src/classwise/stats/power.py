"""Power of the package's own intervals and tests: how many images of a class, and how many runs, decide a question.

Outcomes are simulated and given to the procedures that audits and comparisons use, so that the power is theirs. An
image is correct in a run if a uniform number is below the accuracy of its class in that run. A share of the images has
one number for all runs and models, so that outcomes on the same images agree as often as stated.

The number of images is found with a curve through the simulated powers, as in Zimmer and Debelak (Psychological Methods
2023): the next number is simulated where the curve reaches the target. The curve is monotone, and between two numbers a
probit that is linear in their square roots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from scipy.stats import binom

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import Level, checked
from classwise.core.settings.config import Count
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray, PairedCounts
from classwise.stats.intervals import class_intervals, lowest_interval, sidak
from classwise.stats.paired import difference_of_minima, overall_difference, paired_interval
from classwise.stats.seeds import (
    difference_over_seeds,
    mean_over_seeds,
    worst_difference_over_seeds,
    worst_over_seeds,
)
from classwise.stats.worst_class import possibly_worst

TARGETS = (0.8, 0.9)
"""The powers that are planned for."""
MOST_IMAGES, MOST_OUTCOMES = 10_000, 4_000_000
"""Images of a class, and outcomes of all runs on all images, up to which a number is searched."""
MOST_PLANNED = 100_000
"""Images of a class up to which a number is stated."""
OF_LOSSES = 1_000
"""Pairs of models that `images_to_exclude_loss` simulates."""
_START, _STEPS, BLOCK = 64, 6, 50
"""The number that a search begins with, its steps near each target, and repetitions after which it may leave one."""
_NEAR, _FAR = 0.01, 0.08
"""A search ends at a power that is at most twice `_NEAR` above a target, and leaves one at `_FAR`."""

Kind = Literal["above", "below", "difference", "identity", "half-width", "overall-difference"]


@dataclass(frozen=True)
class Population:
    """What outcomes are simulated from.

    Attributes:
        first: (C,) accuracies of the classes.
        second: (C,) accuracies of a second model on the same images; None without one.
        shared: share of the images whose uniform number is the same in all runs of all models, 0 to 1.
        run_sd: standard deviation over runs of the accuracy of each class, independent between classes; in a question
            about all images, of the overall accuracy.
    """

    first: FloatArray
    second: FloatArray | None = None
    shared: float = 0.5
    run_sd: float = 0.0


@checked
def shared_images(first: ArrayLike, second: ArrayLike, different: float) -> float:
    """The share of images with common uniform numbers at which a share ``different`` of all outcomes differ.

    Args:
        first: (C,) accuracies of a run.
        second: (C,) accuracies of another run or model.
        different: share of the images on which exactly one of the two is correct.

    Returns:
        A number in 0 .. 1; 1 and 0 if fewer or more outcomes differ than the accuracies allow.

    Example:
        >>> shared_images([0.5], [0.5], 0.2)
        0.6
    """
    p, q = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    least, most = np.abs(p - q).mean(), (p * (1 - q) + q * (1 - p)).mean()
    return float(np.clip((most - different) / max(most - least, 1e-12), 0, 1))


class Sample(NamedTuple):
    """Simulated outcomes: (N,) labels of C classes, (S, N) correct predictions of one model or of two."""

    labels: IntArray
    num_classes: int
    first: BoolArray
    second: BoolArray | None


def draw(
    population: Population, images: IntArray, seeds: int, rng: np.random.Generator, *, overall: bool = False
) -> Sample:
    """Simulate a test set. Of two with equal random numbers, the larger contains the smaller.

    Args:
        population: the accuracies.
        images: (C,) images of each class.
        seeds: training runs of each model.
        rng: random numbers.
        overall: runs differ in all classes alike.
    """
    models = [side for side in (population.first, population.second) if side is not None]
    classes, most = len(population.first), int(images.max())
    runs = len(models) * seeds
    effect = population.run_sd * rng.standard_normal((len(models), seeds, 1 if overall else classes))
    accuracy = np.clip(np.stack(models)[:, None] + effect, 0, 1).reshape(runs, classes)
    if runs == 1 or population.shared >= 1:
        uniform = rng.random((most, classes))[..., None]
    else:
        drawn = rng.random((most, classes, runs + 2))
        uniform = np.where(drawn[..., :1] < population.shared, drawn[..., 1:2], drawn[..., 2:])
    chosen = np.arange(most)[:, None] < images
    correct = np.moveaxis(uniform < accuracy.T, -1, 0)[:, chosen]
    labels = np.broadcast_to(np.arange(classes), chosen.shape)[chosen]
    return Sample(labels, classes, correct[:seeds], correct[seeds:] if len(models) > 1 else None)


@dataclass(frozen=True)
class Question:
    """What an audit or a comparison is to show; the result of the procedure that decides it is in parentheses.

    Attributes:
        kind: ``above``: the worst class is above the limit (lower end of its interval); ``below``: a class chosen
            beforehand is below the limit (upper end of its interval); ``difference``: the worst class of the second
            model is above that of the first (interval of the difference); ``identity``: which class is the worst (no
            other one may be); ``half-width``: the interval of the overall accuracy, or of a class, has at most this
            half-width; ``overall-difference``: the second model's overall accuracy is above that of the first.
        limit: of ``above``, ``below`` and ``half-width``, a fraction.
        label: the class of ``below``; of ``half-width``, None for all images.
    """

    kind: Kind
    limit: float = 0.0
    label: int | None = None

    @property
    def overall(self) -> bool:
        """Whether it is about all images, not about classes."""
        return self.kind == "overall-difference" or (self.kind == "half-width" and self.label is None)

    def decided(self, sample: Sample, truth: Population, alpha: float) -> bool:
        """Whether the procedure decides the question on these outcomes, in favour of the truth."""
        labels, classes, first, second = sample
        if self.overall:
            labels, classes = np.zeros_like(labels), 1
        one = len(first) == 1
        if self.kind in ("difference", "overall-difference"):
            assert second is not None
            pairs = PairedCounts.from_labels(labels, second[0], first[0], classes) if one else None
            if self.kind == "difference":
                if pairs is not None:
                    return difference_of_minima(pairs, alpha).low > 0
                return worst_difference_over_seeds(second, first, labels, classes, alpha).low > 0
            differences = (
                overall_difference(pairs, alpha)
                if pairs is not None
                else difference_over_seeds(second, first, labels, classes, alpha, paired=False)
            )
            return bool(differences.low[0] > 0)
        if self.kind == "half-width":
            label = self.label or 0
            if one:
                own = ClassCounts.from_labels(labels, first[0], classes)
                value, (low, high) = own.accuracy, class_intervals(own, alpha)
            else:
                value, low, high = mean_over_seeds(first, labels, classes, alpha)
            reach = np.maximum(value - low, high - value)[label]
            return bool(reach <= self.limit)
        counts = ClassCounts.from_labels(labels, first[0], classes)
        if self.kind == "identity":
            return bool(np.array_equal(np.flatnonzero(possibly_worst(counts, alpha)), [truth.first.argmin()]))
        if self.kind == "above":
            worst = lowest_interval(counts, alpha)[0] if one else worst_over_seeds(first, labels, classes, alpha).low
            return bool(worst > self.limit)
        upper = (class_intervals(counts, alpha) if one else mean_over_seeds(first, labels, classes, alpha)).high
        return bool(upper[self.label or 0] < self.limit)


Populations = Population | Callable[[np.random.Generator], Population]
"""A population, or a function that draws one, for the mean of the power over what is unknown."""


def power(
    question: Question,
    population: Populations,
    images: ArrayLike,
    seeds: int = 1,
    *,
    alpha: float = 0.05,
    repetitions: int = 400,
    seed: int = 0,
    first: int = 0,
) -> float:
    """Simulate the power: the share of test sets and runs on which the question is decided.

    Args:
        question: the question.
        population: the accuracies, or a function that draws them for each repetition.
        images: images of each class, (C,) or one number.
        seeds: training runs of each model.
        alpha: 1 minus the coverage of the intervals.
        repetitions: number of simulated test sets.
        seed: seed of the simulation; with equal seeds, larger test sets contain the smaller ones.
        first: number of the first repetition, on which its random numbers depend.

    Example:
        >>> power(Question("above", 0.2), Population(np.array([0.3, 0.6])), images=200)
        0.9075
    """
    decided = 0
    for repetition in range(first, first + repetitions):
        rng = np.random.default_rng((seed, repetition))
        truth = population(np.random.default_rng((seed, repetition, 1))) if callable(population) else population
        count = np.broadcast_to(np.asarray(images, dtype=np.int64), truth.first.shape)
        decided += question.decided(draw(truth, count, seeds, rng, overall=question.overall), truth, alpha)
    return decided / repetitions


class PowerCurve(NamedTuple):
    """Power by the number of images of a class.

    Attributes:
        images: simulated numbers, ascending.
        power: power at each of them, made monotone.
        needed: for each target a number that reaches it, with two digits; None if no number does.
    """

    images: tuple[int, ...]
    power: tuple[float, ...]
    needed: Mapping[float, int | None]


def images_needed(
    question: Question,
    population: Population,
    seeds: int = 1,
    *,
    targets: Sequence[float] = TARGETS,
    alpha: float = 0.05,
    repetitions: int = 400,
    seed: int = 0,
    known: Mapping[int, tuple[int, float]] | None = None,
    simulated: Callable[[int], None] = lambda _: None,
) -> PowerCurve:
    """Find the images of a class at which the power reaches each target.

    Args:
        question: the question.
        population: the accuracies.
        seeds: training runs of each model.
        targets: powers.
        alpha: 1 minus the coverage of the intervals.
        repetitions: number of simulated test sets near a target; fewer where the power clearly differs from it.
        seed: seed of the simulation.
        known: powers that were simulated already, with the number of test sets, by the images of a class.
        simulated: called with the number of test sets after each block of them.
    """
    outcomes = len(population.first) * seeds * (1 if population.second is None else 2)
    most = int(np.clip(MOST_OUTCOMES // outcomes, 50, MOST_IMAGES))
    found = dict(known or {})

    def simulate(images: int) -> float:
        if images not in found:
            times, decided = 0, 0.0
            for first in range(0, repetitions, BLOCK):
                block = min(BLOCK, repetitions - first)
                times += block
                simulated(block)
                decided += block * power(
                    question, population, images, seeds, alpha=alpha, repetitions=block, seed=seed, first=first
                )
                error = 3 * np.sqrt((decided + 1) * (times - decided + 1) / (times + 2) ** 3)
                if all(abs(decided / times - target) > max(error, _FAR) for target in targets):
                    break
            found[images] = times, decided / times
        return found[images][1]

    images = _START
    while simulate(images) >= min(targets) and images > 2:
        images = max(images // 4, 2)
    images = _START
    while simulate(images) <= max(targets) and images < most:
        images = min(images * 4, most)
    needed = {target: _needed(found, target, most, simulate) for target in targets}
    numbers, shares = _monotone(found)
    return PowerCurve(tuple(map(int, numbers)), tuple(map(float, shares)), needed)


def _needed(
    found: Mapping[int, tuple[int, float]], target: float, most: int, simulate: Callable[[int], float]
) -> int | None:
    """Simulate where the monotone curve crosses the target, until a number that was simulated is the crossing."""
    for _ in range(_STEPS):
        numbers, shares = _monotone(found)
        if shares[-1] < target:
            return None
        place = int(np.argmax(shares >= target))
        if not place:
            return int(numbers[0])
        low, high = (float(numbers[place + step]) for step in (-1, 0))
        score = special.ndtri(np.clip([shares[place - 1], target, shares[place]], 1e-3, 1 - 1e-3))
        part = (score[1] - score[0]) / max(score[2] - score[0], 1e-9)
        images = min(rounded_up((np.sqrt(low) + part * (np.sqrt(high) - np.sqrt(low))) ** 2), most)
        known = images in found
        simulate(images)
        numbers, shares = _monotone(found)
        if known or 0 <= shares[np.searchsorted(numbers, images)] - target <= 2 * _NEAR:
            return images
    numbers, shares = _monotone(found)
    return int(numbers[np.argmax(shares >= target)]) if shares[-1] >= target else None


def _monotone(found: Mapping[int, tuple[int, float]]) -> tuple[IntArray, FloatArray]:
    """The simulated numbers, and the powers with isotonic regression (Ayer et al. 1955)."""
    numbers = np.array(sorted(found), dtype=np.int64)
    times, share = (np.array([found[int(number)][part] for number in numbers]) for part in (0, 1))
    total, decided = (np.concatenate([[0.0], np.cumsum(values)]) for values in (times, times * share))
    size = len(numbers)
    means = np.full((size, size), np.inf)
    for first in range(size):
        means[first, first:] = (decided[first + 1 :] - decided[first]) / (total[first + 1 :] - total[first])
    least = np.minimum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
    return numbers, np.array([least[: place + 1, place].max() for place in range(size)])


def rounded_up(images: float) -> int:
    """The next whole number with at most two digits other than 0."""
    step = 10 ** max(int(np.floor(np.log10(max(images, 1)))) - 1, 0)
    return int(max(np.ceil(images / step - 1e-9) * step, 1))


@checked
def images_to_exceed(accuracy: ArrayLike, limit: float, target: Level = 0.8, alpha: Level = 0.05) -> int | None:
    """The number of images of each class from which its exact lower bound exceeds a limit with a stated power.

    The power of Clopper and Pearson's bound is a binomial tail. It is not monotone: the number is the smallest above
    which none of a grid has less power. For an upper bound below a limit, pass 1 minus both.

    Args:
        accuracy: the true accuracy, a fraction; or (C,) those of the classes, if the bounds of all must exceed it.
        limit: the limit, a fraction.
        target: the power.
        alpha: 1 minus the coverage of the two-sided interval.

    Returns:
        The number; None if it is above about `MOST_PLANNED`, or an accuracy is not above the limit.

    Example:
        >>> images_to_exceed(0.3, 0.2)
        155
        >>> images_to_exceed([0.3, 0.3, 0.9], 0.2)
        203
    """
    classes = np.atleast_1d(np.asarray(accuracy, dtype=np.float64))
    if not 0 < limit < classes.min() or classes.max() > 1:
        return None
    about = (special.ndtri(1 - alpha / 2) + special.ndtri(target)) ** 2 / (classes.min() - limit) ** 2 / 4
    if about > MOST_PLANNED:
        return None
    for most in (max(4 * about, 200), max(16 * about, 800)):  # the second is for many classes with equal accuracies
        count = np.unique(np.geomspace(1, most, 1000).astype(np.int64))
        last = int(np.flatnonzero(_power_to_exceed(count, classes, limit, alpha) < target).max(initial=-1))
        if last + 1 < len(count):
            break
    else:
        return None
    exact = np.arange(1 if last < 0 else count[last], count[last + 1] + 1)
    short = int(np.flatnonzero(_power_to_exceed(exact, classes, limit, alpha) < target).max(initial=-1))
    return int(exact[short + 1])


def _least_correct(count: IntArray, limit: float, alpha: float) -> FloatArray:
    """The smallest number of correct images whose lower bound is above the limit; count + 1 if none is."""
    n = count.astype(np.float64)
    guess = np.ceil(special.bdtrik(1 - alpha / 2, n, limit))
    near = np.clip(guess + np.arange(-1, 3)[:, None], 1, n)
    below = special.betainc(near, n - near + 1, limit) >= alpha / 2  # of at least so many correct images
    return np.asarray(near[0] + below.sum(axis=0))


def _power_to_exceed(count: IntArray, classes: FloatArray, limit: float, alpha: float) -> FloatArray:
    """The probability that the bounds of all classes, with so many images each, exceed the limit."""
    least = _least_correct(count, limit, alpha)
    each = special.betainc(least, np.maximum(count - least + 1, 1), classes[:, None])
    return np.asarray(np.where(least > count, 0.0, each.prod(axis=0)))


@checked
def least_accuracy(images: Count, limit: float, target: Level = 0.8, alpha: Level = 0.05) -> float:
    """The accuracy of a class from which its exact lower bound on these images exceeds a limit with a stated power.

    Args:
        images: number of images.
        limit: the limit, a fraction.
        target: the power.
        alpha: 1 minus the coverage of the two-sided interval.

    Returns:
        A fraction; NaN if the bound does not exceed the limit even if all images are correct.

    Example:
        >>> round(least_accuracy(100, 0.2), 3)
        0.325
    """
    least = float(_least_correct(np.array([images]), limit, alpha)[0])
    return float(special.betaincinv(least, images - least + 1, target)) if least <= images else float("nan")


@checked
def images_to_exclude(
    images: Count, value: float, reach: float, target: Level = 0.8, alpha: Level = 0.05, *, fixed: float = 0.0
) -> int | None:
    """The images at which an interval excludes 0 with a stated power, if a difference is what it is estimated to be.

    The distance from an estimate to the end of its interval is about proportional to 1/sqrt(images), but for the part
    that is caused by new runs, added in quadrature. (z + z_power) / z times the distance must fit between 0 and the
    difference.

    Args:
        images: number of images now.
        value: the estimated difference.
        reach: distance from it to the end of its interval on the side of 0.
        target: the power.
        alpha: 1 minus the coverage.
        fixed: part of ``reach`` that more images do not reduce.

    Returns:
        The number; None if no number is enough.

    Raises:
        ClasswiseError: if the difference is 0.

    Example:
        >>> images_to_exclude(100, value=0.05, reach=0.10)
        820
        >>> images_to_exclude(100, value=0.05, reach=0.10, fixed=0.04) is None
        True
    """
    if not value:
        raise ClasswiseError("value = 0: no number of images excludes 0; give another value")
    z = special.ndtri(1 - alpha / 2)
    room = (value * z / (z + special.ndtri(target))) ** 2 - fixed**2
    return rounded_up(images * float((reach**2 - fixed**2) / room)) if room > 0 else None


@checked
def images_to_exclude_loss(
    different: float, loss: float, classes: Count = 1, target: Level = 0.8, alpha: Level = 0.05
) -> int | None:
    """The images of a class with which the intervals of all classes exclude a loss, if no accuracy changes.

    The outcomes of two models on the same images are simulated, and compared at Sidak's level by
    `classwise.stats.paired.paired_interval`. Gains and losses are equally frequent in each class.

    Args:
        different: fraction of the images with different outcomes, in [0, 1].
        loss: the loss, in (0, 1): the lower end of the interval of each class must be at least minus it.
        classes: number of classes, all of which must exclude it.
        target: the power.
        alpha: 1 minus the coverage of all intervals together.

    Returns:
        The number, rounded up to two digits; None if it is above `MOST_PLANNED`.

    Raises:
        ClasswiseError: for a loss or a fraction out of range.

    Example:
        >>> images_to_exclude_loss(0.1, loss=0.05), images_to_exclude_loss(0.1, loss=0.05, classes=10)
        (400, 1100)
    """
    if not (0 < loss < 1 and 0 <= different <= 1):
        raise ClasswiseError(f"loss = {loss:g}, different = {different:g}: must be in (0, 1) and in [0, 1]")
    level, goal = sidak(alpha, classes), target ** (1 / classes)
    of_changes, of_gains = np.random.default_rng(0).random((2, OF_LOSSES))

    def suffices(images: int) -> bool:
        changes = binom.ppf(of_changes, images, different).clip(0)
        gains = binom.ppf(of_gains, changes, 0.5).clip(0)
        low = paired_interval(gains, changes - gains, np.full(OF_LOSSES, images), level).low
        return bool((low >= -loss).mean() >= goal)

    most = 8
    while not suffices(most):
        most *= 2
        if most > MOST_PLANNED:
            return None
    least = most // 2
    while most - least > max(1, least // 50):
        middle = (least + most) // 2
        least, most = (least, middle) if suffices(middle) else (middle, most)
    return rounded_up(most)


@checked
def runs_to_exclude(
    runs: Count, value: float, reach: float, target: Level = 0.8, alpha: Level = 0.05, *, fixed: float = 0.0
) -> int | None:
    """As `images_to_exclude`, the training runs of each method, if the interval is wide because of them.

    The distance is about proportional to t/sqrt(runs), with t of runs - 1 degrees of freedom, but for the part that is
    caused by new images, added in quadrature.

    Args:
        runs: number of runs now, at least 2.
        value: the estimated difference.
        reach: distance from it to the end of its interval on the side of 0.
        target: the power.
        alpha: 1 minus the coverage.
        fixed: part of ``reach`` that more runs do not reduce.

    Returns:
        The number; None if it is above 100, or no number is enough.

    Example:
        >>> runs_to_exclude(2, value=0.05, reach=0.2)
        5
        >>> runs_to_exclude(2, value=0.05, reach=0.2, fixed=0.04) is None
        True
    """
    number = np.arange(2, 101)
    z = special.ndtri(1 - alpha / 2)
    unit = special.stdtrit(number - 1, 1 - alpha / 2) / np.sqrt(number)
    now = special.stdtrit(max(runs, 2) - 1, 1 - alpha / 2) / np.sqrt(max(runs, 2))
    left = np.sqrt(fixed**2 + (reach**2 - fixed**2) * (unit / now) ** 2)
    enough = (z + special.ndtri(target)) / z * left <= abs(value)
    return int(number[enough.argmax()]) if enough.any() else None
