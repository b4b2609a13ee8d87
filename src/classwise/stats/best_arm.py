"""The worst class by racing (best-arm identification), without running every attack on every image.

The first attack has run on all images, so it is known how many of each class survive it; unknown is on how many of
these the rest of the suite would succeed. Survivors are drawn at random without replacement and attacked by the whole
suite until the intervals of the classes separate the worst one. The intervals are valid under any stopping rule and
any allocation of the draws (`classwise.stats.confidence_sequence`), so the race may look after every draw and choose
freely from which class to draw.

Everything here is about this test set under this suite and seed (population F); the probability is over the order in
which survivors are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.errors import ClasswiseError
from classwise.stats.confidence_sequence import intersected, success_bounds
from classwise.stats.counts import BoolArray, FloatArray, IntArray, whole_numbers
from classwise.stats.intervals import checked_level

MANY_CLASSES = 100
TOLERANCE_OF_MANY = 0.02
"""From this many classes on, the default tolerance of a race is this much (a fraction)."""

EASE = 1e-9
"""What rounding may do to a difference of two accuracies; counts of images differ by far more."""

_NEARLY = 0.75
"""Classes whose intervals are at least this share of the width that is due for a draw are drawn from at once."""


@dataclass(frozen=True)
class Rules:
    """How a race is run.

    Args:
        alpha: the probability of a wrong answer, over the order of the draws.
        tolerance: the answer may be this much (a fraction) above the worst class.
        priors: (a, b) of each level: before and after the escalating attack has run on all survivors of a class.
        draw: how many survivors of a class are drawn at once.
        patience: a class is escalated once this share of its pool has been drawn. Lower, and classes are escalated
            that a few more draws would have settled; higher, and draws are spent that escalating would have spared. The
            default took the fewest passes over replayed races; no guarantee rests on it.
        together: how many classes are drawn from at once; 1 takes the fewest passes, more fill a device.

    Raises:
        ClasswiseError: for a value out of range.
    """

    alpha: float = 0.05
    tolerance: float = 0.0
    priors: tuple[tuple[float, float], ...] = ((0.5, 8.0), (0.5, 60.0))
    draw: int = 10
    patience: float = 0.35
    together: int = 1

    def __post_init__(self) -> None:
        checked_level(self.alpha)
        if not 0 <= self.tolerance < 1:
            raise ClasswiseError(f"tolerance = {self.tolerance}: a fraction of at least 0 and below 1, such as 0.02")
        for name in ("draw", "together"):
            if getattr(self, name) < 1:
                raise ClasswiseError(f"{name} = {getattr(self, name)}: give a whole number of at least 1")
        if not 1 <= len(self.priors) <= 2 or any(not min(prior) > 0 for prior in self.priors):
            raise ClasswiseError(f"priors = {self.priors}: one or two pairs (a, b) of numbers above 0")
        if not 0 <= self.patience <= 1:
            raise ClasswiseError(f"patience = {self.patience}: a share of the pool, in [0, 1]")

    @property
    def levels(self) -> int:
        """m: how many times a class may begin its interval anew."""
        return len(self.priors)

    def share(self, classes: int) -> float:
        """The error that one class may spend at one level, alpha / (m C)."""
        return self.alpha / (self.levels * max(classes, 1))


def usual_tolerance(classes: int) -> float:
    """The default tolerance: none; 2 points from 100 classes on."""
    return TOLERANCE_OF_MANY if classes >= MANY_CLASSES else 0.0


def usual_draw(images: ArrayLike) -> int:
    """How many survivors to draw at once: 10 of classes with 250 images and more, fewer of smaller ones, 2 at least.

    Args:
        images: (C,) images of each class.
    """
    count = np.asarray(images)
    return int(np.clip(np.median(count[count > 0]) // 25, 2, 10)) if (count > 0).any() else 2


class Contenders(NamedTuple):
    """The classes that decide a race, or several races at once.

    Attributes:
        worst: (...) the class of least estimate.
        rival: (...) the class of least lower bound among the others.
        labels: (..., n) which to attack further: the wider of these two, as `contenders` weighs them, then the classes
            of next least lower bounds that are about as wide.
        valid: (..., n) which of the labels are used; none where the race is over.
    """

    worst: IntArray
    rival: IntArray
    labels: IntArray
    valid: BoolArray


def contenders(
    estimate: FloatArray, low: FloatArray, high: FloatArray, tolerance: float, together: int = 1
) -> Contenders:
    """The classes that decide the race.

    The race is over when the upper bound of ``worst`` is at most the least lower bound among the others plus
    ``tolerance``. Every other class is compared with ``worst``, so its interval is to be the narrowest: by the square
    root of how many still contend, as a control has so many times the sample of each of k treatments (Dunnett, JASA
    1955).

    Args:
        estimate: (..., C) accuracies; infinity for a class without images, as in the other two.
        low: lower bounds.
        high: upper bounds.
        tolerance: the tolerance.
        together: n, how many classes to attack at once.
    """
    place = np.arange(estimate.shape[-1])
    worst = estimate.argmin(-1)
    others = np.where(place == worst[..., None], np.inf, low)
    rival = others.argmin(-1)
    top, width = _pick(high, worst), _width(low, high)
    over = top <= _pick(others, rival) + tolerance + EASE
    contends = (width > 0) & (others + tolerance + EASE < top[..., None])
    weighed = _pick(width, worst) * np.sqrt(np.maximum(contends.sum(-1), 1))
    due = np.where(weighed >= _pick(width, rival), worst, rival)
    if together == 1:
        return Contenders(worst, rival, due[..., None], ~over[..., None])
    key = np.where(contends & (width >= _NEARLY * weighed[..., None]), others, np.inf)
    key = np.where(place == due[..., None], -1.0, key)
    labels = np.argsort(key, axis=-1, kind="stable")[..., :together]
    return Contenders(worst, rival, labels, np.isfinite(np.take_along_axis(key, labels, -1)) & ~over[..., None])


def _pick(values: FloatArray, place: IntArray) -> FloatArray:
    return np.take_along_axis(values, place[..., None], -1)[..., 0]


def _width(low: FloatArray, high: FloatArray) -> FloatArray:
    """The widths of intervals; 0 for absent classes, whose two ends are infinite."""
    present = np.isfinite(high)
    return np.where(present, high, 0.0) - np.where(present, low, 0.0)


class Draw(NamedTuple):
    """Attack the next ``size`` survivors of a class with the whole rest of the suite."""

    label: int
    size: int


class Escalate(NamedTuple):
    """Run the escalating attack on all survivors of a class that are not drawn yet."""

    label: int


Move = Draw | Escalate


class Race:
    """A race in progress: it receives what attacks found and chooses the next move, and attacks nothing itself.

    Args:
        images: (C,) images of each class, N_c; a class with none does not take part.
        survivors: (C,) images that survive the first attack, B_c.
        rules: see `Rules`.

    Attributes:
        level: (C,) how often each class was escalated, 0 or 1.
        pool: (C,) the survivors that the current interval is about.
        drawn: (C,) how many of the pool were drawn.
        hits: (C,) on how many of these an attack succeeded.
        known: (C,) successes on survivors of the first attack outside the pool: before the class was escalated, or by
            the escalating attack.
        least: (C,) the least plausible number of successes on survivors, K_c.
        most: (C,) the largest.

    Raises:
        ClasswiseError: if the counts are no counts, or no class has an image.
    """

    def __init__(self, images: ArrayLike, survivors: ArrayLike, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.images, self.survivors = whole_numbers(images, "images"), whole_numbers(survivors, "survivors")
        if self.images.shape != self.survivors.shape:
            raise ClasswiseError(f"{len(self.images)} classes with images and {len(self.survivors)} with survivors")
        if (self.survivors < 0).any() or (self.survivors > self.images).any():
            place = int(np.flatnonzero((self.survivors < 0) | (self.survivors > self.images))[0])
            raise ClasswiseError(f"class {place}: {self.survivors[place]} survivors of {self.images[place]} images")
        self.present = self.images > 0
        if not self.present.any():
            raise ClasswiseError("no class has an image, so none is the worst")
        self.pool = self.survivors.copy()
        self.level, self.drawn, self.hits, self.known = (np.zeros_like(self.pool) for _ in range(4))
        self.least, self.most = np.zeros_like(self.pool), self.pool.copy()
        self._share = self.rules.share(int(self.present.sum()))

    @property
    def low(self) -> FloatArray:
        """(C,) lower bounds of the accuracies; infinity for absent classes, so that none is ever the least."""
        return self._accuracy(self.most)

    @property
    def high(self) -> FloatArray:
        """(C,) upper bounds."""
        return self._accuracy(self.least)

    @property
    def estimate(self) -> FloatArray:
        """(C,) accuracies at the posterior mean, inside the bounds."""
        a, b = np.asarray(self.rules.priors)[self.level].T
        left = self.pool - self.drawn
        mean = self.known + self.hits + left * (a + self.hits) / (a + b + self.drawn)
        return self._accuracy(np.clip(mean, self.least, self.most))

    @property
    def unsettled(self) -> IntArray:
        """(C,) survivors on which the rest of the suite has not run, so that their robustness is unknown."""
        return np.asarray(self.pool - self.drawn)

    def _accuracy(self, successes: FloatArray | IntArray) -> FloatArray:
        return np.where(self.present, (self.survivors - successes) / np.maximum(self.images, 1), np.inf)

    def next(self) -> tuple[Move, ...]:
        """What to do now, one move for each of some classes; nothing when the worst class is known.

        At first some survivors of every class are drawn: without a draw the accuracy of a class could be 0.
        """
        who = contenders(self.estimate, self.low, self.high, self.rules.tolerance, self.rules.together)
        if not who.valid.any():
            return ()
        if not (self.drawn.any() or self.level.any()):
            return tuple(self._draw(int(label)) for label in np.flatnonzero(self.pool))
        labels = (int(label) for label in who.labels[who.valid])
        return tuple(Escalate(label) if self._escalates(label) else self._draw(label) for label in labels)

    def _draw(self, label: int) -> Draw:
        return Draw(label, int(min(self.rules.draw, self.unsettled[label])))

    def _escalates(self, label: int) -> bool:
        early = self.level[label] + 1 < self.rules.levels
        return bool(early and self.drawn[label] >= self.rules.patience * self.pool[label])

    def observe_draw(self, label: int, count: int, successes: int) -> None:
        """Of ``count`` further survivors of a class, the rest of the suite succeeded on ``successes``.

        Raises:
            ClasswiseError: if so many were not left.
        """
        if not 0 <= successes <= count <= self.unsettled[label]:
            raise ClasswiseError(
                f"class {label}: {successes} successes of {count}, of {self.unsettled[label]} that were left"
            )
        self.drawn[label] += count
        self.hits[label] += successes
        self._update(label)

    def observe_escalation(self, label: int, successes: int) -> None:
        """The escalating attack succeeded on ``successes`` of all survivors of a class that were not drawn yet.

        The draws so far are settled; the interval begins anew on what is left, whose order is still a random one.

        Raises:
            ClasswiseError: if the class was escalated before, or so many were not left.
        """
        if self.level[label] + 1 >= self.rules.levels or not 0 <= successes <= self.unsettled[label]:
            raise ClasswiseError(
                f"class {label}: {successes} successes of the escalation, of {self.unsettled[label]} that were left"
            )
        left = self.unsettled[label] - successes
        self.known[label] += self.hits[label] + successes
        self.level[label] += 1
        self.pool[label], self.drawn[label], self.hits[label] = left, 0, 0
        self._update(label)

    def _update(self, label: int) -> None:
        a, b = self.rules.priors[self.level[label]]
        found = success_bounds(self.pool[label], self.drawn[label], self.hits[label], (a, b), self._share)
        bounds = intersected(self.least[label], self.most[label], found, self.known[label])
        self.least[label], self.most[label] = bounds

    def verdict(self) -> Verdict:
        """The answer as far as it is known now."""
        low, high, estimate = self.low, self.high, self.estimate
        who = contenders(estimate, low, high, self.rules.tolerance)
        worst = int(who.worst)
        # A class whose lower bound is above the upper bound of another is not the worst.
        may = self.present & (low <= high[self.present].min() + EASE)
        return Verdict(
            worst=worst,
            possibly=tuple(int(label) for label in np.flatnonzero(may)),
            estimate=float(estimate[worst]),
            low=float(low[worst]),
            high=float(high[worst]),
            settled=not who.valid.any(),
            unsettled=int(self.unsettled[self.present].sum()),
            alpha=self.rules.alpha,
            tolerance=self.rules.tolerance,
        )


@dataclass(frozen=True)
class Verdict:
    """The answer of a race.

    Attributes:
        worst: the class of least estimate.
        possibly: the classes that may be the worst; the true worst is among them with probability 1 - alpha.
        estimate: the accuracy of ``worst``, a fraction.
        low: lower end of its interval; the intervals of all classes hold together.
        high: upper end.
        settled: whether the race was run to its end, so that ``worst`` is guaranteed up to ``tolerance``.
        unsettled: survivors that were never attacked to the end.
        alpha: 1 minus the confidence.
        tolerance: how far ``worst`` may be above the true worst class.
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

    def sentence(
        self, names: Sequence[str], population: str = "this test set", suite: str = "this suite and seed"
    ) -> str:
        """The guarantee, for which population, relative to which suite."""
        sure = f"with {_number(100 * (1 - self.alpha))} % confidence (over the random order of the draws)"
        scope = f"on {population} under {suite}"
        listed = ", ".join(names[label] for label in self.possibly)
        if not self.settled:
            which = f"is {listed}" if len(self.possibly) == 1 else f"is one of {listed}"
            return f"{sure} the worst class {which}, {scope}; the search was stopped before it was finished"
        mine = names[self.worst]
        points = f"{_number(100 * self.tolerance)} points"
        claim = f"no class is more than {points} below {mine}" if self.tolerance else f"no class is below {mine}"
        tie = f"; the worst may be any of {listed}" if len(self.possibly) > 1 else ""
        return f"{sure} {claim}, {scope}{tie}"


def _number(value: float) -> str:
    return f"{value:.6g}"
