"""Two methods on the same images: differences of accuracies with intervals and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from classwise.stats.counts import BoolArray, IntArray, PairedCounts
from classwise.stats.intervals import Estimate
from classwise.stats.paired import class_differences, difference_of_minima, overall_difference
from classwise.stats.seeds import OverSeeds, difference_over_seeds, worst_difference_over_seeds


@dataclass(frozen=True)
class Pair:
    """Two methods on the same images, first minus second, over all training seeds of both.

    Attributes:
        first: name of the first method.
        second: name of the second method.
        classes: a row for each class: ``n``, ``difference``, ``low``, ``high``, and ``adjusted``, the p-value.
            Intervals and p-values are simultaneous over the classes (Sidak): an interval excludes 0 exactly if the
            p-value is below alpha.
        overall: the difference of the overall accuracies with its interval.
        p_value: of no difference over all images, below alpha exactly if ``overall`` excludes 0; not adjusted for the
            number of comparisons.
        minima: the difference of the worst-class accuracies with its interval; over several seeds, that of the mean
            worst-class accuracies of the runs, which are not paired by seed.
        narrower: what would narrow the interval of ``minima`` most: more ``images``, or more ``runs``.
        seeds: number of runs of each method.
        paired_by_seed: whether accuracies are compared seed by seed, which requires the same known seeds in both
            methods. Images are always paired.
    """

    first: str
    second: str
    classes: pd.DataFrame
    overall: Estimate
    p_value: float
    minima: Estimate
    narrower: Literal["images", "runs"]
    seeds: tuple[int, int]
    paired_by_seed: bool

    @property
    def test(self) -> str:
        """The test behind the p-values, in words."""
        if self.seeds == (1, 1):
            return "McNemar test"
        how = "paired by seed" if self.paired_by_seed else "not paired"
        return f"t test over seeds and images, {how}"

    @property
    def population(self) -> str:
        """The population of intervals and p-values, in words."""
        return population({self.first: self.seeds[0], self.second: self.seeds[1]})


def narrowing(seeds: Sequence[int], narrower: str) -> str:
    """What would narrow an interval of a worst-class accuracy over runs, or of a difference, in words.

    Args:
        seeds: number of runs of each method that the interval is about.
        narrower: see `classwise.stats.seeds.OverSeeds`.
    """
    if 2 in seeds:
        return "with two runs it is valid but wide; three or more are needed"
    if max(seeds) == 1:
        return "more images would narrow it; new training seeds are not covered"
    return f"more {narrower} would narrow it most"


def narrowing_notes(table: pd.DataFrame) -> list[str]:
    """A sentence on the worst-class intervals of methods with equal advice; none if every method has one run.

    Args:
        table: of `classwise.auditing.compare.comparison.Comparison`.
    """
    methods: dict[str, list[str]] = {}
    for name, row in table.iterrows():
        methods.setdefault(narrowing([int(row["seeds"])], row["worst_narrower"]), []).append(str(name))
    several = (table["seeds"] > 1).any()
    return [f"Worst-class interval of {', '.join(names)}: {advice}." for advice, names in methods.items() if several]


def population(seeds: Mapping[str, int]) -> str:
    """The population of differences between methods, in words, by the number of training seeds of each."""
    single = [name for name, number in seeds.items() if number == 1]
    if len(single) == len(seeds):
        whose = "of each method" if len(seeds) > 1 else ""
        return f"one training run {whose}".strip() + ": intervals cover new images, not new training seeds"
    if not single:
        return "intervals cover new images and new training seeds"
    names = " and ".join(single)
    others = " and ".join(name for name in seeds if name not in single)
    verb = "is one training" if len(single) == 1 else "are one training each"
    return f"intervals cover new images and new training seeds of {others}; {names} {verb}"


def pair_of(
    names: tuple[str, str],
    correct: tuple[BoolArray, BoolArray],
    labels: IntArray,
    classes: pd.Index,
    alpha: float,
    *,
    paired: bool,
) -> Pair:
    """Compare two methods; see `classwise.auditing.compare.comparison.Comparison.pair`.

    Args:
        names: of the methods.
        correct: (seeds, N) for each method: which images are classified correctly.
        labels: (N,) labels, or groups.
        classes: names of the classes, or groups.
        alpha: 1 minus the coverage of the intervals.
        paired: whether the runs of both methods are in the order of the same seeds.
    """
    first, second = correct
    count, zeros = len(classes), np.zeros_like(labels)
    differences: Any
    of_images: Any
    minima: OverSeeds
    if len(first) == len(second) == 1:
        cells = PairedCounts.from_labels(labels, first[0], second[0], count)
        differences, of_images = class_differences(cells, alpha), overall_difference(cells, alpha)
        minima = OverSeeds(*difference_of_minima(cells, alpha), "images")
    else:
        differences = difference_over_seeds(first, second, labels, count, alpha, paired=paired)
        of_images = difference_over_seeds(first, second, zeros, 1, alpha, paired=paired)
        minima = worst_difference_over_seeds(first, second, labels, count, alpha)
    frame = pd.DataFrame(
        {
            "n": np.bincount(labels, minlength=count),
            "difference": differences.difference,
            "low": differences.low,
            "high": differences.high,
            "adjusted": differences.adjusted,
        },
        index=classes,
    )
    overall = Estimate(float(of_images.difference[0]), float(of_images.low[0]), float(of_images.high[0]))
    seeds = (len(first), len(second))
    worst = Estimate(*minima[:3])
    p_value = float(of_images.p_value[0])
    return Pair(*names, frame[frame["n"] > 0], overall, p_value, worst, minima.narrower, seeds, paired)
