"""Coverage of intervals of the model that was selected among several on the same images.

All models have 10 classes. A share of the images has one outcome that all models share, as checkpoints of one training
do; the other outcomes are independent. The truth of a repetition is that of the model that was selected in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from benchmarks.coverage.base import Regime, simulated
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.reporting.facts.comparison_tables import exceeds_all
from classwise.stats.counts import BoolArray, ClassCounts
from classwise.stats.intervals import clopper_pearson, lowest_interval
from classwise.stats.seeds import mean_over_seeds, worst_over_seeds
from classwise.stats.selection import selected_interval

Floats = NDArray[np.float64]
CLASSES = 10
ALPHA = 0.05


class Models(NamedTuple):
    """Models that are evaluated on the same images.

    Attributes:
        shared: share of the images on which all models have the same outcome.
        common: (C,) accuracy on these.
        own: (k, C) accuracy of each model on the others.
        images: (C,) images of each class.
    """

    shared: float
    common: Floats
    own: Floats
    images: NDArray[np.int64]

    @property
    def truth(self) -> Floats:
        """(k, C) true class accuracies."""
        return self.shared * self.common + (1 - self.shared) * self.own

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """(k, C) correct images of each class."""
        alike = rng.binomial(self.images, self.shared)
        drawn: NDArray[np.int64] = rng.binomial(alike, self.common) + rng.binomial(self.images - alike, self.own)
        return drawn


def _models(models: int, shared: float, images: NDArray[np.int64], low: float, others: float, spread: float) -> Models:
    """The class 0 has the accuracy ``low``; over the models, accuracies decrease by up to ``spread``."""
    common = np.where(np.arange(CLASSES) < 1, low, others)
    own = np.clip(common - np.linspace(0, spread, models)[:, None], 0.0, 1.0)
    return Models(shared, common, own, images)


def _populations() -> Iterator[tuple[str, Models]]:
    """The hard regimes: equal models; spread ones, unequal numbers of images, extremes."""
    for models, shared, size in product((2, 5, 20, 100), (0.0, 0.5, 0.9, 0.99), (100, 1000)):
        images = np.full(CLASSES, size)
        name = f"{models} equal models, {shared:.0%} shared outcomes, {size} images a class"
        yield name, _models(models, shared, images, 0.5, 0.5, 0.0)
    for models, shared, size in product((2, 20), (0.0, 0.9), (100, 1000)):
        images = np.full(CLASSES, size)
        name = f"{models} models, {shared:.0%} shared outcomes, {size} images a class"
        yield f"{name}, one low class", _models(models, shared, images, 0.3, 0.7, 0.0)
        yield f"{name}, spread by 10 points", _models(models, shared, images, 0.5, 0.5, 0.1)
        yield f"{name}, accuracy 98 %", _models(models, shared, images, 0.98, 0.98, 0.0)
    ladder = np.geomspace(10, 1000, CLASSES).round().astype(np.int64)
    for models, shared in product((2, 20, 100), (0.0, 0.9)):
        name = f"{models} equal models, {shared:.0%} shared outcomes, 10 to 1,000 images a class"
        yield name, _models(models, shared, ladder, 0.5, 0.5, 0.0)


def _fewer(models: Models, repetitions: int) -> int:
    """Fewer repetitions for many models."""
    return max(repetitions // (10 if len(models.own) > 20 else 2 if len(models.own) > 5 else 1), 1)


def _overall(images: NDArray[np.int64], correct: NDArray[np.int64]) -> Callable[[int, float], tuple[float, float]]:
    def interval(model: int, alpha: float) -> tuple[float, float]:
        low, high = clopper_pearson(correct[model].sum(), images.sum(), alpha)
        return float(low), float(high)

    return interval


def _worst(images: NDArray[np.int64], correct: NDArray[np.int64]) -> Callable[[int, float], tuple[float, float]]:
    return lambda model, alpha: lowest_interval(ClassCounts(images, correct[model]), alpha)


def selected_overall(repetitions: int) -> Iterator[Regime]:
    """k models of 10 classes, that of highest overall accuracy is selected; truth: its overall accuracy."""
    for name, models in _populations():

        def draw(rng: np.random.Generator, models: Models = models) -> tuple[float, float, float]:
            correct = models.draw(rng)
            selected = int(correct.sum(axis=1).argmax())
            low, high = selected_interval(_overall(models.images, correct), len(correct), selected, ALPHA)
            return low, high, float((models.truth[selected] * models.images).sum() / models.images.sum())

        yield simulated(name, draw, _fewer(models, repetitions))


def selected_worst(repetitions: int) -> Iterator[Regime]:
    """k models of 10 classes, that of highest worst-class accuracy is selected; truth: its worst-class accuracy."""
    for name, models in _populations():

        def draw(rng: np.random.Generator, models: Models = models) -> tuple[float, float, float]:
            correct = models.draw(rng)
            selected = int((correct / models.images).min(axis=1).argmax())
            low, high = selected_interval(_worst(models.images, correct), len(correct), selected, ALPHA)
            return low, high, float(models.truth[selected].min())

        yield simulated(name, draw, _fewer(models, max(repetitions // 2, 1)))


def selected_by_another(repetitions: int) -> Iterator[Regime]:
    """k models of 10 classes, that of highest worst-class accuracy is selected; truth: its overall accuracy."""
    for name, models in _populations():

        def draw(rng: np.random.Generator, models: Models = models) -> tuple[float, float, float]:
            correct = models.draw(rng)
            selected = int((correct / models.images).min(axis=1).argmax())
            interval = _overall(models.images, correct)
            low, high = selected_interval(interval, len(correct), selected, ALPHA, criterion=False)
            return low, high, float((models.truth[selected] * models.images).sum() / models.images.sum())

        yield simulated(name, draw, _fewer(models, repetitions))


class Methods(NamedTuple):
    """Equal methods of several runs: logits of classes plus the effect of a run, plus the difficulty of an image.

    Attributes:
        methods: number of methods k.
        runs: number of runs S of each.
        images: number of images of each class.
        run_sd: standard deviation of the effects of runs, on the logit scale.
        gap: logit by which the class 0 is below the others, whose logit is 0.
        image_sd: that of the difficulties of images, which are common to all runs.
    """

    methods: int
    runs: int
    images: int
    run_sd: float
    gap: float = 0.0
    image_sd: float = 1.5

    @property
    def labels(self) -> NDArray[np.int64]:
        """(N,) classes."""
        return np.repeat(np.arange(CLASSES), self.images)

    @property
    def worst(self) -> float:
        """Expected accuracy of class 0 in a new run; it is the worst class, since a run affects all classes alike."""
        return self._expected(-self.gap)

    @property
    def overall(self) -> float:
        """Expected overall accuracy of a new run."""
        return (self._expected(-self.gap) + (CLASSES - 1) * self._expected(0.0)) / CLASSES

    def _expected(self, logit: float) -> float:
        nodes, weights = np.polynomial.hermite_e.hermegauss(80)
        values = special.expit(logit + np.hypot(self.run_sd, self.image_sd) * nodes)
        return float((values * weights).sum() / weights.sum())

    def draw(self, rng: np.random.Generator) -> BoolArray:
        """(k, S, N) correct images."""
        effects = self.run_sd * rng.standard_normal((self.methods, self.runs, 1))
        effects = effects - self.gap * (self.labels == 0)
        chance = special.expit(effects + self.image_sd * rng.standard_normal(CLASSES * self.images))
        return np.asarray(rng.random(chance.shape) < chance)


def _methods() -> Iterator[tuple[str, Methods]]:
    for methods, runs, size, run_sd in [
        (2, 2, 100, 0.1), (5, 2, 100, 0.1), (2, 3, 100, 0.0), (2, 3, 100, 0.1), (5, 3, 100, 0.3), (20, 3, 100, 0.1),
        (20, 3, 100, 0.3), (5, 5, 100, 0.1), (20, 5, 100, 0.3),
    ]:  # fmt: skip
        name = f"{methods} equal methods of {runs} runs, {size} images a class, effects of runs {run_sd:g} logits"
        yield name, Methods(methods, runs, size, run_sd)
    for methods, runs, run_sd in [(5, 3, 0.3), (20, 3, 0.3), (20, 5, 0.3)]:
        name = f"{methods} equal methods of {runs} runs, one low class, 100 images a class, effects {run_sd:g} logits"
        yield name, Methods(methods, runs, 100, run_sd, gap=2.0)


def selected_overall_over_seeds(repetitions: int) -> Iterator[Regime]:
    """k methods of several runs, that of highest mean overall accuracy is selected; truth: that of new runs."""
    for name, methods in _methods():
        labels = np.zeros(CLASSES * methods.images, dtype=np.int64)

        def draw(
            rng: np.random.Generator, methods: Methods = methods, labels: NDArray[np.int64] = labels
        ) -> tuple[float, float, float]:
            correct = methods.draw(rng)

            def interval(method: int, alpha: float) -> tuple[float, float]:
                found = mean_over_seeds(correct[method], labels, 1, alpha, simultaneous=alpha < ALPHA)
                return float(found.low[0]), float(found.high[0])

            selected = int(correct.mean(axis=(1, 2)).argmax())
            return *selected_interval(interval, methods.methods, selected, ALPHA), methods.overall

        yield simulated(name, draw, max(repetitions // 4, 1))


def selected_worst_over_seeds(repetitions: int) -> Iterator[Regime]:
    """k methods of several runs, that of highest mean worst-class accuracy is selected; truth: that of new runs."""
    for name, methods in _methods():

        def draw(rng: np.random.Generator, methods: Methods = methods) -> tuple[float, float, float]:
            correct, labels = methods.draw(rng), methods.labels

            def interval(method: int, alpha: float) -> tuple[float, float]:
                found = worst_over_seeds(correct[method], labels, CLASSES, alpha, simultaneous=alpha < ALPHA)
                return found.low, found.high

            by_class = correct.reshape(methods.methods, methods.runs, CLASSES, methods.images).mean(axis=3)
            selected = int(by_class.min(axis=2).mean(axis=1).argmax())
            return *selected_interval(interval, methods.methods, selected, ALPHA), methods.worst

        yield simulated(name, draw, max(repetitions // 10, 1))


def best_is_decided(repetitions: int) -> Iterator[Regime]:
    """k models of which at least two are equally good; a false rejection names one the best in worst-class accuracy."""
    for models, tied, shared, size in [
        (2, 2, 0.9, 100), (2, 2, 0.5, 30), (5, 5, 0.9, 100), (5, 2, 0.9, 100), (20, 20, 0.9, 30),
    ]:  # fmt: skip
        labels = np.repeat(np.arange(CLASSES), size)
        others = [f"{models - tied} worse ones, "] if models > tied else []
        name = f"{tied} equal models, {''.join(others)}{shared:.0%} shared outcomes, {size} images a class"

        def draw(
            rng: np.random.Generator,
            models: int = models,
            tied: int = tied,
            shared: float = shared,
            labels: NDArray[np.int64] = labels,
        ) -> tuple[float, float, float]:
            accuracy = np.where(labels == 0, 0.3, 0.7) - np.where(np.arange(models) < tied, 0, 0.2)[:, None]
            own = rng.random((models, len(labels)))
            correct = np.where(rng.random(len(labels)) < shared, rng.random(len(labels)), own) < accuracy
            audits = {
                str(model): (Audit(Outcomes.from_predictions(labels, attacks={"pgd": predicted})),)
                for model, predicted in enumerate(np.where(correct, labels, (labels + 1) % CLASSES))
            }
            comparison = Comparison(audits)
            decided = exceeds_all(comparison, comparison.best[0], "worst")
            return (1.0, 1.0, 0.0) if decided else (0.0, 0.0, 0.0)

        regime = simulated(name, draw, max(repetitions // (50 if models > 5 else 10), 1))
        yield regime._replace(width=float("nan"))
