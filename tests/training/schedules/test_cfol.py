"""CFOL equals Exp3."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from classwise.training.objectives.base import Step
from classwise.training.schedules.base import Classes
from classwise.training.schedules.cfol import CFOL

from ..by_hand import batch_of, close, constants


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
    schedule = CFOL()
    state = {"scores": torch.linspace(0, 1e4, count), "shares": torch.full((count,), 1 / count)}
    law = schedule.distribution(state)
    assert float(law.sum()) == pytest.approx(1, abs=1e-5)
    assert float(law.min()) == pytest.approx(0.5 / count)
