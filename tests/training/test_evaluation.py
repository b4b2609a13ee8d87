"""Evaluation on the validation split: one fused copy for all epochs, and the attack that decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from classwise.attacks import ATTACKS
from classwise.core.settings.config import make
from classwise.data import load_data
from classwise.models import build_model
from classwise.models.fused_copy import FusedCopy
from classwise.threat.ball import Threat
from classwise.training.evaluation import Evaluation
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from classwise.training.recipe_files import recipe_names
from classwise.training.schedules.base import ClassSchedule
from classwise.training.schedules.dafa import AverageDAFA
from classwise.training.schedules.frl import FRL
from classwise.training.schedules.online_learning import WAT
from classwise.training.setup import split_images
from classwise.training.train import train

from .killing import killed_and_resumed
from .on_digits import TINY
from .test_trainer import SMALL, contents

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
    assert "average" in train("at", data="digits", out=tmp_path / "run", overrides=overrides).saved_weights()
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


MARGIN, TARGETED = "pgd:objective=margin,steps=3,step_size=0.5eps", "apgd-t:steps=5,targets=3"
SIGNALS: dict[type[ClassSchedule], str] = {
    FRL: "valid.robust",
    WAT: "valid.divergence",
    AverageDAFA: "valid.average_confidence",
}
OVERRIDES: dict[str, Any] = SMALL | {
    "schedules": ["frl", "wat", "dafa-average:start_epoch=1"],
    "selection": "worst",
    "attack.steps": 1,
    "checkpoint_epochs": [1, 2, 3],
}


def trained(out: Path, attack: str, averaging: str, **more: Any) -> Run:
    given = OVERRIDES | {"validation_attack": attack, "averaging": averaging}
    return train("trades", data="digits", out=out, overrides=given, **more)


def robust(run: Run, split: str = "valid") -> np.ndarray[Any, Any]:
    """Robust accuracies by epoch and class."""
    table = run.epochs[run.epochs["split"] == split]
    return table.pivot_table(index="epoch", columns="label", values="robust").to_numpy()


@pytest.mark.parametrize(
    ("attack", "averaging"),
    [
        (MARGIN, "fawa:gate=relative,start_fraction=0"),
        (TARGETED, "fawa:gate=relative,start_fraction=0"),
        (MARGIN, "fawa-chart:start_fraction=0"),
    ],
)
def test_the_attack_decides(attack: str, averaging: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[Tensor]] = {name: [] for name in SIGNALS.values()}
    for schedule, name in SIGNALS.items():
        original = schedule.after_epoch

        def noted(
            self: Any, state: Any, signals: Mapping[str, Tensor], epoch: int, name: str = name, original: Any = original
        ) -> Any:
            seen[name].append(signals[name])
            return original(self, state, signals, epoch)

        monkeypatch.setattr(schedule, "after_epoch", noted)
    run = trained(tmp_path / "run", attack, averaging)

    _, valid = split_images(run.recipe, load_data("digits", split="train", subset=200), run, torch.device("cpu"))
    assert valid is not None
    for epoch, measured in enumerate(robust(run)):
        model = run.model(f"epoch-{epoch + 1}")
        outputs = Evaluation(model, valid, make(ATTACKS, attack), Threat("Linf", 0.1), run.recipe)()
        expected = [outputs.robust[valid.y == label].float().mean().item() for label in range(10)]
        assert measured == pytest.approx(expected)
        assert seen["valid.robust"][epoch].tolist() == pytest.approx(expected)
    assert all(len(values) == 3 for values in seen.values())

    worst = robust(run).min(1)
    assert run.best_epoch() == max(range(3), key=lambda epoch: (worst[epoch], epoch))
    if averaging.startswith("fawa:"):
        admitted = [event["admitted"] for event in run.events if event["event"] == "fawa"]
        assert admitted == [value >= 0.8 * worst[: epoch + 1].max() for epoch, value in enumerate(worst)]

    assert contents(killed_and_resumed(trained, tmp_path / "killed", attack, averaging, step=6)) == contents(run)


def test_another_attack_measures_other_accuracies(tmp_path: Path) -> None:
    attacks = {"ce": MARGIN.replace("margin", "ce"), "margin": MARGIN, "targeted": TARGETED}
    more = {"epochs": 1, "checkpoint_epochs": ()}
    runs = {name: trained(tmp_path / name, attack, "none", **more) for name, attack in attacks.items()}
    assert len({run.recipe.digest() for run in runs.values()}) == 3
    tables = {name: run.epochs.query("split == 'valid'") for name, run in runs.items()}
    assert tables["ce"]["clean"].tolist() == tables["margin"]["clean"].tolist() == tables["targeted"]["clean"].tolist()
    assert tables["targeted"]["robust"].sum() <= tables["ce"]["robust"].sum()


def test_recipes_of_papers_validate_under_cross_entropy() -> None:
    for name in recipe_names():
        attack: Any = Recipe.read(name).parts.validation_attack
        assert (ATTACKS.name_of(type(attack)), attack.objective) == ("pgd", "ce"), name
