"""The store: every model that the papers' experiments need is trained once, and every attack on it run once.

A training lies under a hash of its complete recipe (the seed in it) and of the pixels and labels it sees; an audit
under a hash of its attacks, its images, and the weights. So experiments share what they have in common,
and a run that was interrupted goes on where it was. Several processes may share a store: what one is at,
the others wait for.
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

from classwise import __version__
from classwise.auditing.audit import Audit, audit
from classwise.auditing.keeping import Kind
from classwise.auditing.result import ABOUT, read_about
from classwise.compute import FAST, Compute
from classwise.data.images import Images
from classwise.errors import UserError
from classwise.progress import Progress, Silent
from classwise.settings import Spec
from classwise.storage import is_unused, read_json, write_text
from classwise.threat import Threat
from classwise.training.folder import Run, Which
from classwise.training.loop import train
from classwise.training.recipe import Recipe

SCHEMA_VERSION = 1
_ABOUT = "store.json"
_LETTERS = 20


@dataclass(frozen=True)
class Trained:
    """A finished training of the store.

    Attributes:
        run: its folder.
        key: the hash under which it lies.
        fresh: whether it was trained just now.
    """

    run: Run
    key: str
    fresh: bool = False


@dataclass
class Work:
    """The trainings and audits that were asked for, made now or before.

    Attributes:
        seconds: how long each took when it was made, by its name; None where that was not recorded.
        waited: seconds that passed in the store itself, while things were made or read.
    """

    seconds: dict[str, float | None] = field(default_factory=dict)
    waited: float = 0.0


class Store:
    """A folder of trainings, audits and results.

    Args:
        path: the folder; it is made if it is not there.

    Raises:
        UserError: if it holds something else, or the store of a version with another format.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._work = Work()
        about = self.path / _ABOUT
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; give a folder for the store")
        # looked at before the store's own file: another process may be making the same store
        strange = not is_unused(self.path)
        if about.is_file():
            _check_version(about)
            return
        if strange:
            raise UserError(f"{self.path} is not empty and holds no store; give a new folder, as --store DIR")
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
        """The run of a recipe on some images: the one that is there, gone on with if it is not finished, or a new one.

        Args:
            recipe: complete but for the start.
            images: what it trains on; the recipe's ``data.name`` becomes their name.
            start: the run whose weights it starts from.
            teacher: the run that labels the unlabelled images of self-training; it enters the hash by its key.
            unlabelled: those images; they enter the hash by their pixels.
            device: where to train.
            progress: who is told.

        Raises:
            UserError: as `classwise.train`.
        """
        threat = recipe.threat
        assert threat is not None, "the scale has set it"
        changes: dict[str, Any] = {"data.name": images.name, "data.subset": None}
        if start is not None:
            changes["model.start"] = str(start.run.path)
        if teacher is not None:
            changes["data.unlabelled.teacher"] = str(teacher.run.path)
        if unlabelled is not None:
            changes["data.unlabelled.name"] = unlabelled.name
        plan = Recipe.read(recipe, changes).completed(Threat.parse(threat))
        nameless = plan if start is None else _started(plan, f"store:{start.key}")
        nameless = nameless if teacher is None else _taught(nameless, f"store:{teacher.key}")
        about: dict[str, Any] = {"recipe": nameless.digest(), "data": images.fingerprint(), "seed": plan.seed}
        if unlabelled is not None:
            about["unlabelled"] = unlabelled.fingerprint()
        key = _hash(about)
        run, listener = Run(self.path / "runs" / key), progress or Silent()
        with self.made(key, run.path, listener):
            if run.recipe_file.is_file() and Run.open(run.path).complete:
                return Trained(run, key)
            listener.say(f"training {plan.name} ({plan.epochs} epochs) as {key}")
            done = train(
                plan,
                out=run.path,
                data=images,
                unlabelled=unlabelled,
                resume=True,
                device=device,
                progress=progress,
                alone=True,
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
        stop: str = "never",
        seed: int = 0,
        compute: Compute = FAST,
        surrogates: Sequence[Trained] = (),
        trace: Sequence[int] = (),
        keep: Sequence[Kind] = (),
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> Audit:
        """The audit of a training's model by some attacks: the one that is there, or a new one.

        Args:
            trained: whose model.
            images: the test images.
            attacks: labels to specs.
            threat: the ball.
            which: of the run's weights; None for those that speak for it.
            stop: ``"never"`` as the papers count, or ``"broken"``.
            seed: of the attacks.
            compute: how gradients are computed.
            surrogates: the runs whose paths the attacks name; they enter the hash by their keys.
            trace: numbers of images whose confidences are followed step by step.
            keep: tensors to keep of every image.
            device: where to run.
            progress: who is told.

        Raises:
            UserError: as `classwise.audit`.
        """
        kept = which or trained.run.default_weights()
        text = json.dumps(dict(attacks), sort_keys=True, default=str)
        for place, surrogate in enumerate(surrogates):
            text = text.replace(str(surrogate.run.path), f"surrogate-{place}-{surrogate.key}")
        weights = hashlib.sha256(trained.run.weights_file(kept).read_bytes()).hexdigest()
        about = {"weights": weights, "data": images.fingerprint(), "attacks": text, "threat": threat}
        asked: dict[str, Sequence[Any]] = {"trace": [*trace], "keep": [*keep]}
        more = {name: values for name, values in asked.items() if values}  # asked for neither, it lies where it did
        key = _hash({**about, "stop": stop, "seed": seed, "compute": str(compute), **more})
        folder, listener = trained.run.audits / key, progress or Silent()
        with self.made(key, folder, listener):
            if (folder / ABOUT).is_file():
                facts = read_about(folder)
                if facts["complete"] and facts["environment"]:
                    return Audit.load(folder)
            return audit(
                trained.run.weights_file(kept),
                images,
                threat,
                dict(attacks),
                cascade=False,
                stop="never" if stop == "never" else "broken",
                seed=seed,
                compute=compute,
                trace=trace,
                keep=keep,
                out=folder,
                resume=True,
                device=device,
                progress=listener,
                name=key,
                alone=True,
            )

    @contextmanager
    def measured(self) -> Iterator[Work]:
        """Collect what is asked for meanwhile, with the time that it took when it was made."""
        before, self._work = self._work, Work()
        try:
            yield self._work
        finally:
            self._work = before

    @contextmanager
    def made(self, key: str, folder: Path, progress: Progress | None = None) -> Iterator[None]:
        """As `held`; the time of the work under the key, over all attempts, is recorded and counted.

        The time is not known if an attempt was killed, or made by a version that did not record it.

        Args:
            key: of a training, an audit, or other work whose result the store keeps.
            folder: of the result; what it holds while nothing is recorded took a time that is not known.
            progress: receives a line while another process holds it.
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
        """Where the result of an experiment at a scale lies."""
        return self.path / "results" / item / f"{scale}.json"

    @contextmanager
    def held(self, key: str, progress: Progress | None = None) -> Iterator[None]:
        """Nobody else works at it meanwhile; a process that ends, however it ends, lets go.

        Args:
            key: of a training, an audit, or whatever else processes must not do at once.
            progress: who is told if another is at it.
        """
        folder = self.path / "locks"
        folder.mkdir(exist_ok=True)
        lock = FileLock(folder / key)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            (progress or Silent()).say(f"another process is at {key}; waiting for it")
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
    """How long some work took: a small file beside the store's folders."""

    file: Path
    seconds: float | None
    state: str

    @staticmethod
    def read(file: Path, *, there: bool) -> _Record:
        """What is recorded; ``there``: whether there is a result, finished or not."""
        if not file.is_file():
            return _Record(file, None if there else 0.0, "stopped")
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            seconds = None if found["seconds"] is None else float(found["seconds"])
            return _Record(file, seconds, str(found["state"]))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file} is damaged; remove it") from error

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the time that passes meanwhile, unless the work was finished before."""
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
        raise UserError(
            f"{about.parent} is a store of format {version}, made by classwise {maker}; this one reads format "
            f"{SCHEMA_VERSION}: give another folder, as --store DIR"
        )


def _started(plan: Recipe, name: str) -> Recipe:
    return dataclasses.replace(plan, model=dataclasses.replace(plan.model, start=name))


def _taught(plan: Recipe, name: str) -> Recipe:
    assert plan.data.unlabelled is not None, "only a recipe of self-training has a teacher"
    unlabelled = dataclasses.replace(plan.data.unlabelled, teacher=name)
    return dataclasses.replace(plan, data=dataclasses.replace(plan.data, unlabelled=unlabelled))


def _hash(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_LETTERS]
