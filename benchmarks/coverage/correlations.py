"""Intervals of correlations over classes, and of symmetry, contrasts and leads of confusion matrices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from scipy import stats

from benchmarks.coverage.base import Regime, simulated
from classwise.analysis.confusion import contrast, excess, rate_correlation, symmetric_share
from classwise.analysis.consistency import ranked_alike
from classwise.analysis.pairs import pairs
from classwise.auditing.outcomes.table import Outcomes
from classwise.stats.correlations import (
    fixed_halves,
    half_means,
    pearson_correlation,
    random_halves,
    rank_correlation,
    split_counts,
)
from classwise.stats.counts import ClassCounts, FloatArray, IntArray
from classwise.stats.intervals import Estimate
from classwise.stats.model_ranks import Verdicts, worst_class_ranks
from classwise.stats.ranks import spearman_matrix

MIDDLE, SPREAD = 0.5, 0.12
"""Mean and standard deviation of the class accuracies over the classes."""


def related(classes: int, correlation: float, spread: float = SPREAD, seed: int = 1) -> tuple[FloatArray, FloatArray]:
    """Two vectors of class accuracies with Pearson's correlation over the classes."""
    generator = np.random.default_rng(seed)
    first = stats.zscore(generator.normal(size=classes))
    other = generator.normal(size=classes)
    other -= other.mean() + first * (first @ other) / classes
    second = correlation * first + np.sqrt(1 - correlation**2) * other / other.std()
    return np.clip(MIDDLE + spread * first, 0, 1), np.clip(MIDDLE + 0.1 + spread * second, 0, 1)


def populations() -> dict[str, tuple[FloatArray, FloatArray, int]]:
    """Accuracies, known numbers and images a class of the hard regimes of a correlation with known numbers."""
    cells = {}
    for correlation in (0.0, 0.6, 0.95):
        for classes, images in ((6, 100), (10, 20), (10, 100), (10, 1000), (100, 50), (100, 100), (200, 50), (100, 3)):
            name = f"{classes} classes of {images} images, Pearson {correlation}"
            cells[name] = (*related(classes, correlation), images)
    for classes, images in ((10, 100), (100, 50)):
        size = f"{classes} classes of {images} images"
        cells[f"{size}, nearly tied"] = (*related(classes, 0.6, 0.002), images)
        near_one = np.clip(related(classes, 0.5, 0.04)[0] + 0.46, 0, 0.999)
        cells[f"{size} at 96 %"] = (near_one, related(classes, 0.5, 0.04)[1], images)
        outlier = 0.985 + related(classes, 0.5, 0.005)[0] - MIDDLE
        outlier[0] = 0.8
        cells[f"{size} at 98.5 %, one at 80 %"] = (outlier, related(classes, 0.5)[1], images)
        cells[f"{size}, half at 50 %, half at 90 %"] = (
            np.resize([0.5, 0.9], classes),
            np.linspace(0, 1, classes),
            images,
        )
    return cells


def linear_with_known(repetitions: int) -> Iterator[Regime]:
    """Class accuracies and known numbers; Pearson's correlation of the true accuracies with the numbers."""
    for name, (share, known, images) in populations().items():

        def draw(
            rng: np.random.Generator, share: FloatArray = share, known: FloatArray = known, images: int = images
        ) -> tuple[float, float, float]:
            found = pearson_correlation(ClassCounts(np.full(len(share), images), rng.binomial(images, share)), known)
            return *found.estimate()[1:], float(np.corrcoef(share, known)[0, 1])

        yield simulated(name, draw, repetitions)


def ranked_with_known(repetitions: int) -> Iterator[Regime]:
    """Class accuracies and known numbers; Spearman's correlation of the true accuracies with the numbers."""
    for name, (share, known, images) in populations().items():

        def draw(
            rng: np.random.Generator, share: FloatArray = share, known: FloatArray = known, images: int = images
        ) -> tuple[float, float, float]:
            counts = ClassCounts(np.full(len(share), images), rng.binomial(images, share))
            halves = np.stack([split_counts(counts, int(rng.integers(2**31))), fixed_halves(known)], axis=2)
            found = rank_correlation(np.stack([counts.accuracy, known]), halves).estimate()
            return _ends(found, float(stats.spearmanr(share, known).statistic))

        yield simulated(name, draw, max(repetitions // 4, 1))


def ranked_on_same_images(repetitions: int) -> Iterator[Regime]:
    """Two models on the same images; Spearman's correlation of their true class accuracies."""
    sizes = ((6, 100), (10, 20), (10, 100), (100, 50))
    for (classes, images), correlation, shared in itertools.product(sizes, (0.0, 0.6, 1.0), (0.0, 0.8)):
        first, second = related(classes, correlation)
        errors = "independent errors" if not shared else "mostly common errors"
        name = f"{classes} classes of {images} images, Pearson {correlation:g}, {errors}"
        yield simulated(name, _two_models(first, second, images, shared), max(repetitions // 10, 1))
    draw = _two_models(*related(20, 0.95, seed=3), 1000, 0.8)
    yield simulated(
        "20 classes of 1000 images, some nearly tied, mostly common errors", draw, max(repetitions // 10, 1)
    )
    for shared in (0.0, 0.8):
        first, second = related(10, 0.0, 0.002)
        errors = "independent errors" if not shared else "mostly common errors"
        draw = _two_models(first, second, 100, shared)
        yield simulated(f"10 classes of 100 images, nearly tied, {errors}", draw, max(repetitions // 10, 1))


def _two_models(
    first: FloatArray, second: FloatArray, images: int, shared: float
) -> Callable[[np.random.Generator], tuple[float, float, float]]:
    classes, labels = len(first), np.repeat(np.arange(len(first)), images)
    truth = float(stats.spearmanr(first, second).statistic)

    def draw(rng: np.random.Generator) -> tuple[float, float, float]:
        common = rng.random(len(labels))
        own = np.where(rng.random(len(labels)) < shared, common, rng.random(len(labels)))
        correct = np.stack([common < first[labels], own < second[labels]])
        values = np.stack([np.bincount(labels, row) for row in correct]) / images
        halves = random_halves(labels, seed=int(rng.integers(2**31)))
        return _ends(rank_correlation(values, half_means(correct, labels, classes, halves)).estimate(), truth)

    return draw


def ranked_similarities(repetitions: int) -> Iterator[Regime]:
    """Mean confidences and accuracies on the same images, whose errors are correlated; Spearman's correlation."""
    for (classes, images), correlation in itertools.product(((10, 20), (10, 100), (100, 50)), (0.0, 0.6, 1.0)):
        share, level = related(classes, correlation)
        labels, truth = np.repeat(np.arange(classes), images), float(stats.spearmanr(share, level).statistic)

        def draw(
            rng: np.random.Generator,
            share: FloatArray = share,
            level: FloatArray = level,
            labels: IntArray = labels,
            truth: float = truth,
        ) -> tuple[float, float, float]:
            common = rng.random(len(labels))
            values = np.stack([common < share[labels], level[labels] - 0.5 * (common - 0.5)])
            means = np.stack([np.bincount(labels, row) for row in values]) / np.bincount(labels)
            halves = half_means(values, labels, len(share), random_halves(labels, seed=int(rng.integers(2**31))))
            return _ends(rank_correlation(means, halves).estimate(), truth)

        yield simulated(
            f"{classes} classes of {images} images, Pearson {correlation:g}", draw, max(repetitions // 10, 1)
        )


def lowest_of_rankings(repetitions: int) -> Iterator[Regime]:
    """Four attacks on the same images; the lowest of Spearman's correlations of their true class accuracies."""
    for (classes, images), correlation in itertools.product(((10, 20), (10, 100), (50, 50)), (0.0, 0.6, 1.0)):
        share = np.concatenate([related(classes, correlation, seed=seed) for seed in (1, 2)])
        labels = np.repeat(np.arange(classes), images)
        truth = float(np.min(spearman_matrix(share)))

        def draw(
            rng: np.random.Generator, share: FloatArray = share, labels: IntArray = labels, truth: float = truth
        ) -> tuple[float, float, float]:
            own = np.where(rng.random((len(share), 1)) < 0.5, rng.random(len(labels)), rng.random((1, len(labels))))
            attacks = {str(at): np.where(row, labels, -1) for at, row in enumerate(own < share[:, labels])}
            attacks = {name: np.where(row < 0, (labels + 1) % len(share[0]), row) for name, row in attacks.items()}
            found = ranked_alike({"model": Outcomes.from_predictions(labels, attacks=attacks)}, permutations=1)
            return _ends(found.lowest, truth)

        yield simulated(
            f"{classes} classes of {images} images, Pearson {correlation:g}", draw, max(repetitions // 20, 1)
        )


def _ends(found: Estimate, truth: float) -> tuple[float, float, float]:
    """Ends and truth; all of [-1, 1] where the sample has no correlation."""
    return (-1.0, 1.0, truth) if np.isnan(found.value) else (found.low, found.high, truth)


def confusion_law(classes: int, error: float, symmetry: float) -> FloatArray:
    """Probabilities of the predictions of each class: (C, C); errors are symmetric for ``symmetry`` = 1."""
    generator = np.random.default_rng(0)
    mutual, own = np.exp(generator.normal(size=(2, classes, classes)))
    mutual = np.triu(mutual, 1)
    law = symmetry * (mutual + mutual.T) + (1 - symmetry) * own
    np.fill_diagonal(law, 0)
    law *= error * np.linspace(0.5, 1.5, classes)[:, None] / law.sum(axis=1, keepdims=True)
    np.fill_diagonal(law, 1 - law.sum(axis=1))
    return np.asarray(law)


MATRICES = ((3, 50), (10, 20), (10, 100), (10, 1000), (20, 50), (100, 50))
"""Classes, and images of each."""
Statistic = Callable[[IntArray], tuple[float, float]]


def _matrices(
    repetitions: int, statistic: Callable[[IntArray], Estimate], truth: Callable[[FloatArray], float]
) -> Iterator[Regime]:
    for (classes, images), error, symmetry in itertools.product(MATRICES, (0.5, 0.05), (0.0, 1.0)):
        law = confusion_law(classes, error, symmetry)
        value = truth(law)

        def draw(
            rng: np.random.Generator, law: FloatArray = law, images: int = images, value: float = value
        ) -> tuple[float, float, float]:
            _, low, high = statistic(rng.multinomial(images, law))
            return (low, high, value) if low == low else (-np.inf, np.inf, value)

        kind = "symmetric" if symmetry else "asymmetric"
        name = f"{classes} classes of {images} images, {100 * error:g} % {kind} errors"
        yield simulated(name, draw, max(repetitions // (1 if classes < 100 else 4), 1))


def symmetry_of_rates(repetitions: int) -> Iterator[Regime]:
    """Sparse and dense confusion matrices; Pearson's correlation of the true rates M_ij and M_ji over pairs."""

    def truth(law: FloatArray) -> float:
        first, second = np.triu_indices(len(law), k=1)
        return float(np.corrcoef(law[first, second], law[second, first])[0, 1])

    yield from _matrices(repetitions, lambda matrix: rate_correlation(matrix).estimate(), truth)


def symmetric_shares(repetitions: int) -> Iterator[Regime]:
    """Sparse and dense confusion matrices; 1 - sum |M - M^T| / sum (M + M^T) of the true rates."""

    def truth(law: FloatArray) -> float:
        errors = law * ~np.eye(len(law), dtype=np.bool_)
        return 1 - float(np.abs(errors - errors.T).sum() / 2 / errors.sum())

    yield from _matrices(max(repetitions // 5, 1), symmetric_share, truth)


def _groups(classes: int) -> IntArray:
    return np.arange(classes) % (2 if classes < 100 else 5)


def contrasts(repetitions: int) -> Iterator[Regime]:
    """Sparse and dense confusion matrices; mean rate within superclasses minus that across."""

    def truth(law: FloatArray) -> float:
        same = _groups(len(law))[:, None] == _groups(len(law))
        return float(law[same & ~np.eye(len(law), dtype=np.bool_)].mean() - law[~same].mean())

    yield from _matrices(repetitions, lambda matrix: contrast(matrix, _groups(len(matrix))), truth)


def excesses(repetitions: int) -> Iterator[Regime]:
    """Sparse and dense confusion matrices; share of the errors within superclasses, minus that by chance."""

    def truth(law: FloatArray) -> float:
        errors, group = law * ~np.eye(len(law), dtype=np.bool_), _groups(len(law))
        same = group[:, None] == group
        by_chance = (same.sum(axis=1) - 1) / (len(law) - 1)
        return float(((errors * same).sum() - errors.sum(axis=1) @ by_chance) / errors.sum())

    yield from _matrices(repetitions, lambda matrix: excess(matrix, _groups(len(matrix))), truth)


def leads(repetitions: int) -> Iterator[Regime]:
    """Sparse and dense confusion matrices; lead of the most frequent wrong prediction of a class, ties included."""
    rows = {
        "two equal wrong predictions": [0.6, 0.2, 0.2, 0.0],
        "ten equal wrong predictions": [0.5] + [0.05] * 10,
        "99 equal wrong predictions": [0.505] + [0.005] * 99,
        "a clear lead": [0.5, 0.3, 0.1, 0.1],
        "rare errors": [0.98, 0.01, 0.005, 0.005],
    }
    for (name, row), images in itertools.product(rows.items(), (10, 100, 1000)):

        def draw(
            rng: np.random.Generator, row: tuple[float, ...] = tuple(row), images: int = images
        ) -> tuple[float, float, float]:
            matrix = np.eye(len(row), dtype=np.int64)
            matrix[0] = rng.multinomial(images, row)
            _, low, high = pairs(matrix, [str(place) for place in range(len(row))]).lead(0, 1)
            return low, high, row[1] - max(row[2:])

        yield simulated(f"{images} images, {name}", draw, max(repetitions // 4, 1))


def ranks_of_models(repetitions: int) -> Iterator[Regime]:
    """Models with equal worst classes, independent images; any model significantly better than another."""
    for models, classes, images in itertools.product((2, 5, 20), (2, 10), (10, 100)):

        def draw(
            rng: np.random.Generator, models: int = models, classes: int = classes, images: int = images
        ) -> tuple[float, float, float]:
            correct = rng.binomial(images, 0.4, (models, classes))
            found = worst_class_ranks([Verdicts(ClassCounts(np.full(classes, images), row)) for row in correct])
            wrong = float(found.better.any())
            return wrong, wrong, 0.0

        yield simulated(f"{models} models, {classes} tied classes of {images} images", draw, max(repetitions // 10, 1))
