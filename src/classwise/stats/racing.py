"""The worst class by racing: which class is the worst of this test set, without attacking every image to the end.

The first attack has run on all images, so it is known how many of each class survive it; unknown is how many of these
the rest of the suite would break. Survivors are drawn at random without replacement and attacked to the end until the
intervals of the classes tell the worst one. The intervals are valid at any stopping and any allocation of the draws
(Waudby-Smith and Ramdas, "Confidence sequences for sampling without replacement", NeurIPS 2020), so the race may look
after every draw and choose freely whom to draw from.

Everything here is about this test set under this suite and seed (population F); the probability is over the order in
which survivors are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.errors import UserError
from classwise.stats.counts import BoolArray, FloatArray, IntArray, whole_numbers
from classwise.stats.intervals import checked_level

MANY_CLASSES = 100
TOLERANCE_OF_MANY = 0.02
"""From this many classes on, a race is content with a class within this much (a fraction) of the worst one."""

EASE = 1e-9
"""What rounding may do to a difference of two accuracies; counts of images differ by far more."""

_NEARLY = 0.75
"""Classes whose intervals are at least this share of the width that is due for a draw are drawn from at once."""


def log_ratio(
    broken: ArrayLike, pool: ArrayLike, drawn: ArrayLike, hits: ArrayLike, prior: tuple[ArrayLike, ArrayLike]
) -> FloatArray:
    """Log of the prior over the posterior of "the pool holds ``broken`` that break", after some draws.

    The prior is beta-binomial with parameters a and b; so is the posterior of what is left. At the true number the
    ratio is a supermartingale that begins at 1, so that it ever reaches 1/alpha has probability at most alpha.

    Args:
        broken: K, how many of the pool break; any shape that broadcasts with the others.
        pool: B, how many there are.
        drawn: t, how many were drawn, without replacement.
        hits: k, how many of these broke.
        prior: a and b, positive.

    Returns:
        log(BB(K; B, a, b) / BB(K-k; B-t, a+k, b+t-k)); infinity where K is impossible after the draws.
    """
    K, B, t, k = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (broken, pool, drawn, hits)))  # noqa: N806
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


class Broken(NamedTuple):
    """How many of a pool break: the least and the largest number that is still plausible, int64 arrays."""

    least: IntArray
    most: IntArray


def broken_bounds(
    pool: ArrayLike, drawn: ArrayLike, hits: ArrayLike, prior: tuple[ArrayLike, ArrayLike], alpha: float
) -> Broken:
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
        return log_ratio(K, B, t, k, prior) < limit

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
    return Broken(least, low)


@dataclass(frozen=True)
class Rules:
    """How a race is run.

    Args:
        alpha: the probability of a wrong answer, over the order of the draws.
        tol: the answer may be this much (a fraction) above the worst class.
        priors: (a, b) of each level: before and after the escalating attack has run on all survivors of a class.
        draw: how many survivors of a class are drawn at once.
        patience: a class is escalated once this share of its pool has been drawn. Lower, and classes are escalated
            that a few more draws would have settled; higher, and draws are spent that escalating would have spared. The
            default took the fewest passes over replayed races; no guarantee rests on it.
        together: how many classes are drawn from at once; 1 takes the fewest passes, more fill a device.

    Raises:
        UserError: for a value out of range.
    """

    alpha: float = 0.05
    tol: float = 0.0
    priors: tuple[tuple[float, float], ...] = ((0.5, 8.0), (0.5, 60.0))
    draw: int = 10
    patience: float = 0.35
    together: int = 1

    def __post_init__(self) -> None:
        checked_level(self.alpha)
        if not 0 <= self.tol < 1:
            raise UserError(f"tol = {self.tol}: the tolerance is a fraction of at least 0 and below 1, such as 0.02")
        for name in ("draw", "together"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: give a whole number of at least 1")
        if not 1 <= len(self.priors) <= 2 or any(not min(prior) > 0 for prior in self.priors):
            raise UserError(f"priors = {self.priors}: one or two pairs (a, b) of numbers above 0")
        if not 0 <= self.patience <= 1:
            raise UserError(f"patience = {self.patience}: a share of the pool, in [0, 1]")

    @property
    def levels(self) -> int:
        """m: how many times a class may begin its interval anew."""
        return len(self.priors)

    def share(self, classes: int) -> float:
        """The error that one class may spend at one level, alpha / (m C)."""
        return self.alpha / (self.levels * max(classes, 1))


def usual_tolerance(classes: int) -> float:
    """The tolerance unless told otherwise: none; 2 points from 100 classes on."""
    return TOLERANCE_OF_MANY if classes >= MANY_CLASSES else 0.0


def usual_draw(images: ArrayLike) -> int:
    """How many survivors to draw at once: 10 of classes with 250 images and more, fewer of smaller ones, 2 at least.

    Args:
        images: (C,) images of each class.
    """
    count = np.asarray(images)
    return int(np.clip(np.median(count[count > 0]) // 25, 2, 10)) if (count > 0).any() else 2


class Front(NamedTuple):
    """Who races, in one race or in several at once.

    Attributes:
        worst: (...) the class of least estimate.
        rival: (...) the class of least lower bound among the others.
        labels: (..., n) whom to attack further: the wider of these two, as `front` weighs them, then the classes of
            next least lower bounds that are about as wide.
        valid: (..., n) whether the label before is meant; none is where the race is over.
    """

    worst: IntArray
    rival: IntArray
    labels: IntArray
    valid: BoolArray


def front(estimate: FloatArray, low: FloatArray, high: FloatArray, tol: float, together: int = 1) -> Front:
    """The classes that decide the race.

    It is over when the upper bound of ``worst`` is at most the least lower bound among the others plus ``tol``. All
    others are told apart from ``worst``, so its interval is to be the narrowest: by the square root of how many still
    contend, as a control has so many times the sample of each of k treatments (Dunnett, JASA 1955).

    Args:
        estimate: (..., C) accuracies; infinity for a class without images, as in the other two.
        low: lower bounds.
        high: upper bounds.
        tol: the tolerance.
        together: n, how many classes to attack at once.
    """
    place = np.arange(estimate.shape[-1])
    worst = estimate.argmin(-1)
    others = np.where(place == worst[..., None], np.inf, low)
    rival = others.argmin(-1)
    top, width = _pick(high, worst), _width(low, high)
    over = top <= _pick(others, rival) + tol + EASE
    contends = (width > 0) & (others + tol + EASE < top[..., None])
    weighed = _pick(width, worst) * np.sqrt(np.maximum(contends.sum(-1), 1))
    due = np.where(weighed >= _pick(width, rival), worst, rival)
    if together == 1:
        return Front(worst, rival, due[..., None], ~over[..., None])
    key = np.where(contends & (width >= _NEARLY * weighed[..., None]), others, np.inf)
    key = np.where(place == due[..., None], -1.0, key)
    labels = np.argsort(key, axis=-1, kind="stable")[..., :together]
    return Front(worst, rival, labels, np.isfinite(np.take_along_axis(key, labels, -1)) & ~over[..., None])


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
    """A race in progress: told what attacks found, it says what to do next, and attacks nothing itself.

    Args:
        images: (C,) images of each class, N_c; a class with none does not take part.
        survivors: (C,) images that stand against the first attack, B_c.
        rules: see `Rules`.

    Attributes:
        level: (C,) how often each class was escalated, 0 or 1.
        pool: (C,) the survivors that the current interval is about.
        drawn: (C,) how many of the pool were drawn.
        hits: (C,) how many of these broke.
        known: (C,) survivors of the first attack that broke outside the pool: before the class was escalated, or by
            the escalating attack.
        least: (C,) the least plausible number of broken survivors, K_c.
        most: (C,) the largest.

    Raises:
        UserError: if the counts are no counts, or no class has an image.
    """

    def __init__(self, images: ArrayLike, survivors: ArrayLike, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.images, self.survivors = whole_numbers(images, "images"), whole_numbers(survivors, "survivors")
        if self.images.shape != self.survivors.shape:
            raise UserError(f"{len(self.images)} classes with images and {len(self.survivors)} with survivors")
        if (self.survivors < 0).any() or (self.survivors > self.images).any():
            place = int(np.flatnonzero((self.survivors < 0) | (self.survivors > self.images))[0])
            raise UserError(f"class {place}: {self.survivors[place]} survivors of {self.images[place]} images")
        self.present = self.images > 0
        if not self.present.any():
            raise UserError("no class has an image, so none is the worst")
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
        """(C,) survivors that the rest of the suite has not seen, so that nobody knows of each whether it stands."""
        return np.asarray(self.pool - self.drawn)

    def _accuracy(self, broken: FloatArray | IntArray) -> FloatArray:
        return np.where(self.present, (self.survivors - broken) / np.maximum(self.images, 1), np.inf)

    def next(self) -> tuple[Move, ...]:
        """What to do now, one move for each of some classes; nothing when the worst class is known.

        At first some survivors of every class are drawn: without a draw a class could stand at 0.
        """
        who = front(self.estimate, self.low, self.high, self.rules.tol, self.rules.together)
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

    def tell_draw(self, label: int, count: int, broken: int) -> None:
        """Of ``count`` further survivors of a class, the rest of the suite broke ``broken``.

        Raises:
            UserError: if so many were not left.
        """
        if not 0 <= broken <= count <= self.unsettled[label]:
            raise UserError(f"class {label}: {broken} of {count} broken, of {self.unsettled[label]} that were left")
        self.drawn[label] += count
        self.hits[label] += broken
        self._update(label)

    def tell_escalation(self, label: int, broken: int) -> None:
        """The escalating attack broke ``broken`` of all survivors of a class that were not drawn yet.

        The draws so far are settled; the interval begins anew on what is left, whose order is still a random one.

        Raises:
            UserError: if the class was escalated before, or so many were not left.
        """
        if self.level[label] + 1 >= self.rules.levels or not 0 <= broken <= self.unsettled[label]:
            raise UserError(f"class {label}: {broken} broken by escalation, of {self.unsettled[label]} that were left")
        left = self.unsettled[label] - broken
        self.known[label] += self.hits[label] + broken
        self.level[label] += 1
        self.pool[label], self.drawn[label], self.hits[label] = left, 0, 0
        self._update(label)

    def _update(self, label: int) -> None:
        a, b = self.rules.priors[self.level[label]]
        found = broken_bounds(self.pool[label], self.drawn[label], self.hits[label], (a, b), self._share)
        bounds = narrowed(self.least[label], self.most[label], found, self.known[label])
        self.least[label], self.most[label] = bounds

    def verdict(self) -> Verdict:
        """The answer as far as it is known now."""
        low, high, estimate = self.low, self.high, self.estimate
        who = front(estimate, low, high, self.rules.tol)
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
            tol=self.rules.tol,
        )


def narrowed(least: ArrayLike, most: ArrayLike, found: Broken, known: ArrayLike) -> Broken:
    """Earlier bounds and new ones (on the pool, beside ``known`` outside it) together.

    Both hold unless the truth was lost, and then they may exclude each other; the new ones remain.
    """
    outside = np.asarray(known, dtype=np.int64)
    fresh = Broken(np.asarray(outside + found.least), np.asarray(outside + found.most))
    lower, upper = np.maximum(least, fresh.least), np.minimum(most, fresh.most)
    agree = lower <= upper
    return Broken(np.where(agree, lower, fresh.least), np.where(agree, upper, fresh.most))


@dataclass(frozen=True)
class Verdict:
    """What a race says.

    Attributes:
        worst: the class of least estimate.
        possibly: the classes that may be the worst; the true worst is among them with probability 1 - alpha.
        estimate: the accuracy of ``worst``, a fraction.
        low: lower end of its interval; the intervals of all classes hold together.
        high: upper end.
        settled: whether the race was run to its end, so that ``worst`` is guaranteed up to ``tol``.
        unsettled: survivors that were never attacked to the end.
        alpha: 1 minus the confidence.
        tol: how far ``worst`` may be above the true worst class.
    """

    worst: int
    possibly: tuple[int, ...]
    estimate: float
    low: float
    high: float
    settled: bool
    unsettled: int
    alpha: float
    tol: float

    def sentence(
        self, names: Sequence[str], population: str = "this test set", suite: str = "this suite and seed"
    ) -> str:
        """What is guaranteed, of which population, relative to which suite."""
        sure = f"with {_number(100 * (1 - self.alpha))} % confidence (over the random order of the draws)"
        scope = f"on {population} under {suite}"
        listed = ", ".join(names[label] for label in self.possibly)
        if not self.settled:
            which = f"is {listed}" if len(self.possibly) == 1 else f"is one of {listed}"
            return f"{sure} the worst class {which}, {scope}; the search was stopped before it was finished"
        mine = names[self.worst]
        points = f"{_number(100 * self.tol)} points"
        claim = f"no class is more than {points} below {mine}" if self.tol else f"no class is below {mine}"
        tie = f"; the worst may be any of {listed}" if len(self.possibly) > 1 else ""
        return f"{sure} {claim}, {scope}{tie}"


def _number(value: float) -> str:
    return f"{value:.6g}"
