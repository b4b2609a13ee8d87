"""The schedule of radii by the accuracy relative to the mean."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from classwise.training.recipe import Recipe
from classwise.training.schedules.cfa import Margins

from ..by_hand import EPSILON, NAN, classes, close, constants


def radii(schedule: Margins, *epochs: list[float]) -> Tensor:
    """The radii divided by eps after epochs with these robust accuracies."""
    state = schedule.start(classes(len(epochs[0])))
    for number, robust in enumerate(epochs):
        state = schedule.after_epoch(state, {"train.robust": torch.tensor(robust)}, number)
    found = schedule.settings(state, constants(len(epochs[0])), len(epochs)).epsilon
    assert found is not None
    return found / EPSILON


def test_margins_by_hand_for_both_signs() -> None:
    reached = [0.2, 0.5, 0.8]
    assert close(radii(Margins(slope=1), reached), [0.7, 1.0, 1.3])
    assert close(radii(Margins(slope=-1), reached), [1.3, 1.0, 0.7])
    start = Margins().start(classes(3))
    assert close(Margins().settings(start, constants(3), 0).epsilon, [EPSILON] * 3)


@pytest.mark.parametrize("count", [2, 3, 10, 100])
@pytest.mark.parametrize("slope", [1.0, -1.0])
def test_the_mean_radius_is_constant(count: int, slope: float) -> None:
    reached = torch.rand(count, generator=torch.Generator().manual_seed(count)).tolist()
    assert float(radii(Margins(slope=slope), reached).mean()) == pytest.approx(1, abs=1e-5)


def test_radii_of_unseen_classes_are_eps_and_of_absent_classes_unchanged() -> None:
    assert close(radii(Margins(), [0.2, NAN, 0.4]), [0.9, 1.0, 1.1])
    assert close(radii(Margins(), [0.2, 0.6, 0.4], [0.2, NAN, 0.4]), [0.8, 1.2, 1.0])
    assert close(radii(Margins(slope=10, floor=0.25), [0.0, 0.4]), [0.25, 3.0])


def test_the_two_margins_recipes_differ_in_one_sign() -> None:
    for budget in (None, "short"):
        smaller, larger = (Recipe.read(f"margins-{name}", budget=budget) for name in ("smaller", "larger"))
        texts: dict[str, Any] = {"name": smaller.name, "description": smaller.description, "source": smaller.source}
        assert dataclasses.replace(larger, **texts, schedules=smaller.schedules) == smaller
        (one,), (other,) = smaller.parts.schedules, larger.parts.schedules
        assert isinstance(one, Margins)
        assert dataclasses.replace(one, slope=-one.slope) == other
