"""Runs with a non-finite loss or weights: they stop immediately, and no such state is saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from classwise.threat.ball import Threat
from classwise.training.classes.signals import ClassSettings
from classwise.training.finite_checks import FiniteLossCheck, all_finite, likely_cause
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from classwise.training.train import train
from classwise.training.trainer import Trainer

from ..refusals import check_refused, refused

SMALL: dict[str, Any] = {
    "model": {"name": "lenet", "width": 0.25},
    "data.name": "digits",
    "data.subset": 120,
    "data.validation": 0.2,
    "attack.steps": 1,
    "validation_attack": "fgsm",
    "threat": "Linf:0.03",
    "batch_size": 32,
    "epochs": 2,
}


def trained(out: Path, overrides: Mapping[str, Any] | None = None, **more: Any) -> Run:
    return train("at", budget="short", out=out, overrides={**SMALL, **(overrides or {})}, **more)


def diverging(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Make the weights overflow in a step, counted over the run."""
    step, done = Trainer.train_step, []

    def train_step(self: Trainer, rows: torch.Tensor, settings: ClassSettings) -> None:
        step(self, rows, settings)
        done.append(0)
        if len(done) == at:
            with torch.no_grad():
                next(self.model.parameters()).fill_(torch.inf)

    monkeypatch.setattr(Trainer, "train_step", train_step)


def state_of(run: Run) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(run.state_file, weights_only=True)
    return state


def test_a_learning_rate_that_is_too_high(tmp_path: Path) -> None:
    check_refused(
        r"the loss is not finite at epoch 1, step [234] of 4; .* optimizer.lr = 1e\+06",
        trained,
        tmp_path / "run",
        {"optimizer.lr": 1e6, "lr_schedule": "constant"},
    )
    assert not Run(tmp_path / "run").state_file.exists()
    assert not list((tmp_path / "run").glob("checkpoints/*.safetensors"))


@pytest.mark.parametrize(
    ("at", "place"),
    [(5, "loss is not finite at epoch 2, step 2"), (8, "weights are not finite at epoch 2, step 4")],
)
def test_the_last_finite_checkpoint_is_retained(
    at: int, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that overflow in the last step do not affect the loss; they are checked before they are saved."""
    diverging(monkeypatch, at)
    out = tmp_path / "run"
    check_refused(f"the {place}.*; the last finite checkpoint is in {out}", trained, out)
    monkeypatch.undo()
    run = Run.open(out)
    assert run.epochs_done == 1
    assert all_finite(run.model("last").state_dict().values())
    assert all_finite(state_of(run)["model"].values())
    assert trained(out, resume=True).complete  # whatever it was has passed


def test_continue_logs_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diverging(monkeypatch, 5)
    run = trained(tmp_path / "run", on_nan="continue")
    assert run.complete
    assert not all_finite(state_of(run)["model"].values())
    found = [event for event in run.events if event["event"] == "not-finite"]
    assert found == [{"epoch": 1, "event": "not-finite", "what": "loss", "step": 1}]


def test_an_unknown_policy(tmp_path: Path) -> None:
    assert "on_nan = 'stopp': must be 'stop' or 'continue'" in refused(trained, tmp_path / "run", on_nan="stopp")
    assert not (tmp_path / "run").exists()


def test_the_first_step_that_is_not_finite() -> None:
    losses = FiniteLossCheck(torch.device("cpu"))
    for step, pair in enumerate([[1.0], [2.0, torch.nan], [3.0], [torch.inf]]):
        assert losses.due(step)
        losses.add([torch.tensor(value) for value in pair], step)
    assert losses.first() == 1
    assert losses.first() is None


def test_likely_causes() -> None:
    recipe = Recipe.read("at", {"data.name": "digits"}, budget="short")
    parts = dataclasses.replace(recipe.parts, threat=Threat("Linf", 0.1))
    fine = ClassSettings(epsilon=torch.ones(10))
    assert "learning rate, optimizer.lr = " in likely_cause(recipe, parts, fine)
    mixed = Recipe.read("at", {"data.name": "digits", "precision.dtype": "bfloat16"}, budget="short")
    assert "an overflow in bfloat16" in likely_cause(mixed, parts, fine)
    odd = ClassSettings(epsilon=torch.full((10,), torch.nan))
    assert "class setting epsilon is not finite" in likely_cause(recipe, parts, odd)
    adam = Recipe.read("at", {"data.name": "digits", "optimizer": {"name": "adam", "eps": 1e-30}}, budget="short")
    assert "optimizer.eps = 1e-30" in likely_cause(adam, adam.parts, fine)
