"""Each method on digits: it runs, the loss is finite, and a killed run resumes bit-identically."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from classwise.training.folder import Run
from classwise.training.train import train

from .killing import KillAt, Killed
from .test_trainer import SMALL, contents

METHODS = ["mart", "fat", "fat-trades", "cfa-fat", "he", "he-trades", "he-mart", "codat", "csr", "bat"]


def trained(recipe: str, out: Path, **more: Any) -> Run:
    overrides: dict[str, Any] = {key: value for key, value in SMALL.items() if key != "model"}
    overrides |= {"model.name": "small-cnn", "model.width": 0.125, "data.subset": 120, "epochs": 2}
    return train(recipe, budget="short", out=out, data="digits", overrides=overrides, **more)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", METHODS)
def test_killed_inside_an_epoch_and_resumed_gives_the_same_bits(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(recipe, tmp_path / "whole")
    assert whole.epochs_done == 2
    monkeypatch.setattr("classwise.training.trainer.CHECKPOINT_SECONDS", 0.0)  # a checkpoint after every step
    with pytest.raises(Killed):
        trained(recipe, tmp_path / "killed", progress=KillAt(3))
    assert contents(trained(recipe, tmp_path / "killed", resume=True)) == contents(whole)


@pytest.mark.slow
def test_training_with_hypersphere_embedding_learns(tmp_path: Path) -> None:
    overrides = {key: value for key, value in SMALL.items() if key != "model"}
    overrides |= {"model.width": 0.0625, "data.subset": 400, "epochs": 8, "batch_size": 32, "attack.steps": 1}
    run = train("he", budget="short", out=tmp_path / "run", data="digits", overrides=overrides)
    assert run.epochs.query("split == 'valid' and epoch == 7")["clean"].mean() > 0.3
