"""The store: never trained twice, goes on, refuses what it does not know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from classwise.core.errors import ClasswiseError
from classwise.core.progress import NullProgress
from classwise.core.storage import replacing
from classwise.data import load_data
from classwise.papers import store as module
from classwise.papers.context import Context
from classwise.papers.experiments.homing import homing_matrices
from classwise.papers.page import work_text
from classwise.papers.result import Result
from classwise.papers.runner import run
from classwise.papers.scales import SMOKE
from classwise.papers.store import Store
from classwise.training.folder import Run
from classwise.training.recipe import Recipe

IMAGES = load_data("digits", split="train", subset=120)
QUICK = Recipe.read("at", {**SMOKE.overrides, "threat": "Linf:0.1", "epochs": 2})


class StoppedError(Exception):
    """The machine went down."""


class Stopping:
    """A listener that stops the work after so many lines of progress."""

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


def test_never_twice_and_by_content(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    first = store.trained(QUICK, IMAGES)
    assert first.fresh
    same = Store(tmp_path / "store").trained(Recipe.read(QUICK, {"name": "other", "description": "the same"}), IMAGES)
    assert (same.key, same.fresh) == (first.key, False)
    other_seed = module._hash({"seed": 1}) != module._hash({"seed": 0})
    assert other_seed
    fine = store.trained(
        Recipe.read("frl", {**SMOKE.overrides, "threat": "Linf:0.1", "epochs": 1}), IMAGES, start=first
    )
    assert fine.key != first.key
    assert len(store.runs) == 2
    moved = (tmp_path / "store").rename(tmp_path / "moved")
    again = Store(moved)
    first = again.trained(QUICK, IMAGES)
    assert not first.fresh
    begun = Recipe.read("frl", {**SMOKE.overrides, "threat": "Linf:0.1", "epochs": 1})
    assert not again.trained(begun, IMAGES, start=first).fresh


def test_other_data_is_another_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    quick = Recipe.read(QUICK, {"epochs": 1})
    assert store.trained(quick, IMAGES).key != store.trained(quick, IMAGES.take(slice(0, 100))).key


def test_goes_on_where_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path / "a")
    with pytest.raises(StoppedError):
        store.trained(QUICK, IMAGES, progress=Stopping(5))
    (begun,) = store.runs
    assert begun.is_file()
    done = store.trained(QUICK, IMAGES)
    assert done.fresh
    whole = Store(tmp_path / "b").trained(QUICK, IMAGES)
    assert (done.key, done.run.path.name) == (whole.key, begun.parent.name)
    assert done.run.weights_file("last").read_bytes() == whole.run.weights_file("last").read_bytes()


class Waiting(NullProgress):
    """A listener that lets go of what it holds once it is told that somebody waits for it."""

    def __init__(self, held: list[FileLock]) -> None:
        self.held = held
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        self.lines.append(line)
        for lock in self.held:
            lock.release()


@pytest.mark.slow
def test_what_another_process_is_at_is_waited_for(tmp_path: Path) -> None:
    store = Store(tmp_path)
    trained = store.trained(QUICK, IMAGES)
    store.audited(trained, IMAGES, {"PGD": "pgd:steps=2"}, "Linf:0.1")
    for work in (
        lambda listener: store.trained(QUICK, IMAGES, progress=listener),
        lambda listener: store.audited(trained, IMAGES, {"PGD": "pgd:steps=2"}, "Linf:0.1", progress=listener),
    ):
        others = [FileLock(path) for path in (tmp_path / "locks").iterdir()]  # as of another process
        for lock in others:
            lock.acquire()
        listener = Waiting(others)
        work(listener)
        assert len(listener.lines) == 1
        assert listener.lines[0].endswith(" is locked by another process; waiting")
        work(nobody := Waiting([]))
        assert not nobody.lines


def test_one_process_at_a_time_trains_without_the_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three items of kdd21 need the same ten trainings."""
    context = Context(SMOKE.with_changes(epochs=1), Store(tmp_path))
    found = []

    def homing(run: Run, **_: object) -> Path:
        (lock,) = (tmp_path / "locks").glob(f"homing-*{run.path.name}")
        with pytest.raises(Timeout):
            FileLock(lock).acquire(blocking=False)  # as of another process
        found.append(lock)
        return lock

    monkeypatch.setattr("classwise.papers.experiments.homing.homing", homing)
    homing_matrices(context)
    FileLock(found[0]).acquire(blocking=False).lock.release()


@pytest.mark.slow
def test_audits_are_kept_too(tmp_path: Path) -> None:
    store = Store(tmp_path)
    trained = store.trained(Recipe.read(QUICK, {"epochs": 1}), IMAGES)
    test = load_data("digits", split="test", subset=40)
    first = store.audited(trained, test, {"PGD": "pgd:steps=2"}, "Linf:0.1")
    again = store.audited(trained, test, {"PGD": "pgd:steps=2"}, "Linf:0.1")
    assert again.path == first.path
    assert again.outcomes.frame.equals(first.outcomes.frame)
    other = store.audited(trained, test, {"PGD": "pgd:steps=3"}, "Linf:0.1", which="last")
    assert other.path != first.path


def test_a_store_of_another_version_is_one_line(tmp_path: Path) -> None:
    Store(tmp_path)
    (tmp_path / "store.json").write_text(json.dumps({"schema_version": 9, "classwise": "3.1"}))
    with pytest.raises(ClasswiseError, match=r"store of format 9, made by classwise 3.1; this one reads format 2"):
        Store(tmp_path)
    (tmp_path / "store.json").write_text("[]")
    with pytest.raises(ClasswiseError, match="damaged"):
        Store(tmp_path)


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ClasswiseError, match="is not empty and holds no store"):
        Store(tmp_path)
    with pytest.raises(ClasswiseError, match="is a file"):
        Store(tmp_path / "letter.txt")


def test_two_processes_make_the_same_store(tmp_path: Path) -> None:
    with replacing(tmp_path / "store.json") as half:  # what one of them is writing when the other looks
        assert half.is_file()
        Store(tmp_path)
        half.write_bytes((tmp_path / "store.json").read_bytes())
    Store(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["store.json"]


@pytest.mark.slow
def test_work_of_the_store_counts_with_the_time_it_took_when_it_was_made(tmp_path: Path) -> None:
    store = Store(tmp_path)
    test = load_data("digits", split="test", subset=40)
    quick = Recipe.read(QUICK, {"epochs": 1})
    with store.measured() as first:
        trained = store.trained(quick, IMAGES)
        store.trained(quick, IMAGES)
        audit = store.audited(trained, test, {"PGD": "pgd:steps=2"}, "Linf:0.1")
    assert audit.path is not None
    assert list(first.seconds) == [trained.key, audit.path.name]
    assert all(seconds is not None and seconds > 0 for seconds in first.seconds.values())
    assert first.waited >= sum(filter(None, first.seconds.values()))
    with Store(tmp_path).measured() as nothing:
        pass
    assert not nothing.seconds
    again = Store(tmp_path)
    with again.measured() as second:
        again.audited(again.trained(quick, IMAGES), test, {"PGD": "pgd:steps=2"}, "Linf:0.1")
    assert second.seconds == first.seconds


def test_the_time_of_stopped_attempts_adds_up_and_that_of_killed_ones_is_not_known(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(StoppedError), store.measured():
        store.trained(QUICK, IMAGES, progress=Stopping(5))
    (file,) = (tmp_path / "seconds").iterdir()
    stopped = json.loads(file.read_text(encoding="utf-8"))
    assert stopped["state"] == "stopped"
    with store.measured() as work:
        trained = store.trained(QUICK, IMAGES)
    total = work.seconds[trained.key]
    assert total is not None
    assert total > stopped["seconds"] > 0
    file.write_text(json.dumps({"seconds": 1.0, "state": "running"}), encoding="utf-8")  # as a killed attempt leaves it
    with store.measured() as work:
        store.trained(QUICK, IMAGES)
    assert work.seconds == {trained.key: None}
    file.unlink()  # as an earlier version left it
    with store.measured() as work:
        store.trained(QUICK, IMAGES)
    assert work.seconds == {trained.key: None}


def test_a_result_counts_all_its_work_and_a_page_each_training_once() -> None:
    one = Result(item="kdd21/T1", scale="smoke", setting="", seconds=15.0, work={"a": 10.0, "b": 3.0})
    two = Result(item="kdd21/T3", scale="smoke", setting="", seconds=11.0, work={"a": 10.0})
    assert (one.own_seconds, two.own_seconds) == (2.0, 1.0)
    assert work_text([one, two]) == "Together they took 16.0 s, each training and audit counted once."
    lost = Result(item="kdd21/E6", scale="smoke", setting="", seconds=1.0, work={"c": None})
    old = Result(item="kdd21/E7", scale="smoke", setting="", seconds=1.0)
    for more in (lost, old):
        assert (
            work_text([one, two, more]) == "Together they took at least 17.0 s, each training and audit counted once."
        )
    assert work_text([]) == ""


@pytest.mark.slow
def test_a_run_from_the_store_takes_as_long_as_the_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second = (run("kdd21/E2", "smoke", store) for _ in range(2))
    assert first.work == second.work
    assert first.work is not None
    assert set(first.runs) <= set(first.work)
    assert min(first.seconds, second.seconds) >= sum(filter(None, first.work.values()))
    assert Result.load(store.result_file("kdd21/E2", "smoke")).work == second.work
