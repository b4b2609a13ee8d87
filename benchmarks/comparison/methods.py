"""The methods, how each is trained, and the folders of its runs and audits."""

from __future__ import annotations

import contextlib
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

import torch

from benchmarks.tables import conditions
from classwise.auditing.evaluation.evaluation import Evaluation
from classwise.core.errors import ClasswiseError
from classwise.core.files.ownership import lock
from classwise.core.files.storage import write_text
from classwise.core.progress.listener import NullProgress
from classwise.data import Images, load_data
from classwise.posthoc.logit_adjustment import adjust_logits
from classwise.posthoc.weight_interpolation import interpolate_weights
from classwise.training.folder import Run, Which
from classwise.training.train import train

TRAINING = "training.json"
"""The file of the wall time of a training, summed over its processes, its threads, date and processor."""
EPOCHS = 12
WARM = 8
"""Epochs of the two warm starts that FRL, FAAL and CSR share; they are part of the budget."""
SUITES: dict[str, tuple[int | None, tuple[str, ...]]] = {
    "pgd": (None, ("pgd:steps=20,step_size=0.1eps", "pgd:steps=20,step_size=0.1eps,objective=margin")),
    "apgd": (1000, ("apgd-ce", "apgd-t")),
    "autoattack": (1000, ("autoattack",)),
}
"""The number of test images (None: all) and the attacks of each audit."""


MARGIN = "pgd:steps=8,step_size=0.25eps,objective=margin"
"""The default attack that fits the constants of the logit adjustment."""


@dataclass(frozen=True)
class Scale:
    """Sizes of the experiment: data, training and test images, threat, recipe fields, attacks and epochs."""

    data: str = "cifar10"
    train: int | None = 10_000
    """None: all training images."""
    validation: float = 0.1
    test: int | None = None
    threat: str | None = None
    """None: that of the recipe."""
    fields: Mapping[str, Any] = field(
        default_factory=lambda: {"model.width": 0.25, "precision": {"dtype": "bfloat16", "channels_last": True}}
    )
    suites: Mapping[str, tuple[int | None, tuple[str, ...]]] = field(default_factory=lambda: SUITES)
    default_suites: tuple[str, ...] = ("pgd", "apgd")
    """The audits of every method; others run where SUITES names them."""
    options: Evaluation = field(default_factory=Evaluation)
    """Further options of the audits."""
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
class Workspace:
    """The folder, seed, scale and device of the runs."""

    root: Path
    seed: int
    scale: Scale
    device: str = "cpu"

    def folder(self, name: str) -> Path:
        return self.root / f"seed-{self.seed}" / name

    @contextlib.contextmanager
    def locked(self, name: str, *, wait: bool) -> Iterator[bool]:
        """Lock a name against other processes; yields False if another process has the lock and ``wait`` is false."""
        path = self.root / "locks" / f"{self.seed}-{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                lock(file.fileno(), wait=wait)
            except BlockingIOError:
                yield False
                return
            yield True


@dataclass(frozen=True)
class Method(ABC):
    """A method: a row of the table, or the start of another row."""

    name: str

    @abstractmethod
    def make(self, workspace: Workspace) -> Path:
        """Train the method, after the methods that it starts from, and return the file of its weights."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Description of the training, for the table."""


@dataclass(frozen=True)
class Trained(Method):
    """A recipe with changed fields, started from random weights or from those of another method."""

    recipe: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = EPOCHS
    start: Method | None = None
    budget: str | None = None

    def make(self, workspace: Workspace) -> Path:
        start = None if self.start is None else weights_of(self.start, workspace, wait=True)
        run = self.run(workspace, start)
        return run.weights_file(run.default_weights())

    def run(self, workspace: Workspace, start: Path | None) -> Run:
        scale = workspace.scale
        overrides: dict[str, Any] = {"data.validation": scale.validation, "data.subset": scale.train, **scale.fields}
        overrides |= {"epochs": scale.epochs_of(self.epochs), "seed": workspace.seed, **self.overrides}
        if scale.threat is not None:
            overrides["threat"] = scale.threat
        if start is not None:
            overrides["model.weights"] = str(start)
        folder = workspace.folder(self.name)
        progress = TimedProgress(f"{self.name}, seed {workspace.seed}", folder / TRAINING)
        run = train(
            self.recipe,
            budget=self.budget,
            out=folder,
            data=images(scale.data, "train", scale.train),
            resume=True,
            device=workspace.device,
            progress=progress,
            overrides=overrides,
        )
        progress.write()
        return run

    @property
    def description(self) -> str:
        name = self.recipe if self.budget is None else f"{self.recipe}-{self.budget}"
        return f"`{name}`, {self.epochs}" + ("" if self.start is None else f" after {self.start.description}")


@dataclass(frozen=True)
class Saved(Method):
    """Other saved weights of a run than its default ones, such as the average of the last epoch."""

    of: Trained
    which: Which

    def make(self, workspace: Workspace) -> Path:
        weights_of(self.of, workspace, wait=True)
        return Run.open(workspace.folder(self.of.name)).weights_file(self.which)

    @property
    def description(self) -> str:
        return f"{self.of.description}, weights `{self.which}`"


@dataclass(frozen=True)
class Interpolated(Method):
    """The best interpolation of the weights of a fine-tuned model and of its start."""

    of: Trained

    def make(self, workspace: Workspace) -> Path:
        weights_of(self.of, workspace, wait=True)
        data = images(workspace.scale.data, "train", workspace.scale.train)
        run = Run.open(workspace.folder(self.of.name))
        interpolate_weights(run, data=data, device=workspace.device)
        return run.weights_file("interpolated")

    @property
    def description(self) -> str:
        return f"{self.of.description}, `classwise interpolate-weights`"


@dataclass(frozen=True)
class LogitAdjusted(Method):
    """Post-hoc logit adjustment of the model of another method, fitted under an attack."""

    of: Trained | Interpolated | Saved
    attack: str = MARGIN

    def make(self, workspace: Workspace) -> Path:
        weights_of(self.of, workspace, wait=True)
        run = self.of if isinstance(self.of, Trained) else self.of.of
        which: Which | None = None
        if isinstance(self.of, Interpolated):
            which = "interpolated"
        elif isinstance(self.of, Saved):
            which = self.of.which
        path = workspace.folder(self.name) / "adjusted.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        adjust_logits(
            workspace.folder(run.name),
            which=which,
            data=images(workspace.scale.data, "train", workspace.scale.train),
            attack=self.attack,
            folds=0,  # cross-fitted accuracies are not used
            out=path,
            device=workspace.device,
        )
        return path

    @property
    def description(self) -> str:
        return f"`classwise adjust-logits` after {self.of.description}"


SHORT = "short"
AT = Trained("AT", "at", budget=SHORT)
TRADES = Trained("TRADES", "trades", budget=SHORT)
WARM_AT = Trained("warm-at", "at", epochs=WARM, budget=SHORT)
WARM_TRADES = Trained("warm-trades", "trades", epochs=WARM, budget=SHORT)
_LATE: dict[str, Any] = {
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
    "lr_schedule": {"name": "step", "milestones": [0.5], "gamma": 0.1},
}
"""FAAL's fine-tuning schedule, used for the three methods that start from a robust model."""

_PARTS: dict[str, Any] = {
    "objective": {"name": "trades", "beta": 5},
    "averaging": {"name": "ema", "decay": 0.99, "start_fraction": 0, "every": "step"},
    "update": {"name": "awp", "gamma": 0.005, "start_fraction": 0},
    "data.augment": "idbh-weak",
}
"""The former parts of the recipes ``frontier`` and ``frontier-finetune``."""
_FRONTIER = Trained(
    "frontier-first",
    "trades",
    {
        **_PARTS,
        "update": {"name": "awp", "gamma": 0.005, "start_fraction": 0.05},
        "schedules": [{"name": "dafa-average", "strength": 1, "start_epoch": 6}],
    },
    EPOCHS - 2,
)
_FINETUNED = Trained(
    "frontier-finetuned", "trades", {**_PARTS, **_LATE, "reduction": {"name": "faal", "radius": 0.1}}, 2, _FRONTIER
)
FRONTIER = Interpolated("frontier", _FINETUNED)

METHODS: tuple[Method, ...] = (
    AT,
    TRADES,
    LogitAdjusted("AT+offset", AT),
    LogitAdjusted("TRADES+offset", TRADES),
    Trained("CFA-AT", "cfa-at", budget=SHORT),
    Trained("DAFA", "dafa", {"schedules.0.start_epoch": 8}, budget=SHORT),
    Trained("FRL", "frl", {**_LATE, "schedules.0.halve_every": 2}, EPOCHS - WARM, WARM_TRADES),
    Trained("TRIX", "trix", {"schedules.0.start_epoch": 6}, budget=SHORT),
    Trained("WAT", "wat", budget=SHORT),
    Trained("margins-smaller", "margins-smaller", budget=SHORT),
    Trained("margins-larger", "margins-larger", budget=SHORT),
    FRONTIER,
    LogitAdjusted("frontier+offset", FRONTIER),
    Trained("CFA-TRADES", "cfa-trades", budget=SHORT),
    Trained("FAAL", "faal", {**_LATE}, EPOCHS - WARM, WARM_AT),
    Trained("CSR", "csr", {**_LATE, "objective.start_fraction": 0.25}, EPOCHS - WARM, WARM_TRADES),
    Trained("CFOL", "cfol", {"schedules.0.rate": 7e-5}, budget=SHORT),
    Trained("CODAT", "codat", budget=SHORT),
    Trained("MART", "mart", {"model.name": "preactresnet18"}, budget=SHORT),
    Trained("HE", "he", budget=SHORT),
    Trained("FAT", "fat", budget=SHORT),
    Trained("Sy-FAR", "sy-far", {"optimizer.lr": 1e-3}, EPOCHS - WARM, WARM_AT),
)
"""The methods in order of priority; a warm start is trained when it is first needed."""


class LogProgress(NullProgress):
    """Prints log lines with the time and a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def log(self, line: str) -> None:
        log(f"{self.name}: {line}")


class TimedProgress(LogProgress):
    """Also writes the wall time to a file, once a minute, added to that of the earlier processes of the training."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name)
        self.path = path
        self._before = json.loads(path.read_text())["seconds"] if path.is_file() else 0
        self._begin = self._written = time.perf_counter()

    def advance(self, amount: int) -> None:
        super().advance(amount)
        if time.perf_counter() - self._written > 60:
            self.write()

    def write(self) -> None:
        self._written = time.perf_counter()
        facts = {"seconds": round(self._before + self._written - self._begin), "threads": torch.get_num_threads()}
        write_text(self.path, json.dumps({**facts, "conditions": conditions()}) + "\n")


def log(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


@cache
def images(name: str, split: str, count: int | None) -> Images:
    return load_data(name, split=split, subset=count, seed=0)


def weights_of(method: Method, workspace: Workspace, *, wait: bool) -> Path | None:
    """The weights of a method, trained if needed; None if another process trains it and ``wait`` is false."""
    pointer = workspace.folder(method.name) / "weights.txt"
    if pointer.is_file():
        return Path(pointer.read_text())
    with workspace.locked(method.name, wait=wait) as acquired:
        if not acquired:
            return None
        if not pointer.is_file():
            path = method.make(workspace)
            write_text(pointer, str(path))
    return Path(pointer.read_text())


def names_in(variable: str) -> list[str]:
    """The comma-separated names in an environment variable."""
    return [name for name in os.environ.get(variable, "").split(",") if name]


def root_folder(quick: bool, name: str = "defences") -> Path:
    return Path(os.environ.get("KEEP", f"runs/{name}-quick" if quick else f"runs/{name}")).resolve()


def seeds(default: str = "0") -> list[int]:
    """The comma-separated seeds in ``SEEDS``.

    Raises:
        ClasswiseError: if one is not a whole number.
    """
    text = os.environ.get("SEEDS", default)
    if not all(seed.isdecimal() for seed in text.split(",")):
        raise ClasswiseError(f"SEEDS={text}: must be whole numbers, such as 0,1,2")
    return [int(seed) for seed in text.split(",")]


def finished(folder: Path) -> bool:
    """Whether the folder contains a finished audit."""
    about = folder / "audit.json"
    return about.is_file() and json.loads(about.read_text())["complete"]
