"""Trainings of two processes of one group, which write their results into a folder."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from classwise.cli import main
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import configurable
from classwise.training import trainer
from classwise.training.classes.signals import ClassSettings, Signals
from classwise.training.recipe import Recipe
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.train import train
from tests.training.killing import KillAt, Killed

SETTINGS: dict[str, Any] = {
    "model": {"name": "lenet", "width": 0.5},
    "data.name": "digits",
    "data.subset": 153,
    "data.validation": 0.2,
    "threat": "Linf:0.03",
    "attack.steps": 2,
    "attack.step_size": "0.5eps",
    "validation_attack": "pgd:steps=2,step_size=0.5eps",
    "epochs": 2,
    "optimizer.lr": 0.02,
}
"""123 images in batches of 40: the last batch has three images, too few to split over two processes."""

EACH, WHOLE = 20, 40

RECIPES: dict[str, dict[str, Any]] = {
    "cfa-trades": {},
    "trades-awp": {"update.start_fraction": 0.0, "update.gamma": 0.01},
    "faal": {},
    "codat": {},
    "frl": {},
    "cfol": {},
    "trix": {},
    "mart": {},
    "nuat": {},
    "fgsm-pgi": {"data.augment": "crop"},
    "liet": {"objective.every": 3},
}
"""Reductions, schedules and objectives that need the full batch, or have a memory, and AWP, which uses its gradient."""


@configurable
class Remember(ClassSchedule):
    """Record the loss of each class in each epoch."""

    reads = frozenset({"train.loss", "train.count"})

    def start(self, classes: Classes) -> State:
        return {"loss": torch.zeros(0, len(classes))}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        return {"loss": torch.cat([state["loss"], signals["train.loss"][None]])}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        return before


def begun(folder: Path) -> dict[str, Any]:
    """The settings of a run that starts from a partially trained model in a folder."""
    return SETTINGS | {"model": {**SETTINGS["model"], "weights": str(folder / "start.safetensors")}}


def with_memory(recipe: str, folder: Path) -> dict[str, Any]:
    """The same for a recipe, with an additional schedule that records the losses."""
    schedules = [*Recipe.read(recipe, budget="short").schedules, "tests.training.together:Remember"]
    return begun(folder) | RECIPES[recipe] | {"schedules": schedules}


def said(call: Any) -> str:
    """Return the error message of a call."""
    try:
        call()
    except ClasswiseError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def command_line(folder: Path) -> dict[str, Any]:
    overrides = [f"--set={name}={json.dumps(value)}" for name, value in begun(folder).items()]
    words = ["train", "at", "--budget=short", f"--out={folder / 'cli'}", f"--set=batch_size={EACH}", *overrides]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
        refused = main([*words, "--resume", "--estimate"])
    return {"status": status, "estimate": refused, "out": out.getvalue(), "err": err.getvalue()}


def python(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for recipe in RECIPES:
        train(recipe, budget="short", out=folder / recipe, overrides=with_memory(recipe, folder), batch_size=EACH)
    norm: dict[str, Any] = SETTINGS | {"model": {"name": "preactresnet18", "width": 0.0625}, "data.subset": 100}
    train("cfa-code", budget="short", out=folder / "norm", overrides=norm, batch_size=EACH)
    trainer.CHECKPOINT_SECONDS = 0.0
    for name, recipe, overrides in (
        ("norm-cut", "cfa-code", norm),
        ("handed-over", "at", begun(folder)),
    ):
        with contextlib.suppress(Killed):
            call = functools.partial(
                train, recipe, budget="short", out=folder / name, overrides=overrides, batch_size=EACH
            )
            found[name] = said(lambda call=call: call(progress=KillAt(3)))
    train("cfa-code", budget="short", out=folder / "norm-cut", overrides=norm, batch_size=EACH, resume=True)
    if dist.get_rank() == 0:
        with contextlib.suppress(Killed):
            call = functools.partial(
                train, "at", budget="short", out=folder / "taken-over", overrides=begun(folder), distributed=False
            )
            call(batch_size=WHOLE, progress=KillAt(3))
    dist.barrier()
    train("at", budget="short", out=folder / "taken-over", overrides=begun(folder), batch_size=EACH, resume=True)
    found["differ"] = said(
        lambda: train("at", budget="short", out=folder / "differ", overrides=norm, seed=dist.get_rank())
    )
    return found


def run(folder: Path) -> None:
    torch.set_num_threads(1)
    found = command_line(folder)  # which initialises the group
    found |= python(folder)
    (folder / f"rank-{dist.get_rank()}.pkl").write_bytes(pickle.dumps(found))
    dist.barrier()
