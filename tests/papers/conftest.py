"""Every smoke run, once, on one store: processes of a test run share it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from classwise.papers import EXPERIMENTS
from classwise.papers.experiment import Result, run
from classwise.papers.store import Store


class Smoke(NamedTuple):
    store: Store
    results: Mapping[str, Result]


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Smoke:
    """All experiments at scale smoke; tests only read."""
    base = tmp_path_factory.getbasetemp()
    folder: Path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "papers-store"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        store = Store(folder)
        results = {}
        for name in EXPERIMENTS:
            file = store.result_file(name, "smoke")
            results[name] = Result.load(file) if file.is_file() else run(name, "smoke", store)
    return Smoke(store, results)
