"""The store: trains each model once, resumes interrupted work, refuses other folders."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from classwise.auditing.run.result import Audit
from classwise.core.files.ownership import OWNER, FolderInUseError, contents, owned
from classwise.core.files.storage import CHECKSUMS, replacing
from classwise.core.progress.listener import NullProgress
from classwise.data import load_data
from classwise.papers import store as module
from classwise.papers.experiment import Context
from classwise.papers.experiments.case_study import homing_matrices
from classwise.papers.page import work_text
from classwise.papers.result import Evidence, Result
from classwise.papers.runner import run
from classwise.papers.scales import SMOKE
from classwise.papers.store import Store
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from tests.refusals import check_refused

IMAGES = load_data("digits", split="train", subset=120)
SMOKE_RUN = Evidence(scale="smoke", trainings=1)
QUICK_FIELDS = {**SMOKE.overrides, "threat": "Linf:0.1", "epochs": 2}
QUICK = Recipe.read("at", QUICK_FIELDS)


class StoppedError(Exception):
    """Simulated interruption."""


class Stopping:
    """A progress listener that interrupts the work after a number of updates."""

    def __init__(self, after: int) -> None:
        self.left = after

    def start(self, task: str, total: int) -> None:
        pass

    def advance(self, amount: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise StoppedError

    def log(self, line: str) -> None:
        pass


def test_trainings_are_keyed_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    first = store.train(QUICK, IMAGES)
    same = Store(tmp_path / "store").train(Recipe.read(QUICK, {"name": "other", "description": "the same"}), IMAGES)
    assert same.path == first.path
    assert module._hash({"seed": 1}) != module._hash({"seed": 0})
    begun = Recipe.read("frl", {**QUICK_FIELDS, "epochs": 1})
    fine = store.train(begun, IMAGES, start=first)
    assert fine.path.name != first.path.name
    assert len(store.runs) == 2
    again = Store((tmp_path / "store").rename(tmp_path / "moved"))
    monkeypatch.setattr(module, "train", None)  # nothing is trained again
    first = again.train(QUICK, IMAGES)
    assert again.train(begun, IMAGES, start=first).path.name == fine.path.name


def test_other_data_is_another_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    quick = Recipe.read(QUICK, {"epochs": 1})
    assert store.train(quick, IMAGES).path.name != store.train(quick, IMAGES.take(slice(0, 100))).path.name


def test_a_store_has_a_model_in_one_arithmetic(tmp_path: Path) -> None:
    store, quick = Store(tmp_path), Recipe.read(QUICK, {"epochs": 1})
    first = store.train(quick, IMAGES)
    other = Recipe.read(quick, {"precision.dtype": "bfloat16"})
    check_refused(rf"{first.path.name} contains this model, trained in float32; a store", store.train, other, IMAGES)
    assert store.runs == (first.recipe_file,)
    store.train(Recipe.read(other, {"seed": 1}), IMAGES)  # another model


def test_a_kept_model_serves_in_place_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store without the run: with weights in half precision, and the epochs and decisions of the training."""
    store = Store(tmp_path / "store")
    with pytest.raises(StoppedError):
        store.train(QUICK, IMAGES, progress=Stopping(5))
    check_refused("finish this training first", store.keep, Run.open(store.runs[0].parent))
    run = store.train(QUICK, IMAGES)
    kept = store.keep(run)
    assert store.train(QUICK, IMAGES).path == kept.path
    other = Store(tmp_path / "other")
    shutil.copytree(store.path / "models", other.path / "models")
    monkeypatch.setattr(module, "train", None)
    found = other.train(QUICK, IMAGES)
    assert found.path == tmp_path / "other" / "models" / run.path.name
    assert found.saved_weights() == run.saved_weights()
    assert found.epochs.equals(run.epochs)
    assert found.best_epoch() == run.best_epoch()
    assert found.weights_file("best").stat().st_size < 0.7 * run.weights_file("best").stat().st_size
    weights = dict(run.model().named_parameters())
    assert all(torch.equal(weights[name].half().float(), rounded) for name, rounded in found.model().named_parameters())


def test_a_run_with_saved_epochs_serves_requests_for_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, saved = (
        Store(tmp_path),
        {epochs: Recipe.read(QUICK, {"checkpoint_epochs": epochs}) for epochs in ((1,), (2,))},
    )
    plain, first = store.train(QUICK, IMAGES), store.train(saved[1,], IMAGES)
    assert first.path.name != plain.path.name
    assert first.weights_file("last").read_bytes() == plain.weights_file("last").read_bytes()
    assert store.train(saved[2,], IMAGES).path.name not in {plain.path.name, first.path.name}
    other = Store(tmp_path / "other")
    with pytest.raises(StoppedError):
        other.train(Recipe.read(QUICK, {"checkpoint_epochs": (1, 2)}), IMAGES, progress=Stopping(5))
    (whole,) = {other.train(recipe, IMAGES).path for recipe in (QUICK, *saved.values())}
    assert {"epoch-1", "epoch-2"} <= set(Run.open(whole).saved_weights())
    monkeypatch.setattr(module, "train", None)
    assert other.train(QUICK, IMAGES).path == whole


def test_interrupted_training_resumes(tmp_path: Path) -> None:
    store = Store(tmp_path / "a")
    with pytest.raises(StoppedError):
        store.train(QUICK, IMAGES, progress=Stopping(5))
    (begun,) = store.runs
    assert begun.is_file()
    done = store.train(QUICK, IMAGES)
    whole = Store(tmp_path / "b").train(QUICK, IMAGES)
    assert (done.path.name, done.path.name) == (whole.path.name, begun.parent.name)
    assert done.weights_file("last").read_bytes() == whole.weights_file("last").read_bytes()


def test_interrupted_work_resumes_in_a_store_that_has_moved(tmp_path: Path) -> None:
    """A training from the weights of another, and an audit whose surrogate is another: their paths have changed."""
    start, fine = (Recipe.read(name, QUICK_FIELDS) for name in ("at", "frl"))
    test = load_data("digits", split="test", subset=40)

    def work(store: Store, training: int = 0, audit: int = 0) -> Audit:
        surrogate = store.train(start, IMAGES)
        tuned = store.train(fine, IMAGES, start=surrogate, progress=Stopping(training))
        attacks = {"transfer": {"name": "transfer", "surrogate": str(surrogate.path), "attack": "pgd:steps=2"}}
        return store.audit(tuned, test, attacks, "Linf:0.1", surrogates=[surrogate], progress=Stopping(audit))

    whole = work(Store(tmp_path / "whole")).outcomes.frame
    for number, interrupted in enumerate(({"training": 5}, {"audit": 1})):
        with pytest.raises(StoppedError):
            work(Store(tmp_path / "store"), **interrupted)
        assert work(Store((tmp_path / "store").rename(tmp_path / f"{number}"))).outcomes.frame.equals(whole)


class Waiting(NullProgress):
    """A listener that releases the folders of its stack once the wait for them is logged."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.stack = stack
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        self.lines.append(line)
        self.stack.close()


@pytest.mark.slow
def test_waits_for_the_lock_of_another_process(tmp_path: Path) -> None:
    store = Store(tmp_path)
    trained = store.train(QUICK, IMAGES)
    store.audit(trained, IMAGES, {"PGD": "pgd:steps=2"}, "Linf:0.1")
    for work in (
        lambda listener: store.train(QUICK, IMAGES, progress=listener),
        lambda listener: store.audit(trained, IMAGES, {"PGD": "pgd:steps=2"}, "Linf:0.1", progress=listener),
    ):
        with contextlib.ExitStack() as stack:
            for folder in (tmp_path / "owners").iterdir():
                stack.enter_context(owned(folder))  # as if of another process
            work(listener := Waiting(stack))
        assert len(listener.lines) == 1
        assert listener.lines[0].endswith("; waiting until it has finished")
        work(nobody := Waiting(contextlib.ExitStack()))
        assert not nobody.lines


def test_homing_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three items of kdd21 need the same ten trainings."""
    context = Context(SMOKE.with_overrides(epochs=1), Store(tmp_path))
    found = []

    def homing(run: Run, **_: object) -> Path:
        (folder,) = (tmp_path / "owners").glob(f"homing-*{run.path.name}")
        with pytest.raises(FolderInUseError):
            owned(folder).__enter__()  # as if in another process
        found.append(folder)
        return folder

    monkeypatch.setattr("classwise.papers.experiments.case_study.homing", homing)
    homing_matrices(context)
    assert not contents(found[0])
    with owned(found[0]):
        assert (found[0] / OWNER).is_file()


@pytest.mark.slow
def test_audits_are_saved(tmp_path: Path) -> None:
    store = Store(tmp_path)
    trained = store.train(Recipe.read(QUICK, {"epochs": 1}), IMAGES)
    test = load_data("digits", split="test", subset=40)
    first = store.audit(trained, test, {"PGD": "pgd:steps=2"}, "Linf:0.1")
    again = store.audit(trained, test, {"PGD": "pgd:steps=2"}, "Linf:0.1")
    assert again.path == first.path
    assert again.outcomes.frame.equals(first.outcomes.frame)
    other = store.audit(trained, test, {"PGD": "pgd:steps=3"}, "Linf:0.1", which="last")
    assert other.path != first.path


@pytest.mark.parametrize(
    ("file", "text", "folder", "message"),
    [
        (
            "store.json",
            '{"schema_version": 9}',
            "",
            "schema_version 9 is newer than the 2 supported here",
        ),
        ("store.json", "[]", "", "damaged"),
        ("letter.txt", "dear", "", "is not empty and contains no store; give a new folder"),
        ("letter.txt", "dear", "letter.txt", "is a file; give a folder for the store"),
    ],
)
def test_other_folders_are_refused(file: str, text: str, folder: str, message: str, tmp_path: Path) -> None:
    """Such as one of another schema version."""
    (tmp_path / file).write_text(text)
    check_refused(message, Store, tmp_path / folder)


def test_two_processes_create_the_same_store(tmp_path: Path) -> None:
    with replacing(tmp_path / "store.json") as half:  # one of them is still writing the file
        assert half.is_file()
        Store(tmp_path)
        half.write_bytes((tmp_path / "store.json").read_bytes())
    Store(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [CHECKSUMS, "store.json"]


@pytest.mark.slow
def test_loaded_work_counts_with_its_original_duration(tmp_path: Path) -> None:
    store = Store(tmp_path)
    test = load_data("digits", split="test", subset=40)
    quick = Recipe.read(QUICK, {"epochs": 1})
    with store.collect_work() as first:
        trained = store.train(quick, IMAGES)
        store.train(quick, IMAGES)
        audit = store.audit(trained, test, {"PGD": "pgd:steps=2"}, "Linf:0.1")
    assert audit.path is not None
    assert list(first.seconds) == [trained.path.name, audit.path.name]
    assert all(seconds is not None and seconds > 0 for seconds in first.seconds.values())
    assert first.waited >= sum(filter(None, first.seconds.values()))
    with Store(tmp_path).collect_work() as nothing:
        pass
    assert not nothing.seconds
    again = Store(tmp_path)
    with again.collect_work() as second:
        again.audit(again.train(quick, IMAGES), test, {"PGD": "pgd:steps=2"}, "Linf:0.1")
    assert second.seconds == first.seconds


def test_duration_of_stopped_and_killed_attempts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(StoppedError), store.collect_work():
        store.train(QUICK, IMAGES, progress=Stopping(5))
    (file,) = (tmp_path / "seconds").iterdir()
    stopped = json.loads(file.read_text(encoding="utf-8"))
    assert stopped["state"] == "stopped"
    with store.collect_work() as work:
        trained = store.train(QUICK, IMAGES)
    total = work.seconds[trained.path.name]
    assert total is not None
    assert total > stopped["seconds"] > 0
    file.write_text(
        json.dumps({"seconds": 1.0, "state": "running"}), encoding="utf-8"
    )  # the state after a killed attempt
    with store.collect_work() as work:
        store.train(QUICK, IMAGES)
    assert work.seconds == {trained.path.name: None}
    file.unlink()  # the state of an earlier version
    with store.collect_work() as work:
        store.train(QUICK, IMAGES)
    assert work.seconds == {trained.path.name: None}


def test_total_time_counts_shared_work_once() -> None:
    one = Result(item="kdd21/T1", evidence=SMOKE_RUN, setting="", seconds=15.0, work={"a": 10.0, "b": 3.0})
    two = Result(item="kdd21/T3", evidence=SMOKE_RUN, setting="", seconds=11.0, work={"a": 10.0})
    assert (one.own_seconds, two.own_seconds) == (2.0, 1.0)
    assert work_text([one, two]) == "Total time: 16.0 s, each training and audit counted once."
    lost = Result(item="kdd21/E6", evidence=SMOKE_RUN, setting="", seconds=1.0, work={"c": None})
    old = Result(item="kdd21/E7", evidence=SMOKE_RUN, setting="", seconds=1.0)
    for more in (lost, old):
        assert work_text([one, two, more]) == "Total time: at least 17.0 s, each training and audit counted once."
    assert work_text([]) == ""


@pytest.mark.slow
def test_a_repeated_run_trains_nothing_and_reports_the_same_work(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (first,) = run("kdd21/E2", "smoke", tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    (second,) = run("kdd21/E2", "smoke", tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")} == before
    assert repr(first.verdicts) == repr(second.verdicts)  # as text, since NaN differs from itself
    assert first.work == second.work
    assert first.work is not None
    assert set(first.runs) <= set(first.work)
    assert min(first.seconds, second.seconds) >= sum(filter(None, first.work.values()))
    assert Result.load(store.result_file("kdd21/E2", "smoke")).work == second.work
