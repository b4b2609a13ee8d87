"""The selection rules by hand, with absent classes and classes of different sizes."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from classwise.training import SELECTIONS
from classwise.training.recipe import Recipe
from classwise.training.selection import (
    AtFraction,
    WithinError,
    _contributions,
    _standard_error_of_sum,
    fourteen_fifteenths,
    three_quarters,
)
from classwise.training.train import train

from .killing import killed_and_resumed
from .test_trainer import SMALL, contents

SPLITS = [
    ([0.5, 0.1], [10.0, 30.0], 0.2, 0.1),
    ([0.5, 0.2, math.nan], [10.0, 10.0, 0.0], 0.35, 0.2),
    ([0.25] * 99 + [0.0], [1.0] * 100, 0.2475, 0.0),
    ([0.5] * 19 + [0.0], [1.0] * 20, 0.475, 0.0),
    ([0.5] * 20 + [0.0], [2.0] * 21, 10 / 21, 0.0),
    ([0.5] * 19 + [0.0, math.nan], [1.0] * 20 + [0.0], 0.475, 0.0),
]


@pytest.mark.parametrize(("robust", "count", "overall", "worst"), SPLITS)
def test_the_rules_by_hand(robust: list[float], count: list[float], overall: float, worst: float) -> None:
    lowest = sorted(value for value in robust if value == value)
    fifth = sum(lowest[: math.ceil(len(lowest) / 5)]) / math.ceil(len(lowest) / 5)
    expected = {"overall": overall, "worst": worst, "overall+worst": overall + worst, "last": math.inf}
    expected |= {"overall+worst-fifth": overall + fifth}
    expected["auto"] = expected["overall+worst-fifth" if len(lowest) > 20 else "overall+worst"]
    assert set(expected) == set(SELECTIONS) - {"within-error", "three-quarters", "fourteen-fifteenths"}
    for name, score in expected.items():
        rule = Recipe.read("at", {"selection": name}).parts.selection
        assert not isinstance(rule, WithinError | AtFraction)
        assert rule(torch.tensor(robust), torch.tensor(count)) == pytest.approx(score)


def test_the_rules_select_different_epochs() -> None:
    epochs = [[0.9, 0.1], [0.5, 0.3], [0.8, 0.25], [0.4, 0.2]]
    count, chosen = torch.ones(2), {}
    for name in SELECTIONS:
        rule = Recipe.read("at", {"selection": name}).parts.selection
        if isinstance(rule, WithinError | AtFraction):
            continue
        scores = [rule(torch.tensor(epoch), count) for epoch in epochs]
        chosen[name] = max(range(4), key=lambda epoch, scores=scores: (scores[epoch], epoch))  # type: ignore[misc]
    assert chosen == {"overall": 2, "worst": 1, "overall+worst": 2, "last": 3, "overall+worst-fifth": 2, "auto": 2}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=2, max_size=30), st.randoms())
def test_epochs_of_equal_accuracies_have_equal_scores(rows: list[tuple[int, int]], random: Random) -> None:
    """The same accuracies of classes of equal size in another order, and the same numbers of correct images."""
    count = torch.full((len(rows),), 41.0)
    right = [correct for correct, _ in rows]
    shuffled = random.sample(right, len(right))
    for name in ("overall", "worst", "overall+worst", "overall+worst-fifth", "auto"):
        rule = Recipe.read("at", {"selection": name}).parts.selection
        assert not isinstance(rule, WithinError | AtFraction)
        scores = [rule(torch.tensor(order, dtype=torch.float32) / count, count) for order in (right, shuffled)]
        assert scores[0] == scores[1]


Y = torch.tensor([0, 0, 0, 0, 2, 2])
"""Two of three classes are in the split."""


def chosen(epochs: list[Tensor], y: Tensor, window: int = 3) -> list[bool]:
    rule, state, answers = WithinError(window=window), dict[str, Tensor](), []
    for scores in epochs:
        state, answer = rule.select(state, scores, y)
        answers.append(answer)
    return answers


def test_the_score_and_its_standard_error_by_hand() -> None:
    """Means 0.5 and 0.3: J = 2.6/6 + 0.3, the weight of images of the worst class (2) is 1/6 + 1/2."""
    parts = _contributions(torch.tensor([0.2, 0.4, 0.6, 0.8, 0.3, 0.3], dtype=torch.float64), Y)
    assert parts.tolist() == pytest.approx([0.2 / 6, 0.4 / 6, 0.6 / 6, 0.8 / 6, 0.3 * 2 / 3, 0.3 * 2 / 3])
    values = torch.tensor([1.0, 3.0, 1.0, 3.0, 0.0, 4.0], dtype=torch.float64)  # variances 4/3 and 8
    assert _standard_error_of_sum(values, Y) == pytest.approx(math.sqrt(4 * 4 / 3 + 2 * 8))
    assert _standard_error_of_sum(torch.tensor([5.0, 1.0, 1.0], dtype=torch.float64), torch.tensor([0, 1, 1])) == 0


def test_the_standard_error_equals_that_of_resampling_the_images() -> None:
    generator = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [40, 60, 100])
    values = generator.normal(size=200) * (1 + y)
    drawn = [
        sum(generator.choice(values[y == label], (y == label).sum()).sum() for label in range(3)) for _ in range(4000)
    ]
    assert _standard_error_of_sum(torch.from_numpy(values), torch.from_numpy(y)) == pytest.approx(
        np.std(drawn), rel=0.05
    )


def test_the_last_epoch_within_the_error_is_selected() -> None:
    """With a window of 1: a difference common to all images has no error; one within the error is ignored."""
    first = torch.tensor([0.2, 0.4, 0.6, 0.8, 0.3, 0.3], dtype=torch.float64)
    evenly_worse = first.clone()
    evenly_worse[:4] -= 0.001  # class 0 is not the worst, so that each image lags by 0.001 / 6
    mixed = first + torch.tensor([0.1, -0.1, 0.1, -0.11, 0.0, 0.0])
    assert chosen([first, evenly_worse, mixed, first - 0.2, first + 0.01], Y, 1) == [True, False, True, False, True]
    assert chosen([first, first], Y, 1) == [True, True]


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_sequential_selection_equals_the_definition(classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    y = torch.arange(4 * classes) % classes
    drift = torch.linspace(0, 1, 12).mul(math.pi).sin() * 0.2
    epochs = [(0.4 + rise + 0.1 * torch.randn(len(y), generator=generator)).clamp(0, 1).double() for rise in drift]
    smooth = [torch.stack(epochs[max(0, last - 2) : last + 1]).mean(0) for last in range(12)]
    parts = [_contributions(scores, y) for scores in smooth]
    merits = [float(part.sum()) for part in parts]
    best = max(range(12), key=merits.__getitem__)
    fit = [e for e in range(12) if merits[e] >= merits[best] - _standard_error_of_sum(parts[best] - parts[e], y)]
    assert max(e for e, answer in enumerate(chosen(epochs, y)) if answer) == max(fit)


@pytest.mark.slow
def test_a_run_selects_that_epoch_without_a_score_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = SMALL | {
        "averaging.start_fraction": 0.3,
        "selection": "within-error",
        "epochs": 4,
    }
    whole = train("at-ema", budget="short", out=tmp_path / "whole", data="digits", overrides=overrides)
    selected = [event for event in whole.events if event["event"] == "selected"]
    assert {event["which"] for event in selected} == {"best", "best-average"}
    assert all(event["score"] is None for event in selected)
    assert whole.best_epoch() is not None
    monkeypatch.setattr("classwise.training.trainer.CHECKPOINT_SECONDS", 0.0)
    more: dict[str, Any] = {"budget": "short", "data": "digits", "overrides": overrides}
    assert contents(killed_and_resumed(train, "at-ema", out=tmp_path / "cut", step=12, **more)) == contents(whole)


@pytest.mark.parametrize(("epochs", "kept"), [(1, 0), (2, 1), (4, 2), (5, 3), (100, 74)])
def test_three_quarters_selects_one_epoch_of_any_number(epochs: int, kept: int) -> None:
    assert [epoch for epoch in range(epochs) if three_quarters.selects(epoch, epochs)] == [kept]


def test_fast_training_on_imagenet_is_evaluated_at_its_fourteenth_epoch() -> None:
    assert [epoch for epoch in range(15) if fourteen_fifteenths.selects(epoch, 15)] == [13]
    recipe = Recipe.read("fast-at-three-stage", {"selection": "fourteen-fifteenths", "data.validation": 0})
    assert recipe.parts.selection == fourteen_fifteenths


@pytest.mark.slow
def test_three_quarters_needs_no_validation_split(tmp_path: Path) -> None:
    overrides = SMALL | {"selection": "three-quarters", "epochs": 4, "data.validation": 0}
    run = train("at", budget="short", out=tmp_path / "run", data="digits", overrides=overrides)
    assert run.best_epoch() == 2
    cut = train("at", budget="short", out=tmp_path / "cut", data="digits", overrides=overrides | {"selection": "last"})
    assert run.weights_file("last").read_bytes() == cut.weights_file("last").read_bytes()
    assert run.weights_file("best").read_bytes() != run.weights_file("last").read_bytes()
