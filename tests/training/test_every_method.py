"""A short run of every method on digits, and runs with any number of classes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from classwise.data import Images
from classwise.threat.ball import Threat
from classwise.training.recipe import Recipe
from classwise.training.train import train

from ..auditing.toys import Listener
from ..refusals import refused
from .killing import killed_and_resumed
from .on_digits import ELSEWHERE, METHODS, NETWORK, NORMALISED, TINY
from .test_trainer import SMALL, contents

BRIEF = TINY | {"model": NORMALISED, "data.subset": 100, "batch_size": 32, "attack.steps": 1}
BRIEF |= {"validation_attack": "pgd:steps=1"}
"""Three steps per epoch."""
AVERAGED = ("at-swa", "at-ema-step", "cfa-at-chart", "cfa-at-iut")
PARTS: dict[str, dict[str, object]] = {"trades-awp": {}, "at-adam": {}}
PARTS |= {name: {"averaging.start_fraction": 0.0} for name in AVERAGED}
"""Recipes of other updates, optimisers and averages, whose class settings are constant."""


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS | PARTS)
def test_every_method_trains_on_digits_and_resumes_to_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = BRIEF | (METHODS | PARTS)[name]
    whole = train(name, budget="short", out=tmp_path / "whole", data="digits", overrides=overrides)
    monkeypatch.setattr("classwise.training.trainer.CHECKPOINT_SECONDS", 0.0)
    more: dict[str, Any] = {"budget": "short", "data": "digits", "overrides": overrides}
    assert contents(killed_and_resumed(train, name, out=tmp_path / "killed", step=4, **more)) == contents(whole)
    assert whole.complete
    assert name not in AVERAGED or "average" in whole.saved_weights()
    states = torch.load(whole.state_file, weights_only=True)["schedules"]
    assert all(bool(value.isfinite().all()) for state in states for value in state.values())


@pytest.mark.slow
def test_training_with_hypersphere_embedding_learns(tmp_path: Path) -> None:
    overrides = TINY | {"model": {"name": "preactresnet18", "width": 0.0625, "options": {"head": "cosine"}}}
    overrides |= {"data.subset": 400, "epochs": 6, "batch_size": 32, "attack.steps": 1}
    run = train("he", budget="short", out=tmp_path / "run", data="digits", overrides=overrides)
    assert run.epochs.query("split == 'valid'").groupby("epoch")["clean"].mean().max() > 0.3  # chance is 0.1


def test_a_run_may_start_from_the_weights_of_another(tmp_path: Path) -> None:
    first = train("at", budget="short", out=tmp_path / "first", data="digits", overrides=TINY, epochs=1)
    overrides = TINY | {"model": NETWORK | {"weights": str(first.path)}}
    still = {"optimizer": {"name": "sgd", "lr": 1e-30}, "epochs": 1}
    second = train("faal", out=tmp_path / "second", data="digits", overrides=overrides | still)
    before, after = (dict(run.model("last").named_parameters()) for run in (first, second))
    assert all(torch.equal(before[name], after[name]) for name in before)
    shutil.rmtree(first.path)
    train(
        "faal", out=tmp_path / "second", data="digits", overrides=overrides | still, resume=True
    )  # not needed any more
    assert "first" in refused(train, "faal", out=tmp_path / "third", data="digits", overrides=overrides)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part"), [("frl", "frl"), ("faal", "faal"), ("dafa", None)])
def test_fine_tuning_methods_log_a_note_for_random_weights(name: str, part: str | None, tmp_path: Path) -> None:
    heard = Listener()
    first = train(name, budget="short", out=tmp_path / "run", data="digits", overrides=TINY, epochs=1, progress=heard)
    said = [line for line in heard.lines if "designed to fine-tune" in line]
    wanted = f"{part!r} is designed to fine-tune a robust model; set its weights, as in --set model.weights=runs/at"
    assert said == ([] if part is None else [wanted])
    started = Listener()
    overrides = TINY | {"model": NETWORK | {"weights": str(first.path)}}
    train(name, budget="short", out=tmp_path / "second", data="digits", overrides=overrides, epochs=1, progress=started)
    assert not any("designed to fine-tune" in line for line in started.lines)


def test_standard_training_selects_the_last_epoch(tmp_path: Path) -> None:
    """Its robust accuracy decreases during training, so it would select an early epoch."""
    overrides = TINY | {"epochs": 4, "threat": "Linf:0.3"}
    quiet, warned = Listener(), Listener()
    run = train("standard", budget="short", out=tmp_path / "run", data="digits", overrides=overrides, progress=quiet)
    assert run.best_epoch() == 3
    assert not any("near 0 for standard training" in line for line in quiet.lines)
    fraction = train("standard", budget="short", out=tmp_path / "fraction", data="digits", progress=quiet,
                     overrides=overrides | {"selection": "three-quarters"})  # fmt: skip
    assert fraction.default_weights() == "best"
    assert not any("near 0 for standard training" in line for line in quiet.lines)
    other = overrides | {"selection": "overall"}
    train("standard", budget="short", out=tmp_path / "other", data="digits", overrides=other, progress=warned)
    assert any(
        line == "selection 'overall' uses robust accuracy, near 0 for standard training; set selection = last"
        for line in warned.lines
    )


@pytest.mark.slow
def test_an_epoch_records_sampling_margins_and_targets(tmp_path: Path) -> None:
    def rows(name: str) -> pd.DataFrame:
        overrides = TINY | {"epochs": 2}
        return train(name, budget="short", out=tmp_path / name, data="digits", overrides=overrides).epochs.query(
            "split == 'train'"
        )

    drawn, asked, aimed = rows("cfol"), rows("ldam"), rows("fair-tat")
    assert drawn["sampling"].notna().all()
    assert asked["logit_margin"].max() == pytest.approx(0.5)
    assert asked[["sampling", "target"]].isna().all(axis=None)
    law = np.stack(aimed.query("epoch == 1")["target"].to_list())
    assert law.shape == (10, 10)
    assert (law.diagonal() == 0).all()


def test_the_digest_of_a_complete_recipe_is_fixed() -> None:
    """The fields added later do not enter the digest at their defaults, so that older runs can be resumed."""
    digests = {
        "at": "fffcc05a1352995019e4175482df3e0113027d19910a96b8fb1fbee2904e0020",
        "trades": "6569d47d1798697fa0c0ae9d145f4bb471d4bd402940234eaeb09b45c57b357c",
        "wat": "65af64055831ae541f8c688989a288117bd84022553171d44ace7f77cca22fc7",
    }
    for name, digest in digests.items():
        assert Recipe.read(name).completed(Threat("Linf", 8 / 255), 10).digest() == digest


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:DAFA. strength = 1 gives negative weights")
@pytest.mark.parametrize("count", [2, 100])
@pytest.mark.parametrize("name", METHODS | ELSEWHERE)
def test_every_method_supports_any_number_of_classes(name: str, count: int, tmp_path: Path) -> None:
    """Class c has about 1/(c + 1) of the images of class 0; no batch contains all of 100 classes."""
    counts = [max(2, 40 // (label + 1)) for label in range(count)]
    y = torch.arange(count).repeat_interleave(torch.tensor(counts))
    x = torch.rand(len(y), 1, 8, 8, generator=torch.Generator().manual_seed(0))
    images = Images(x, y, [str(label) for label in range(count)], "noise", "train")
    run = train(
        name,
        budget="short",
        out=tmp_path / "run",
        data=images,
        overrides=BRIEF | (METHODS | ELSEWHERE)[name] | {"data.subset": None},
    )
    assert run.complete
    assert all(bool(value.isfinite().all()) for value in run.model("last").state_dict().values())
    settings = run.epochs.query("split == 'train'")[["epsilon", "clean_weight", "robust_weight"]]
    assert bool((settings.astype(float).fillna(1) >= 0).all(axis=None))


@pytest.mark.slow
def test_the_accuracies_of_a_step_are_those_before_the_update(tmp_path: Path) -> None:
    """One step: the first pass is at the initial weights of both runs, the second pass of AWP is far from them."""
    overrides = SMALL | {"data.subset": 120} | {"epochs": 1, "batch_size": 120, "update.start_fraction": 0.0}
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
