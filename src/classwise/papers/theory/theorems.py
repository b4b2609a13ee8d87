"""Theorems 1 to 4 of cfa23 (section 2.3) as statements that run: each over a grid of toy models and weights."""

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
"""Accuracies, sums of a few numbers below 1, are known to so much."""


class Statement(NamedTuple):
    """What became of a theorem on a grid.

    Attributes:
        name: such as ``cfa23/Th1``.
        says: the theorem in a sentence.
        cases: inequalities that were looked at.
        failures: those that do not hold, each in words.
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
    """Every toy model of the given values; of two reliabilities the smaller one is the hard class's."""
    pairs = list(itertools.combinations(sorted(reliabilities), 2))
    return [
        ToyModel(features=d, eta=eta, variance=variance, easy=easy, hard=hard)
        for d, eta, variance, (hard, easy) in itertools.product(features, etas, variances, pairs)
    ]


def weights(model: ToyModel, count: int = 60) -> FloatArray:
    """Weights from 0.01 to 10 times the scale on which the accuracies of a model change, (count,)."""
    scale = model.spread + model.features * model.eta
    return np.geomspace(0.01 * scale, 10 * scale, count)


def theorem_1(models: Iterable[ToyModel]) -> Statement:
    """The class whose robust feature tells less is the harder one, clean and robust, for every w > 0."""

    def cases(model: ToyModel) -> Mapping[str, BoolArray]:
        w = weights(model)
        return {
            "clean accuracy": _accuracy_differs(model, w, 0.0),
            "robust accuracy": _accuracy_differs(model, w, model.evaluation_radius),
        }

    return _checked("cfa23/Th1", theorem_1, models, cases)


def theorem_2(models: Iterable[ToyModel], shares: Sequence[float] = (0, 0.2, 0.4, 0.6, 0.8, 0.95)) -> Statement:
    """The weight that training finds grows with the training radius, 0 <= epsilon < eta.

    That the closed form is the optimum is checked too: no weight of a fine grid has a higher accuracy.
    """

    def cases(model: ToyModel) -> Mapping[str, BoolArray]:
        radii = [share * model.eta for share in shares]
        found = [model.best_weight(radius) for radius in radii]
        best = [_is_best(partial(model.average, epsilon=radius), w) for radius, w in zip(radii, found, strict=True)]
        return {"growth": np.diff(found) > 0, "optimum": np.concatenate(best)}

    return _checked("cfa23/Th2", theorem_2, models, cases)


def theorem_3(models: Iterable[ToyModel]) -> Statement:
    """The hard class has its best clean accuracy at a smaller weight than the easy class.

    That the closed forms are the optima is checked too: no weight of a fine grid has a higher accuracy.
    """

    def cases(model: ToyModel) -> Mapping[str, BoolArray]:
        found = {label: model.best_class_weight(label) for label in (EASY, HARD)}
        best = [_is_best(partial(model.accuracy, label), w) for label, w in found.items()]
        return {"order": np.array([found[EASY] > found[HARD]]), "optimum": np.concatenate(best)}

    return _checked("cfa23/Th3", theorem_3, models, cases)


def theorem_4(models: Iterable[ToyModel]) -> Statement:
    """Beyond both peaks a growing weight costs the hard class more clean accuracy; it always gains less robustness.

    A step from one weight to a larger one is the integral of the derivatives between them; so the derivatives are
    compared, term by term and as logarithms, which tells their order also where they are too small for a float.
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
    """At 2 eta the class gap of clean and of robust accuracy are equal, identically in w."""

    def cases(model: ToyModel) -> Mapping[str, BoolArray]:
        w = weights(model)
        clean, robust = (
            model.accuracy(EASY, w, epsilon) - model.accuracy(HARD, w, epsilon)
            for epsilon in (0.0, model.evaluation_radius)
        )
        return {"gap": np.isclose(clean, robust, rtol=0, atol=1e-12)}

    return _checked("cfa23/Th0 gap", gap_identity, models, cases)


def closed_forms(models: Iterable[ToyModel], per_class: int = 4000, alpha: float = 1e-6, seed: int = 0) -> Statement:
    """Every closed form lies in the exact interval of a simulation of points that are attacked and classified."""

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
"""The rows of the papers' inventory that are theory, each a statement over a grid of models."""


def _checked(
    name: str, statement: object, models: Iterable[ToyModel], cases: Callable[[ToyModel], Mapping[str, BoolArray]]
) -> Statement:
    """Run the cases of every model and name those that fail."""
    count, failures = 0, []
    for model in models:
        for what, found in cases(model).items():
            count += found.size
            if not found.all():
                failures.append(f"{what}: {int((~found).sum())} of {found.size} fail for {model}")
    says = " ".join((statement.__doc__ or "").partition("\n\n")[0].split())
    return Statement(name, says, count, tuple(failures))


def _accuracy_differs(model: ToyModel, w: FloatArray, epsilon: float) -> BoolArray:
    """Whether the easy class is ahead; `ToyModel.gap` must also be what the two closed forms differ by."""
    difference = model.accuracy(EASY, w, epsilon) - model.accuracy(HARD, w, epsilon)
    gap = model.gap(w, epsilon)
    return np.asarray((gap > 0) & np.isclose(difference, gap, rtol=0, atol=1e-12))


def _falls_more(model: ToyModel, w: FloatArray, epsilon: float) -> BoolArray:
    """Whether the hard class's derivative is below the easy one's: each is a gain minus a loss."""
    easy_gain, easy_loss = model.slopes(EASY, w, epsilon)
    hard_gain, hard_loss = model.slopes(HARD, w, epsilon)
    return np.asarray((hard_gain < easy_gain) & (hard_loss > easy_loss))


def _is_best(accuracy: Callable[[FloatArray], FloatArray], weight: float) -> BoolArray:
    """Whether no weight within a factor of a hundred is better, up to rounding."""
    around = weight * np.geomspace(0.01, 100, 201)
    values, best = accuracy(around), accuracy(np.array(weight))
    return np.asarray(values <= best + ROUNDING)
