"""FRL against numbers by hand, and its recipes."""

from __future__ import annotations

import math

import pytest
import torch

from classwise.training.classes.signals import ClassSettings
from classwise.training.objectives.base import Step
from classwise.training.reductions.base import mean, normalised
from classwise.training.schedules.frl import FRL

from .by_hand import EPSILON, NAN, batch_of, classes, close, constants


def test_frl_by_hand_over_two_epochs() -> None:
    """Clean errors 0.1, 0.2, 0.6 (mean 0.3), boundary errors 0.2, 0.5, 0.2 (mean 0.3), tolerance 0.07."""
    schedule = FRL(halve_every=1)
    state = schedule.start(classes(3))
    signals = {"valid.clean": torch.tensor([0.9, 0.8, 0.4]), "valid.robust": torch.tensor([0.7, 0.3, 0.2])}
    first = schedule.settings(state, constants(3), 0)
    assert close(first.clean_weight, [1.0] * 3)
    assert close(first.epsilon, [EPSILON] * 3)
    state = schedule.after_epoch(state, signals, 0)
    assert close(state["clean"], [0, 0, 0.05 * 0.23])
    assert close(state["robust"], [0, 0.1 * 0.13, 0])
    assert close(state["margin"], [0.2 * -0.17, 0.2 * 0.13, 0.2 * -0.17])
    state = schedule.after_epoch(state, signals, 1)  # the rate has halved, the margin's has not
    lam0, lam1, lam2 = 0.075 * 0.23, 0.15 * 0.13, 0.4 * 0.13
    assert close(state["clean"], [0, 0, lam0])
    assert close(state["robust"], [0, lam1, 0])
    after = schedule.settings(state, constants(3), 2)
    assert close(after.clean_weight, [1 - lam0, 1 - lam0, 1 + 2 * lam0])
    assert close(after.robust_weight, [1 - lam1, 1 + 2 * lam1, 1 - lam1])
    widest = EPSILON * math.exp(2 * lam2)
    assert close(after.epsilon, [0.98 * EPSILON, widest, 0.98 * EPSILON])
    assert close(after.step_size, [widest / 4] * 3)


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_multipliers_are_bounded_and_weights_sum_to_the_number_of_classes(count: int) -> None:
    schedule = FRL(rate=10, margin_rate=5)
    state = schedule.start(classes(count))
    clean = torch.linspace(0.2, 0.9, count)
    for epoch in range(3):
        state = schedule.after_epoch(state, {"valid.clean": clean, "valid.robust": clean * clean}, epoch)
        for name in ("clean", "robust"):
            assert float(state[name].min()) >= 0
            assert float(state[name].sum()) <= 0.5 + 1e-6
        after = schedule.settings(state, constants(count), epoch + 1)
        for weight in (after.clean_weight, after.robust_weight):
            assert weight is not None
            assert float(weight.sum()) == pytest.approx(count, rel=1e-5)
            assert float(weight.min()) >= 0.5 - 1e-5
        assert after.epsilon is not None
        assert float(after.epsilon.min()) >= 0.98 * EPSILON - 1e-6
        assert float(after.epsilon.max()) <= 3 * EPSILON + 1e-6


def test_multipliers_of_a_class_without_validation_images_do_not_change() -> None:
    schedule = FRL()
    signals = {"valid.clean": torch.tensor([0.9, NAN, 0.1]), "valid.robust": torch.tensor([0.5, NAN, 0.1])}
    state = schedule.after_epoch(schedule.start(classes(3)), signals, 0)
    assert close(state["clean"], [0, 0, 0.05 * (0.9 - 0.5 - 0.07)])
    assert float(state["margin"][1]) == 0


def test_frl_variants_change_weights_or_radii() -> None:
    signals = {"valid.clean": torch.tensor([0.9, 0.3]), "valid.robust": torch.tensor([0.1, 0.3])}
    reweight, remargin = FRL(tolerance=0.1, margin_rate=0), FRL(boundary=0)
    state = reweight.after_epoch(reweight.start(classes(2)), signals, 0)
    after = reweight.settings(state, constants(2), 1)
    assert close(after.epsilon, [EPSILON] * 2)
    assert after.step_size is None
    assert not close(after.robust_weight, [1.0] * 2)
    state = remargin.after_epoch(remargin.start(classes(2)), signals, 0)
    after = remargin.settings(state, constants(2), 1)
    assert close(after.robust_weight, [1.0] * 2)
    assert not close(after.epsilon, [EPSILON] * 2)


def test_a_normalised_reduction_divides_by_the_weights_of_the_batch() -> None:
    y = torch.tensor([0, 0, 1])
    step = Step({"clean": torch.tensor([1.0, 2.0, 3.0]), "robust": torch.tensor([4.0, 5.0, 9.0])})
    settings = ClassSettings(clean_weight=torch.tensor([0.5, 2.0, 7.0]), robust_weight=torch.tensor([1.0, 3.0, 7.0]))
    assert float(normalised(step, batch_of(y), settings)) == pytest.approx((0.5 + 1 + 6) / 3 + (4 + 5 + 27) / 5)
    assert float(mean(step, batch_of(y), settings)) == pytest.approx((0.5 + 1 + 6 + 4 + 5 + 27) / 3)
    plain = ClassSettings()
    assert float(normalised(step, batch_of(y), plain)) == pytest.approx(float(mean(step, batch_of(y), plain)))
