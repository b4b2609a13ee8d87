"""Coverage of the intervals over training seeds, and of differences of worst classes: hard and ordinary regimes.

Run s is correct on image i of class c with probability expit(logit_c + run_sd_c e_sc + image_sd z_i). The effects e_sc
of runs are normal, with a correlation between the classes of a run; the difficulty z_i of an image is common to all
runs. The expected worst-class accuracy of a new run is integrated over up to 60,000 simulated runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from benchmarks.coverage.base import ROUNDING, Regime, simulated
from classwise.stats.counts import PairedCounts
from classwise.stats.paired import difference_of_minima
from classwise.stats.seeds import (
    difference_over_seeds,
    mean_over_seeds,
    worst_difference_over_seeds,
    worst_over_seeds,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ends = tuple[float, float, float]
TRUTH_RUNS = 60_000
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
GRID = np.linspace(-16, 16, 3201)


@dataclass(frozen=True)
class Population:
    """A population of runs and images; see the module.

    Attributes:
        name: what it tests.
        classes: number of classes.
        images: of each class, or one number for all.
        logit: of each class, or one number for all.
        run_sd: standard deviation of the runs on the logit scale, by class or for all.
        runs: number of observed runs.
        image_sd: standard deviation of the images on the logit scale.
        correlation: of the effects of a run on two classes.
        law: of the effects of runs.
    """

    name: str
    classes: int
    images: ArrayLike
    logit: ArrayLike
    run_sd: ArrayLike
    runs: int
    image_sd: float = 1.0
    correlation: float = 0.0
    law: str = "normal"

    @property
    def count(self) -> NDArray[np.int64]:
        """(C,) images of each class."""
        return np.broadcast_to(self.images, (self.classes,)).astype(np.int64)

    @property
    def labels(self) -> NDArray[np.int64]:
        """(N,) labels."""
        return np.repeat(np.arange(self.classes), self.count)

    @property
    def size(self) -> str:
        """The numbers of classes, images per class and runs, as in a table."""
        least, most = self.count.min(), self.count.max()
        return f"{self.classes:,}, {f'{least:,}' if least == most else f'{least:,} to {most:,}'}, {self.runs}"

    def logits(self, runs: int, rng: np.random.Generator) -> Floats:
        """(runs, C) logits of new runs."""
        laws: Mapping[str, Callable[[tuple[int, int]], Floats]] = {
            "normal": rng.standard_normal,
            "t4": lambda size: rng.standard_t(4, size) / np.sqrt(2),
            "rare bad runs": lambda size: 1 - rng.exponential(size=size),
        }
        draw = laws[self.law]
        common, own = draw((runs, 1)), draw((runs, self.classes))
        effect = np.sqrt(self.correlation) * common + np.sqrt(1 - self.correlation) * own
        return np.asarray(np.asarray(self.logit) + np.asarray(self.run_sd) * effect)

    def accuracy(self, logits: Floats) -> Floats:
        """Accuracy of a class in the population of its images, by its logit."""
        return np.interp(logits, GRID, _curve(self.image_sd))

    def outcomes(self, logits: Floats, rng: np.random.Generator, difficulty: Floats | None = None) -> Bools:
        """(runs, N) correct predictions on new images."""
        labels = self.labels
        z = rng.standard_normal(len(labels)) if difficulty is None else difficulty
        return np.asarray(rng.random((len(logits), len(labels))) < special.expit(logits[:, labels] + self.image_sd * z))

    def truth(self, rng: np.random.Generator) -> tuple[float, Floats]:
        """Expected worst-class accuracy of a new run, and expected accuracy of each class."""
        accuracy = self.accuracy(self.logits(max(3000, min(TRUTH_RUNS, 6_000_000 // self.classes)), rng))
        return float(accuracy.min(axis=1).mean()), accuracy.mean(axis=0)


@cache
def _curve(image_sd: float) -> Floats:
    weights = WEIGHTS / WEIGHTS.sum()
    return np.asarray((special.expit(GRID[:, None] + image_sd * NODES) * weights).sum(axis=1))


def logit_of(accuracy: float, image_sd: float) -> float:
    """The logit at which a class has this accuracy."""
    return float(np.interp(accuracy, _curve(image_sd), GRID))


def spread(low: float, high: float, classes: int) -> Floats:
    """Logits at equal distances."""
    return np.linspace(low, high, classes)


def few(low: float, others: float, classes: int, number: int = 1) -> Floats:
    """``number`` classes at one value, the others at another."""
    return np.where(np.arange(classes) < number, low, others)


LADDER = np.geomspace(10, 1000, 10).round().astype(int)


def populations() -> Iterator[Population]:
    """Populations of one method: first those in which the former interval was examined, then further ones."""
    for classes, images, logit, run_sd, runs in [
        (2, 10, -2, 0.2, 3), (4, 50, -3, 0.2, 3), (4, 50, -3, 0.2, 5), (10, 10, -2, 0.2, 3), (10, 20, -2, 0.2, 3),
        (10, 50, -3, 0.2, 3), (10, 100, -3, 0.2, 3), (10, 100, -3.5, 0.2, 3), (10, 100, -2, 0.2, 10),
        (20, 20, -2, 0.2, 3), (20, 50, -3, 0.5, 5), (100, 10, -2, 0.2, 3), (100, 50, -3, 0.2, 3), (2, 50, -3, 0, 3),
        (10, 100, -2, 0.2, 2), (10, 100, -3, 0.2, 1),
    ]:  # fmt: skip
        yield Population("tied low", classes, images, logit, run_sd, runs)
    for classes, images, run_sd, runs in [
        (2, 1000, 0.1, 3), (4, 100, 0.1, 3), (10, 1000, 0.05, 3), (10, 1000, 0.3, 3), (10, 1000, 0.3, 5),
        (4, 1000, 0.3, 5), (10, 100, 0.3, 10), (20, 1000, 0.1, 3), (100, 100, 0.1, 3),
    ]:  # fmt: skip
        yield Population("tied at 50 %", classes, images, 0, run_sd, runs, 2.0)
    for classes, images, accuracy in [(10, 100, 0.97), (10, 20, 0.95), (2, 50, 0.995), (100, 50, 0.95)]:
        yield Population("tied high", classes, images, logit_of(accuracy, 2), 0.2, 3, 2.0)
    yield Population("one low", 10, 100, few(-1, 1, 10), 0.1, 3)
    yield Population("one low", 10, 20, few(-2, 0, 10), 0.2, 3)
    yield Population("one low", 100, 100, few(-2, 1, 100), 0.1, 3)
    yield Population("one near 0", 10, 100, few(-4, 1, 10), 0.2, 3)
    yield Population("one low by 4 s.e.", 100, 50, few(logit_of(0.3, 2), logit_of(0.56, 2), 100), 0.05, 3, 2.0)
    yield Population("one low by 4 s.e.", 10, 1000, few(logit_of(0.4, 2), logit_of(0.46, 2), 10), 0.03, 3, 2.0)
    yield Population("one low by 2 s.e.", 4, 100, few(logit_of(0.4, 2), logit_of(0.5, 2), 4), 0.1, 5, 2.0)
    yield Population("one low", 4, 1000, few(-1, 1, 4), 0.3, 2, 2.0)
    for runs in (1, 2, 3, 5, 10):
        yield Population("spread", 10, 1000, spread(-0.5, 3, 10), 0.1, runs, 2.0)
    yield Population("spread", 10, 100, spread(-1, 3, 10), 0.2, 3)
    yield Population("spread", 20, 50, spread(-1, 3, 20), 0.2, 3)
    yield Population("spread", 100, 100, spread(-1, 4, 100), 0.2, 1, 2.0)
    yield Population("spread", 100, 100, spread(-1, 4, 100), 0.2, 3, 2.0)
    yield Population("spread", 100, 100, spread(-1, 4, 100), 0.2, 5, 4.0)
    yield Population("spread", 100, 1000, spread(-1, 4, 100), 0.1, 3, 2.0)
    yield Population("spread", 1000, 50, spread(-1, 6, 1000), 0.2, 3, 2.0)
    yield Population("runs differ in one class", 4, 100, 0, few(0.8, 0.05, 4), 3, 2.0)
    yield Population("runs differ in one class", 10, 1000, 0, few(0.5, 0.05, 10), 3, 2.0)
    yield Population("runs differ in one class", 10, 1000, 0, few(0.5, 0.05, 10), 5, 2.0)
    yield Population("unequal effects of runs", 10, 100, spread(-0.5, 1, 10), spread(0.6, 0, 10), 3, 2.0)
    yield Population("correlated runs", 10, 1000, spread(-0.5, 3, 10), 0.3, 3, 2.0, 0.8)
    yield Population("correlated runs, tied", 10, 100, -1, 0.4, 5, 2.0, 0.9)
    yield Population("images decide, tied", 10, 100, 0, 0.1, 3, 6.0)
    yield Population("images decide, one low", 4, 100, few(-3, 3, 4), 0.2, 10, 6.0)
    yield Population("equal images, tied", 10, 100, 0, 0.05, 3, 0.0)
    yield Population("equal images, spread", 10, 1000, spread(-0.5, 2, 10), 0.05, 10, 0.0)
    yield Population("unequal sizes, tied", 10, LADDER, -1, 0.2, 3, 2.0)
    yield Population("unequal sizes, smallest low", 10, LADDER, few(-1, 1, 10), 0.2, 3, 2.0)
    for runs in (2, 3, 5, 10):
        yield Population("two tied, runs differ much", 2, 200, -1, 1.0, runs)
        yield Population("tied low, 10 images", 100, 10, -3, 0.3, runs)
    yield Population("tied low", 1000, 10, -2, 0.2, 3)
    yield Population("tied high, 20 images", 1000, 20, logit_of(0.95, 1), 0.2, 3)
    yield Population("half tied low", 100, 50, few(-2, 1, 100, 50), 0.2, 3)
    yield Population("two low by 1 s.e.", 10, 400, np.r_[-0.2, 0.0, np.full(8, 1.5)], 0.1, 3, 2.0)
    yield Population("two low by 1 s.e.", 10, 400, np.r_[-0.2, 0.0, np.full(8, 1.5)], 0.1, 5, 2.0)
    yield Population("unequal sizes, largest low", 10, LADDER, few(-1, 1, 10)[::-1], 0.2, 3, 2.0)
    yield Population("unequal sizes, small ones high", 10, LADDER, spread(3, -1, 10), 0.2, 5, 2.0)
    yield Population("few images in one class", 10, few(3, 300, 10).astype(int), 0, 0.2, 3, 2.0)
    yield Population("few images in the low class", 10, few(12, 300, 10).astype(int), few(-1, 1, 10), 0.3, 5, 2.0)
    yield Population("near 0", 10, 100, -6, 0.3, 3)
    yield Population("near 0", 20, 500, -6, 0.3, 5)
    yield Population("near 1", 10, 500, 7, 0.3, 3)
    yield Population("correlated runs, one low", 10, 500, few(-1, 1, 10), 0.6, 3, 2.0, 0.95)
    yield Population("correlated runs, one low", 10, 500, few(-1, 1, 10), 0.6, 10, 2.0, 0.95)
    yield Population("negligible images, runs differ", 4, 1000, 0, 0.5, 3, 0.0)
    yield Population("equal runs", 10, 300, spread(-1, 1, 10), 0.0, 5, 3.0)
    yield Population("one class varies below the others", 10, 1000, few(0.3, 0.0, 10), few(1.0, 0.02, 10), 5, 2.0)
    yield Population("same predictions in all runs", 10, 100, 0, 0.0, 3, 60.0)
    yield Population("one class", 1, 200, 0, 0.2, 3, 2.0)
    yield Population("one class", 1, 30, -2, 0.4, 5)


def stress() -> Iterator[Population]:
    """Populations outside the assumptions: effects of runs that are not normal."""
    for law in ("t4", "rare bad runs"):
        for runs in (3, 5):
            yield Population(f"effects of runs: {law}", 10, 1000, spread(-0.5, 3, 10), 0.3, runs, 2.0, law=law)


class PopulationPair(NamedTuple):
    """Two methods on the same images; ``likeness`` is the correlation of an image's difficulty for both."""

    name: str
    first: Population
    second: Population
    likeness: float

    def outcomes(self, rng: np.random.Generator) -> tuple[tuple[Bools, Bools], tuple[Floats, Floats]]:
        """Correct predictions of both methods, and the logits of their runs."""
        z = rng.standard_normal(len(self.first.labels))
        other = self.likeness * z + np.sqrt(1 - self.likeness**2) * rng.standard_normal(len(z))
        logits = self.first.logits(self.first.runs, rng), self.second.logits(self.second.runs, rng)
        correct = self.first.outcomes(logits[0], rng, z), self.second.outcomes(logits[1], rng, other)
        return correct, logits


def pairs() -> Iterator[PopulationPair]:
    """Populations of a difference of two methods."""

    def pair(
        name: str, classes: int, images: int, logits: tuple[ArrayLike, ArrayLike], run_sd: float,
        runs: tuple[int, int], image_sd: float, likeness: float,
    ) -> PopulationPair:  # fmt: skip
        first, second = (
            Population(name, classes, images, logit, run_sd, number, image_sd)
            for logit, number in zip(logits, runs, strict=True)
        )
        return PopulationPair(name, first, second, likeness)

    def low(accuracy: float, others: float, classes: int) -> Floats:
        return few(logit_of(accuracy, 0), logit_of(others, 0), classes)

    three = (3, 3)
    yield pair("A tied, B one low", 10, 100, (logit_of(0.05, 0), low(0.05, 0.6, 10)), 0.0, three, 0.0, 0.0)
    yield pair("A tied, B one low", 10, 20, (logit_of(0.1, 0), low(0.1, 0.6, 10)), 0.0, three, 0.0, 0.0)
    yield pair("A tied, B one low", 100, 100, (logit_of(0.05, 0), low(0.05, 0.6, 100)), 0.0, three, 0.0, 0.0)
    yield pair("A tied, B one low", 10, 100, (-1, few(-1, 1, 10)), 0.2, three, 2.0, 0.7)
    yield pair("A tied, B one low", 10, 100, (logit_of(0.05, 0), low(0.05, 0.6, 10)), 0.1, (5, 5), 0.0, 0.0)
    yield pair("A tied, B one low", 10, 100, (logit_of(0.05, 0), low(0.05, 0.6, 10)), 0.1, (2, 2), 0.0, 0.0)
    yield pair("both tied, alike", 10, 100, (0, 0), 0.1, three, 3.0, 0.95)
    yield pair("both tied, unrelated", 10, 20, (-2, -2), 0.1, three, 1.0, 0.0)
    yield pair("both one low, alike", 10, 100, (few(-1, 1, 10), few(-1, 1, 10)), 0.1, three, 3.0, 0.95)
    yield pair("both one low, B better", 10, 1000, (few(-1, 1, 10), few(-0.5, 1, 10)), 0.1, three, 2.0, 0.8)
    yield pair("one low, another class", 10, 1000, (few(-1, 1, 10), few(-1, 1, 10)[::-1]), 0.1, three, 2.0, 0.8)
    for runs in (three, (5, 5), (3, 1), (2, 2), (10, 3)):
        yield pair("spread, B better", 10, 1000, (spread(-0.5, 3, 10), spread(-0.2, 3, 10)), 0.1, runs, 2.0, 0.8)
    yield pair("spread, alike", 100, 100, (spread(-1, 4, 100), spread(-1, 4, 100)), 0.2, three, 2.0, 0.8)
    yield pair("runs differ much, A tied", 10, 1000, (0, spread(0, 2, 10)), 0.4, three, 2.0, 0.8)
    yield pair("near 0", 10, 100, (-5, few(-5, 0, 10)), 0.2, three, 1.0, 0.5)
    yield pair("one run against two", 10, 200, (spread(-0.5, 2, 10), spread(-0.5, 2, 10)), 0.2, (1, 2), 2.0, 0.9)


def mean_populations() -> Iterator[Population]:
    """Populations of class means and their differences; each class is a repetition."""
    for name, images, logit, run_sd, runs, image_sd in [
        ("low, few images", 10, -2.5, 0.2, 3, 1.0), ("low", 50, -4, 0.2, 3, 1.0), ("middle", 20, 0, 0.2, 3, 2.0),
        ("runs differ", 100, 0, 0.5, 3, 2.0), ("runs alike", 1000, 0, 0.02, 3, 2.0),
        ("runs differ", 1000, 0, 0.3, 5, 2.0),
        ("high", 50, 5, 0.3, 3, 1.0), ("equal images", 100, 1, 0.0, 3, 0.0), ("two runs", 100, 0, 0.3, 2, 2.0),
        ("ten runs", 100, 0, 0.3, 10, 2.0), ("images decide, runs differ", 1000, 0, 1.0, 3, 6.0),
        ("images decide, two runs", 100, 0, 1.0, 2, 6.0), ("two runs alike", 100, 0, 0.03, 2, 2.0),
        ("two runs, low", 50, -3, 0.3, 2, 1.0), ("one run", 100, -1, 0.3, 1, 1.0),
    ]:  # fmt: skip
        yield Population(name, 100, images, logit, run_sd, runs, image_sd)


def worst_class(repetitions: int) -> Iterator[Regime]:
    """Worst class over runs, new images and new runs (of one run, new images); the truth is its expectation."""
    for population in populations():
        yield _worst(population, repetitions)


def worst_class_of_unusual_runs(repetitions: int) -> Iterator[Regime]:
    """Worst class over runs whose effects are not normal, outside the assumptions; the truth is its expectation."""
    for population in stress():
        yield _worst(population, repetitions)


def _worst(population: Population, repetitions: int) -> Regime:
    truth, _ = population.truth(np.random.default_rng(11))

    def draw(rng: np.random.Generator) -> Ends:
        logits = population.logits(population.runs, rng)
        found = worst_over_seeds(population.outcomes(logits, rng), population.labels, population.classes, halvings=20)
        # With one run, the interval is for this run
        return found.low, found.high, truth if population.runs > 1 else float(population.accuracy(logits).min())

    name = f"{population.name}, {population.size}, logits {np.min(population.logit):.2f}, {np.max(population.run_sd)}"
    return simulated(name, draw, _number(repetitions, int(population.count.sum()) * population.runs))


def _number(repetitions: int, outcomes: int) -> int:
    """Repetitions of a population with this many outcomes of runs on images."""
    return max(repetitions // (5 if outcomes <= 10_000 else 20 if outcomes <= 50_000 else 50), 1)


def worst_difference(repetitions: int) -> Iterator[Regime]:
    """Difference of two worst classes over runs, new images and new runs; the truth is that of their expectations."""
    for pair in pairs():
        truths = [population.truth(np.random.default_rng(12))[0] for population in (pair.first, pair.second)]

        def draw(rng: np.random.Generator, pair: PopulationPair = pair, truths: list[float] = truths) -> Ends:
            correct, logits = pair.outcomes(rng)
            found = worst_difference_over_seeds(*correct, pair.first.labels, pair.first.classes, halvings=20)
            # A method with one run is fixed
            of_each = [
                truth if population.runs > 1 else float(population.accuracy(scores).min())
                for population, truth, scores in zip((pair.first, pair.second), truths, logits, strict=True)
            ]
            return found.low, found.high, of_each[0] - of_each[1]

        outcomes = int(pair.first.count.sum()) * (pair.first.runs + pair.second.runs)
        name = f"{pair.name}, {pair.first.size} and {pair.second.runs}, {np.max(pair.first.run_sd)}"
        yield simulated(f"{name}, {np.min(pair.first.logit):.2f}", draw, _number(repetitions, outcomes))


def class_means(repetitions: int) -> Iterator[Regime]:
    """Mean of a class over runs, new images and new runs (of one run, new images); the truth is its expectation."""
    for population in mean_populations():
        yield _of_classes(population.name + f", {population.size}", _mean_of(population), repetitions)
    for accuracy in (0.03, 0.1, 0.3, 0.97):
        for runs, images in ((2, 100), (3, 100), (3, 1000), (5, 1000), (10, 1000)):
            name = f"runs differ by 0.3 on the probit scale, {100 * accuracy:.0f} %, {images:,} images, {runs} runs"
            yield _of_classes(name, _probit_mean(accuracy, 0.3, runs, images), repetitions)


def class_means_of_very_different_runs(repetitions: int) -> Iterator[Regime]:
    """Mean of a class over runs that differ by 0.5 on the probit scale (skewed); the truth is its expectation."""
    for accuracy in (0.03, 0.1, 0.3, 0.97):
        for runs, images in ((3, 100), (3, 1000), (5, 1000), (10, 1000)):
            name = f"{100 * accuracy:.0f} %, {images:,} images, {runs} runs"
            yield _of_classes(name, _probit_mean(accuracy, 0.5, runs, images), repetitions)


Classes = Callable[[np.random.Generator], tuple[Floats, Floats, Floats]]
"""Draws 50 classes, each a repetition, and returns (C,) lower ends, upper ends and truths."""


def _of_classes(name: str, draw: Classes, repetitions: int, stream: int = 0) -> Regime:
    rng = np.random.default_rng([sum(name.encode()), stream])
    found = [draw(rng) for _ in range(max(repetitions // 50, 1))]
    low, high, truth = (np.concatenate(part) for part in zip(*found, strict=True))
    above, below = float(np.mean(low > truth + ROUNDING)), float(np.mean(high < truth - ROUNDING))
    width = float(np.median(high - low))
    return Regime(name, above, below, width, len(low), lambda more: _of_classes(name, draw, more, stream + 1))


def _mean_of(population: Population) -> Classes:
    expected = population.truth(np.random.default_rng(13))[1].mean()

    def draw(rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        logits = population.logits(population.runs, rng)
        found = mean_over_seeds(population.outcomes(logits, rng), population.labels, population.classes)
        truth = population.accuracy(logits)[0] if population.runs == 1 else np.full(population.classes, expected)
        return found.low, found.high, truth

    return draw


def _probit_mean(accuracy: float, run_sd: float, runs: int, images: int) -> Classes:
    threshold, classes = np.sqrt(2 + run_sd**2) * special.ndtri(accuracy), 50

    def draw(rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        common = rng.standard_normal(classes * images)
        effects = np.repeat(run_sd * rng.standard_normal((runs, classes)), images, axis=1)
        correct = common + effects + rng.standard_normal(effects.shape) < threshold
        found = mean_over_seeds(correct, np.repeat(np.arange(classes), images), classes)
        return found.low, found.high, np.full(classes, accuracy)

    return draw


def class_differences(repetitions: int) -> Iterator[Regime]:
    """Classes of two methods over runs; the shares are of comparisons in which an interval of any class fails."""
    for kinds, accuracies, shapes in (
        (("runs", "images"), (0.05, 0.05), ((5, 10, 30), (10, 10, 50), (10, 10, 100), (5, 100, 100))),
        (("runs", "images"), (0.95, 0.95), ((3, 10, 10), (5, 10, 100))),
        (("images", "images"), (1.0, 0.92), ((2, 10, 50), (3, 10, 50), (3, 10, 200), (3, 100, 100), (5, 10, 100))),
        (("images", "mixed"), (1.0, 0.85), ((3, 10, 50), (3, 10, 200))),
        (("mixed", "mixed"), (0.5, 0.4), ((3, 10, 100), (5, 10, 100))),
    ):
        for runs, classes, images in shapes:
            of_first, of_second = (f"{100 * accuracy:.0f} %" for accuracy in accuracies)
            decided = f"{of_first} decided by {kinds[0]}, {of_second} by {kinds[1]}"
            name = f"{decided}; {classes} classes of {images}, {runs} runs"

            def draw(
                rng: np.random.Generator,
                kinds: tuple[str, str] = kinds,
                accuracies: tuple[float, float] = accuracies,
                shape: tuple[int, int, int] = (runs, classes, images),
            ) -> Ends:
                runs, classes, images = shape
                first, second = (
                    _decided(kind, accuracy, runs, classes * images, rng)
                    for kind, accuracy in zip(kinds, accuracies, strict=True)
                )
                labels, truth = np.repeat(np.arange(classes), images), accuracies[0] - accuracies[1]
                found = difference_over_seeds(first, second, labels, classes, paired=False)
                # Any class's lower end above the truth, and any class's upper end below it
                return float(found.low.max()), float(found.high.min()), truth

            yield simulated(name, draw, max(repetitions // (5 if classes < 100 else 20), 1))
    for runs, others in ((3, 1), (3, 3), (5, 5), (2, 2)):
        name = f"runs differ, hardly images; 10 classes of 300, {runs} and {others} runs"

        def of_runs(rng: np.random.Generator, numbers: tuple[int, int] = (runs, others)) -> Ends:
            labels, sd = np.repeat(np.arange(10), 300), 0.1
            rates = [0.5 + (number > 1) * sd * rng.standard_normal((number, 10)) for number in numbers]
            first, second = (rng.random((len(rate), 3000)) < np.clip(rate, 0, 1)[:, labels] for rate in rates)
            found = difference_over_seeds(first, second, labels, 10, paired=False)
            return float(found.low.max()), float(found.high.min()), 0.0

        yield simulated(name, of_runs, max(repetitions // 5, 1))


def false_class_differences(repetitions: int) -> Iterator[Regime]:
    """Two methods of equal accuracies, one decided by runs, one by images; the share finds any significant class."""
    for runs, images in ((5, 30), (10, 30), (10, 50), (10, 100)):

        def draw(rng: np.random.Generator, runs: int = runs, images: int = images) -> Ends:
            labels = np.repeat(np.arange(10), images)
            first, second = (_decided(kind, 0.05, runs, 10 * images, rng) for kind in ("runs", "images"))
            found = difference_over_seeds(first, second, labels, 10, paired=False)
            rejected = float((found.adjusted < 0.05).any())
            return rejected, rejected, 0.0

        yield simulated(f"10 classes of {images} images at 5 %, {runs} runs", draw, max(repetitions // 5, 1))


def _decided(kind: str, accuracy: float, runs: int, images: int, rng: np.random.Generator) -> Bools:
    """Outcomes that each run draws, or that all runs share; of half of the images each if mixed."""
    own, shared = rng.random((runs, images)) < accuracy, rng.random(images) < accuracy
    common = rng.random(images) < {"runs": 0.0, "images": 1.0, "mixed": 0.5}[kind]
    return np.where(common, shared, own)


def one_run_worst_difference(repetitions: int) -> Iterator[Regime]:
    """Difference of the worst classes of two fixed models on the same new images; the truth is the expected one."""
    for classes, images in ((10, 100), (10, 20), (2, 50), (2, 3), (10, 1), (10, 3), (100, 20)):
        low, high = np.full(classes, 0.4), np.r_[0.4, np.full(classes - 1, 0.9)]
        for name, first, second in (
            ("tied and tied", low, low),
            ("tied and one low", low, high),
            ("one low and tied", high, low),
            (
                "same low class, 30 and 20 %",
                np.r_[0.3, np.full(classes - 1, 0.6)],
                np.r_[0.2, np.full(classes - 1, 0.6)],
            ),
            ("spread", np.linspace(0.2, 0.6, classes), np.linspace(0.2, 0.7, classes)),
            ("other low classes", high, high[::-1]),
            ("near 0 and near 1", np.full(classes, 0.02), np.full(classes, 0.98)),
            ("near 1", np.full(classes, 0.98), np.r_[0.93, np.full(classes - 1, 0.99)]),
        ):
            for shared in (0.0, 0.9) if images == 100 or classes == 2 else (0.9,):
                yield _one_run(name, first, second, images, shared, 0.05, max(repetitions // 20, 1))
    low, high = np.full(1000, 0.4), np.r_[0.4, np.full(999, 0.9)]
    yield _one_run("tied and one low", low, high, 10, 0.9, 0.05, max(repetitions // 100, 1))
    for classes, images in ((2, 100), (10, 100)):
        thirty, twenty = (np.r_[rate, np.full(classes - 1, 0.6)] for rate in (0.3, 0.2))
        for shared in (0.0, 0.9):
            number = max(repetitions // 5, 1)
            yield _one_run("same low class, 30 and 20 %", thirty, twenty, images, shared, 0.05 / 60, number)


def _one_run(
    name: str, first: Floats, second: Floats, images: int, shared: float, alpha: float, repetitions: int
) -> Regime:
    classes = len(first)
    labels, truth = np.repeat(np.arange(classes), images), float(first.min() - second.min())

    def draw(rng: np.random.Generator) -> Ends:
        draws = rng.random(len(labels))
        others = np.where(rng.random(len(labels)) < shared, draws, rng.random(len(labels)))
        pairs = PairedCounts.from_labels(labels, draws < first[labels], others < second[labels], classes)
        found = difference_of_minima(pairs, alpha)
        return found.low, found.high, truth

    level = "" if alpha == 0.05 else f", level {alpha:.5f}"
    size = f"{classes:,} classes of {images}, {100 * shared:.0f} % of the draws shared"
    return simulated(f"{name}, {size}{level}", draw, repetitions)
