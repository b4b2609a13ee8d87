"""The methods, how each is trained, and where its runs and audits lie."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from classwise.core.progress import NullProgress
from classwise.core.storage import write_text
from classwise.data import Images, load_data
from classwise.training.folder import Run
from classwise.training.posthoc.logit_adjustment import adjust_logits
from classwise.training.posthoc.weight_interpolation import interpolate_weights
from classwise.training.train import train

EPOCHS = 12
WARM = 8
"""Epochs of the two warm starts that FRL, FAAL and CSR share; they count."""
SUITES: dict[str, tuple[int | None, tuple[str, ...]]] = {
    "pgd": (None, ("pgd:steps=20,step_size=0.1eps", "pgd:steps=20,step_size=0.1eps,objective=margin")),
    "apgd": (1000, ("apgd-ce", "apgd-t")),
    "autoattack": (1000, ("autoattack",)),
}
"""Each audit: how many test images (None: all), and the attacks; the last is for those that ask for it."""


@dataclass(frozen=True)
class Scale:
    """How large it all is."""

    train: int = 10_000
    test: int | None = None
    fields: Mapping[str, Any] = field(
        default_factory=lambda: {"model.width": 0.25, "precision": {"dtype": "bfloat16", "channels_last": True}}
    )
    suites: Mapping[str, tuple[int | None, tuple[str, ...]]] = field(default_factory=lambda: SUITES)
    epochs: int | None = None

    def epochs_of(self, epochs: int) -> int:
        return epochs if self.epochs is None else self.epochs


QUICK = Scale(
    train=200,
    test=100,
    fields={"model.width": 0.0625, "batch_size": 32, "attack.steps": 2, "validation_attack.steps": 2},
    suites={"pgd": (None, ("pgd:steps=2", "pgd:steps=2,objective=margin")), "apgd": (50, ("apgd-ce:steps=5",))},
    epochs=1,
)


@dataclass(frozen=True)
class Place:
    """Where a run lies, and under which seed and scale."""

    keep: Path
    seed: int
    scale: Scale
    device: str = "cpu"

    def folder(self, name: str) -> Path:
        return self.keep / f"seed-{self.seed}" / name

    @contextlib.contextmanager
    def held(self, name: str, *, wait: bool) -> Iterator[bool]:
        """Nobody else works at it meanwhile; False if somebody does and we would not wait."""
        path = self.keep / "locks" / f"{self.seed}-{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True


@dataclass(frozen=True)
class Method(ABC):
    """A row of the table, or what another row starts from."""

    name: str

    @abstractmethod
    def make(self, place: Place) -> Path:
        """Train what is not trained yet, what it needs first; the weights."""

    @property
    @abstractmethod
    def found(self) -> str:
        """The training, for the table."""


@dataclass(frozen=True)
class Trained(Method):
    """A recipe with some fields changed, from random weights or from another method's."""

    recipe: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = EPOCHS
    start: Method | None = None
    budget: str | None = None

    def make(self, place: Place) -> Path:
        start = None if self.start is None else made(self.start, place, wait=True)
        run = self.run(place, start)
        return run.weights_file(run.default_weights())

    def run(self, place: Place, start: Path | None) -> Run:
        overrides: dict[str, Any] = {"data.validation": 0.1, "data.subset": place.scale.train, **self.overrides}
        overrides |= {"epochs": place.scale.epochs_of(self.epochs), "seed": place.seed, **place.scale.fields}
        if start is not None:
            overrides["model.weights"] = str(start)
        return train(
            self.recipe,
            budget=self.budget,
            out=place.folder(self.name),
            data=images("train", place.scale.train),
            resume=True,
            device=place.device,
            progress=Said(f"{self.name}, seed {place.seed}"),
            overrides=overrides,
        )

    @property
    def found(self) -> str:
        name = self.recipe if self.budget is None else f"{self.recipe}-{self.budget}"
        return f"`{name}`, {self.epochs}" + ("" if self.start is None else f" after {self.start.found}")


@dataclass(frozen=True)
class Interpolated(Method):
    """The best mix of a fine-tuned model and the one before it."""

    of: Trained

    def make(self, place: Place) -> Path:
        made(self.of, place, wait=True)
        data = images("train", place.scale.train)
        return interpolate_weights(place.folder(self.of.name), data=data, device=place.device).path

    @property
    def found(self) -> str:
        return f"{self.of.found}, `classwise interpolate-weights`"


@dataclass(frozen=True)
class Offset(Method):
    """The constants for each class, on another method's model."""

    of: Trained | Interpolated

    def make(self, place: Place) -> Path:
        made(self.of, place, wait=True)
        mixed = isinstance(self.of, Interpolated)
        run = self.of.of if isinstance(self.of, Interpolated) else self.of
        path = place.folder(self.name) / "adjusted.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        return adjust_logits(
            place.folder(run.name),
            which="interpolated" if mixed else None,
            data=images("train", place.scale.train),
            out=path,
            device=place.device,
        ).path

    @property
    def found(self) -> str:
        return f"`classwise adjust-logits` after {self.of.found}"


SHORT = "short"
AT = Trained("AT", "at", budget=SHORT)
TRADES = Trained("TRADES", "trades", budget=SHORT)
WARM_AT = Trained("warm-at", "at", epochs=WARM, budget=SHORT)
WARM_TRADES = Trained("warm-trades", "trades", epochs=WARM, budget=SHORT)
_LATE: dict[str, Any] = {
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
    "lr_schedule": {"name": "step", "milestones": [0.5], "gamma": 0.1},
}
"""FAAL's fine-tuning, given to the three methods that start from a robust model."""

_FRONTIER = Trained(
    "frontier-first", "frontier", {"averaging.decay": 0.99, "schedules.0.start_epoch": 6}, EPOCHS - 2, budget=SHORT
)
_FINETUNED = Trained("frontier-finetuned", "frontier-finetune", {"averaging.decay": 0.99}, 2, _FRONTIER)
FRONTIER = Interpolated("frontier", _FINETUNED)

METHODS: tuple[Method, ...] = (
    AT,
    TRADES,
    Offset("AT+offset", AT),
    Offset("TRADES+offset", TRADES),
    Trained("CFA-AT", "cfa-at", budget=SHORT),
    Trained("DAFA", "dafa", {"schedules.0.start_epoch": 8}, budget=SHORT),
    Trained("FRL", "frl", {**_LATE, "schedules.0.halve_every": 2}, EPOCHS - WARM, WARM_TRADES),
    Trained("TRIX", "trix", {"schedules.0.start_epoch": 6}, budget=SHORT),
    Trained("WAT", "wat", budget=SHORT),
    Trained("margins-smaller", "margins-smaller", budget=SHORT),
    Trained("margins-larger", "margins-larger", budget=SHORT),
    FRONTIER,
    Offset("frontier+offset", FRONTIER),
    Trained("CFA-TRADES", "cfa-trades", budget=SHORT),
    Trained("FAAL", "faal", {**_LATE}, EPOCHS - WARM, WARM_AT),
    Trained("CSR", "csr", {**_LATE, "objective.start_fraction": 0.25}, EPOCHS - WARM, WARM_TRADES),
    Trained("CFOL", "cfol", {"schedules.0.rate": 7e-5}, budget=SHORT),
    Trained("CODAT", "codat", budget=SHORT),
    Trained("MART", "mart", {"model.name": "preactresnet18"}, budget=SHORT),
    Trained("HE", "he", budget=SHORT),
    Trained("FAT", "fat", budget=SHORT),
)
"""The most telling first; a warm start is trained when it is first needed."""


class Said(NullProgress):
    """Prints what is worth a line, with the time."""

    def __init__(self, name: str) -> None:
        self.name = name

    def log(self, line: str) -> None:
        log(f"{self.name}: {line}")


def log(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


@cache
def images(split: str, count: int | None) -> Images:
    return load_data("cifar10", split=split, subset=count, seed=0)


def made(method: Method, place: Place, *, wait: bool) -> Path | None:
    """The method's weights, made if need be; None if another process is at it and we would not wait."""
    note = place.folder(method.name) / "weights.txt"
    if note.is_file():
        return Path(note.read_text())
    with place.held(method.name, wait=wait) as ours:
        if not ours:
            return None
        if not note.is_file():
            path = method.make(place)
            write_text(note, str(path))
    return Path(note.read_text())


def named(variable: str) -> list[str]:
    """The names in an environment variable, which commas part."""
    return [name for name in os.environ.get(variable, "").split(",") if name]


def keep(quick: bool) -> Path:
    return Path(os.environ.get("KEEP", "runs/defences-quick" if quick else "runs/defences")).resolve()


def seeds() -> list[int]:
    return [int(seed) for seed in os.environ.get("SEEDS", "0").split(",")]


def finished(folder: Path) -> bool:
    """Whether the folder holds an audit that was run to its end."""
    about = folder / "audit.json"
    return about.is_file() and "seconds" in json.loads(about.read_text()).get("environment", {})
