"""Coverage and width of the intervals over training seeds, simulated: worst class, its differences, and class means.

Run s is correct on image i of class c with probability expit(logit_c + run_sd_c e_sc + image_sd z_i). The effects e_sc
of runs are normal, with a correlation between the classes of a run; the difficulty z_i of an image is common to all
runs. The expected worst-class accuracy of a new run is integrated over 60,000 simulated runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from benchmarks.tables import table
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Estimate, lowest_interval, score_interval
from classwise.stats.resampling import resampled_accuracies
from classwise.stats.seeds import (
    difference_over_seeds,
    mean_over_seeds,
    worst_difference_over_seeds,
    worst_over_seeds,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

REPETITIONS = ((10_000, 2000), (35_000, 1000), (100_000, 400), (400_000, 150), (10**9, 60))
"""Repetitions of regimes with up to this many outcomes of runs on images."""
FORMER_REPETITIONS, FORMER_RESAMPLES = 200, 200
TRUTH_RUNS = 60_000
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
GRID = np.linspace(-16, 16, 3201)


@dataclass(frozen=True)
class Regime:
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


def regimes() -> Iterator[Regime]:
    """Regimes of one method: first those in which the former interval was examined, then further ones."""
    for classes, images, logit, run_sd, runs in [
        (2, 10, -2, 0.2, 3), (4, 50, -3, 0.2, 3), (4, 50, -3, 0.2, 5), (10, 10, -2, 0.2, 3), (10, 20, -2, 0.2, 3),
        (10, 50, -3, 0.2, 3), (10, 100, -3, 0.2, 3), (10, 100, -3.5, 0.2, 3), (10, 100, -2, 0.2, 10),
        (20, 20, -2, 0.2, 3), (20, 50, -3, 0.5, 5), (100, 10, -2, 0.2, 3), (100, 50, -3, 0.2, 3), (2, 50, -3, 0, 3),
        (10, 100, -2, 0.2, 2), (10, 100, -3, 0.2, 1),
    ]:  # fmt: skip
        yield Regime("tied low", classes, images, logit, run_sd, runs)
    for classes, images, run_sd, runs in [
        (2, 1000, 0.1, 3), (4, 100, 0.1, 3), (10, 1000, 0.05, 3), (10, 1000, 0.3, 3), (10, 1000, 0.3, 5),
        (4, 1000, 0.3, 5), (10, 100, 0.3, 10), (20, 1000, 0.1, 3), (100, 100, 0.1, 3),
    ]:  # fmt: skip
        yield Regime("tied at 50 %", classes, images, 0, run_sd, runs, 2.0)
    for classes, images, accuracy in [(10, 100, 0.97), (10, 20, 0.95), (2, 50, 0.995), (100, 50, 0.95)]:
        yield Regime("tied high", classes, images, logit_of(accuracy, 2), 0.2, 3, 2.0)
    yield Regime("one low", 10, 100, few(-1, 1, 10), 0.1, 3)
    yield Regime("one low", 10, 20, few(-2, 0, 10), 0.2, 3)
    yield Regime("one low", 100, 100, few(-2, 1, 100), 0.1, 3)
    yield Regime("one near 0", 10, 100, few(-4, 1, 10), 0.2, 3)
    yield Regime("one low by 4 s.e.", 100, 50, few(logit_of(0.3, 2), logit_of(0.56, 2), 100), 0.05, 3, 2.0)
    yield Regime("one low by 4 s.e.", 10, 1000, few(logit_of(0.4, 2), logit_of(0.46, 2), 10), 0.03, 3, 2.0)
    yield Regime("one low by 2 s.e.", 4, 100, few(logit_of(0.4, 2), logit_of(0.5, 2), 4), 0.1, 5, 2.0)
    yield Regime("one low", 4, 1000, few(-1, 1, 4), 0.3, 2, 2.0)
    for runs in (1, 2, 3, 5, 10):
        yield Regime("spread", 10, 1000, spread(-0.5, 3, 10), 0.1, runs, 2.0)
    yield Regime("spread", 10, 100, spread(-1, 3, 10), 0.2, 3)
    yield Regime("spread", 20, 50, spread(-1, 3, 20), 0.2, 3)
    yield Regime("spread", 100, 100, spread(-1, 4, 100), 0.2, 1, 2.0)
    yield Regime("spread", 100, 100, spread(-1, 4, 100), 0.2, 3, 2.0)
    yield Regime("spread", 100, 100, spread(-1, 4, 100), 0.2, 5, 4.0)
    yield Regime("spread", 100, 1000, spread(-1, 4, 100), 0.1, 3, 2.0)
    yield Regime("spread", 1000, 50, spread(-1, 6, 1000), 0.2, 3, 2.0)
    yield Regime("runs differ in one class", 4, 100, 0, few(0.8, 0.05, 4), 3, 2.0)
    yield Regime("runs differ in one class", 10, 1000, 0, few(0.5, 0.05, 10), 3, 2.0)
    yield Regime("runs differ in one class", 10, 1000, 0, few(0.5, 0.05, 10), 5, 2.0)
    yield Regime("unequal effects of runs", 10, 100, spread(-0.5, 1, 10), spread(0.6, 0, 10), 3, 2.0)
    yield Regime("correlated runs", 10, 1000, spread(-0.5, 3, 10), 0.3, 3, 2.0, 0.8)
    yield Regime("correlated runs, tied", 10, 100, -1, 0.4, 5, 2.0, 0.9)
    yield Regime("images decide, tied", 10, 100, 0, 0.1, 3, 6.0)
    yield Regime("images decide, one low", 4, 100, few(-3, 3, 4), 0.2, 10, 6.0)
    yield Regime("equal images, tied", 10, 100, 0, 0.05, 3, 0.0)
    yield Regime("equal images, spread", 10, 1000, spread(-0.5, 2, 10), 0.05, 10, 0.0)
    yield Regime("unequal sizes, tied", 10, LADDER, -1, 0.2, 3, 2.0)
    yield Regime("unequal sizes, smallest low", 10, LADDER, few(-1, 1, 10), 0.2, 3, 2.0)
    # Further regimes that try to break the interval
    for runs in (2, 3, 5, 10):
        yield Regime("two tied, runs differ much", 2, 200, -1, 1.0, runs)
        yield Regime("tied low, 10 images", 100, 10, -3, 0.3, runs)
    yield Regime("tied low", 1000, 10, -2, 0.2, 3)
    yield Regime("tied high, 20 images", 1000, 20, logit_of(0.95, 1), 0.2, 3)
    yield Regime("half tied low", 100, 50, few(-2, 1, 100, 50), 0.2, 3)
    yield Regime("two low by 1 s.e.", 10, 400, np.r_[-0.2, 0.0, np.full(8, 1.5)], 0.1, 3, 2.0)
    yield Regime("two low by 1 s.e.", 10, 400, np.r_[-0.2, 0.0, np.full(8, 1.5)], 0.1, 5, 2.0)
    yield Regime("unequal sizes, largest low", 10, LADDER, few(-1, 1, 10)[::-1], 0.2, 3, 2.0)
    yield Regime("unequal sizes, small ones high", 10, LADDER, spread(3, -1, 10), 0.2, 5, 2.0)
    yield Regime("few images in one class", 10, few(3, 300, 10).astype(int), 0, 0.2, 3, 2.0)
    yield Regime("few images in the low class", 10, few(12, 300, 10).astype(int), few(-1, 1, 10), 0.3, 5, 2.0)
    yield Regime("near 0", 10, 100, -6, 0.3, 3)
    yield Regime("near 0", 20, 500, -6, 0.3, 5)
    yield Regime("near 1", 10, 500, 7, 0.3, 3)
    yield Regime("correlated runs, one low", 10, 500, few(-1, 1, 10), 0.6, 3, 2.0, 0.95)
    yield Regime("correlated runs, one low", 10, 500, few(-1, 1, 10), 0.6, 10, 2.0, 0.95)
    yield Regime("negligible images, runs differ", 4, 1000, 0, 0.5, 3, 0.0)
    yield Regime("equal runs", 10, 300, spread(-1, 1, 10), 0.0, 5, 3.0)
    yield Regime("one class varies below the others", 10, 1000, few(0.3, 0.0, 10), few(1.0, 0.02, 10), 5, 2.0)
    yield Regime("same predictions in all runs", 10, 100, 0, 0.0, 3, 60.0)
    yield Regime("one class", 1, 200, 0, 0.2, 3, 2.0)
    yield Regime("one class", 1, 30, -2, 0.4, 5)


def stress() -> Iterator[Regime]:
    """Regimes outside the assumptions: effects of runs that are not normal."""
    for law in ("t4", "rare bad runs"):
        for runs in (3, 5):
            yield Regime(f"effects of runs: {law}", 10, 1000, spread(-0.5, 3, 10), 0.3, runs, 2.0, law=law)


class Pair(NamedTuple):
    """Two methods on the same images; ``likeness`` is the correlation of an image's difficulty for both."""

    name: str
    first: Regime
    second: Regime
    likeness: float


def pairs() -> Iterator[Pair]:
    """Regimes of a difference of two methods."""

    def pair(
        name: str, classes: int, images: int, logits: tuple[ArrayLike, ArrayLike], run_sd: float,
        runs: tuple[int, int], image_sd: float, likeness: float,
    ) -> Pair:  # fmt: skip
        first, second = (
            Regime(name, classes, images, logit, run_sd, number, image_sd)
            for logit, number in zip(logits, runs, strict=True)
        )
        return Pair(name, first, second, likeness)

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


def mean_regimes() -> Iterator[Regime]:
    """Regimes of class means and their differences; each class is a repetition."""
    for name, images, logit, run_sd, runs, image_sd in [
        ("low, few images", 10, -2.5, 0.2, 3, 1.0), ("low", 50, -4, 0.2, 3, 1.0), ("middle", 20, 0, 0.2, 3, 2.0),
        ("runs differ", 100, 0, 0.5, 3, 2.0), ("runs alike", 1000, 0, 0.02, 3, 2.0),
        ("runs differ", 1000, 0, 0.3, 5, 2.0),
        ("high", 50, 5, 0.3, 3, 1.0), ("equal images", 100, 1, 0.0, 3, 0.0), ("two runs", 100, 0, 0.3, 2, 2.0),
        ("ten runs", 100, 0, 0.3, 10, 2.0), ("images decide, runs differ", 1000, 0, 1.0, 3, 6.0),
        ("images decide, two runs", 100, 0, 1.0, 2, 6.0), ("two runs alike", 100, 0, 0.03, 2, 2.0),
        ("two runs, low", 50, -3, 0.3, 2, 1.0), ("one run", 100, -1, 0.3, 1, 1.0),
    ]:  # fmt: skip
        yield Regime(name, 100, images, logit, run_sd, runs, image_sd)


def former_worst(correct: Bools, labels: NDArray[np.int64], classes: int) -> Estimate:
    """The interval up to November 2026: a bootstrap of seeds and images, as value +- the larger distance."""
    if len(correct) == 1:
        counts = ClassCounts.from_labels(labels, correct[0], classes)
        return Estimate(float(counts.accuracy.min()), *lowest_interval(counts))
    runs, count = len(correct), np.bincount(labels, minlength=classes)
    drawn = resampled_accuracies(correct, labels, classes, resamples=FORMER_RESAMPLES, seed=0)
    minima = np.nanmin(drawn, axis=2)
    chosen = np.random.default_rng((0, runs)).integers(runs, size=(FORMER_RESAMPLES, runs))
    values = np.take_along_axis(minima, chosen, axis=1).mean(axis=1)
    accuracy = np.stack([np.bincount(labels, weights=run, minlength=classes) / count for run in correct])
    value = float(accuracy.min(axis=1).mean())
    low, high = np.quantile(values, (0.025, 0.975))
    if max(abs(low - value), abs(high - value)) < 1e-13:
        return Estimate(value, *(float(end) for end in score_interval(value, count.min(), 1.96)))
    reach = float(max(value - low, high - value)) * np.sqrt(runs / (runs - 1))
    return Estimate(value, max(value - reach, 0.0), min(value + reach, 1.0))


@dataclass
class Tally:
    """The ends of an interval in all repetitions, and the truth in each."""

    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    truth: list[float] = field(default_factory=list)

    def add(self, ends: tuple[float, float], truth: float) -> None:
        self.low.append(ends[0])
        self.high.append(ends[1])
        self.truth.append(truth)

    @property
    def above(self) -> float:
        """Share of repetitions whose lower end is too high."""
        return float(np.mean(np.array(self.low) > np.array(self.truth) + 1e-12))

    @property
    def below(self) -> float:
        """Share of repetitions whose upper end is too low."""
        return float(np.mean(np.array(self.high) < np.array(self.truth) - 1e-12))

    @property
    def coverage(self) -> float:
        return 1 - self.above - self.below

    @property
    def width(self) -> float:
        """Median width."""
        return float(np.median(np.array(self.high) - np.array(self.low)))


class Row(NamedTuple):
    """A regime with the tallies of the interval and of the former one."""

    regime: Regime
    truth: float
    found: Tally
    former: Tally


def repetitions(regime: Regime, *, quick: bool) -> int:
    outcomes = int(regime.count.sum()) * regime.runs
    number = next(number for most, number in REPETITIONS if outcomes <= most)
    return number // 50 if quick else number


def worst_row(regime: Regime, number: int, *, quick: bool) -> Row:
    """Simulate a regime; its random numbers depend on ``number`` only."""
    rng = np.random.default_rng((11, number))
    truth, _ = regime.truth(rng)
    found, former = Tally(), Tally()
    for repetition in range(repetitions(regime, quick=quick)):
        logits = regime.logits(regime.runs, rng)
        correct = regime.outcomes(logits, rng)
        # With one run, the interval is for this run
        target = truth if regime.runs > 1 else float(regime.accuracy(logits).min())
        found.add(worst_over_seeds(correct, regime.labels, regime.classes)[1:3], target)
        if repetition < FORMER_REPETITIONS:
            former.add(former_worst(correct, regime.labels, regime.classes)[1:], target)
    return Row(regime, truth, found, former)


def worst_cells(row: Row) -> list[str]:
    ratio = row.found.width / row.former.width if row.former.width else float("nan")
    return [
        row.regime.name,
        row.regime.size,
        f"{100 * row.truth:.1f}",
        f"{len(row.found.low):,}",
        _coverage(row.found),
        f"{100 * row.found.width:.1f}",
        _coverage(row.former),
        f"{ratio:.2f}",
    ]


def _coverage(tally: Tally) -> str:
    return f"{100 * tally.coverage:.1f} ({100 * tally.above:.1f}, {100 * tally.below:.1f})"


def ratios_by_runs(rows: Sequence[Row]) -> list[list[str]]:
    """Width ratios by number of runs, where the former interval covers."""
    cells = []
    for runs in sorted({row.regime.runs for row in rows}):
        covered = [row for row in rows if row.regime.runs == runs and row.former.coverage >= 0.94]
        if covered:
            ratios = [row.found.width / row.former.width for row in covered]
            every = [row.found.coverage for row in rows if row.regime.runs == runs]
            text = f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            cells.append([str(runs), str(len(every)), f"{100 * min(every):.1f}", str(len(covered)), text])
    return cells


def pair_cells(pair: Pair, number: int, *, quick: bool) -> list[str]:
    rng = np.random.default_rng((12, number))
    a, b = pair.first, pair.second
    (truth_a, _), (truth_b, _) = a.truth(rng), b.truth(rng)
    unpaired, paired = Tally(), Tally()
    bigger = replace(a, runs=a.runs + b.runs)
    for _ in range(repetitions(bigger, quick=quick)):
        z = rng.standard_normal(len(a.labels))
        other = pair.likeness * z + np.sqrt(1 - pair.likeness**2) * rng.standard_normal(len(z))
        logits = [method.logits(method.runs, rng) for method in (a, b)]
        # A method with one run is fixed
        fixed = [float(method.accuracy(scores).min()) for method, scores in zip((a, b), logits, strict=True)]
        target = (truth_a if a.runs > 1 else fixed[0]) - (truth_b if b.runs > 1 else fixed[1])
        correct = a.outcomes(logits[0], rng, z), b.outcomes(logits[1], rng, other)
        unpaired.add(worst_difference_over_seeds(*correct, a.labels, a.classes)[1:3], target)
        if a.runs == b.runs:
            paired.add(worst_difference_over_seeds(*correct, a.labels, a.classes, paired=True)[1:3], target)
    size = f"{a.size} and {b.runs}"
    cells = [pair.name, size, f"{100 * (truth_a - truth_b):.1f}", f"{len(unpaired.low):,}"]
    cells += [_coverage(unpaired), f"{100 * unpaired.width:.1f}"]
    return cells + ([_coverage(paired), f"{100 * paired.width:.1f}"] if paired.low else ["", ""])


def mean_cells(regime: Regime, number: int, *, quick: bool) -> list[str]:
    rng = np.random.default_rng((13, number))
    other = replace(regime, logit=np.asarray(regime.logit) + 0.3)
    truths = [method.truth(rng)[1].mean() for method in (regime, other)]
    mean, difference, rejected = Tally(), Tally(), 0
    labels, classes = regime.labels, regime.classes
    for _ in range(2 if quick else 20):
        z = rng.standard_normal(len(labels))
        logits = [method.logits(method.runs, rng) for method in (regime, other)]
        first, second = regime.outcomes(logits[0], rng, z), other.outcomes(logits[1], rng, z)
        of_run = regime.accuracy(logits[0])[0]
        found = mean_over_seeds(first, labels, classes)
        for label in range(classes):
            target = truths[0] if regime.runs > 1 else of_run[label]
            mean.add((found.low[label], found.high[label]), target)
        if regime.runs > 1:
            same = regime.outcomes(regime.logits(regime.runs, rng), rng, z)
            rejected += int((difference_over_seeds(first, same, labels, classes, paired=False).p_value < 0.05).sum())
            for label in range(classes):  # each class alone, so that the interval is not simultaneous
                mine = labels == label
                runs = first[:, mine], second[:, mine]
                one = difference_over_seeds(*runs, np.zeros(mine.sum(), np.int64), 1, paired=False)
                difference.add((float(one.low[0]), float(one.high[0])), truths[0] - truths[1])
    cells = [regime.name, f"{int(regime.count[0]):,}, {regime.runs}", f"{100 * truths[0]:.1f}", f"{len(mean.low):,}"]
    cells += [_coverage(mean), f"{100 * mean.width:.1f}"]
    if not difference.low:
        return [*cells, "", "", ""]
    return [*cells, _coverage(difference), f"{100 * difference.width:.1f}", f"{100 * rejected / len(mean.low):.1f}"]


def tables(*, quick: bool) -> str:
    """Tables of the coverage and the median width of all intervals over seeds."""
    inside, outside = list(regimes()), list(stress())
    rows = [worst_row(regime, number, quick=quick) for number, regime in enumerate([*inside, *outside])]
    within = rows[: len(inside)]
    covered = "coverage (low end too high, high end too low)"
    heads = ["regime", "classes, images per class, runs", "truth", "repetitions", covered, "median width"]
    heads += ["former: coverage", "new/former width"]
    by_runs = [
        "runs",
        "regimes",
        "least coverage",
        "regimes where the former interval covers 94 %",
        "new/former width there",
    ]
    differences = [pair_cells(pair, number, quick=quick) for number, pair in enumerate(pairs())]
    means = [mean_cells(regime, number, quick=quick) for number, regime in enumerate(mean_regimes())]
    return "\n".join(
        [
            table("Worst class over runs: by the number of runs (percent)", by_runs, ratios_by_runs(within)),
            table("Worst class over runs: each regime (percent, points)", heads, [worst_cells(row) for row in within]),
            table(
                "Worst class over runs: outside the assumptions (percent, points)",
                heads,
                [worst_cells(row) for row in rows[len(inside) :]],
            ),
            table(
                "Difference of worst classes over runs (percent, points)",
                [*heads[:6], "paired by seed: coverage", "median width"],
                differences,
            ),
            table(
                "Class means over runs, and their differences (percent, points)",
                [
                    *("regime", "images per class, runs", "truth", "repetitions", covered, "median width"),
                    *("difference: coverage", "median width", "equal methods: p below 0.05"),
                ],
                means,
            ),
        ]
    )
