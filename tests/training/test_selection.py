"""The rules that choose an epoch, by hand, with classes that the split has not and classes of other sizes."""

from __future__ import annotations

import math

import pytest
import torch

from classwise.training import SELECTIONS
from classwise.training.recipe import Recipe

SPLITS = [
    ([0.5, 0.1], [10.0, 30.0], 0.2, 0.1),
    ([0.5, 0.2, math.nan], [10.0, 10.0, 0.0], 0.35, 0.2),
    ([0.25] * 99 + [0.0], [1.0] * 100, 0.2475, 0.0),
]


@pytest.mark.parametrize(("robust", "count", "overall", "worst"), SPLITS)
def test_the_rules_by_hand(robust: list[float], count: list[float], overall: float, worst: float) -> None:
    expected = {"overall": overall, "worst": worst, "overall+worst": overall + worst, "last": math.inf}
    assert set(expected) == set(SELECTIONS)
    for name, score in expected.items():
        rule = Recipe.read("at", {"selection": name}).parts().selection
        assert rule(torch.tensor(robust), torch.tensor(count)) == pytest.approx(score)


def test_the_rules_choose_different_epochs() -> None:
    epochs = [[0.9, 0.1], [0.5, 0.3], [0.8, 0.25], [0.4, 0.2]]
    count, chosen = torch.ones(2), {}
    for name in SELECTIONS:
        rule = Recipe.read("at", {"selection": name}).parts().selection
        scores = [rule(torch.tensor(epoch), count) for epoch in epochs]
        chosen[name] = max(range(4), key=lambda epoch, scores=scores: (scores[epoch], epoch))  # type: ignore[misc]
    assert chosen == {"overall": 2, "worst": 1, "overall+worst": 2, "last": 3}
