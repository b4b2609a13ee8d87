"""Updates, averaging and optimisers in complete runs: they resume bit-identically."""

from __future__ import annotations

from pathlib import Path

import pytest

from classwise.training.train import train

from .killing import KillAt, Killed
from .test_trainer import SMALL, contents

TINY = SMALL | {"data.subset": 120, "epochs": 2, "batch_size": 32}
"""Three steps per epoch."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [
        "trades-awp",
        "at-adam",
        "at-swa",
        "at-ema-step",
        "cfa-at-chart",
        "cfa-at-iut",
    ],
)
def test_killed_inside_an_epoch_and_resumed_gives_the_same_bits(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = dict(TINY)
    if "awp" not in recipe and "adam" not in recipe:
        overrides["averaging.start_fraction"] = 0.0
    whole = train(recipe, budget="short", out=tmp_path / "whole", data="digits", overrides=overrides)
    assert ("average" in whole.saved_weights()) == ("averaging.start_fraction" in overrides)
    monkeypatch.setattr("classwise.training.trainer.CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(Killed):
        train(recipe, budget="short", out=tmp_path / "cut", data="digits", overrides=overrides, progress=KillAt(5))
    cut = train(recipe, budget="short", out=tmp_path / "cut", data="digits", overrides=overrides, resume=True)
    assert contents(cut) == contents(whole)


@pytest.mark.slow
def test_the_accuracies_of_a_step_are_those_before_the_update(tmp_path: Path) -> None:
    """One step: the first pass is at the initial weights of both runs, the second pass of AWP is far from them."""
    overrides = TINY | {"epochs": 1, "batch_size": 120, "update.start_fraction": 0.0}
    runs = [
        train(
            "trades-awp",
            budget="short",
            out=tmp_path / f"{gamma}",
            data="digits",
            overrides=overrides | {"update.gamma": gamma},
        )
        for gamma in (0.0, 5.0)
    ]
    still, moved = (run.epochs.query("split == 'train'")[["clean", "robust"]] for run in runs)
    assert still.equals(moved)
    assert not runs[0].epochs.query("split == 'valid'").equals(runs[1].epochs.query("split == 'valid'"))
