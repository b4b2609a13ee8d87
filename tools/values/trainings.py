"""Parts that train: recipes, seeds, methods after the training, a sweep, and the papers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from tools.values.inputs import Cases, command, function, images
from tools.values.plain import flat
from tools.values.readings import READINGS, runs_below

import classwise as cw

SMALL: dict[str, Any] = {
    "data.subset": 160,
    "data.validation": 0.2,
    "data.augment": "none",
    "threat": "Linf:0.1",
    "attack.steps": 2,
    "attack.step_size": "0.5eps",
    "validation_attack": "pgd:steps=2,step_size=0.5eps",
    "batch_size": 48,
    "epochs": 2,
    "model.name": "small-cnn",
    "model.width": 0.125,
}
LONGER = {"data.subset": 400, "batch_size": 16, "epochs": 4, "threat": "Linf:0.05"}
NETWORK = LONGER | {"model.name": "preactresnet18", "model.width": 0.0625}
CFA = {"schedules.0.start_epoch": 1, "schedules.1.start_epoch": 1, "averaging.threshold": 0.02}
TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "at": ("at", NETWORK | {"data.augment": "crop-flip"}),
    "trades": ("trades", NETWORK),
    "frl": ("frl", LONGER),
    "cfa": ("cfa-trades", NETWORK | CFA),
    "bfloat16": ("trades-awp", NETWORK | {"precision.dtype": "bfloat16", "averaging": "ema:every=step,decay=0.9"}),
}
"""The recipe and further settings of each training."""
NEEDED: dict[str, dict[str, Any]] = {
    **{name: {"schedules.0.start_epoch": 1} for name in ("dafa", "trix", "ldam", "auto-beta")},
    **{name: {"schedules.0.rate": 0.01} for name in ("cfol", "cfol-weights")},
    **{name: {"objective.teacher": "teacher"} for name in ("absld", "fair-ard")},
    "rst": {"data.unlabelled.name": "digits", "data.unlabelled.teacher": "teacher", "data.unlabelled.subset": 80},
}
"""What some recipes need beside `SMALL`."""


def trained(recipe: str, out: str, settings: dict[str, Any]) -> cw.Run:
    """A short training on digits."""
    return cw.train(recipe, out=out, data="digits", overrides=SMALL | settings)


def training(name: str) -> Cases:
    """One of `TRAININGS`."""
    recipe, settings = TRAININGS[name]
    return {"run": partial(trained, recipe, "run", settings)}


def recipes() -> Cases:
    """The settings of every recipe, and one epoch of it."""
    listed: Any = command("recipes")["output"]
    names = sorted(listed if isinstance(listed, dict) else (recipe["name"] for recipe in listed))
    trained("standard", "teacher", {"epochs": 1})
    needed = {name: NEEDED.get(name, {}) | {"epochs": 1} for name in names}
    settings = {f"{name}/settings": partial(_settings, name) for name in names}
    return settings | {f"{name}/run": partial(trained, name, name, needed[name]) for name in names}


def _settings(name: str) -> object:
    return yaml.safe_load(cw.Recipe.read(name).yaml())


def after_training() -> Cases:
    """Seeds of two recipes with their audits, and the methods that change the weights of a run."""

    def seeds() -> object:
        for name in ("at", "trades"):
            for seed in (0, 1, 2):
                trained(name, f"{name}/seed-{seed}", {"seed": seed})
            function("audit_seeds")(name, images(), "Linf:0.1", ["pgd:steps=3"], precision=cw.Precision())
        return cw.compare(["at", "trades"])

    def adjusted() -> object:
        found = function("adjust_logits")("at/seed-0", attack="pgd:steps=2", out="adjusted.safetensors")
        return {"rounds": found.rounds, "weights": cw.load_model("adjusted.safetensors")}

    def interpolated() -> object:
        trained("faal", "tuned", {"model.weights": "at/seed-0"})
        found = function("interpolate_weights")("tuned", attack="pgd:steps=2", out="interpolated.safetensors")
        return {"share": found.share, "tried": found.tried, "weights": cw.load_model("interpolated.safetensors")}

    return {"seeds": seeds, "adjusted": adjusted, "interpolated": interpolated}


def sweep() -> Cases:
    """Two recipes and two seeds with an audit of each, by the command line."""
    audits = {"quick": {"attack": "pgd:steps=2", "subset": 40}}
    plan = {"recipes": ["at", "trades"], "seeds": [0, 1], "data": ["digits"], "set": SMALL, "audits": audits}
    Path("plan.yaml").write_text(yaml.safe_dump(plan), encoding="utf-8")

    def collected() -> object:
        command("sweep", "collect", "cells", "--out", "tables")
        return {path.name: pd.read_csv(path) for path in sorted(Path("tables").glob("*.csv"))}

    run = partial(command, "sweep", "plan.yaml", "--out", "cells", without=("run", "error", "minutes"))
    return {"cells": run, "runs": partial(runs_below, "cells"), "collected": collected}


def paper(name: str) -> Cases:
    """The facts of every item of a paper, and the results of those that run, at the smallest scale.

    The error levels of tests depend on the results that the store already has, so the order of the items is fixed.
    """
    listed: Any = command("papers", "list", name)["output"]
    show = partial(command, "papers", "show", without=("command", "missing"))
    facts = {f"{item['id']}/facts": partial(_facts, show, item["id"]) for item in listed}
    run = partial(command, "papers", "run", without=("note", "setting", "caption", "work", "runs"))
    names = sorted(item["id"] for item in listed if item["status"] == "runnable")
    runs = {f"{item}/result": partial(run, item, "--scale=smoke", "--store=store") for item in names}
    return facts | runs | {"models": _models}


def _models() -> object:
    """The weights of all models that the items share, whatever the names of their folders."""
    runs = [cw.Run.open(file.parent) for file in Path("store").rglob("recipe.yaml")]
    return dict(enumerate(sorted(f"{run.recipe.name}: {flat(run.model(), READINGS)['all']}" for run in runs)))


def _facts(show: Callable[[str], dict[str, object]], item: str) -> object:
    """The facts of an item, with the settings of each of its trainings as one text."""
    facts: Any = show(item)["output"]
    tables = {scale: table.get("rows") or {} for scale, table in facts.pop("settings").items()}
    rows = {f"{scale} {row}": json.dumps(found) for scale, table in tables.items() for row, found in table.items()}
    return facts | {"settings": rows}
