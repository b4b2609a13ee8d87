"""The cells of a sweep: one training run or one model each with its audits, and the folder that contains them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NotRequired

import pydantic
import yaml
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.auditing.run.audit_folder import SWEEP
from classwise.core.errors import ClasswiseError, quoted
from classwise.core.files.json_values import json_text
from classwise.core.files.ownership import owned
from classwise.core.files.reading import damaged, read_lines
from classwise.core.files.schema import check_schema_version
from classwise.core.files.storage import check_writable, is_unused, read_json, verify, write_json, write_text
from classwise.core.settings.names import fresh_name
from classwise.sweeps.jobs import JOB, Call, Job
from classwise.sweeps.tasks import record
from classwise.training.folder import Run

SCHEMA_VERSION = 1
CHANGED = "changed"
"""The event in a task's attempts after which it runs again, since audits of its cell were added or changed."""


@dataclass(frozen=True)
class Cell:
    """A training run with its audits, or the audits of a model.

    Attributes:
        name: the name of its folders; the method, and the seed of a training.
        method: what the cells of several seeds have in common.
        recipe: a recipe's name, or the absolute path of its file; empty for a model.
        budget: the budget of the recipe; ``full`` for none.
        data: a data set's name, or an absolute path.
        seed: the seed of training.
        overrides: the overridden fields of the recipe.
        audits: the options of ``classwise audit``, and ``which`` weights, by the audit's name.
        model: the model that is audited without a training; empty for a training run.
        model_settings: its other settings, as in a plan.
        recipe_sha256: SHA-256 of the settings of a recipe that is a file; empty for a name or if unknown.
    """

    name: str
    method: str
    recipe: str = ""
    budget: str = "full"
    data: str = ""
    seed: int = 0
    overrides: Mapping[str, Any] = field(default_factory=dict)
    audits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    model: str = ""
    model_settings: Mapping[str, Any] = field(default_factory=dict)
    recipe_sha256: str = ""

    def calls(self, run: Path, device: str = "cpu") -> tuple[Call, ...]:
        """The training into a run folder, if there is one, and the audits; each continues its own work."""
        audits = tuple(self._audit(run, name, device) for name in self.audits)
        return audits if self.model else (self._training(run, device), *audits)

    def _training(self, run: Path, device: str) -> Call:
        recipe: dict[str, Any] = {"recipe": self.recipe, "data": self.data, "seed": self.seed}
        recipe |= {} if self.budget == "full" else {"budget": self.budget}
        recipe["set"] = [f"{name}={text}" for name, text in self.override_texts().items()]
        return Call(function="train", arguments=recipe | {"device": device, "resume": True}, out=str(run))

    def _audit(self, run: Path, name: str, device: str) -> Call:
        given = dict(self.audits[name])
        which = given.pop("which", None)
        source: dict[str, Any] = {"model": str(run if which is None else Run(run).weights_file(which))}
        if self.model:
            source = {"model": self.model, "data": self.data, **self._model_options()}
        arguments = {**source, "device": device, **given, "resume": True}
        return Call(function="audit", arguments=arguments, out=str(run / "audits" / name))

    def _model_options(self) -> dict[str, Any]:
        """The settings of the model as options of ``classwise audit``."""
        given = {key: value for key, value in self.model_settings.items() if key not in ("name", "set")}
        given |= {key: ",".join(map(str, given[key])) for key in ("mean", "std") if key in given}
        chosen = [f"{name}={_yaml(value)}" for name, value in self.model_settings.get("set", {}).items()]
        return given | ({"model_set": chosen} if chosen else {})

    def model_files(self) -> list[Path]:
        """The files of the model and its weights that are on this machine; of a run folder those in ``checkpoints``."""
        paths = [Path(path) for path in (self.model, self.model_settings.get("weights")) if path]
        return [file for path in paths for file in (path, *path.glob("checkpoints/*")) if file.is_file()]

    def override_texts(self) -> dict[str, str]:
        """The overrides as ``--set`` takes them, in YAML."""
        return {name: _yaml(value) for name, value in self.overrides.items()}


class Settings(TypedDict):
    """The content of ``sweep.json``."""

    schema_version: int
    device: NotRequired[str]
    processes: NotRequired[Annotated[int, pydantic.Field(ge=1)]]
    gpus: NotRequired[Annotated[int, pydantic.Field(ge=0)]]
    executor: NotRequired[dict[str, Any]]


def slug(text: str) -> str:
    """The text with every character replaced that is unusual in the name of a folder."""
    return re.sub(r"[^\w.+-]+", "_", text).strip("-.") or "_"


def _yaml(value: Any) -> str:
    """A value as YAML in flow style."""
    text: str = yaml.safe_dump([value], default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.strip().removeprefix("[").removesuffix("]")


@dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep.

    Args:
        path: the folder. It has a copy of the plan, the cells, and for each cell a run folder and a task.
    """

    path: Path

    @staticmethod
    def open(path: str | Path) -> SweepFolder:
        """Open the folder of a sweep.

        Raises:
            ClasswiseError: if it contains no sweep.
        """
        folder = SweepFolder(Path(path))
        if folder.path.is_file():
            raise ClasswiseError(f"{path} is a file; give the folder of a sweep")
        if not folder.cells_file.exists():
            raise ClasswiseError(
                f"{path} contains no sweep; start one with: classwise sweep plan.yaml --out {quoted(path)}"
            )
        folder.settings()
        return folder

    def check_new(self) -> None:
        """Check that the folder is new, or contains a sweep.

        Raises:
            ClasswiseError: if it is a file, contains something else, or cannot be written.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ClasswiseError(f"{self.path} is a file; give a folder for the sweep")
        if not is_unused(self.path) and not self.settings_file.is_file():  # in this order: another may start it
            raise ClasswiseError(f"{self.path} is not empty and contains no sweep; give a new folder")
        check_writable(self.cells_file)

    @property
    def cells_file(self) -> Path:
        """The cells, as JSON lines."""
        return self.path / "cells.jsonl"

    @property
    def settings_file(self) -> Path:
        """Where and how the cells run."""
        return self.path / SWEEP

    def run(self, cell: Cell) -> Path:
        """The run folder of a cell."""
        return self.path / "runs" / cell.name

    def audit(self, cell: Cell, name: str) -> Path:
        """The folder of an audit of a cell."""
        return self.run(cell) / "audits" / name

    def task(self, cell: Cell) -> Path:
        """The folder of a cell's task."""
        return self.path / "tasks" / cell.name

    def cells(self) -> list[Cell]:
        """Read the cells; empty if the folder contains none yet.

        Raises:
            ClasswiseError: if the file is damaged.
        """
        verify(self.cells_file)
        cells, problems = read_lines(self.cells_file, Cell)
        if problems:
            raise ClasswiseError(problems[0])
        names = [cell.name for cell in cells]
        if len(set(names)) < len(names):
            raise damaged(str(self.cells_file), "two cells of one name")
        return cells

    def settings(self) -> Settings:
        """Read where and how the cells run.

        Raises:
            ClasswiseError: if the file is damaged, or has another schema version.
        """
        settings = read_json(self.settings_file, kind=Settings)
        check_schema_version(settings["schema_version"], SCHEMA_VERSION, str(self.path))
        return settings

    def write(self, cells: Sequence[Cell], plan: str, settings: Mapping[str, Any]) -> None:
        """Write the cells, their tasks, a copy of the plan, and where and how the cells run.

        Cells of an earlier plan with the same names must be the same, but may get other audits: a finished training is
        used again. The result of an audit whose options differ is moved to ``audits/earlier-NAME``.

        Args:
            cells: the cells.
            plan: the text of the plan.
            settings: ``device`` and ``processes`` of a cell, and the options of the executor.

        Raises:
            ClasswiseError: if a cell of the same name differs, a cell whose audits differ is running, or the folder
                cannot be written.
        """
        before = {cell.name: cell for cell in self.cells()}
        again = [(before[cell.name], cell) for cell in cells if cell.name in before]
        for earlier, cell in again:
            self._check_same(earlier, cell)
        for earlier, cell in again:
            self._move_audits(earlier, cell)
        write_json(self.settings_file, {"schema_version": SCHEMA_VERSION, **settings}, indent=1)
        for cell in cells:
            self.write_task(cell, settings)
            if cell.name in before and before[cell.name] != cell:
                record(self.task(cell), event=CHANGED)
        write_text(self.path / "plan.yaml", plan)
        lines = "".join(json_text(dataclasses.asdict(cell)) + "\n" for cell in cells)
        write_text(self.cells_file, lines, checksum=True)

    def write_task(self, cell: Cell, settings: Mapping[str, Any]) -> None:
        """Write the job of a cell, unless it is written already."""
        job = Job(calls=cell.calls(self.run(cell).absolute(), settings["device"]), processes=settings["processes"])
        file = self.task(cell) / JOB
        if not file.is_file() or Job.read(file) != job:
            job.write(file.parent)

    def _check_same(self, before: Cell, now: Cell) -> None:
        for name in ("recipe", "model", "model_settings", "budget", "data", "seed", "overrides"):
            was, given = (getattr(cell, name) for cell in (before, now))
            if was != given:
                raise ClasswiseError(_other(self.path, now.name, name, was, given))
        if before.recipe_sha256 and before.recipe_sha256 != now.recipe_sha256:
            what = f"a cell {now.name} whose recipe {now.recipe} had other settings"
            raise ClasswiseError(f"{self.path} contains {what}; give another --out")

    def _move_audits(self, before: Cell, now: Cell) -> None:
        """Move the results of audits whose options differ, so that these run again.

        Raises:
            ClasswiseError: if the cell is running.
        """
        for name in sorted(before.audits.keys() & now.audits.keys()):
            folder = self.audit(now, name)
            if before.audits[name] == now.audits[name] or not folder.is_dir():
                continue
            with owned(self.task(now)):
                taken = {path.name for path in folder.parent.iterdir()} | before.audits.keys() | now.audits.keys()
                folder.rename(folder.with_name(fresh_name(f"earlier-{name}", taken)))


def _other(folder: Path, cell: str, what: str, was: object, now: object) -> str:
    was, now = (json.dumps(value) for value in (was, now))
    return f"{folder} contains a cell {cell} with another {what}: it was {was}, now {now}; give another --out"
