"""An attack and a schedule of a user's own: written here, registered nowhere, asked for by their path."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State
from classwise.attacks.losses import margin
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import Share, configurable
from classwise.training.classes.signals import ClassSettings, Signals
from classwise.training.folder import Run
from classwise.training.schedules.base import Classes, ClassSchedule

from .conftest import QUICK, Classwise


@configurable
class Fade(Attack):
    """Move every pixel towards grey, all at once."""

    amount: Share = 1.0

    @property
    def length(self) -> int:
        return 1

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        count = torch.zeros_like(inputs.y)
        return {"x": inputs.x, "iteration": count, "done": count > 0}

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        faded = inputs.threat.project(inputs.x + self.amount * (0.5 - inputs.x), inputs.x)
        logits = model(faded).detach()
        iteration = state["iteration"] + 1
        seen = {"seen": faded, "margin": margin(logits, inputs.y)}
        return {**state, **seen, "x": faded, "iteration": iteration, "done": iteration > 0}


@configurable
class WeakestFirst(ClassSchedule):
    """The class that was weakest in the epoch before trains with a smaller radius."""

    factor: Share = 0.5

    reads = frozenset({"train.robust"})

    def start(self, classes: Classes) -> dict[str, torch.Tensor]:
        return {"factor": torch.ones(len(classes), device=classes.device)}

    def after_epoch(self, state: dict[str, torch.Tensor], signals: Signals, epoch: int) -> dict[str, torch.Tensor]:
        factor = torch.ones_like(state["factor"])
        factor[signals["train.robust"].nan_to_num(nan=2.0).argmin()] = self.factor
        return {"factor": factor}

    def settings(self, state: dict[str, torch.Tensor], before: ClassSettings, epoch: int) -> ClassSettings:
        assert before.epsilon is not None
        return dataclasses.replace(before, epsilon=before.epsilon * state["factor"])


FADE = f"{__name__}:Fade"
WEAKEST = f"{__name__}:WeakestFirst"


def trained_as_asked(folder: Path) -> None:
    run = Run.open(folder)
    assert run.recipe.attack == {"name": FADE, "amount": 0.9}
    assert run.recipe.schedules == ({"name": WEAKEST, "factor": 0.25},)
    epochs = run.epochs
    second = epochs[(epochs["split"] == "train") & (epochs["epoch"] == 1)]
    assert sorted(second["epsilon"].round(6)) == [0.025] + [0.1] * 9


def test_from_a_recipe(classwise: Classwise, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"extends: at\nattack: {{name: '{FADE}', amount: 0.9}}\nschedules: ['{WEAKEST}:factor=0.25']\n")
    words = [word for word in QUICK if "=attack=" not in word]
    said = classwise("train", recipe, "--budget=short", "--data=digits", f"--out={tmp_path / 'run'}", *words)
    assert said.status == 0, said.err
    trained_as_asked(tmp_path / "run")


def test_from_the_command_line(classwise: Classwise, tmp_path: Path) -> None:
    mine = [f"--set=attack={FADE}:amount=0.9", f"--set=schedules=['{WEAKEST}:factor=0.25']"]
    said = classwise("train", "at", "--budget=short", "--data=digits", f"--out={tmp_path / 'run'}", *QUICK, *mine)
    assert said.status == 0, said.err
    trained_as_asked(tmp_path / "run")


def test_in_an_audit(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "audit"
    assert (
        "Fade" in classwise("audit", run_folder, "--subset=60", f"--attack={FADE}:amount=0.5", f"--out={out}").printed
    )


def test_its_settings_are_shown(classwise: Classwise) -> None:
    assert "amount" in classwise("attacks", FADE).printed


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (f"{__name__}:Fad", "did you mean 'Fade'?"),
        (f"{FADE}:amont=1", "did you mean 'amount'?"),
        (f"{FADE}:amount=2", "less than or equal to 1"),
        ("no_such_package:Mine", "there is no module 'no_such_package'"),
    ],
)
def test_mistakes_in_them(classwise: Classwise, run_folder: Path, spec: str, line: str) -> None:
    assert line in classwise("audit", run_folder, f"--attack={spec}").refusal
