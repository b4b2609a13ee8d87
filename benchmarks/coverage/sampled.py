"""Answers from a sample of the images: the search for the worst class, and two-phase estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from benchmarks.coverage.base import Regime, simulated
from classwise.stats.best_arm import BestArmSearch, Draw, Rules
from classwise.stats.two_phase import UNKNOWN, Survivors, next_sample, two_phase_estimate

Floats = NDArray[np.float64]
LAWS: Mapping[str, Callable[[int], Floats]] = {
    "no successes": lambda classes: np.full(classes, 0.0),
    "few successes, tied": lambda classes: np.full(classes, 0.03),
    "tied": lambda classes: np.full(classes, 0.3),
    "spread": lambda classes: np.linspace(0.02, 0.4, classes),
}
"""Shares of the survivors on which the rest of the suite succeeds."""


IMAGES = 100
"""Images of each class."""


def _populations() -> Iterator[tuple[str, Floats]]:
    for classes in (2, 10):
        for name, law in LAWS.items():
            yield f"{classes} classes, {IMAGES} images each, {name}", law(classes)


def _survivors(rng: np.random.Generator, law: Floats) -> tuple[NDArray[np.int64], ...]:
    """Survivors of the first attack of each class, and on how many of them the rest of the suite succeeds."""
    survivors = rng.binomial(IMAGES, 0.6, size=len(law))
    return survivors, rng.binomial(survivors, law)


def searches(repetitions: int) -> Iterator[Regime]:
    """The answer of a search, that no class of these images is below it; random is the order of the samples."""
    for name, law in _populations():

        def draw(rng: np.random.Generator, law: Floats = law) -> tuple[float, float, float]:
            survivors, hits = _survivors(rng, law)
            search = BestArmSearch(np.full(len(law), IMAGES), survivors, Rules())
            left = np.stack([hits, survivors - hits], axis=1)
            while moves := search.next():
                for move in moves:
                    if isinstance(move, Draw):
                        hits_left, others = left[move.label].tolist()
                        found = int(rng.hypergeometric(hits_left, others, move.size))
                        left[move.label] -= found, move.size - found
                        search.observe_draw(move.label, move.size, found)
                    else:  # the escalating attack finds half of what is left
                        found = int(rng.binomial(left[move.label, 0], 0.5))
                        left[move.label, 0] -= found
                        search.observe_escalation(move.label, found)
            answer, accuracy = search.verdict(), (survivors - hits) / IMAGES
            wrong = accuracy[answer.worst] > accuracy.min() + 1e-9
            return float(wrong), float(wrong), 0.0

        yield simulated(name, draw, max(repetitions // 10, 10))


def estimates(repetitions: int) -> Iterator[Regime]:
    """The lowest class accuracy on these images, from a sample that grew until it was near enough (2 points)."""
    yield from _estimates(repetitions, new_images=False)


def estimates_for_new_images(repetitions: int) -> Iterator[Regime]:
    """The lowest class accuracy for new images, from a sample of these that grew until it was near enough."""
    yield from _estimates(repetitions, new_images=True)


def _estimates(repetitions: int, *, new_images: bool) -> Iterator[Regime]:
    for name, law in _populations():

        def draw(rng: np.random.Generator, law: Floats = law) -> tuple[float, float, float]:
            survivors, hits = _survivors(rng, law)
            label = np.repeat(np.arange(len(law)), survivors)
            outcome = np.concatenate([np.arange(n) < k for n, k in zip(survivors, hits, strict=True)]).astype(int)
            order = rng.permutation(len(label))
            pool = Survivors(np.full(len(law), IMAGES), label[order], np.zeros(len(label), dtype=np.bool_))
            results = np.full(len(label), UNKNOWN)
            while len(places := next_sample(pool, results, 0.02)):
                results[places] = outcome[order][places]
            worst = two_phase_estimate(pool, results, 0.02).worst
            if new_images:
                return worst.new_low, worst.new_high, float((0.6 * (1 - law)).min())
            return worst.low, worst.high, float(((survivors - hits) / IMAGES).min())

        yield simulated(name, draw, max(repetitions // 10, 10))
