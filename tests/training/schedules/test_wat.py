"""WAT equals Hedge."""

from __future__ import annotations

import math

import pytest
import torch

from classwise.training.schedules.wat import WAT

from ..by_hand import NAN, classes, close, constants


def test_wat_is_hedge_by_hand() -> None:
    schedule = WAT(rate=0.1, beta=6)
    state = schedule.start(classes(2))
    assert close(schedule.settings(state, constants(2), 0).clean_weight, [1.0, 1.0])
    total = [0.0, 0.0, 0.0]
    for epoch, (loss, divergence) in enumerate([([1.0, 2.0], [0.1, 0.5]), ([0.5, 1.0], [0.2, 0.4])]):
        signals = {
            "valid.loss": torch.tensor(loss),
            "valid.divergence": torch.tensor(divergence),
            "valid.count": torch.tensor([3.0, 1.0]),
        }
        state = schedule.after_epoch(state, signals, epoch)
        each = [loss[c] + 6 * divergence[c] for c in (0, 1)]
        each.append((3 * each[0] + each[1]) / 4)
        total = [before + now for before, now in zip(total, each, strict=True)]
    raised = [math.exp(0.1 * value) for value in total]
    w = [value / sum(raised) for value in raised]
    assert close(schedule.experts(state), w)
    after = schedule.settings(state, constants(2), 2)
    for weight in (after.clean_weight, after.robust_weight):
        assert close(weight, [2 * w[0] + w[2], 2 * w[1] + w[2]])


@pytest.mark.parametrize("count", [3, 10, 100])
def test_wat_over_any_number_of_classes(count: int) -> None:
    """Losses c / C: the weight of expert c is exp(rate c / C), that of the average exp of their mean."""
    schedule = WAT(rate=2.0, beta=6)
    losses = torch.arange(count) / count
    signals = {"valid.loss": losses, "valid.divergence": torch.zeros(count), "valid.count": torch.ones(count)}
    state = schedule.after_epoch(schedule.start(classes(count)), signals, 0)
    raised = [math.exp(2 * c / count) for c in range(count)] + [math.exp((count - 1) / count)]
    expected = [(count * value + raised[-1]) / sum(raised) for value in raised[:-1]]
    assert close(schedule.settings(state, constants(count), 1).robust_weight, expected, 1e-5)


def test_a_class_without_validation_images_has_the_average_loss() -> None:
    signals = {
        "valid.loss": torch.tensor([1.0, NAN, 3.0]),
        "valid.divergence": torch.tensor([0.0, NAN, 0.0]),
        "valid.count": torch.tensor([1.0, 0.0, 1.0]),
    }
    schedule = WAT()
    assert close(schedule.after_epoch(schedule.start(classes(3)), signals, 0)["losses"], [1.0, 2.0, 3.0, 2.0])
