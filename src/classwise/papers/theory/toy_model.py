"""The toy model: one robust feature, d weak ones, and a classifier with a single weight (cfa23 section 2).

The label y is -1 or +1. The robust feature is y with probability p_y and -y otherwise; the d others are normal with
mean eta y and a given variance. The classifier is sign(x_1 + (x_2 + ... + x_{d+1}) / w) with w > 0: a large w relies
on the robust feature. An attack of radius epsilon moves each weak feature against its label; epsilon < 1 never flips
the robust feature.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from classwise.core.errors import ClasswiseError
from classwise.core.settings.docstrings import docstring
from classwise.stats.counts import BoolArray, FloatArray
from classwise.stats.intervals import clopper_pearson

EASY, HARD = 1, -1
"""The labels: the robust feature is more reliable for class +1."""


class Sample(NamedTuple):
    """Points of the toy model: ``x`` (N, d + 1), the robust feature first, and ``y`` (N,) of -1 and +1."""

    x: FloatArray
    y: FloatArray


@dataclass(frozen=True, kw_only=True)
class ToyModel:
    """Distribution of the data, with closed forms of accuracies and optimal weights.

    For its Figure 1 the paper gives d and the variance; p and eta are not available, so their defaults are ours.

    Args:
        features: d, the number of weak features, at least 1.
        eta: 0 < eta < 1/2; the weak features have mean eta y.
        variance: variance of each weak feature, above 0.
        easy: p_{+1}, the probability that the robust feature equals the label in class +1.
        hard: p_{-1}, the same for class -1, with 1/2 < hard < easy < 1.

    Raises:
        ClasswiseError: if a value is out of range.
    """

    features: int = 1
    eta: float = 0.4
    variance: float = 0.6
    easy: float = 0.85
    hard: float = 0.70

    def __post_init__(self) -> None:
        if self.features < 1:
            raise ClasswiseError(f"toy model: features = {self.features}; must be at least 1")
        if not 0 < self.eta < 0.5:
            raise ClasswiseError(f"toy model: eta = {self.eta}; must be between 0 and 1/2")
        if not self.variance > 0:
            raise ClasswiseError(f"toy model: variance = {self.variance}; must be above 0")
        if not 0.5 < self.hard < self.easy < 1:
            raise ClasswiseError(
                f"toy model: hard = {self.hard}, easy = {self.easy}; must satisfy 1/2 < hard < easy < 1"
            )

    @property
    def spread(self) -> float:
        """q, the standard deviation of the sum of the weak features: sigma sqrt(d)."""
        return math.sqrt(self.variance * self.features)

    @property
    def evaluation_radius(self) -> float:
        """2 eta, the radius at which the paper measures robustness: the attacked weak features have mean -eta y."""
        return 2 * self.eta

    def reliability(self, label: int) -> float:
        """Reliability p_y of the robust feature for class -1 or +1."""
        return self.easy if label == EASY else self.hard

    def shift(self, epsilon: float) -> float:
        """m, the mean of y times the sum of the weak features under attack: d (eta - epsilon)."""
        return self.features * (self.eta - epsilon)

    def accuracy(self, label: int, weight: ArrayLike, epsilon: float = 0.0) -> FloatArray:
        """Accuracy of a class under an attack of radius ``epsilon``; clean accuracy at 0.

        p_y Phi((m + w)/q) + (1 - p_y) Phi((m - w)/q), with `shift` m and `spread` q (cfa23 Appendix A, re-derived).

        Args:
            label: -1 or +1.
            weight: w > 0, any shape.
            epsilon: radius of the attack.

        Returns:
            Fractions in the shape of ``weight``.
        """
        w = np.asarray(weight, dtype=np.float64)
        p, m, q = self.reliability(label), self.shift(epsilon), self.spread
        return np.asarray(p * special.ndtr((m + w) / q) + (1 - p) * special.ndtr((m - w) / q))

    def average(self, weight: ArrayLike, epsilon: float = 0.0) -> FloatArray:
        """Accuracy over both classes, which are equally frequent."""
        return np.asarray((self.accuracy(EASY, weight, epsilon) + self.accuracy(HARD, weight, epsilon)) / 2)

    def gap(self, weight: ArrayLike, epsilon: float = 0.0) -> FloatArray:
        """Accuracy of the easy class minus that of the hard class, without cancellation.

        (p_{+1} - p_{-1}) (Phi((m + w)/q) - Phi((m - w)/q)). It is equal at epsilon = 0 and at 2 eta.
        """
        w = np.asarray(weight, dtype=np.float64)
        low, high = (self.shift(epsilon) - w) / self.spread, (self.shift(epsilon) + w) / self.spread
        # Values of Phi near 1 are subtracted through their complements.
        mirrored = low > 0
        low, high = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
        return np.asarray((self.easy - self.hard) * (special.ndtr(high) - special.ndtr(low)))

    def slopes(self, label: int, weight: ArrayLike, epsilon: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Logarithms of the two densities whose difference is the derivative of `accuracy` in w.

        Far from the mean the densities underflow, but their logarithms can still be compared.

        Returns:
            log p_y phi((m + w)/q)/q and log (1 - p_y) phi((m - w)/q)/q, each in the shape of ``weight``.
        """
        w = np.asarray(weight, dtype=np.float64)
        p, m, q = self.reliability(label), self.shift(epsilon), self.spread
        constant = -math.log(q * math.sqrt(2 * math.pi))
        gain, loss = (-(((m + side * w) / q) ** 2) / 2 + constant for side in (1, -1))
        return np.asarray(math.log(p) + gain), np.asarray(math.log1p(-p) + loss)

    def best_weight(self, epsilon: float) -> float:
        """Optimal weight w* of adversarial training at radius ``epsilon``, which maximises `average` there.

        sigma^2 ln(p/(1-p)) / (2 (eta - epsilon)) with p the mean of the two p_y; infinite at epsilon = eta.

        Raises:
            ClasswiseError: if ``epsilon`` is not in [0, eta].
        """
        if not 0 <= epsilon <= self.eta:
            raise ClasswiseError(f"toy model: training radius epsilon = {epsilon}; must be in [0, eta = {self.eta}]")
        return self._optimum((self.easy + self.hard) / 2, self.eta - epsilon)

    def best_class_weight(self, label: int) -> float:
        """Weight w*_y that maximises the clean accuracy of a class: sigma^2 ln(p_y/(1-p_y)) / (2 eta)."""
        return self._optimum(self.reliability(label), self.eta)

    def _optimum(self, p: float, distance: float) -> float:
        return self.variance * math.log(p / (1 - p)) / (2 * distance) if distance > 0 else math.inf

    def sample(self, per_class: int, seed: int = 0) -> Sample:
        """Draw ``per_class`` random points of each class, class -1 first.

        Raises:
            ClasswiseError: if ``per_class`` is below 1.
        """
        if per_class < 1:
            raise ClasswiseError(f"toy model: per_class = {per_class}; must be at least 1")
        random = np.random.default_rng(seed)
        y = np.repeat([float(HARD), float(EASY)], per_class)
        agrees = random.random(len(y)) < np.where(y == EASY, self.easy, self.hard)
        weak = random.normal(self.eta * y[:, None], math.sqrt(self.variance), size=(len(y), self.features))
        return Sample(np.column_stack([np.where(agrees, y, -y), weak]), y)


def classify(x: ArrayLike, weight: float) -> FloatArray:
    """Classify points (N, d + 1) by sign(x_1 + (x_2 + ... + x_{d+1}) / w); (N,) of -1 and +1."""
    points = np.asarray(x, dtype=np.float64)
    return np.where(points[:, 0] + points[:, 1:].sum(axis=1) / weight > 0, 1.0, -1.0)


def attacked(sample: Sample, epsilon: float) -> Sample:
    """Apply the optimal attack: shift every weak feature by ``epsilon`` against the label."""
    moved = sample.x.copy()
    moved[:, 1:] -= epsilon * sample.y[:, None]
    return Sample(moved, sample.y)


ROUNDING = 1e-14
"""Rounding error of an accuracy, a sum of a few numbers below 1."""


class Statement(NamedTuple):
    """Result of checking a theorem on a grid.

    Attributes:
        name: item id, such as ``cfa23/Th1``.
        says: the theorem in one sentence.
        cases: number of checked inequalities.
        failures: descriptions of those that do not hold.
    """

    name: str
    says: str
    cases: int
    failures: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether no case fails."""
        return not self.failures


def grid(
    features: Sequence[int] = (1, 4, 20),
    etas: Sequence[float] = (0.05, 0.2, 0.4, 0.49),
    variances: Sequence[float] = (0.1, 0.6, 1.0),
    reliabilities: Sequence[float] = (0.51, 0.6, 0.7, 0.85, 0.99),
) -> list[ToyModel]:
    """Toy models for all combinations of values; the hard class has the smaller of two reliabilities."""
    pairs = list(itertools.combinations(sorted(reliabilities), 2))
    return [
        ToyModel(features=d, eta=eta, variance=variance, easy=easy, hard=hard)
        for d, eta, variance, (hard, easy) in itertools.product(features, etas, variances, pairs)
    ]


def weights(model: ToyModel, count: int = 60) -> FloatArray:
    """Weights from 0.01 to 10 times the scale of the model, geometrically spaced, (count,)."""
    scale = model.spread + model.features * model.eta
    return np.geomspace(0.01 * scale, 10 * scale, count)


def theorem_1(models: Iterable[ToyModel]) -> Statement:
    """The class with the less reliable robust feature has lower accuracy, clean and robust, for every w > 0."""

    def cases(model: ToyModel) -> Mapping[str, BoolArray]:
        w = weights(model)
        return {
            "clean accuracy": _accuracy_differs(model, w, 0.0),
            "robust accuracy": _accuracy_differs(model, w, model.evaluation_radius),
        }

    return _checked("cfa23/Th1", theorem_1, models, cases)


def theorem_2(models: Iterable[ToyModel], shares: Sequence[float] = (0, 0.2, 0.4, 0.6, 0.8, 0.95)) -> Statement:
    """The optimal weight of training increases with the training radius, 0 <= epsilon < eta.

    The closed form is also checked to be the optimum: no weight of a fine grid has a higher accuracy.
    """

    def cases(model: ToyModel) -> Mapping[str, BoolArray]:
        radii = [share * model.eta for share in shares]
        optima = [model.best_weight(radius) for radius in radii]
        best = [_is_best(partial(model.average, epsilon=radius), w) for radius, w in zip(radii, optima, strict=True)]
        return {"growth": np.diff(optima) > 0, "optimum": np.concatenate(best)}

    return _checked("cfa23/Th2", theorem_2, models, cases)


def theorem_3(models: Iterable[ToyModel]) -> Statement:
    """The hard class has its best clean accuracy at a smaller weight than the easy class.

    The closed forms are also checked to be the optima: no weight of a fine grid has a higher accuracy.
    """

    def cases(model: ToyModel) -> Mapping[str, BoolArray]:
        optima = {label: model.best_class_weight(label) for label in (EASY, HARD)}
        best = [_is_best(partial(model.accuracy, label), w) for label, w in optima.items()]
        return {"order": np.array([optima[EASY] > optima[HARD]]), "optimum": np.concatenate(best)}

    return _checked("cfa23/Th3", theorem_3, models, cases)


def theorem_4(models: Iterable[ToyModel]) -> Statement:
    """Beyond both optima, a larger weight costs the hard class more clean accuracy; it always gains less robustness.

    A difference between two weights is the integral of the derivatives between them. The derivatives are therefore
    compared, term by term and as logarithms, so that their order is known even where they underflow.
    """

    def cases(model: ToyModel) -> Mapping[str, BoolArray]:
        w = weights(model)
        not_tested = model.best_class_weight(EASY) * np.geomspace(1.001, 20, 60)
        gain, loss = model.slopes(EASY, not_tested)
        robust_gain, robust_loss = model.slopes(HARD, w, model.evaluation_radius)
        return {
            "clean accuracy of the easy class falls": gain < loss,
            "that of the hard class falls more": _falls_more(model, not_tested, 0.0),
            "robust accuracy of the hard class rises": robust_gain > robust_loss,
            "that of the easy class rises more": _falls_more(model, w, model.evaluation_radius),
        }

    return _checked("cfa23/Th4", theorem_4, models, cases)


def gap_identity(models: Iterable[ToyModel]) -> Statement:
    """At 2 eta the class gaps of clean and of robust accuracy are equal for every w."""

    def cases(model: ToyModel) -> Mapping[str, BoolArray]:
        w = weights(model)
        clean, robust = (
            model.accuracy(EASY, w, epsilon) - model.accuracy(HARD, w, epsilon)
            for epsilon in (0.0, model.evaluation_radius)
        )
        return {"gap": np.isclose(clean, robust, rtol=0, atol=1e-12)}

    return _checked("cfa23/Th0 gap", gap_identity, models, cases)


def closed_forms(models: Iterable[ToyModel], per_class: int = 4000, alpha: float = 1e-6, seed: int = 0) -> Statement:
    """Every closed form lies in the exact confidence interval of a simulation with attacked points."""

    def cases(model: ToyModel) -> Mapping[str, BoolArray]:
        sample = model.sample(per_class, seed)
        inside = []
        for epsilon in (0.0, model.eta / 2, model.evaluation_radius):
            moved = attacked(sample, epsilon)
            for w in (0.5 * model.spread, model.best_weight(0.5 * model.eta)):
                right = classify(moved.x, w) == moved.y
                for label in (EASY, HARD):
                    low, high = clopper_pearson(right[sample.y == label].sum(), per_class, alpha)
                    inside.append(low <= model.accuracy(label, w, epsilon) <= high)
        return {"simulation": np.array(inside)}

    return _checked("cfa23/Th0", closed_forms, models, cases)


STATEMENTS: Mapping[str, Callable[[Iterable[ToyModel]], Statement]] = {
    "cfa23/Th0": closed_forms,
    "cfa23/Th1": theorem_1,
    "cfa23/Th2": theorem_2,
    "cfa23/Th3": theorem_3,
    "cfa23/Th4": theorem_4,
}
"""Theorems of the inventory by item id, each a check over a grid of models."""


def _checked(
    name: str, statement: object, models: Iterable[ToyModel], cases: Callable[[ToyModel], Mapping[str, BoolArray]]
) -> Statement:
    """Check the cases of every model and collect the failures."""
    count, failures = 0, []
    for model in models:
        for what, passed in cases(model).items():
            count += passed.size
            if not passed.all():
                failures.append(f"{what}: {int((~passed).sum())} of {passed.size} fail for {model}")
    says = " ".join(docstring(statement).partition("\n\n")[0].split())
    return Statement(name, says, count, tuple(failures))


def _accuracy_differs(model: ToyModel, w: FloatArray, epsilon: float) -> BoolArray:
    """Whether the easy class has the higher accuracy, and `ToyModel.gap` equals the difference of the closed forms."""
    difference = model.accuracy(EASY, w, epsilon) - model.accuracy(HARD, w, epsilon)
    gap = model.gap(w, epsilon)
    return np.asarray((gap > 0) & np.isclose(difference, gap, rtol=0, atol=1e-12))


def _falls_more(model: ToyModel, w: FloatArray, epsilon: float) -> BoolArray:
    """Whether the derivative of the hard class is below that of the easy class; each is a gain minus a loss."""
    easy_gain, easy_loss = model.slopes(EASY, w, epsilon)
    hard_gain, hard_loss = model.slopes(HARD, w, epsilon)
    return np.asarray((hard_gain < easy_gain) & (hard_loss > easy_loss))


def _is_best(accuracy: Callable[[FloatArray], FloatArray], weight: float) -> BoolArray:
    """Whether no weight within a factor of 100 has a higher accuracy, up to rounding."""
    around = weight * np.geomspace(0.01, 100, 201)
    values, best = accuracy(around), accuracy(np.array(weight))
    return np.asarray(values <= best + ROUNDING)
