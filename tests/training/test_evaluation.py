"""Evaluation on the validation split: one engine and one fused copy of a model for all epochs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from classwise.data import load_data
from classwise.models import build_model
from classwise.models.fused_copy import FusedCopy
from classwise.threat.ball import Threat
from classwise.training.evaluation import Evaluation
from classwise.training.recipe import Recipe
from classwise.training.train import train

from .on_digits import TINY

FUSED = {"precision": {"channels_last": True}}


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[FusedCopy]:
    """The fused copies that are made."""
    made: list[FusedCopy] = []

    original = FusedCopy.__init__

    def counted(copy: FusedCopy, *arguments: Any) -> None:
        original(copy, *arguments)
        made.append(copy)

    monkeypatch.setattr(FusedCopy, "__init__", counted)
    return made


@pytest.mark.parametrize("averaging", ["ema:start_fraction=0", "ema:start_fraction=0,every=step"])
def test_one_copy_of_each_model_serves_all_epochs(averaging: str, copies: list[FusedCopy], tmp_path: Path) -> None:
    overrides = TINY | FUSED | {"averaging": averaging, "epochs": 3}
    result = train("at", data="digits", out=tmp_path / "run", overrides=overrides)
    assert "average" in result.saved_weights()
    assert len(copies) == 2


def test_each_call_reads_the_present_weights(copies: list[FusedCopy]) -> None:
    images = load_data("digits", split="test", subset=40)
    recipe = Recipe.read("at", TINY | FUSED)
    models = [build_model("small-cnn", num_classes=10, in_channels=1, width=0.25) for _ in range(2)]
    arguments = (images, recipe.parts.validation_attack, Threat("Linf", 0.1), recipe)
    evaluation = Evaluation(models[0], *arguments)
    before = evaluation()
    models[0].load_state_dict(models[1].state_dict())
    after, expected = evaluation(), Evaluation(models[1], *arguments)()
    assert not torch.equal(before.clean, after.clean)
    for field in dataclasses.fields(after):
        assert torch.equal(getattr(after, field.name), getattr(expected, field.name)), field.name
    assert len(copies) == 2
