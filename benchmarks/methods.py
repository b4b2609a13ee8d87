"""Cost of a step of each training method relative to plain AT: counted in passes, and measured."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.pairing import Timing, paired
from benchmarks.tables import table
from benchmarks.training_step import images
from classwise.core.progress.listener import NullProgress
from classwise.core.settings.description import PassCounts
from classwise.threat.ball import Threat
from classwise.training.folder import Run
from classwise.training.recipe import Recipe, all_recipes
from classwise.training.trainer import Trainer

AGREES = 1.25
"""Measured and counted costs agree if their ratio is at most this factor."""


class PassCounter:
    """Counts the passes of images through a model from its construction on.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.passes = PassCounts()
        model.register_forward_hook(self._seen)

    def _seen(self, model: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        count = len(inputs[0])
        learns = any(weight.requires_grad for weight in model.parameters())
        self._add(PassCounts(forward=count))
        if logits.requires_grad:
            back = PassCounts(to_weights=count) if learns else PassCounts(to_image=count)
            logits.register_hook(lambda _: self._add(back))  # type: ignore[no-untyped-call]

    def _add(self, more: PassCounts) -> None:
        self.passes += more


def methods() -> dict[str, list[str]]:
    """Recipes with equal training steps, by the name of the first of them; those that need a teacher are left out."""
    groups: dict[str, list[str]] = {}
    names = [name for name, recipe in all_recipes().items() if not recipe.distils]
    for name in sorted(names, key=lambda name: (name != "at", len(name), name)):
        groups.setdefault(step_of(Recipe.read(name)), []).append(name)
    return dict(sorted((names[0], names) for names in groups.values()))


def step_of(recipe: Recipe) -> str:
    """The fields of a recipe that determine its step, as JSON; includes averaging only if it acts after each step."""
    plain = json.loads(json.dumps(recipe.completed(Threat.parse("Linf:8/255")), default=vars))
    keys = ("objective", "attack", "attack_mode", "schedules", "reduction", "update")
    fields = {key: plain[key] for key in keys} | {"optimizer": plain["optimizer"]["name"], "model": plain["model"]}
    averaging = recipe.parts.averaging
    acting = plain["averaging"] if averaging.averages_steps else None
    return json.dumps(fields | {"averaging": acting}, sort_keys=True)


def trainer_in_last_epoch(recipe: str, width: float, batch: int) -> Trainer:
    """A trainer in the last epoch of its recipe, in which every part of the recipe is active."""
    fields = {
        "model.name": "preactresnet18",
        "model.width": width,
        "batch_size": batch,
        "data.validation": 0.1,
        "threat": "Linf:8/255",
    }
    plan = Recipe.read(recipe, fields)
    folder = Run(Path(tempfile.mkdtemp()))  # nothing is written there
    trainer = Trainer(plan, images(200), folder, "cpu", NullProgress())
    classes = len(trainer.classes)
    share = torch.linspace(0.1, 0.9, classes)
    confidence = torch.eye(classes) * share[:, None] + (1 - share[:, None]) / classes
    per_class = {f"{split}.{name}": share for split in ("train", "valid") for name in ("clean", "robust", "loss")}
    signals = per_class | {
        "valid.divergence": share,
        "valid.soft": share,
        "train.count": torch.full((classes,), 100.0),
        "valid.count": torch.full((classes,), 10.0),
        "train.confidence": confidence,
        "valid.average_confidence": confidence,
        "train.confusion": (100 * confidence).round(),
    }
    for number, schedule in enumerate(trainer.parts.schedules):
        for epoch in range(trainer.recipe.epochs - 1):
            trainer.state.schedules[number] = schedule.after_epoch(trainer.state.schedules[number], signals, epoch)
    trainer.state.epoch = trainer.recipe.epochs - 1
    return trainer


def counted(trainer: Trainer, batch: int) -> PassCounts:
    """The passes of one step, in images."""
    counter = PassCounter(trainer.model)
    trainer.train_step(torch.arange(batch), trainer.class_settings())
    trainer.model._forward_hooks.clear()
    return counter.passes


def measured(at: Trainer, method: Trainer, rounds: int) -> Timing:
    """CPU seconds of a step of plain AT and of a method, in turn."""
    steps: dict[str, Any] = {"at": lambda: _step(at), "method": lambda: _step(method)}
    return paired(steps, rounds, clock=time.process_time)


def _step(trainer: Trainer) -> None:
    """The first step of the epoch, including the selection of its images."""
    settings, epoch = trainer.class_settings(), trainer.state.epoch
    trainer.train_step(trainer.batches.rows(trainer.batches.order(epoch), epoch, 0, settings), settings)


def run(*, quick: bool) -> str:
    width, batch, rounds = (0.0625, 8, 1) if quick else (0.25, 8, 3)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that the CPU seconds of this process are independent of other programs
    try:
        at = trainer_in_last_epoch("at", width, batch)
        base = counted(at, batch)
        lines = []
        for name, names in methods().items():
            method = trainer_in_last_epoch(name, width, batch)
            passes = counted(method, batch)
            timing = measured(at, method, rounds)
            expected, observed = passes.equivalents / base.equivalents, timing.ratio("method", "at", name)
            agrees = max(expected / observed.median, observed.median / expected) <= AGREES
            counts = [passes.forward, passes.to_image, passes.to_weights, passes.equivalents]
            cells = [f"{count / batch:g}" for count in counts]
            shown = f"{observed}{'' if agrees else ' **differs**'}"
            lines.append([", ".join(f"`{alias}`" for alias in names), *cells, f"{expected:.2f}", shown])
    finally:
        torch.set_num_threads(threads)
    return table(
        f"One step of each method, PreActResNet-18 at width {width:g}, batch {batch}, one thread, "
        f"median of {rounds} paired ratios of CPU seconds",
        ["recipes", "forward", "to the image", "to the weights", "in forwards", "over AT", "measured"],
        lines,
    )
