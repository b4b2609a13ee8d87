"""Coverage of the intervals of proportions, of class accuracies and of metrics of all classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from benchmarks.coverage.base import Regime, simulated
from classwise.analysis.spread import spread_of
from classwise.analysis.sweep import Sweep
from classwise.stats import function_intervals
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Estimate, class_intervals, proportion_interval
from classwise.stats.metrics import hmw
from classwise.stats.metrics.asymmetry import asymmetry_estimate
from classwise.stats.metrics.averages import overall_estimate
from classwise.stats.metrics.discrepancy import mcd_estimate
from classwise.stats.metrics.harmonic import hmw_estimate, nrr_estimate
from classwise.stats.metrics.lowest import best_estimate, worst20_estimate
from classwise.stats.metrics.targets import target_share_estimate
from classwise.stats.metrics.variance import cv_estimate
from classwise.stats.worst_class import possibly_worst

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Counts = Callable[[ClassCounts], float]
NOTHING = (0.0, 0.0, 0.0)
REJECTED = (1.0, 1.0, 0.0)


def proportions(repetitions: int) -> Iterator[Regime]:
    """Images of one class; truth: the accuracy at which the interval fails most (exact, for every accuracy)."""
    del repetitions
    for images in (1, 2, 5, 10, 30, 100, 201, 300, 1000, 1896, 5000, 10_000):
        every = np.arange(images + 1)
        low, high = proportion_interval(every, np.full(images + 1, images))
        # The coverage is least just outside an end of an interval.
        truth = np.concatenate([low[1:] * (1 - 1e-12), high[:-1] * (1 + 1e-12)])
        first, last = np.searchsorted(high, truth), np.searchsorted(low, truth, side="right") - 1
        below = special.bdtr(np.maximum(first - 1, 0), images, truth) * (first > 0)
        above = special.bdtrc(last, images, truth) * (last < images)
        worst = int(np.argmax(below + above))
        yield Regime(f"{images} images", float(above[worst]), float(below[worst]), float(np.median(high - low)), 0)


def simultaneous_classes(repetitions: int) -> Iterator[Regime]:
    """Classes of 92 to 99.6 % accuracy; truth: all accuracies, of which each interval contains its own (exact)."""
    del repetitions
    for classes, images in product((10, 100, 200, 1000), (50, 100, 1000)):
        every = np.arange(images + 1)
        spare = ClassCounts(np.full(classes, images), np.zeros(classes, dtype=np.int64))
        least, width = 1.0, float("nan")
        for accuracy in (0.92, 0.96, 0.98, 0.99, 0.996):
            low = np.empty(images + 1)
            high = np.empty(images + 1)
            for first in range(0, images + 1, classes):
                part = every[first : first + classes]
                ends = class_intervals(ClassCounts(spare.count, np.resize(part, classes)), simultaneous=True)
                low[part], high[part] = ends.low[: len(part)], ends.high[: len(part)]
            covered = (low <= accuracy) & (accuracy <= high)
            mass = np.exp(special.xlogy(every, accuracy) + special.xlog1py(images - every, -accuracy))
            joint = float((special.binom(images, every) * mass)[covered].sum()) ** classes
            if joint < least:
                least, width = joint, float(np.median((high - low)[every > 0.9 * images]))
        yield Regime(f"{classes} classes of {images} images", 1 - least, 0.0, width, 0)


def _accuracies(classes: int) -> Mapping[str, Floats]:
    place = np.arange(classes)
    return {
        "all 2 %": np.full(classes, 0.02),
        "all 30 %": np.full(classes, 0.3),
        "all 50 %": np.full(classes, 0.5),
        "all 98 %": np.full(classes, 0.98),
        "10 to 90 %": np.linspace(0.1, 0.9, classes),
        "one 20 %, others 80 %": np.where(place < 1, 0.2, 0.8),
        "half 0 %, half 100 %": np.where(place < classes / 2, 0.0, 1.0),
    }


def _sizes(classes: int) -> Mapping[str, Ints]:
    place = np.arange(classes)
    tail = np.geomspace(2, 1000, classes).round().astype(np.int64)
    equal = {f"{images} images": np.full(classes, images) for images in (1, 2, 3, 5, 10, 100, 1000)}
    return equal | {"1 or 50 images": np.where(place % 2, 50, 1), "2 to 1,000 images": tail}


def _of_counts(
    interval: Callable[[ClassCounts], Estimate], truth: Callable[[Floats, Ints], float], repetitions: int
) -> Iterator[Regime]:
    for classes in (2, 3, 10, 100):
        for (size, images), (law, accuracy) in product(_sizes(classes).items(), _accuracies(classes).items()):

            def draw(
                rng: np.random.Generator, images: Ints = images, accuracy: Floats = accuracy
            ) -> tuple[float, float, float]:
                found = interval(ClassCounts(images, rng.binomial(images, accuracy)))
                return found.low, found.high, truth(accuracy, images)

            yield simulated(f"{classes} classes, {size}, {law}", draw, max(repetitions // 2, 1))


def overall_accuracy(repetitions: int) -> Iterator[Regime]:
    """Classes of equal or unequal sizes and accuracies; truth: the accuracy over images."""
    yield from _of_counts(overall_estimate, lambda p, n: float((p * n).sum() / n.sum()), repetitions)


def class_variance(repetitions: int) -> Iterator[Regime]:
    """Classes of equal or unequal sizes and accuracies; truth: the variance of the true class accuracies (CV)."""
    yield from _of_counts(cv_estimate, lambda p, _: float(p.var()), repetitions)


def discrepancy(repetitions: int) -> Iterator[Regime]:
    """Classes of equal or unequal sizes and accuracies; truth: highest minus lowest true class accuracy (MCD)."""
    yield from _of_counts(mcd_estimate, lambda p, _: float(np.ptp(p)), repetitions)


def best_class(repetitions: int) -> Iterator[Regime]:
    """Classes of equal or unequal sizes and accuracies; truth: the highest true class accuracy."""
    yield from _of_counts(best_estimate, lambda p, _: float(p.max()), repetitions)


def worst_fifth(repetitions: int) -> Iterator[Regime]:
    """Classes of equal or unequal sizes and accuracies; truth: the mean of the lowest fifth of the accuracies."""
    yield from _of_counts(worst20_estimate, lambda p, _: float(np.sort(p)[: -(-len(p) // 5)].mean()), repetitions)


def overall_and_worst(repetitions: int) -> Iterator[Regime]:
    """Classes of equal or unequal sizes and accuracies; truth: HMW of the true accuracies."""
    yield from _of_counts(
        hmw_estimate,
        lambda p, n: hmw(float((p * n).sum() / n.sum()), float(p.min())),
        repetitions,
    )


def clean_and_robust(repetitions: int) -> Iterator[Regime]:
    """Images with a clean and a robust outcome, robust only if clean; truth: NRR of the true accuracies."""
    for images, (clean, robust) in product(
        (1, 2, 5, 20, 100, 1000), ((0.99, 0.01), (0.99, 0.97), (0.9, 0.5), (0.5, 0.02), (0.02, 0.01), (0.7, 0.7))
    ):

        def draw(
            rng: np.random.Generator, images: int = images, clean: float = clean, robust: float = robust
        ) -> tuple[float, float, float]:
            right = rng.binomial(images, clean)
            still = rng.binomial(right, robust / clean)
            first, second = (ClassCounts(np.array([images]), np.array([number])) for number in (right, still))
            found = nrr_estimate(first, second)
            return found.low, found.high, 2 * clean * robust / (clean + robust)

        yield simulated(f"{images} images, clean {clean:.0%}, robust {robust:.0%}", draw, repetitions)


def _matrices(classes: int) -> Mapping[str, Floats]:
    tied = np.full((classes, classes), 0.3 / (classes - 1))
    np.fill_diagonal(tied, 0.7)
    rare = np.full((classes, classes), 0.03 / (classes - 1))
    np.fill_diagonal(rare, 0.97)
    one = tied.copy()
    one[0] = 0.05 / (classes - 1)
    one[0, :2] = 0.1, 0.85 + 0.05 / (classes - 1)
    one[0] /= one[0].sum()
    return {"all errors tie": tied, "rare errors tie": rare, "one frequent confusion": one}


def _of_matrices(
    interval: Callable[[Ints], Estimate], truth: Callable[[Floats], float], images: tuple[int, ...], repetitions: int
) -> Iterator[Regime]:
    for classes, size in product((2, 5, 10, 30), images):
        for law, rates in _matrices(classes).items():

            def draw(rng: np.random.Generator, rates: Floats = rates, size: int = size) -> tuple[float, float, float]:
                found = interval(rng.multinomial(size, rates))
                if np.isnan(found.low):
                    return NOTHING
                return found.low, found.high, truth(rates)

            yield simulated(f"{classes} classes of {size} images, {law}", draw, max(repetitions // 4, 1))


def asymmetry(repetitions: int) -> Iterator[Regime]:
    """Confusions of classes; truth: the largest abs(C_ij - C_ji)."""
    yield from _of_matrices(
        asymmetry_estimate, lambda rates: float(np.abs(rates - rates.T).max()), (1, 2, 5, 20, 100), repetitions
    )


def target_share(repetitions: int) -> Iterator[Regime]:
    """Confusions of classes; truth: the largest share of the errors that are predicted as one class."""

    def truth(rates: Floats) -> float:
        errors = rates.sum(axis=0) - rates.diagonal()
        return float(errors.max() / errors.sum())

    yield from _of_matrices(target_share_estimate, truth, (1, 2, 5, 20, 100), repetitions)


def changes_between_runs(repetitions: int) -> Iterator[Regime]:
    """A class of two runs with their own images; truth: the difference of the accuracies."""
    for images, (first, second) in product(
        ((1, 1), (2, 2), (5, 5), (20, 20), (200, 200), (10, 1000)),
        ((0.02, 0.02), (0.5, 0.5), (0.98, 0.98), (0.02, 0.98), (0.3, 0.6), (0.0, 1.0)),
    ):

        def draw(
            rng: np.random.Generator,
            images: tuple[int, int] = images,
            truth: tuple[float, float] = (first, second),
        ) -> tuple[float, float, float]:
            right = rng.binomial(images, truth) / images
            rows = pd.DataFrame({"value": [1.0, 2.0], "kind": "last", "class": "all", "n": images, "accuracy": right})
            found = Sweep("beta", "robust", rows).change(1.0, 2.0, "last").to_dict("index")["all"]
            return float(found["low"]), float(found["high"]), truth[1] - truth[0]

        name = f"{images[0]} and {images[1]} images, {first:.0%} and {second:.0%}"
        yield simulated(name, draw, max(repetitions // 4, 1))


def histogram_of_classes(repetitions: int) -> Iterator[Regime]:
    """Classes that tie, or not; truth: the number of true class accuracies in the bin where most are."""
    for classes, images in product((2, 10, 100), (2, 20, 100, 1000)):
        for law, accuracy in _accuracies(classes).items():
            edges = np.ceil(accuracy * 10 - 1e-9).astype(np.int64).clip(1, 10) - 1
            true = np.bincount(edges, minlength=10)

            def draw(
                rng: np.random.Generator,
                images: int = images,
                accuracy: Floats = accuracy,
                true: Ints = true,
            ) -> tuple[float, float, float]:
                size = np.full(len(accuracy), images)
                found = spread_of(ClassCounts(size, rng.binomial(size, accuracy)))
                place = int(true.argmax())
                return float(found.low[place]), float(found.high[place]), float(true[place])

            yield simulated(f"{classes} classes of {images} images, {law}", draw, max(repetitions // 4, 1))


def worst_class_excluded(repetitions: int) -> Iterator[Regime]:
    """Classes that tie, of which one has its own number of images; level of excluding it from the possible worst."""
    for classes, (own, others, accuracy) in product(
        (2, 10, 100, 1000),
        (
            (10_000, 50, 0.9),
            (10_000, 50, 0.5),
            (10_000, 100, 0.95),
            (10_000, 1000, 0.99),
            (1000, 1000, 0.5),
            (100, 100, 0.1),
            (20, 20, 0.5),
            (10, 1000, 0.5),
        ),
    ):
        images = np.append(own, np.full(classes - 1, others))

        def draw(
            rng: np.random.Generator, images: Ints = images, accuracy: float = accuracy
        ) -> tuple[float, float, float]:
            possible = possibly_worst(ClassCounts(images, rng.binomial(images, accuracy)))
            return NOTHING if possible[0] else REJECTED

        name = f"{classes} classes at {accuracy:.0%}, {others} images, one of {own}"
        yield simulated(name, draw, repetitions if classes < 1000 else max(repetitions // 4, 1))


FUNCTIONS: Mapping[str, Callable[[Any], float]] = {
    "median": lambda accuracy: float(np.median(accuracy)),
    "minimum": lambda accuracy: float(np.min(accuracy)),
    "range": lambda accuracy: float(np.ptp(accuracy)),
    "90 % quantile": lambda accuracy: float(np.quantile(accuracy, 0.9)),
    "variance": lambda accuracy: float(np.var(accuracy)),
    "ratio of two classes": lambda accuracy: float(accuracy[0] / accuracy[-1]) if accuracy[-1] else float("nan"),
    "harmonic mean": lambda accuracy: float(len(accuracy) / (1 / accuracy).sum()) if accuracy.all() else 0.0,
    "share of classes above 50 %": lambda accuracy: float((accuracy > 0.5).mean()),
}
"""Metrics without an interval of their own, of class accuracies."""


def own_metrics(repetitions: int) -> Iterator[Regime]:
    """Classes that tie, partly or not at all, in turn; truth: a function of their accuracies; no interval is valid."""
    for classes, images in ((10, 10), (2, 30), (2, 200), (10, 100), (100, 30), (100, -30)):
        size = np.full(classes, images) if images > 0 else np.geomspace(1000, 30, classes).round().astype(np.int64)
        sizes = f"{images} images" if images > 0 else "1,000 to 30 images"
        laws = [
            *(_accuracies(classes)[law] for law in ("all 2 %", "all 50 %", "all 98 %", "10 to 90 %")),
            np.where(np.arange(classes) < classes / 2, 0.49, 0.9),
        ]
        for title, function in FUNCTIONS.items():

            def draw(
                rng: np.random.Generator,
                function: Callable[[Any], float] = function,
                size: Ints = size,
                laws: list[Floats] = laws,
            ) -> tuple[float, float, float]:
                accuracy = laws[int(rng.integers(len(laws)))]
                counts = ClassCounts(size, rng.binomial(size, accuracy))
                found = function_intervals.interval_of_counts(lambda of: function(of.accuracy), counts)
                return NOTHING if np.isnan(found.low) else (found.low, found.high, function(accuracy))

            yield simulated(f"{title}, {classes} classes, {sizes}", draw, max(repetitions // 25, 1))


def own_metrics_of_pairs(repetitions: int) -> Iterator[Regime]:
    """Classes with clean and robust outcomes; truth: a function of both true accuracies of the classes."""
    functions: Mapping[str, Callable[[Any, Any], float]] = {
        "mean drop": lambda clean, robust: float((clean - robust).mean()),
        "largest drop": lambda clean, robust: float((clean - robust).max()),
        "range of drops": lambda clean, robust: float(np.ptp(clean - robust)),
    }
    for classes, images in product((2, 10), (30, 100)):
        for law, rates in {
            "all tie": np.tile([0.1, 0.0, 0.4, 0.5], (classes, 1)),
            "all tie near 1": np.tile([0.02, 0.0, 0.02, 0.96], (classes, 1)),
            "robust 10 to 80 %": np.stack(
                [[0.1, 0.0, 0.9 - robust, robust] for robust in np.linspace(0.1, 0.8, classes)]
            ),
        }.items():
            clean, robust = rates[:, 2] + rates[:, 3], rates[:, 1] + rates[:, 3]
            for title, function in functions.items():

                def draw(
                    rng: np.random.Generator,
                    function: Callable[[Any, Any], float] = function,
                    rates: Floats = rates,
                    images: int = images,
                    truth: float = function(clean, robust),
                ) -> tuple[float, float, float]:
                    pairs = rng.multinomial(images, rates).reshape(-1, 2, 2)
                    found = function_intervals.interval_of_pairs(lambda a, b: function(a.accuracy, b.accuracy), pairs)
                    return NOTHING if np.isnan(found.low) else (found.low, found.high, truth)

                yield simulated(
                    f"{title}, {classes} classes of {images} images, {law}", draw, max(repetitions // 50, 1)
                )


def own_metrics_of_confusions(repetitions: int) -> Iterator[Regime]:
    """Confusions of classes; truth: the largest rate of a confusion."""

    def largest(matrix: Any) -> float:
        rates = matrix / matrix.sum(axis=1, keepdims=True)
        return float(rates[~np.eye(len(rates), dtype=np.bool_)].max())

    yield from _of_matrices(
        lambda matrix: function_intervals.interval_of_confusion(largest, matrix), largest, (30, 100), repetitions // 5
    )


def own_metrics_of_outcomes(repetitions: int) -> Iterator[Regime]:
    """Images of classes with outcomes; truth: a function of the true accuracies; no interval counts as valid."""
    functions = {name: FUNCTIONS[name] for name in ("median", "minimum", "range")}
    for classes, images, law in product((2, 10), (30, 100), ("all 50 %", "all 98 %", "10 to 90 %")):
        accuracy = _accuracies(classes)[law]
        groups = np.repeat(np.arange(classes), images)
        for title, function in functions.items():

            def draw(
                rng: np.random.Generator,
                function: Callable[[Any], float] = function,
                groups: Ints = groups,
                accuracy: Floats = accuracy,
            ) -> tuple[float, float, float]:
                frame = pd.DataFrame({"group": groups, "correct": rng.random(len(groups)) < accuracy[groups]})

                def of_frame(outcomes: Any) -> float:
                    counted = np.bincount(outcomes["group"], weights=outcomes["correct"], minlength=len(accuracy))
                    return function(counted / np.bincount(outcomes["group"], minlength=len(accuracy)))

                found = function_intervals.interval_of_outcomes(of_frame, frame)
                return NOTHING if np.isnan(found.low) else (found.low, found.high, function(accuracy))

            yield simulated(f"{title}, {classes} classes of {images} images, {law}", draw, max(repetitions // 40, 1))
