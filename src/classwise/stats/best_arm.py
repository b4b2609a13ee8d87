"""Best-arm identification of the worst class, without running every attack on every image.

The arms are the classes; a pull samples images of a class. The first attack has run on all images, so the number of
survivors of each class is known. Unknown is on how many of them the rest of the suite would succeed. Survivors are
sampled at random without replacement and attacked by the whole suite until the confidence intervals separate the worst
class. The intervals are valid under any stopping rule and any allocation of the samples
(`classwise.stats.confidence_sequence`), so the search may stop and choose the next class adaptively after every sample.

All guarantees refer to this test set under this suite and seed (population F). The probability is over the random order
in which survivors are sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import Level, checked
from classwise.core.settings.config import Count, Share
from classwise.stats.confidence_sequence import SAMPLING_SHARE, intersect_bounds, success_bounds
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray, whole_numbers
from classwise.stats.intervals import lowest_interval

MANY_CLASSES = 100
MANY_CLASSES_TOLERANCE = 0.02
"""The default tolerance (a fraction) for `MANY_CLASSES` classes or more."""

ROUNDING = 1e-9
"""Bound of the rounding error of a difference of two accuracies; differences of image counts are far larger."""

_NEARLY = 0.75
"""Classes are sampled in the same round if their intervals have at least this share of the deciding width."""


@checked
@dataclass(frozen=True)
class Rules:
    """Sampling and stopping rules of a search.

    Args:
        alpha: error probability of the answer, over the random order of the samples.
        tolerance: how far (a fraction) the accuracy of the returned class may exceed that of the true worst class.
        priors: beta-binomial prior (a, b) of each level: before and after the escalating attack has run on all
            survivors of a class.
        sample_size: number of survivors of a class per sample.
        escalation_share: a class is escalated once this share of its pool has been sampled. A lower value escalates
            classes that a few more samples would have decided; a higher value spends samples that escalation would
            have saved. The default took the fewest passes over replayed searches; the guarantee does not depend on it.
        classes_per_round: number of classes sampled per round; 1 takes the fewest passes, more fill a device.

    Raises:
        ClasswiseError: for a value out of range.
    """

    alpha: Level = 0.05
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.0
    priors: tuple[tuple[float, float], ...] = ((0.5, 8.0), (0.5, 60.0))
    sample_size: Count = 10
    escalation_share: Share = 0.35
    classes_per_round: Count = 1

    def __post_init__(self) -> None:
        if not 1 <= len(self.priors) <= 2 or any(not min(prior) > 0 for prior in self.priors):
            raise ClasswiseError(f"priors = {self.priors}: must be one or two pairs (a, b) of positive numbers")

    @property
    def levels(self) -> int:
        """m: the maximal number of intervals of a class; each escalation starts a new one."""
        return len(self.priors)

    def share(self, classes: int) -> float:
        """Error level of one class at one level, alpha / (m C) (Bonferroni)."""
        return self.alpha / (self.levels * max(classes, 1))


def default_tolerance(classes: int) -> float:
    """The default tolerance: 0.02 for 100 classes or more, else 0."""
    return MANY_CLASSES_TOLERANCE if classes >= MANY_CLASSES else 0.0


def default_sample_size(images: ArrayLike) -> int:
    """The default number of survivors per sample: the median class size over 25, between 2 and 10.

    Args:
        images: (C,) number of images of each class; absent classes are excluded from the median.
    """
    count = np.asarray(images)
    return int(np.clip(np.median(count[count > 0]) // 25, 2, 10)) if (count > 0).any() else 2


class Contenders(NamedTuple):
    """The classes that decide one search, or several searches side by side.

    Attributes:
        worst: (...) class with the lowest estimate.
        rival: (...) class with the lowest lower bound among the others.
        labels: (..., n) classes to sample next: of these two, the one with the wider interval as weighted by
            `contenders`; then the classes with the next lowest lower bounds and intervals of about that width.
        valid: (..., n) true for the labels to use; all false where the search is finished.
    """

    worst: IntArray
    rival: IntArray
    labels: IntArray
    valid: BoolArray


def contenders(
    estimate: FloatArray, low: FloatArray, high: FloatArray, tolerance: float, classes_per_round: int = 1
) -> Contenders:
    """Find the classes that decide the search.

    The search is finished when the upper bound of ``worst`` is at most the lowest lower bound among the others plus
    ``tolerance``. Every contender is compared with ``worst``, so the interval of ``worst`` should be the narrowest: by
    the square root of the number k of contenders, as a control gets sqrt(k) times the sample of each of k treatments
    (Dunnett, JASA 1955).

    Args:
        estimate: (..., C) estimated accuracies; infinity for absent classes, as in ``low`` and ``high``.
        low: (..., C) lower bounds.
        high: (..., C) upper bounds.
        tolerance: tolerance on the worst-class accuracy, a fraction.
        classes_per_round: n, the number of classes to sample per round.
    """
    place = np.arange(estimate.shape[-1])
    worst = estimate.argmin(-1)
    others = np.where(place == worst[..., None], np.inf, low)
    rival = others.argmin(-1)
    top, width = _pick(high, worst), _width(low, high)
    over = top <= _pick(others, rival) + tolerance + ROUNDING
    contends = (width > 0) & (others + tolerance + ROUNDING < top[..., None])
    weighed = _pick(width, worst) * np.sqrt(np.maximum(contends.sum(-1), 1))
    due = np.where(weighed >= _pick(width, rival), worst, rival)
    if classes_per_round == 1:
        return Contenders(worst, rival, due[..., None], ~over[..., None])
    key = np.where(contends & (width >= _NEARLY * weighed[..., None]), others, np.inf)
    key = np.where(place == due[..., None], -1.0, key)
    labels = np.argsort(key, axis=-1, kind="stable")[..., :classes_per_round]
    return Contenders(worst, rival, labels, np.isfinite(np.take_along_axis(key, labels, -1)) & ~over[..., None])


def _pick(values: FloatArray, place: IntArray) -> FloatArray:
    return np.take_along_axis(values, place[..., None], -1)[..., 0]


def _width(low: FloatArray, high: FloatArray) -> FloatArray:
    """Widths of the intervals; 0 for absent classes, whose two ends are infinite."""
    present = np.isfinite(high)
    return np.where(present, high, 0.0) - np.where(present, low, 0.0)


class Draw(NamedTuple):
    """Attack the next ``size`` survivors of a class with the rest of the suite."""

    label: int
    size: int


class Escalate(NamedTuple):
    """Run the escalating attack on all survivors of a class that have not been sampled yet."""

    label: int


Move = Draw | Escalate


@dataclass(frozen=True)
class WorstClassVerdict:
    """The answer of a search for the worst class.

    Attributes:
        worst: class with the lowest estimate.
        possibly: classes that may be the worst; the true worst is among them with probability at least 1 - alpha.
        estimate: estimated accuracy of ``worst``, a fraction.
        low: lower end of the interval of the lowest class accuracy of these images, whichever class it is.
        high: upper end.
        settled: whether the search finished, so that ``worst`` is guaranteed up to ``tolerance``.
        unsettled: number of survivors that the whole suite did not attack.
        alpha: 1 minus the confidence.
        tolerance: how far (a fraction) the accuracy of ``worst`` may exceed that of the true worst class.
        new_images: lower and upper end of the interval of the lowest class accuracy for new images of the same classes.
    """

    worst: int
    possibly: tuple[int, ...]
    estimate: float
    low: float
    high: float
    settled: bool
    unsettled: int
    alpha: float
    tolerance: float
    new_images: tuple[float, float]

    def sentence(
        self, names: Sequence[str], population: str = "this test set", suite: str = "this suite and seed"
    ) -> str:
        """State the guarantee in a sentence.

        Args:
            names: (C,) class names.
            population: the images that the guarantee refers to.
            suite: the attacks that the guarantee refers to.
        """
        confidence = f"with {100 * (1 - self.alpha):.6g} % confidence (over the random order of the samples)"
        scope = f"on {population} under {suite}"
        listed = ", ".join(names[label] for label in self.possibly)
        if not self.settled:
            which = f"is {listed}" if len(self.possibly) == 1 else f"is one of {listed}"
            return f"{confidence} the worst class {which}, {scope}; the search was stopped before it was finished"
        worst = names[self.worst]
        points = f"{100 * self.tolerance:.6g} points"
        claim = f"no class is more than {points} below {worst}" if self.tolerance else f"no class is below {worst}"
        tie = f"; the worst may be any of {listed}" if len(self.possibly) > 1 else ""
        return f"{confidence} {claim}, {scope}{tie}"


class BestArmSearch:
    """State of a search for the worst class: it chooses the next moves and is updated with their results.

    The search itself runs no attack.

    Args:
        images: (C,) number of images of each class, N_c; absent classes are excluded.
        survivors: (C,) number of images that survive the first attack, B_c.
        rules: sampling and stopping rules; None for the defaults of `Rules`.

    Attributes:
        level: (C,) number of escalations of each class, 0 or 1.
        pool: (C,) number of survivors that the current interval refers to.
        drawn: (C,) number of survivors sampled from the pool.
        hits: (C,) number of these on which an attack succeeded.
        known: (C,) successes on survivors of the first attack outside the pool: before the class was escalated, or by
            the escalating attack.
        least: (C,) lower bound of the number of successes on survivors, K_c.
        most: (C,) upper bound of K_c.

    Raises:
        ClasswiseError: if the counts are invalid, or no class has an image.
    """

    def __init__(self, images: ArrayLike, survivors: ArrayLike, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.images, self.survivors = whole_numbers(images, "images"), whole_numbers(survivors, "survivors")
        if self.images.shape != self.survivors.shape:
            raise ClasswiseError(
                f"images and survivors: expected equal lengths, got {len(self.images)} and {len(self.survivors)}"
            )
        if (self.survivors < 0).any() or (self.survivors > self.images).any():
            label = int(np.flatnonzero((self.survivors < 0) | (self.survivors > self.images))[0])
            raise ClasswiseError(
                f"class {label}: {self.survivors[label]} survivors of {self.images[label]} images; "
                "survivors must be between 0 and the number of images"
            )
        self.present = self.images > 0
        if not self.present.any():
            raise ClasswiseError("images: no class has an image; at least one class must have images")
        self.pool = self.survivors.copy()
        self.level, self.drawn, self.hits, self.known = (np.zeros_like(self.pool) for _ in range(4))
        self.least, self.most = np.zeros_like(self.pool), self.pool.copy()
        self._share = self.rules.share(int(self.present.sum()))

    @property
    def low(self) -> FloatArray:
        """(C,) lower bounds of the accuracies; infinity for absent classes, so that they are never the minimum."""
        return self._accuracy(self.most)

    @property
    def high(self) -> FloatArray:
        """(C,) upper bounds of the accuracies; infinity for absent classes."""
        return self._accuracy(self.least)

    @property
    def estimate(self) -> FloatArray:
        """(C,) accuracies at the posterior mean of the successes, clipped to the bounds."""
        a, b = np.asarray(self.rules.priors)[self.level].T
        remaining = self.pool - self.drawn
        mean = self.known + self.hits + remaining * (a + self.hits) / (a + b + self.drawn)
        return self._accuracy(np.clip(mean, self.least, self.most))

    @property
    def unsettled(self) -> IntArray:
        """(C,) number of survivors on which the rest of the suite has not run, so that their robustness is unknown."""
        return np.asarray(self.pool - self.drawn)

    def _accuracy(self, successes: FloatArray | IntArray) -> FloatArray:
        return np.where(self.present, (self.survivors - successes) / np.maximum(self.images, 1), np.inf)

    def next(self) -> tuple[Move, ...]:
        """Choose the next moves, at most one per class; empty when the search is finished.

        The first moves sample survivors of every class: without a sample the lower bound of a class is 0.
        """
        current = contenders(self.estimate, self.low, self.high, self.rules.tolerance, self.rules.classes_per_round)
        if not current.valid.any():
            return ()
        if not (self.drawn.any() or self.level.any()):
            return tuple(self._draw(int(label)) for label in np.flatnonzero(self.pool))
        labels = (int(label) for label in current.labels[current.valid])
        return tuple(Escalate(label) if self._escalates(label) else self._draw(label) for label in labels)

    def _draw(self, label: int) -> Draw:
        return Draw(label, int(min(self.rules.sample_size, self.unsettled[label])))

    def _escalates(self, label: int) -> bool:
        possible = self.level[label] + 1 < self.rules.levels
        return bool(possible and self.drawn[label] >= self.rules.escalation_share * self.pool[label])

    def observe_draw(self, label: int, count: int, successes: int) -> None:
        """Record a sample: the rest of the suite succeeded on ``successes`` of ``count`` further survivors of a class.

        Raises:
            ClasswiseError: unless 0 <= ``successes`` <= ``count`` <= the number of remaining survivors.
        """
        if not 0 <= successes <= count <= self.unsettled[label]:
            raise ClasswiseError(
                f"class {label}: {successes} successes of {count} sampled images; "
                f"{self.unsettled[label]} survivors remained"
            )
        self.drawn[label] += count
        self.hits[label] += successes
        self._update(label)

    def observe_escalation(self, label: int, successes: int) -> None:
        """Record an escalation: the escalating attack succeeded on ``successes`` of the survivors not yet sampled.

        Earlier samples count as known. A new interval starts on the remaining survivors, whose order is still random.

        Raises:
            ClasswiseError: if the class was escalated before, or ``successes`` exceeds the remaining survivors.
        """
        if self.level[label] + 1 >= self.rules.levels:
            raise ClasswiseError(f"class {label}: already escalated; a class is escalated at most once")
        if not 0 <= successes <= self.unsettled[label]:
            raise ClasswiseError(
                f"class {label}: {successes} successes of the escalation; {self.unsettled[label]} survivors remained"
            )
        remaining = self.unsettled[label] - successes
        self.known[label] += self.hits[label] + successes
        self.level[label] += 1
        self.pool[label], self.drawn[label], self.hits[label] = remaining, 0, 0
        self._update(label)

    def _update(self, label: int) -> None:
        a, b = self.rules.priors[self.level[label]]
        new = success_bounds(self.pool[label], self.drawn[label], self.hits[label], (a, b), self._share)
        bounds = intersect_bounds(self.least[label], self.most[label], new, self.known[label])
        self.least[label], self.most[label] = bounds

    def _new_images(self) -> tuple[float, float]:
        """Interval of the lowest class accuracy, whichever class it is, for new images (population P).

        That of `lowest_interval` if the whole suite has run on all survivors. Otherwise its lower end is at the lower
        bounds of the numbers of robust images, and its upper end at the upper bounds; `SAMPLING_SHARE` of the error
        level is for these bounds. The lower end needs the bound of the truly worst class only, the upper end that of
        every class. A class has `Rules.levels` sequences of bounds, which share the level.
        """
        alpha, classes = self.rules.alpha, int(self.present.sum())
        if not self.unsettled.any():
            return lowest_interval(ClassCounts(self.images, self.survivors - self.least), alpha)
        prior = np.asarray(self.rules.priors)[self.level].T
        level = SAMPLING_SHARE * alpha / (2 * self.rules.levels)
        most, least = (
            self.known + success_bounds(self.pool, self.drawn, self.hits, (prior[0], prior[1]), share)[end]
            for end, share in ((1, level), (0, level / classes))
        )
        binomial = (1 - SAMPLING_SHARE) * alpha
        low, high = (
            lowest_interval(ClassCounts(self.images, self.survivors - hits), binomial) for hits in (most, least)
        )
        return low[0], high[1]

    def verdict(self) -> WorstClassVerdict:
        """The answer at the current state of the search."""
        low, high, estimate = self.low, self.high, self.estimate
        current = contenders(estimate, low, high, self.rules.tolerance)
        worst = int(current.worst)
        # A class whose lower bound is above the upper bound of another is not the worst.
        may = self.present & (low <= high[self.present].min() + ROUNDING)
        return WorstClassVerdict(
            worst=worst,
            possibly=tuple(int(label) for label in np.flatnonzero(may)),
            estimate=float(estimate[worst]),
            low=float(low[self.present].min()),
            high=float(high[self.present].min()),
            settled=not current.valid.any(),
            unsettled=int(self.unsettled[self.present].sum()),
            alpha=self.rules.alpha,
            tolerance=self.rules.tolerance,
            new_images=self._new_images(),
        )
