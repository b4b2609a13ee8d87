"""The store: every model of the experiments is trained once, and every audit of it is run once.

A training lies under a hash of its complete recipe (the seed in it) and of the pixels and labels it sees; an audit
under a hash of its attacks, its images, and the weights. So experiments share models and audits, and an interrupted
run is resumed. Several processes may share a store: each piece of work is locked by the process that does it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from classwise.auditing.artifacts import Kind
from classwise.auditing.audit import Audit, audit
from classwise.auditing.audit_folder import ABOUT, read_about
from classwise.core.config import Spec
from classwise.core.errors import ClasswiseError
from classwise.core.precision import FAST, Precision
from classwise.core.progress import NullProgress, Progress
from classwise.core.storage import is_unused, read_json, write_text
from classwise.core.threat import Threat
from classwise.core.version import __version__
from classwise.data.images import Images
from classwise.training.folder import Run, Which
from classwise.training.recipe import Recipe
from classwise.training.train import train

SCHEMA_VERSION = 2
_ABOUT = "store.json"
_LETTERS = 20


@dataclass(frozen=True)
class Trained:
    """A finished training of the store.

    Attributes:
        run: its folder.
        key: the hash under which it lies.
        fresh: whether this call trained it.
    """

    run: Run
    key: str
    fresh: bool = False


@dataclass
class Work:
    """The requested trainings and audits, new or saved.

    Attributes:
        seconds: the duration of each, by its key; None if it was not recorded.
        waited: seconds spent in the store for training, auditing and loading.
    """

    seconds: dict[str, float | None] = field(default_factory=dict)
    waited: float = 0.0


class Store:
    """A folder of trainings, audits and results.

    Args:
        path: the folder, created if missing.

    Raises:
        ClasswiseError: if it contains something else, or a store of another format.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._work = Work()
        about = self.path / _ABOUT
        if self.path.exists() and not self.path.is_dir():
            raise ClasswiseError(f"{self.path} is a file; give a folder for the store")
        # checked before the file of the store: another process may be creating the same store
        strange = not is_unused(self.path)
        if about.is_file():
            _check_version(about)
            return
        if strange:
            raise ClasswiseError(f"{self.path} is not empty and holds no store; give a new folder, as --store DIR")
        facts = {"schema_version": SCHEMA_VERSION, "classwise": __version__}
        write_text(about, json.dumps(facts, indent=2) + "\n")

    def trained(
        self,
        recipe: Recipe,
        images: Images,
        *,
        start: Trained | None = None,
        teacher: Trained | None = None,
        unlabelled: Images | None = None,
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> Trained:
        """The run of a recipe on some images: loaded, resumed or new.

        Args:
            recipe: complete except for the initial weights.
            images: for training; the recipe's ``data.name`` becomes their name.
            start: the run with the initial weights.
            teacher: the run that labels the unlabelled images of self-training; it enters the hash by its key.
            unlabelled: those images; they enter the hash by their pixels.
            device: where to train.
            progress: reports the progress.

        Raises:
            ClasswiseError: as `classwise.train`.
        """
        threat = recipe.threat
        assert threat is not None, "the scale has set it"
        overrides: dict[str, Any] = {"data.name": images.name, "data.subset": None}
        if start is not None:
            overrides["model.weights"] = str(start.run.path)
        if teacher is not None:
            overrides["data.unlabelled.teacher"] = str(teacher.run.path)
        if unlabelled is not None:
            overrides["data.unlabelled.name"] = unlabelled.name
        plan = Recipe.read(recipe, overrides).completed(Threat.parse(threat))
        nameless = plan if start is None else _started(plan, f"store:{start.key}")
        nameless = nameless if teacher is None else _taught(nameless, f"store:{teacher.key}")
        about: dict[str, Any] = {"recipe": nameless.digest(), "data": images.fingerprint(), "seed": plan.seed}
        if unlabelled is not None:
            about["unlabelled"] = unlabelled.fingerprint()
        key = _hash(about)
        run, listener = Run(self.path / "runs" / key), progress or NullProgress()
        with self.made(key, run.path, listener):
            if run.recipe_file.is_file() and Run.open(run.path).complete:
                return Trained(run, key)
            listener.log(f"training {plan.name} ({plan.epochs} epochs) as {key}")
            done = train(
                plan,
                out=run.path,
                data=images,
                unlabelled=unlabelled,
                resume=True,
                device=device,
                progress=progress,
                distributed=False,
            )
        return Trained(done, key, fresh=True)

    def audited(
        self,
        trained: Trained,
        images: Images,
        attacks: Mapping[str, Spec],
        threat: str,
        *,
        which: Which | None = None,
        early_stop: bool = False,
        seed: int = 0,
        precision: Precision = FAST,
        surrogates: Sequence[Trained] = (),
        trace: Sequence[int] = (),
        save: Sequence[Kind] = (),
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> Audit:
        """The audit of a trained model by some attacks: loaded, resumed or new.

        Args:
            trained: the training of the model.
            images: the test images.
            attacks: labels to specs.
            threat: the ball.
            which: of the saved weights; None for the default of the run.
            early_stop: whether attacks stop at the first success; the papers count last iterates.
            seed: of the attacks.
            precision: how gradients are computed.
            surrogates: the runs whose paths the attacks name; they enter the hash by their keys.
            trace: numbers of images whose confidences are followed step by step.
            save: tensors to save for every image.
            device: where to run.
            progress: reports the progress.

        Raises:
            ClasswiseError: as `classwise.audit`.
        """
        weights_name = which or trained.run.default_weights()
        text = json.dumps(dict(attacks), sort_keys=True, default=str)
        for place, surrogate in enumerate(surrogates):
            text = text.replace(str(surrogate.run.path), f"surrogate-{place}-{surrogate.key}")
        weights = hashlib.sha256(trained.run.weights_file(weights_name).read_bytes()).hexdigest()
        about = {"weights": weights, "data": images.fingerprint(), "attacks": text, "threat": threat}
        options: dict[str, Sequence[Any]] = {"trace": [*trace], "save": [*save]}
        more = {name: values for name, values in options.items() if values}  # no key without a value
        key = _hash({**about, "early_stop": early_stop, "seed": seed, "precision": str(precision), **more})
        folder, listener = trained.run.audits / key, progress or NullProgress()
        with self.made(key, folder, listener):
            if (folder / ABOUT).is_file():
                facts = read_about(folder)
                if facts["complete"] and facts["environment"]:
                    return Audit.load(folder)
            return audit(
                trained.run.weights_file(weights_name),
                images,
                threat,
                dict(attacks),
                cascade=False,
                early_stop=early_stop,
                seed=seed,
                precision=precision,
                trace=trace,
                save=save,
                out=folder,
                resume=True,
                device=device,
                progress=listener,
                distributed=False,
            )

    @contextmanager
    def measured(self) -> Iterator[Work]:
        """Collect the trainings and audits requested in this context, with their durations."""
        before, self._work = self._work, Work()
        try:
            yield self._work
        finally:
            self._work = before

    @contextmanager
    def made(self, key: str, folder: Path, progress: Progress | None = None) -> Iterator[None]:
        """Lock a key as `held` does, and record the duration of its work over all attempts.

        The duration is unknown if an attempt was killed, or if the work was done by a version that did not record it.

        Args:
            key: of a training, an audit, or other work whose result the store keeps.
            folder: of the result; if it exists without a record, its duration is unknown.
            progress: receives a line while another process holds the lock.
        """
        began = time.monotonic()
        try:
            with self.held(key, progress):
                record = _Record.read(self.path / "seconds" / f"{key}.json", there=folder.exists())
                with record.running():
                    yield
                self._work.seconds[key] = record.seconds
        finally:
            self._work.waited += time.monotonic() - began

    def result_file(self, item: str, scale: str) -> Path:
        """The path of the result of an experiment at a scale."""
        return self.path / "results" / item / f"{scale}.json"

    @contextmanager
    def held(self, key: str, progress: Progress | None = None) -> Iterator[None]:
        """Lock a key against other processes; the lock of a process that ends is released.

        Args:
            key: of a training, an audit or other exclusive work.
            progress: receives a line if another process holds the lock.
        """
        folder = self.path / "locks"
        folder.mkdir(exist_ok=True)
        lock = FileLock(folder / key)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            (progress or NullProgress()).log(f"{key} is locked by another process; waiting")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @property
    def runs(self) -> tuple[Path, ...]:
        """The folders of all trainings."""
        return tuple(sorted((self.path / "runs").glob("*/recipe.yaml")))


@dataclass
class _Record:
    """The duration of some work, saved in a small file of the store."""

    file: Path
    seconds: float | None
    state: str

    @staticmethod
    def read(file: Path, *, there: bool) -> _Record:
        """The saved record; ``there``: whether a result exists, finished or not."""
        if not file.is_file():
            return _Record(file, None if there else 0.0, "stopped")
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            seconds = None if found["seconds"] is None else float(found["seconds"])
            return _Record(file, seconds, str(found["state"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ClasswiseError(f"{file} is damaged; remove it") from error

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the time spent in this context, unless the work was finished before."""
        if self.state == "done":
            yield
            return
        if self.state == "running":  # that attempt was killed
            self.seconds = None
        started = time.monotonic()
        self._write("running")
        state = "stopped"
        try:
            yield
            state = "done"
        finally:
            self.seconds = None if self.seconds is None else round(self.seconds + time.monotonic() - started, 3)
            self._write(state)

    def _write(self, state: str) -> None:
        self.state = state
        write_text(self.file, json.dumps({"seconds": self.seconds, "state": state}) + "\n")


def _check_version(about: Path) -> None:
    advice = f"give another store, or remove {about.parent}"
    facts = read_json(about, advice, {"schema_version": int, "classwise": str})
    version, maker = facts["schema_version"], facts["classwise"]
    if version != SCHEMA_VERSION:
        raise ClasswiseError(
            f"{about.parent} is a store of format {version}, made by classwise {maker}; this one reads format "
            f"{SCHEMA_VERSION}: give another folder, as --store DIR"
        )


def _started(plan: Recipe, name: str) -> Recipe:
    return dataclasses.replace(plan, model=dataclasses.replace(plan.model, weights=name))


def _taught(plan: Recipe, name: str) -> Recipe:
    assert plan.data.unlabelled is not None, "only a recipe of self-training has a teacher"
    unlabelled = dataclasses.replace(plan.data.unlabelled, teacher=name)
    return dataclasses.replace(plan, data=dataclasses.replace(plan.data, unlabelled=unlabelled))


def _hash(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_LETTERS]
