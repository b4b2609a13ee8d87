"""The run folder: the paths of its files, and reading them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired

import pandas as pd
from torch import nn
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.core.compute.environment import Environment
from classwise.core.errors import ClasswiseError, did_you_mean, quoted
from classwise.core.files.numbers import Number
from classwise.core.files.reading import damaged, open_regular, read_lines
from classwise.core.files.schema import SCHEMA_VERSIONS, check_schema_version
from classwise.core.files.storage import read_json, verify, write_json
from classwise.core.settings.arguments import checked
from classwise.training.averaging import NoAverage
from classwise.training.recipe import Recipe

Which = str
"""A name of saved weights: one of `WEIGHTS`, or one of the names that `epoch_weights` returns."""
WEIGHTS: tuple[Which, ...] = ("last", "best", "average", "best-average", "interpolated", "adjusted", "equal-norms")
"""The names of the weights that are not those of one epoch of ``checkpoint_epochs``."""
_OF_EPOCH = re.compile(r"(average-)?epoch-([1-9][0-9]*)")


def epoch_weights(which: Which, epoch: int) -> Which:
    """Return the name of the weights after an epoch of ``checkpoint_epochs``.

    Args:
        which: ``"last"`` for the online model, ``"average"`` for the average.
        epoch: from 1.
    """
    return f"epoch-{epoch}" if which == "last" else f"{which}-epoch-{epoch}"


def saved_names(recipe: Recipe) -> list[Which]:
    """Return the names of the weights that a run of the recipe saves; averages once averaging has started."""
    models = ("last",) if isinstance(recipe.parts.averaging, NoAverage) else ("last", "average")
    best = ("best", "best-average")[: len(models)]
    return [*models, *best, *(epoch_weights(which, epoch) for which in models for epoch in recipe.checkpoint_epochs)]


def runs_in(folder: Path) -> list[Path]:
    """Return the runs in a folder, as ``train --seeds`` and ``sweep`` write them; empty for the folder of a run."""
    if (folder / "recipe.yaml").is_file():
        return []
    return sorted(file.parent for file in folder.glob("*/recipe.yaml"))


class RunData(TypedDict):
    """The entry ``data`` of ``environment.json``."""

    fingerprint: str
    classes: list[str]
    name: NotRequired[str]
    counts: NotRequired[dict[str, list[int]]]
    unlabelled: NotRequired[dict[str, Any]]
    validation: NotRequired[str]


class RunEnvironment(Environment, total=False):
    """The content of ``environment.json``."""

    schema_version: int
    data: RunData
    code: dict[str, dict[str, str]]
    teacher: str
    normalisation: Any
    weights_file: str
    weights_sha256: str
    weights_epoch: int
    processes: int
    graphs: str
    not_compiled: str
    initial_accuracy: float


class Event(TypedDict):
    """A line of ``events.jsonl``; each kind of event has entries of its own."""

    event: str
    epoch: NotRequired[int]
    which: NotRequired[str]
    score: NotRequired[Number | None]
    admitted: NotRequired[bool]
    plain_average_saved: NotRequired[bool]
    processes: NotRequired[int]


@checked
@dataclass(frozen=True)
class Run:
    """A training run on disk.

    Args:
        path: the run folder.
        default: name of the weights that are used if none are named; None for those of the highest validation
            score; of equal or no scores, the average.

    A run is a path, and so a model: ``cw.audit(run)`` audits its default weights.

    Example:
        >>> import tempfile
        >>> import classwise as cw
        >>> small = {"data.subset": 60, "data.validation": 0.2, "model.name": "small-cnn", "model.width": 0.1}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = cw.train("at", data="digits", out=folder, overrides=small, epochs=1)
        ...     run = cw.Run.open(folder)
        ...     run.complete, run.epochs_done, run.recipe.name
        ...     sorted(run.epochs["split"].unique())
        (True, 1, 'at')
        ['train', 'valid']
    """

    path: Path
    default: Which | None = None

    def __fspath__(self) -> str:
        """Return the path of the run folder, or of the weights ``default`` if they are named."""
        return str(self.path if self.default is None else self.weights_file(self.default))

    @staticmethod
    def open(path: str | Path) -> Run:
        """Open the run in a folder.

        Raises:
            ClasswiseError: if the folder contains no run, or its schema version is not supported.
        """
        run = Run(Path(path))
        if not run.recipe_file.is_file():
            if (run.path / "audit.json").is_file():
                raise ClasswiseError(f"{path} is an audit, not a run; show it with: classwise report {quoted(path)}")
            if runs_in(run.path):
                raise ClasswiseError(f"{path} contains one run per seed; give one of them")
            hint = did_you_mean(path) or f"; create one with: classwise train RECIPE --out {quoted(path)}"
            raise ClasswiseError(f"{path} contains no run (no recipe.yaml){hint}")
        if run.environment_file.exists():
            version = run.environment.get("schema_version", SCHEMA_VERSIONS["run"])
            check_schema_version(version, SCHEMA_VERSIONS["run"], str(path))
        return run

    @property
    def recipe_file(self) -> Path:
        """The file of the complete recipe."""
        return self.path / "recipe.yaml"

    @property
    def environment_file(self) -> Path:
        """The file of the environment: versions, device, git state, data hashes."""
        return self.path / "environment.json"

    @property
    def epochs_file(self) -> Path:
        """The table of the epochs, a row per epoch, split and class."""
        return self.path / "epochs.parquet"

    @property
    def events_file(self) -> Path:
        """The events of the run, such as decisions of averaging and selection, as JSON lines."""
        return self.path / "events.jsonl"

    @property
    def state_file(self) -> Path:
        """The checkpoint with the state of the training."""
        return self.path / "checkpoints" / "state.pt"

    @property
    def pseudo_labels_file(self) -> Path:
        """The file of the pseudo-labels of the unlabelled images."""
        return self.path / "pseudo-labels.json"

    @property
    def audits(self) -> Path:
        """The folder of the run's audits."""
        return self.path / "audits"

    def weights_file(self, which: Which) -> Path:
        """Return the file of the weights of a saved model."""
        return self.path / "checkpoints" / f"{which}.safetensors"

    @cached_property
    def recipe(self) -> Recipe:
        """The complete recipe."""
        verify(self.recipe_file)
        return Recipe.read(str(self.recipe_file))

    def with_recipe(self, recipe: Recipe) -> Run:
        """Return the run with a known recipe, which is then neither read nor built again."""
        run = Run(self.path, self.default)
        run.__dict__["recipe"] = recipe
        return run

    @cached_property
    def environment(self) -> RunEnvironment:
        """The environment of the run: versions, device, git state, data.

        Raises:
            ClasswiseError: if the file is missing or damaged.
        """
        return read_json(self.environment_file, kind=RunEnvironment)

    def check_exists(self) -> None:
        """Check that the folder still exists, so that no partial run is written into a new one.

        Raises:
            ClasswiseError: if it was removed.
        """
        if not self.recipe_file.is_file():
            raise ClasswiseError(f"{self.path} was removed during training; start the run again")

    def note_environment(self, **facts: Any) -> None:
        """Add facts to the environment of the run."""
        before = read_json(self.environment_file)
        if before != before | facts:
            write_json(self.environment_file, before | facts, indent=2, checksum=True)
        self.__dict__.pop("environment", None)

    @property
    def data(self) -> RunData:
        """The data of the run: ``name``, ``fingerprint``, ``classes`` and ``counts``.

        Raises:
            ClasswiseError: if the file is damaged.
        """
        if "data" not in self.environment:
            raise damaged(str(self.environment_file), "no data in it")
        return self.environment["data"]

    def training_counts(self, class_names: tuple[str, ...]) -> tuple[int, ...] | None:
        """Training images of each class, without those held out; None if not recorded, or for other classes."""
        data = self.environment.get("data") if self.environment_file.is_file() else None
        counts = None if data is None else data.get("counts", {}).get("train")
        return None if data is None or counts is None or tuple(data["classes"]) != class_names else tuple(counts)

    @property
    def epochs(self) -> pd.DataFrame:
        """The table of the epochs: counts, accuracies and settings per epoch, split and class. Empty before epoch 1.

        Raises:
            ClasswiseError: if the file is damaged.
        """
        if not self.epochs_file.exists():
            return pd.DataFrame()
        from classwise.core.files.parquet_files import read_parquet

        verify(self.epochs_file)
        try:
            with open_regular(self.epochs_file) as file:
                table: pd.DataFrame = read_parquet(file, str(self.epochs_file)).to_pandas()
        except Exception as error:  # pyarrow and pandas raise many kinds for a damaged file
            reason = type(error).__name__
            raise damaged(str(self.epochs_file), reason) from error
        for column in ("epoch", "split", "class", "label"):
            if not table.empty and column not in table:
                raise damaged(str(self.epochs_file), f"no column {column!r}")
        return table

    @property
    def events(self) -> list[Event]:
        """The events in order.

        Raises:
            ClasswiseError: if the file is damaged.
        """
        verify(self.events_file)
        events, problems = read_lines(self.events_file, Event)
        if problems:
            raise ClasswiseError(problems[0])
        return events

    @property
    def epochs_done(self) -> int:
        """The number of complete epochs."""
        epochs = self.epochs
        return 0 if epochs.empty else int(epochs["epoch"].max()) + 1

    @property
    def complete(self) -> bool:
        """Whether the last epoch is complete."""
        return self.epochs_done >= self.recipe.epochs

    def best_epoch(self, which: Which = "best") -> int | None:
        """Return the selected epoch (from 0), or None if there is none yet."""
        selected = [event for event in self.events if event["event"] == "selected" and event.get("which") == which]
        return selected[-1].get("epoch") if selected else None

    def saved_weights(self) -> list[Which]:
        """Return the names of the saved weights; those of single epochs are last, in the order of the epochs."""
        stems = (file.stem for file in (self.path / "checkpoints").glob("*epoch-*.safetensors"))
        found = [match for match in map(_OF_EPOCH.fullmatch, stems) if match]
        epochs = [match[0] for match in sorted(found, key=lambda match: (match[1] or "", int(match[2])))]
        return [*(name for name in WEIGHTS if self.weights_file(name).is_file()), *epochs]

    def chosen_weights(self, which: Which | None) -> Which:
        """Return the name of the requested weights, or of the default weights if none are requested.

        Raises:
            ClasswiseError: if the run does not have them.
        """
        name, saved = which or self.default_weights(), self.saved_weights()
        if name not in saved:
            raise ClasswiseError(f"{self.path} has no weights {name!r}; saved: {', '.join(saved) or 'none'}")
        return name

    def default_weights(self) -> Which:
        """Return ``default``, or the name of the saved weights of the highest validation score: best epoch or average.

        Without scores it is the average, if there is one.

        Raises:
            ClasswiseError: if no epoch is complete.
        """
        if self.default:
            return self.default
        scores: dict[Which, float] = {}
        for event in self.events:
            if event["event"] == "selected" and "which" in event:
                score = event.get("score")
                scores[event["which"]] = -math.inf if score is None else score
        saved = [name for name in scores if self.weights_file(name).is_file()]
        if not saved:
            raise ClasswiseError(f"{self.path} has no weights yet; train at least one epoch")
        return max(saved, key=lambda name: (scores[name], name))

    def model(self, which: Which | None = None) -> nn.Module:
        """Load a saved model in evaluation mode, by default the one of `default_weights`.

        Raises:
            ClasswiseError: if the run does not have these weights.
        """
        from classwise.models import load_model

        return load_model(self.weights_file(self.chosen_weights(which)))
