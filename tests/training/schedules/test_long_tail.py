"""Weights by counts and by errors, and the margins of LDAM."""

from __future__ import annotations

import math

import pytest
import torch

from classwise.attacks.losses import cross_entropy
from classwise.training.criteria.softmax import Softmax
from classwise.training.schedules.base import Classes
from classwise.training.schedules.long_tail import LDAM, ClassWeights

from ..by_hand import NAN, classes, close, constants

COUNTS = torch.tensor([100, 10, 0, 1000])


def raw(values: list[float]) -> list[float]:
    held = sum(value > 0 for value in values)
    return [value * held / sum(values) for value in values]


def test_weights_by_counts_equal_their_formulas() -> None:
    names = ("a", "b", "c", "d")
    inverse, effective = ClassWeights(kind="inverse"), ClassWeights(kind="effective", base=0.99)
    assert close(inverse.weights(inverse.start(Classes(names, COUNTS))), raw([1 / 100, 1 / 10, 0, 1 / 1000]))
    by_hand = [0.01 / (1 - 0.99**100), 0.01 / (1 - 0.99**10), 0, 0.01 / (1 - 0.99**1000)]
    assert close(effective.weights(effective.start(Classes(names, COUNTS))), raw(by_hand))
    evenly = ClassWeights(kind="inverse", mode="sampling")
    sampling = evenly.settings(evenly.start(Classes(names, COUNTS)), constants(4), 0).sampling
    assert sampling is not None
    assert close(sampling * COUNTS, [27.027027] * 2 + [0.0, 27.027027], 1e-4)  # a class is drawn as often as another


def test_weights_by_robust_images_use_the_last_epoch() -> None:
    schedule = ClassWeights(kind="inverse", count="robust", start_epoch=1)
    state = schedule.start(classes(3))
    before = constants(3)
    assert schedule.settings(state, before, 0) is before
    state = schedule.after_epoch(state, {"train.robust": torch.tensor([0.8, 0.4, NAN])}, 0)
    assert close(schedule.settings(state, before, 1).robust_weight, raw([1 / 4, 1 / 2, 1 / 5]))


def test_weights_by_robust_error_by_hand_and_never_negative() -> None:
    schedule = ClassWeights(kind="robust-error", strength=2)
    state = schedule.start(classes(3))
    assert close(schedule.weights(state), [1.0] * 3)
    state = schedule.after_epoch(state, {"train.robust": torch.tensor([0.8, 0.4, 0.3])}, 0)
    assert close(schedule.weights(state), [0.4, 1.2, 1.4])
    steep = ClassWeights(kind="robust-error", strength=4)
    with pytest.warns(UserWarning, match="strength = 4 gives negative weights"):
        state = steep.after_epoch(state, {"train.robust": torch.tensor([0.8, 0.4, 0.3])}, 0)
    state = steep.after_epoch(state, {"train.robust": torch.tensor([0.8, 0.4, 0.3])}, 1)  # said once
    assert close(steep.weights(state), [0.0, 1.4 * 3 / 3.2, 1.8 * 3 / 3.2])


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_ldam_by_hand(scale: float) -> None:
    """Counts 160, 10, none and 810: the fourth roots of 16, 1 and 81."""
    schedule = LDAM(start_epoch=2, base=0.99, scale=scale)
    state = schedule.start(Classes(("a", "b", "c", "d"), torch.tensor([160, 10, 0, 810])))
    early, late = schedule.settings(state, constants(4), 1), schedule.settings(state, constants(4), 2)
    assert close(early.logit_margin, [0.25, 0.5, 0, 0.5 / 3])
    assert early.robust_weight is None
    assert close(late.logit_margin, [0.25, 0.5, 0, 0.5 / 3])
    assert close(late.robust_weight, raw([1 / (1 - 0.99**160), 1 / (1 - 0.99**10), 0, 1 / (1 - 0.99**810)]))
    logits, y = torch.tensor([[0.3, 0.1, 0.0, -0.2], [0.2, 0.4, 0.1, 0.9]]), torch.tensor([0, 3])
    expected = scale * torch.tensor([[0.05, 0.1, 0.0, -0.2], [0.2, 0.4, 0.1, 0.9 - 0.5 / 3]])
    scaled = Softmax().scaled(lambda x: x, early)(logits)
    asked: list[torch.Tensor] = []

    def seen(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        asked.append(z)
        return cross_entropy(z, y)

    Softmax()(scaled, y, early, seen)
    assert torch.allclose(asked[0], expected, atol=1e-6)


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_ldams_margins_for_any_number_of_classes(count: int) -> None:
    counts = torch.arange(1, count + 1) ** 2
    after = LDAM(max_margin=0.8).settings(
        LDAM().start(Classes(tuple(map(str, range(count))), counts)), constants(count), 0
    )
    assert close(after.logit_margin, [0.8 / math.sqrt(label) for label in range(1, count + 1)])


def test_ldam_on_balanced_data_counts_robust_images() -> None:
    schedule = LDAM(robust=True)
    state = schedule.after_epoch(schedule.start(classes(3)), {"train.robust": torch.tensor([0.8, NAN, 0.4])}, 0)
    roots = [2**-0.25, 2.5**-0.25, 1]
    assert close(schedule.settings(state, constants(3), 1).logit_margin, [0.5 * root for root in roots])
