"""The runner, and a run and an audit without faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forkserver import Server

from .client import AUDIT, TRAIN, Runner


@pytest.fixture(scope="session")
def runner(fork_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """The process that runs all cases."""
    with fork_server.serving():
        client = Runner(tmp_path_factory.mktemp("logs"))
    with client:
        yield client


@pytest.fixture(scope="session")
def trained(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    runner.succeed([*TRAIN, "--out", folder], folder)
    return folder


@pytest.fixture(scope="session")
def audited(runner: Runner, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete audit of that run."""
    folder = tmp_path_factory.mktemp("whole") / "audit"
    runner.succeed(["audit", trained, *AUDIT, "--out", folder], folder)
    return folder
