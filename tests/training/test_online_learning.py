"""CFOL equals Exp3, and WAT equals Hedge."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from classwise.training.objectives.base import Step
from classwise.training.schedules.base import Classes
from classwise.training.schedules.online_learning import CFOL, WAT

from .by_hand import NAN, batch_of, classes, close, constants


def erring(y: Tensor, wrong: list[bool], count: int) -> Step:
    predicted = torch.where(torch.tensor(wrong), (y + 1) % count, y)
    return Step({"robust": torch.zeros(len(y))}, robust_logits=torch.eye(count)[predicted])


def test_cfol_is_exp3_by_hand() -> None:
    """Classes of 1 and 3 images; two errors in class 0 and one in class 1, rate 0.5, gamma 0.4."""
    schedule = CFOL(gamma=0.4, rate=0.5)
    state = schedule.start(Classes(("a", "b"), torch.tensor([1, 3])))
    first = schedule.settings(state, constants(2), 0)
    assert close(first.sampling, [0.5 / 0.25, 0.5 / 0.75])  # the odds of an image, so that a class has 1/2
    y = torch.tensor([0, 0, 1, 1, 0])
    state = schedule.after_batch(state, erring(y, [True, True, False, True, False], 2), batch_of(y))
    assert close(state["scores"], [2 * 0.5 / 0.5, 0.5 / 0.5])
    focused = math.exp(2) / (math.exp(2) + math.exp(1))
    p = 0.2 + 0.6 * focused
    assert close(schedule.distribution(state), [p, 1 - p])
    state = schedule.after_batch(state, erring(y, [False] * 2 + [True] + [False] * 2, 2), batch_of(y))
    assert close(state["scores"], [2.0, 1.0 + 0.5 / (1 - p)])


@pytest.mark.parametrize("count", [3, 10, 100])
def test_exp3_over_any_number_of_classes(count: int) -> None:
    """Every second class errs once: its score increases by rate / p, the others are constant."""
    schedule = CFOL(gamma=0.5, rate=0.25)
    state = schedule.start(Classes(tuple(map(str, range(count))), torch.ones(count, dtype=torch.int64)))
    y = torch.arange(count)
    step = erring(y, [label % 2 == 1 for label in range(count)], count)
    for _ in range(2):
        law, before = schedule.distribution(state), state["scores"]
        state = schedule.after_batch(state, step, batch_of(y))
        expected = before + torch.where(y % 2 == 1, 0.25 / law, torch.zeros(()))
        assert close(state["scores"], expected.tolist(), 1e-4)
    focused = state["scores"].softmax(0)
    assert close(schedule.distribution(state), (0.5 / count + 0.5 * focused).tolist())


def test_cfol_with_weights_divides_by_the_class_frequencies() -> None:
    schedule = CFOL(gamma=0.5, rate=0.1, mode="weights")
    state = schedule.start(Classes(("a", "b", "c"), torch.tensor([1, 3, 0])))
    y = torch.tensor([0, 1, 1])
    state = schedule.after_batch(state, erring(y, [True, True, True], 3), batch_of(y))
    assert close(state["scores"], [0.1 / 0.25, 0.2 / 0.75, 0])
    high, low = math.exp(0.4), math.exp(0.2 / 0.75)
    p = 0.25 + 0.5 * high / (high + low)
    after = schedule.settings(state, constants(3), 0)
    assert close(after.robust_weight, [3 * p, 3 * (1 - p), 0])
    assert after.sampling is None


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_the_distribution_of_cfol_sums_to_one_for_any_scores(count: int) -> None:
    state = {"scores": torch.linspace(0, 1e4, count), "shares": torch.full((count,), 1 / count)}
    law = CFOL().distribution(state)
    assert float(law.sum()) == pytest.approx(1, abs=1e-5)
    assert float(law.min()) == pytest.approx(0.5 / count)


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


def test_wat_of_the_code_by_hand() -> None:
    """Two classes of 3 and 1 images: loss sums times C / N are 1.5 and 0.5 times the means; C w_3 instead of w_3."""
    schedule = WAT(rate=0.1, beta=6, variant="code")
    state = schedule.start(classes(2))
    first = schedule.settings(state, constants(2), 0)
    assert close(first.clean_weight, [2.0, 2.0])
    assert close(first.robust_weight, [2.0, 2.0])
    signals = {
        "valid.loss": torch.tensor([1.0, 2.0]),
        "valid.divergence": torch.tensor([0.1, 0.5]),
        "valid.count": torch.tensor([3.0, 1.0]),
    }
    state = schedule.after_epoch(state, signals, 0)
    losses = [1.5 * 1.6, 0.5 * 5.0, (3 * 1.6 + 5.0) / 4]
    assert close(state["losses"], losses)
    raised = [math.exp(0.1 * value) for value in losses]
    w = [value / sum(raised) for value in raised]
    after = schedule.settings(state, constants(2), 1)
    for weight in (after.clean_weight, after.robust_weight):
        assert close(weight, [2 * w[0] + 2 * w[2], 2 * w[1] + 2 * w[2]])


def test_the_losses_of_both_variants_are_equal_for_classes_of_equal_size() -> None:
    signals = {
        "valid.loss": torch.tensor([1.0, 2.0, 6.0]),
        "valid.divergence": torch.zeros(3),
        "valid.count": torch.full((3,), 4.0),
    }
    for schedule in (WAT(), WAT(variant="code")):
        assert close(schedule.after_epoch(schedule.start(classes(3)), signals, 0)["losses"], [1.0, 2.0, 6.0, 3.0])
    absent = signals | {"valid.loss": torch.tensor([1.0, NAN, 3.0]), "valid.count": torch.tensor([1.0, 0.0, 1.0])}
    state = WAT(variant="code").after_epoch(schedule.start(classes(3)), absent, 0)
    assert close(state["losses"], [1.5, 0.0, 4.5, 2.0])


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
