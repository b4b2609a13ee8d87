"""Numerical checks of theorems 1 to 4 of cfa23 (section 2.3), each over a grid of toy models and weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from classwise.papers.theory.toy import EASY, HARD, ToyModel, attacked, classify
from classwise.stats.counts import BoolArray, FloatArray
from classwise.stats.intervals import clopper_pearson

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
    says = " ".join((statement.__doc__ or "").partition("\n\n")[0].split())
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
