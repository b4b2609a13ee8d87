"""Fixtures of the tests that start Ray and Slurm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.cells import uninterrupted
from tests.launching import ENVIRONMENT


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cell that ran without an interruption."""
    return uninterrupted(tmp_path_factory.mktemp("reference") / "cell")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the engines start import the package of this repository."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
