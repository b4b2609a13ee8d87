"""Means of classes of unequal sizes, differences of class means, and the contrast of drops."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from benchmarks.coverage.base import Regime, simulated
from classwise.analysis.drop import drop
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError
from classwise.papers.interval_estimators import interval, over_trainings
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Estimate
from classwise.stats.stratified import class_mean, sum_of_class_means

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def sizes(classes: int) -> Mapping[str, Ints]:
    """Numbers of images of each class."""
    place = np.arange(classes)
    equal = {f"{images} images each": np.full(classes, images) for images in (1, 2, 3, 5, 10, 20, 50)}
    return equal | {
        "half have 1 image, half 50": np.where(place < classes // 2, 1, 50),
        "nine of ten have 1 image, others 5": np.where(place < classes - classes // 10, 1, 5),
        "long tail of 100 to 1 images": np.maximum(1, (100 * 0.01 ** (place / (classes - 1))).astype(np.int64)),
        "one of ten has 1 image, others 500": np.where(place < classes - classes // 10, 500, 1),
        "one of ten has 2 images, others 500": np.where(place < classes - classes // 10, 500, 2),
    }


def accuracies(count: Ints) -> Mapping[str, Floats]:
    """True class accuracies."""
    classes = len(count)
    smallest = count == count.min()
    return {
        "all 50 %": np.full(classes, 0.5),
        "all 95 %": np.full(classes, 0.95),
        "20 to 80 %": np.linspace(0.2, 0.8, classes),
        "half 2 %, half 98 %": np.where(np.arange(classes) < classes // 2, 0.02, 0.98),
        "half 10 %, half 99 %": np.where(np.arange(classes) < classes // 2, 0.1, 0.99),
        "half 5 %, half 90 %": np.where(np.arange(classes) < classes // 2, 0.05, 0.9),
        "smallest classes 10 %, others 90 %": np.where(smallest, 0.1, 0.9),
        "smallest classes 90 %, others 10 %": np.where(smallest, 0.9, 0.1),
    }


def class_means(repetitions: int) -> Iterator[Regime]:
    """The mean of the class accuracies, for new images of the same classes, the model fixed."""
    for classes in (2, 10, 100, 1000):
        for size, count in sizes(classes).items():
            for law, truth in accuracies(count).items():

                def draw(
                    rng: np.random.Generator, count: Ints = count, truth: Floats = truth
                ) -> tuple[float, float, float]:
                    found = class_mean(ClassCounts(count, rng.binomial(count, truth)))
                    return found.low, found.high, float(truth.mean())

                yield simulated(f"{classes} classes, {size}, {law}", draw, repetitions)


def small_levels(repetitions: int) -> Iterator[Regime]:
    """The same at the levels of corrections for multiple testing, as misses per 5 % of a nominal 0.5 %."""
    for classes in (10, 100):
        for size, count in sizes(classes).items():

            def draw(rng: np.random.Generator, count: Ints = count) -> tuple[float, float, float]:
                truth = accuracies(count)["20 to 80 %"]
                found = class_mean(ClassCounts(count, rng.binomial(count, truth)), 0.005)
                return found.low, found.high, float(truth.mean())

            yield simulated(f"{classes} classes, {size}, level 0.5 %", draw, repetitions)


def paired_means(repetitions: int) -> Iterator[Regime]:
    """The mean over the classes of the difference of two models on the same images, for new images."""
    for classes in (2, 10, 100):
        for name in ("1 images each", "2 images each", "10 images each", "long tail of 100 to 1 images"):
            count = sizes(classes)[name]
            index = np.repeat(np.arange(classes), count)
            for law, (gained, lost) in {
                "few differ": (0.02, 0.01),
                "one-sided": (0.1, 0.0),
                "half differ": (0.3, 0.2),
            }.items():

                def draw(
                    rng: np.random.Generator, index: Ints = index, gained: float = gained, lost: float = lost
                ) -> tuple[float, float, float]:
                    uniform, classes = rng.random(len(index)), int(index.max()) + 1
                    change = (uniform < gained).astype(np.int64) - (uniform > 1 - lost)
                    ends = np.full(classes, 1 / classes)
                    found = sum_of_class_means(change / classes, index, -ends, ends)
                    return found.low, found.high, gained - lost

                yield simulated(f"{classes} classes, {name}, {law}", draw, repetitions)


def drops(repetitions: int) -> Iterator[Regime]:
    """Level of the test that vulnerable and robust classes drop alike, where all classes do, for new images."""
    laws = {"50 to 40 %": (0.5, 0.2), "90 to 88 %": (0.9, 0.022), "50 to 1 %": (0.5, 0.98), "30 to 1.5 %": (0.3, 0.95)}
    for classes in (2, 10, 100):
        for images in (4, 50):
            for law, (accuracy, lost) in laws.items():
                labels = np.repeat(np.arange(classes), images)

                def draw(
                    rng: np.random.Generator, labels: Ints = labels, accuracy: float = accuracy, lost: float = lost
                ) -> tuple[float, float, float]:
                    weak = rng.random(len(labels)) < accuracy
                    strong = weak & (rng.random(len(labels)) >= lost)
                    other = (labels + 1) % (int(labels.max()) + 1)
                    attacks = {name: np.where(right, labels, other) for name, right in (("w", weak), ("s", strong))}
                    table = Outcomes.from_predictions(labels, attacks=attacks)
                    try:
                        found = drop(table, "w", "s")
                    except ClasswiseError:  # no class is vulnerable
                        return 0.0, 0.0, 0.0
                    return found.difference.low, found.difference.high, 0.0

                yield simulated(f"{classes} classes, {images} images each, {law}", draw, max(repetitions // 5, 20))


def trainings(repetitions: int) -> Iterator[Regime]:
    """The mean of an estimate over independent trainings on the same images, for new trainings and new images."""
    for runs in (2, 3, 5):
        for shared, own, effect in ((1.0, 0.0, 0.0), (1.0, 0.5, 0.3), (1.0, 0.2, 2.0), (0.2, 0.2, 1.0)):

            def draw(
                rng: np.random.Generator, runs: int = runs, law: tuple[float, float, float] = (shared, own, effect)
            ) -> tuple[float, float, float]:
                shared, own, effect = law
                values = shared * rng.normal() + rng.normal(scale=math.hypot(own, effect), size=runs)
                reach = 1.96 * math.hypot(shared, own)
                parts = [interval(Estimate(value, value - reach, value + reach)) for value in values]
                found = over_trainings(parts)(0.05)
                return found.low, found.high, 0.0

            name = f"{runs} trainings; errors: common images {shared:g}, own images {own:g}, trainings {effect:g}"
            yield simulated(name, draw, repetitions)
