"""The schedules of 1/T: linear, and by the mean maximum probability, solved by two methods."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import optimize

from classwise.threat.ball import Threat
from classwise.training.classes.signals import ClassSettings
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.schedules.base import Classes
from classwise.training.schedules.temperature import CMP, LIS, Floats, inverse_temperature
from classwise.training.train import train


def largest_probability(outputs: Floats, scale: float) -> float:
    """Mean over the images of max_k softmax(scale outputs)_k, given outputs (N, C)."""
    gaps = outputs - outputs.max(1, keepdims=True)
    return float((1 / np.exp(scale * gaps).sum(1)).mean())


def cosines(count: int, classes: int) -> Floats:
    return np.tanh(np.random.default_rng(0).normal(size=(count, classes)) * 0.3)


def test_the_largest_probability_by_hand() -> None:
    outputs = np.log(np.array([[2.0, 1.0], [1.0, 1.0]]))
    assert largest_probability(outputs, 1.0) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert largest_probability(outputs, 2.0) == pytest.approx((4 / 5 + 1 / 2) / 2)


@pytest.mark.parametrize("target", [0.55, 0.7, 0.9, 0.99])
@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_the_solution_has_the_target_probability_and_agrees_with_brent(classes: int, target: float) -> None:
    outputs = cosines(200, classes)
    found = inverse_temperature(outputs, target)
    if found < 300:
        assert abs(largest_probability(outputs, found) - target) < 1e-6
    by_brent = optimize.brentq(lambda s: largest_probability(outputs, s) - target, 0.01, 3000, xtol=1e-12)
    assert found == pytest.approx(min(by_brent, 300), rel=1e-6)


def test_powells_method_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise AssertionError("Brent's method was asked")

    monkeypatch.setattr(optimize, "brentq", absent)
    assert all(1 < inverse_temperature(cosines(200, 10), target) < 300 for target in (0.2, 0.4, 0.6, 0.8, 0.95))


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_an_unreachable_target_gives_the_nearer_end(classes: int) -> None:
    outputs = cosines(50, classes)
    assert inverse_temperature(outputs, 1.0) == 300
    assert inverse_temperature(outputs, 1.0, max_scale=40) == 40
    assert inverse_temperature(outputs, 1 / classes) == 1
    assert inverse_temperature(100 * outputs, 1 / classes + 1e-6) == pytest.approx(0.01)
    assert (
        inverse_temperature(np.zeros((4, classes)), 0.99) == 300
    )  # equal outputs: the probability does not depend on the scale


def test_lis_is_linear_in_the_paper_s_n_over_n_fi() -> None:
    """Equation 5 of iclr21, with n from 0 to 99 and n_FI = 100; CMP counts epochs alike."""
    schedule = LIS(first=1, last=75, epochs=100)
    state = schedule.start(Classes(("a", "b"), torch.tensor([5, 5])))
    epochs = (0, 1, 50, 99, 100, 150)
    scales = [schedule.settings(state, ClassSettings(), epoch).scale for epoch in epochs]
    expected = [1, 1.74, 38, 74.26, 75, 75]
    assert [float(scale) for scale in scales if scale is not None] == pytest.approx(expected)
    targets = [CMP(first=1 / 75, last=1, epochs=100).target(epoch) for epoch in epochs]
    assert [75 * target for target in targets] == pytest.approx(expected)


def test_cmp_follows_its_target_over_epochs() -> None:
    """Outputs of each batch have the current scale; P of the next epoch is solved on them."""
    schedule = CMP(first=0.2, last=1, epochs=4)
    outputs = torch.from_numpy(cosines(60, 10)).float()
    fresh = schedule.start(Classes(tuple("abcdefghij"), torch.full((10,), 6)))
    state = schedule.before_training(fresh, lambda: outputs)
    for epoch, target in enumerate((0.2, 0.4, 0.6, 0.8, 1.0, 1.0)):
        scale = schedule.settings(state, ClassSettings(), epoch).scale
        assert scale is not None
        if target < 1:
            assert largest_probability(outputs.double().numpy(), float(scale)) == pytest.approx(target, abs=1e-6)
        else:
            assert float(scale) == 300
        for rows in (slice(0, 25), slice(25, 60)):
            step = Step({}, robust_logits=outputs[rows] * scale)
            y = torch.zeros(len(outputs[rows]), dtype=torch.int64)
            batch = TrainingBatch(torch.zeros(len(y), 1, 1, 1), y, torch.arange(len(y)), Threat("Linf", 0.1))
            state = schedule.after_batch(state, step, batch)
        state = schedule.after_epoch(state, {}, epoch)


def test_the_first_scale_uses_the_untrained_network(tmp_path: Path) -> None:
    overrides = {"model.width": 0.0625, "data.subset": 100, "data.validation": 0.2, "threat": "Linf:0.1", "epochs": 1}
    small = {"attack.steps": 1, "validation_attack.steps": 1, "batch_size": 40, "data.augment": "none"}
    run = train("he-cmp", budget="short", out=tmp_path / "run", data="digits", overrides=overrides | small)
    state = torch.load(run.state_file, weights_only=True)["schedules"][0]
    assert float(state["scale"]) > 1
    met = state["outputs"]
    assert met.shape == (80, 10)
    assert bool((met.abs() <= 1 + 1e-5).all())
    assert largest_probability(met.double().numpy(), float(state["scale"])) == pytest.approx(0.2 + 0.8 / 27, abs=1e-6)
