"""Run every experiment at smoke scale once, on a store shared by the processes of a test run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

import pytest

from classwise.core.files.ownership import FolderInUseError, owned
from classwise.papers.catalogue import runnable
from classwise.papers.result import Result
from classwise.papers.runner import run
from classwise.papers.store import Store
from classwise.training.folder import Run


class Smoke(NamedTuple):
    store: Store
    results: Mapping[str, Result]

    def run_of(self, item: str, recipe: str = "at") -> Run:
        """The first run of an item with a recipe."""
        key = next(key for key, name in self.results[item].runs.items() if name == recipe)
        return Run.open(self.store.path / "runs" / key)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of the smoke runs as slow, since the first one runs all experiments."""
    for item in items:
        if "smoke" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Smoke:
    """All experiments at smoke scale, read-only.

    The processes of a test run share the work: every second process starts from the end, and experiments that another
    process has locked come last.
    """
    base, worker = tmp_path_factory.getbasetemp(), os.environ.get("PYTEST_XDIST_WORKER", "")
    store = Store((base.parent if worker else base) / "papers-store")
    order = runnable()
    for name in reversed(order) if worker[-1:] in {*"13579"} else order:
        with contextlib.suppress(FolderInUseError), _single(store, name, blocking=False):
            _result(store, name)
    for name in order:
        with _single(store, name, blocking=True):
            _result(store, name)
    # read when all have been run, since each run changes the correction for multiple testing
    return Smoke(store, {name: Result.load(store.result_file(name, "smoke")) for name in order})


def _single(store: Store, name: str, *, blocking: bool) -> AbstractContextManager[None]:
    """Lock an experiment against other processes.

    Raises:
        FolderInUseError: on entry, if another process has the lock and ``blocking`` is false.
    """
    folder = store.path.with_suffix(".items") / name.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    return owned(folder, waiting=(lambda: None) if blocking else None)


def _result(store: Store, name: str) -> None:
    if not store.result_file(name, "smoke").is_file():
        run(name, "smoke", store.path)
