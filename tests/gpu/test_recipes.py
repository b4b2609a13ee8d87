"""A training step of every recipe on a GPU against the same step on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from classwise.core.compute.float32 import true_float32
from classwise.core.progress.listener import NullProgress
from classwise.data import load_data
from classwise.threat.ball import Threat
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from classwise.training.recipe_files import recipe_names
from classwise.training.trainer import Trainer

from ..training.on_digits import ELSEWHERE, METHODS, NETWORK, TINY
from . import MARKS

pytestmark = MARKS

TEACHERS = ("absld", "fair-ard")
"""Recipes that need a teacher."""


def trainer_of(name: str, folder: Path, device: str) -> Trainer:
    tiny = {"data.subset": None, "batch_size": 16, "validation_attack": "pgd:steps=1", "attack.steps": 1, "epochs": 4}
    head = {"model": NETWORK | {"options": {"head": "cosine"}}} if name.startswith("he") else {}
    overrides = TINY | tiny | (METHODS | ELSEWHERE).get(name, head) | {"precision.graphs": "off"}
    recipe = Recipe.read(name, overrides, budget="short").completed(Threat("Linf", 0.1), classes=10)
    folder.mkdir()
    trainer = Trainer(recipe, load_data("digits", split="train", subset=60), Run(folder), device, NullProgress())
    trainer._start()
    return trainer


def step(trainer: Trainer) -> None:
    settings, order = trainer.class_settings(), trainer.batches.order(trainer.state.epoch)
    with true_float32(trainer.device):
        trainer.train_step(trainer.batches.rows(order, trainer.state.epoch, trainer.state.step, settings), settings)
    trainer.state.step += 1


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([weight.detach().flatten().cpu().double() for weight in trainer.model.parameters()])


@pytest.mark.parametrize("name", [name for name in recipe_names() if name not in TEACHERS])
def test_a_step_is_that_of_the_cpu(name: str, tmp_path: Path) -> None:
    """But for pixels that the attack moves the other way. Then the epoch ends, and another begins."""
    on_cpu, on_gpu = (trainer_of(name, tmp_path / device, device) for device in ("cpu", "cuda"))
    before = weights(on_cpu)
    assert torch.equal(weights(on_gpu), before)
    step(on_cpu)
    step(on_gpu)
    change, error = (weights(on_cpu) - before).norm(), (weights(on_gpu) - weights(on_cpu)).norm()
    assert float(error) <= 0.1 * float(change)
    on_gpu._end_epoch(on_gpu.class_settings(), seconds=1.0)
    on_gpu.state.epoch, on_gpu.state.step = 1, 0
    step(on_gpu)
    assert bool(weights(on_gpu).isfinite().all())
    assert float((weights(on_gpu) - before).norm()) > 0
