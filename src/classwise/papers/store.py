"""Store of trainings, audits and results: each model is trained once, and each audit is run once.

The key of a training is a hash of its complete recipe (including the seed) and of its pixels and labels; the key of an
audit is a hash of its attacks, its images and the weights. Experiments therefore share models and audits, and an
interrupted run is resumed. A run that also saves the weights of some epochs serves requests for fewer of them. A store
has each model in one arithmetic: the key of a training begins with a hash of everything but its precision. Several
processes may share a store: a process locks a key while it works on it.

``runs`` has the complete runs, ``models`` those that are kept in half precision and serve instead (`Store.keep`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

import pydantic
import torch
from torch import nn
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.auditing.evaluation.evaluation import STORED, Evaluation, complete
from classwise.auditing.run.audit import Audit, audit
from classwise.auditing.run.audit_folder import ABOUT, read_about
from classwise.core.compute.precision import EXACT, FAST
from classwise.core.errors import ClasswiseError
from classwise.core.files.ownership import owned
from classwise.core.files.storage import ResultFolder, read_json, write_bytes, write_json
from classwise.core.progress.listener import NullProgress, Progress
from classwise.core.settings.config import Spec
from classwise.core.version import __version__
from classwise.data.images import Images
from classwise.models import fingerprint, save_weights
from classwise.threat.ball import Threat
from classwise.training.folder import Run, Which
from classwise.training.recipe import Recipe
from classwise.training.train import train

_LETTERS = 20
_OF_MODEL = 14
"""Letters of the key of a training that its precision does not change."""


@dataclass
class Work:
    """Durations of the requested trainings and audits, new or loaded.

    Attributes:
        seconds: duration of each by key; None if it was not recorded.
        waited: seconds that this process spent in the store on training, auditing, loading and waiting for locks.
    """

    seconds: dict[str, float | None] = field(default_factory=dict)
    waited: float = 0.0


class Store:
    """Folder of trainings, audits and results.

    Args:
        path: folder, created if missing.
        create: whether to create a missing folder.

    Raises:
        ClasswiseError: if the folder contains other files, or a store of another schema version, or is missing.
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True) -> None:
        self.path = Path(path)
        if not (create or self.path.exists()):
            command = f"classwise papers run ITEM --store {self.path}"
            raise ClasswiseError(f"there is no store at {self.path}; {command} creates one")
        self._work = Work()
        folder = ResultFolder(self.path, "store")
        try:
            folder.check_unused()
        except ClasswiseError:
            if not folder.marker.is_file():  # another process may be creating the same store
                raise
        if not folder.marker.is_file():
            folder.write(classwise=__version__)
        folder.read()

    def train(
        self,
        recipe: Recipe,
        images: Images,
        *,
        start: Run | None = None,
        teacher: Run | None = None,
        unlabelled: Images | None = None,
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> Run:
        """Train a recipe on images; a kept model or a finished run is loaded, an interrupted one resumed.

        Args:
            recipe: recipe, complete except for the initial weights.
            images: training images; the recipe's ``data.name`` is set to their name.
            start: run that provides the initial weights; hashed by its key.
            teacher: run that labels the unlabelled images of self-training; hashed by its key.
            unlabelled: unlabelled images; hashed by their pixels.
            device: PyTorch device.
            progress: progress listener.

        Raises:
            ClasswiseError: as `classwise.train`, and if the store has this model in another arithmetic.
        """
        threat = recipe.threat
        assert threat is not None, "set by the scale"
        overrides: dict[str, Any] = {"data.name": images.name, "data.subset": None}
        if start is not None:
            overrides["model.weights"] = str(start.path)
        if teacher is not None:
            overrides["data.unlabelled.teacher"] = str(teacher.path)
        if unlabelled is not None:
            overrides["data.unlabelled.name"] = unlabelled.name
        plan = Recipe.read(recipe, overrides).completed(Threat.parse(threat), int((images.class_counts() > 0).sum()))
        hashed = plan if start is None else _with_start(plan, f"store:{start.path.name}")
        hashed = hashed if teacher is None else _with_teacher(hashed, f"store:{teacher.path.name}")
        base = dataclasses.replace(hashed, checkpoint_epochs=())
        model = dataclasses.replace(base, precision=EXACT)
        about: dict[str, Any] = {"recipe": model.digest(), "data": images.fingerprint(), "seed": plan.seed}
        if unlabelled is not None:
            about["unlabelled"] = unlabelled.fingerprint()
        key = _hash(about)[:_OF_MODEL] + _hash({"recipe": base.digest()})[: _LETTERS - _OF_MODEL]
        run, listener = self._run(key, plan.checkpoint_epochs), progress or NullProgress()
        key = run.path.name
        with self.timed(key, run.path, listener):
            if run.recipe_file.is_file():
                run = Run.open(run.path)
                if run.complete:
                    return run
                plan = run.recipe  # with the places of its start and its teacher, if the store has moved
            listener.log(f"training {plan.name} ({plan.epochs} epochs) as {key}")
            return train(
                plan,
                out=run.path,
                data=images,
                unlabelled=unlabelled,
                resume=True,
                device=device,
                progress=progress,
                distributed=False,
            )

    def _run(self, key: str, epochs: Sequence[int]) -> Run:
        """The run of a training that also saves the weights of some epochs, finished if possible; else a new one."""
        same = [Run.open(file.parent) for file in self._runs(f"{key[:_OF_MODEL]}*")]
        known = [run for run in same if run.path.name.startswith(key)]
        for other in same if not known else ():
            raise ClasswiseError(
                f"{other.path} contains this model, trained in {other.recipe.precision.dtype}; a store cannot contain "
                "it in another precision: use another --store, or remove that folder"
            )
        suited = [run for run in known if set(epochs) <= set(run.recipe.checkpoint_epochs)]
        name = f"{key}-{_hash({'epochs': list(epochs)})[:6]}" if epochs else key
        return min(suited, key=lambda run: not run.complete, default=Run(self.path / "runs" / name))

    def audit(
        self,
        trained: Run,
        images: Images,
        attacks: Mapping[str, Spec],
        threat: str,
        *,
        which: Which | None = None,
        surrogates: Sequence[Run] = (),
        progress: Progress | None = None,
        **options: Unpack[Evaluation],
    ) -> Audit:
        """Audit a trained model; a finished audit is loaded, an interrupted one resumed.

        Args:
            trained: training of the model.
            images: test images.
            attacks: labels to attack specs.
            threat: threat spec such as ``Linf:8/255``.
            which: the saved weights; None for the default of the run.
            surrogates: runs whose paths the attack specs contain; hashed by their keys.
            progress: progress listener.
            **options: as of `classwise.audit`; by default attacks run all their steps, as in the papers, and the
                precision is `FAST`.

        Raises:
            ClasswiseError: as `classwise.audit`.
        """
        weights_name = trained.chosen_weights(which)
        text = json.dumps(dict(attacks), sort_keys=True, default=str)
        for place, surrogate in enumerate(surrogates):
            text = text.replace(str(surrogate.path), f"surrogate-{place}-{surrogate.path.name}")
        weights = hashlib.sha256(trained.weights_file(weights_name).read_bytes()).hexdigest()
        asked = complete(_USUAL | options)
        about: dict[str, Any] = {"weights": weights, "data": images.fingerprint(), "attacks": text, "threat": threat}
        about |= {"early_stop": asked["early_stop"], "seed": asked["seed"], "precision": str(asked["precision"])}
        key = _hash(about | _more(asked, about))
        weights_file = trained.weights_file(weights_name)
        return self._audited(key, trained.audits / key, weights_file, images, attacks, threat, progress, asked)

    def audit_model(
        self,
        model: nn.Module,
        images: Images,
        attacks: Mapping[str, Spec],
        threat: str,
        *,
        progress: Progress | None = None,
        **options: Unpack[Evaluation],
    ) -> Audit:
        """Audit a model that was trained elsewhere; the key of the audit is a hash of its weights and structure.

        Args:
            model: a module that maps images in [0, 1] to logits.
            images: test images.
            attacks: labels to attack specs.
            threat: threat spec such as ``Linf:4/255``.
            progress: progress listener.
            **options: as of `audit`.

        Raises:
            ClasswiseError: as `classwise.audit`.
        """
        text = json.dumps(dict(attacks), sort_keys=True, default=str)
        asked = complete(_USUAL | options)
        about = {"model": f"{fingerprint(model)} {model}", "data": images.fingerprint(), "attacks": text}
        about |= {"threat": threat, "precision": str(asked["precision"])}
        key = _hash(about | _more(asked, about))
        return self._audited(key, self.path / "audits" / key, model, images, attacks, threat, progress, asked)

    def _audited(
        self,
        key: str,
        folder: Path,
        model: Path | nn.Module,
        images: Images,
        attacks: Mapping[str, Spec],
        threat: str,
        progress: Progress | None,
        options: Evaluation,
    ) -> Audit:
        """Load a finished audit, or run or resume it."""
        listener = progress or NullProgress()
        with self.timed(key, folder, listener):
            if (folder / ABOUT).is_file():
                facts = read_about(folder)
                if facts["complete"] and facts["environment"]:
                    return Audit.load(folder)
            return audit(
                model,
                images,
                threat,
                dict(attacks),
                out=folder,
                resume=True,
                progress=listener,
                distributed=False,
                **options,
            )

    @contextmanager
    def collect_work(self) -> Iterator[Work]:
        """Collect the trainings and audits requested within this context manager, with their durations."""
        before, self._work = self._work, Work()
        try:
            yield self._work
        finally:
            self._work = before

    @contextmanager
    def timed(self, key: str, folder: Path, progress: Progress | None = None) -> Iterator[None]:
        """Lock a key as `locked` does, and record the duration of its work over all attempts.

        The duration is unknown if an attempt was killed, or if an earlier version did the work without recording it.

        Args:
            key: key of a training, an audit, or other work with a saved result.
            folder: folder of the result; if it exists without a record, the duration is unknown.
            progress: receives a line if another process has the lock.
        """
        began = time.monotonic()
        try:
            with self.locked(key, progress):
                record = _Record.read(self.path / "seconds" / f"{key}.json", exists=folder.exists())
                with record.running():
                    yield
                self._work.seconds[key] = record.seconds
        finally:
            self._work.waited += time.monotonic() - began

    def result_file(self, item: str, scale: str) -> Path:
        """Path of the result of an experiment at a scale."""
        return self.path / "results" / item / f"{scale}.json"

    @contextmanager
    def locked(self, key: str, progress: Progress | None = None) -> Iterator[None]:
        """Lock a key against other processes; the lock is released when the process ends.

        Args:
            key: key of a training, an audit or other exclusive work.
            progress: receives a line if another process has the lock.
        """
        folder, listener = self.path / "owners" / key, progress or NullProgress()
        folder.mkdir(parents=True, exist_ok=True)  # so that no owner removes it while another one waits
        line = f"another process is working on {key}; waiting until it has finished"
        with owned(folder, waiting=lambda: listener.log(line)):
            yield

    @property
    def runs(self) -> tuple[Path, ...]:
        """The ``recipe.yaml`` of every training, kept models first."""
        return self._runs("*")

    def _runs(self, name: str) -> tuple[Path, ...]:
        return tuple(
            file for place in ("models", "runs") for file in sorted((self.path / place).glob(f"{name}/recipe.yaml"))
        )

    def keep(self, run: Run) -> Run:
        """Copy what evaluations need of a finished run to ``models``, with weights in half precision.

        A kept model serves in place of its run, also where the run is not: its results are those of the rounded
        weights. It cannot be resumed.

        Args:
            run: a finished run of a store.

        Returns:
            The kept run.

        Raises:
            ClasswiseError: if the run is not finished.
        """
        if not run.complete:
            epochs = f"{run.epochs_done} of {run.recipe.epochs} epochs"
            raise ClasswiseError(f"{run.path} has completed {epochs}; finish this training first")
        kept = Run(self.path / "models" / run.path.name)
        for file in (run.recipe_file, run.environment_file, run.epochs_file, run.events_file):
            write_bytes(kept.path / file.name, file.read_bytes())
        for name in run.saved_weights():
            facts = {"recipe": run.recipe.name, "epochs": run.recipe.epochs, "seed": run.recipe.seed}
            save_weights(kept.weights_file(name), run.model(name), facts, torch.float16)
        return kept


State = Literal["stopped", "running", "done"]


class _Saved(TypedDict):
    seconds: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] | None
    state: State


@dataclass
class _Record:
    """Duration of a piece of work, saved as a JSON file in the store; the state is stopped, running or done."""

    file: Path
    seconds: float | None
    state: State

    @staticmethod
    def read(file: Path, *, exists: bool) -> _Record:
        """Read the saved record; ``exists``: whether the folder of the result exists."""
        if not exists:  # nothing was done yet, or its result was removed
            return _Record(file, 0.0, "stopped")
        if not file.exists():
            return _Record(file, None, "stopped")
        record = read_json(file, "delete it", kind=_Saved)
        return _Record(file, record["seconds"], record["state"])

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the time spent within this context manager, unless the work is already done."""
        if self.state == "done":
            yield
            return
        if self.state == "running":  # that attempt was killed
            self.seconds = None
        started = time.monotonic()
        self._write("running")
        state: State = "stopped"
        try:
            yield
            state = "done"
        finally:
            self.seconds = None if self.seconds is None else round(self.seconds + time.monotonic() - started, 3)
            self._write(state)

    def _write(self, state: State) -> None:
        self.state = state
        write_json(self.file, {"seconds": self.seconds, "state": state})


_USUAL: Evaluation = {"early_stop": False, "cascade": False, "precision": FAST}
"""Options of the papers' audits, which evaluate last iterates."""


def _more(asked: Evaluation, known: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide rows or are saved, with other values than usual, besides those in a key already."""
    usual = complete(_USUAL)
    names = {"trace", "save", *STORED} - {"batch_size", "policy", *known}
    values = {name: asked.get(name) for name in names if asked.get(name) != usual.get(name)}
    return {name: [*value] if isinstance(value, tuple) else value for name, value in values.items()}


def _with_start(plan: Recipe, name: str) -> Recipe:
    return dataclasses.replace(plan, model=dataclasses.replace(plan.model, weights=name))


def _with_teacher(plan: Recipe, name: str) -> Recipe:
    assert plan.data.unlabelled is not None, "a teacher requires a self-training recipe"
    unlabelled = dataclasses.replace(plan.data.unlabelled, teacher=name)
    return dataclasses.replace(plan, data=dataclasses.replace(plan.data, unlabelled=unlabelled))


def _hash(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_LETTERS]
