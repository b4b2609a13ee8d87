"""The toy model compared with simulation, numerical optimisation, and values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from classwise.core.errors import ClasswiseError
from classwise.papers.theory.toy_model import EASY, HARD, ToyModel, attacked, classify
from tests.refusals import check_refused

MODEL = ToyModel()


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("label", [EASY, HARD])
@pytest.mark.parametrize("features", [1, 5])
def test_accuracy_is_an_integral(features: int, label: int, epsilon: float) -> None:
    """Integral of the density of the sum of the weak features, over both values of the robust feature."""
    model = ToyModel(features=features)
    w = 1.3
    mean, spread = features * (model.eta * label - epsilon * label), math.sqrt(features * model.variance)
    density = stats.norm(mean, spread).pdf

    def right(robust: float) -> float:
        """The probability that label * (robust + sum/w) > 0."""
        ends = (-robust * w, mean + 12 * spread) if label == EASY else (mean - 12 * spread, -robust * w)
        return float(integrate.quad(density, *ends)[0])

    p = model.reliability(label)
    assert model.accuracy(label, w, epsilon) == pytest.approx(p * right(label) + (1 - p) * right(-label), abs=1e-7)


def test_simulation() -> None:
    sample = MODEL.sample(20_000, seed=3)
    assert np.bincount((sample.y > 0).astype(int)).tolist() == [20_000, 20_000]
    for epsilon in (0.0, MODEL.evaluation_radius):
        moved = attacked(sample, epsilon)
        assert np.abs(moved.x - sample.x).max() == pytest.approx(epsilon, abs=1e-12)
        right = classify(moved.x, 1.0) == moved.y
        for label in (EASY, HARD):
            assert right[sample.y == label].mean() == pytest.approx(MODEL.accuracy(label, 1.0, epsilon), abs=0.015)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3])
def test_best_weight_is_the_maximum(epsilon: float) -> None:
    found = optimize.minimize_scalar(lambda w: -float(MODEL.average(w, epsilon)), bounds=(1e-3, 6), method="bounded")
    assert MODEL.best_weight(epsilon) == pytest.approx(found.x, rel=1e-3)


@pytest.mark.parametrize("label", [EASY, HARD])
def test_best_class_weight_is_the_maximum(label: int) -> None:
    found = optimize.minimize_scalar(lambda w: -float(MODEL.accuracy(label, w)), bounds=(1e-3, 6), method="bounded")
    assert MODEL.best_class_weight(label) == pytest.approx(found.x, rel=1e-3)


def test_the_optimum_by_hand() -> None:
    """ln(0.8/0.2) = ln 4; variance 1, eta - epsilon = 1/4: w* = 2 ln 4."""
    model = ToyModel(eta=0.4, variance=1, easy=0.9, hard=0.7)
    assert model.best_weight(0.15) == pytest.approx(2 * math.log(4))
    assert model.best_weight(0.4) == math.inf


def test_the_gap_is_accurate_where_both_accuracies_round_to_one() -> None:
    model = ToyModel(features=400, eta=0.49, variance=0.1)
    assert model.accuracy(EASY, 1.0) == model.accuracy(HARD, 1.0) == 1.0
    assert 0 < model.gap(1.0) < 1e-16


def test_slopes_are_the_derivative() -> None:
    w, step = np.linspace(0.2, 4, 9), 1e-5
    for label in (EASY, HARD):
        gain, loss = MODEL.slopes(label, w, 0.3)
        numerical = (MODEL.accuracy(label, w + step, 0.3) - MODEL.accuracy(label, w - step, 0.3)) / (2 * step)
        assert np.exp(gain) - np.exp(loss) == pytest.approx(numerical, abs=1e-8)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"features": 0}, "features = 0"),
        ({"eta": 0.5}, "eta = 0.5"),
        ({"variance": 0.0}, "variance"),
        ({"easy": 0.6, "hard": 0.7}, "hard = 0.7"),
    ],
)
def test_bad_models(values: dict[str, float], word: str) -> None:
    check_refused(word, ToyModel, **values)


@pytest.mark.parametrize(("of", "value", "word"), [("best_weight", 0.41, "eta"), ("sample", 0, "at least 1")])
def test_bad_radius_and_sample(of: str, value: float, word: str) -> None:
    with pytest.raises(ClasswiseError, match=word):
        getattr(MODEL, of)(value)
