"""Tests with real packages. `make test-integrations` writes `docs/reference/compatibility.md` from what they used."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from tests.integrations.torchvision_operators import declare_operators

Row = tuple[str, str, str]
"""Area, such as ``models``; what was used; name and version of the package."""

ROWS = pytest.StashKey[set[Row]]()
HEAD = """# Compatibility

Written by `make test-integrations` from what its tests used. Other versions within the ranges of `pyproject.toml`
should work too. Python {python}, torch {torch}.

| area | what was used | package |
| --- | --- | --- |
"""


@pytest.fixture(autouse=True, scope="session")
def _torchvision() -> None:
    """Make torchvision importable, which other packages import if it is installed."""
    declare_operators()


@pytest.fixture
def compatibility(request: pytest.FixtureRequest) -> Callable[[str, str, str], None]:
    """Record what a test used, if it passes: ``compatibility("models", "`hf:FOLDER`", "transformers")``."""
    rows = request.config.stash.setdefault(ROWS, set())

    def record(area: str, what: str, package: str) -> None:
        rows.add((area, what, f"{package} {metadata.version(package)}"))

    return record


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the table into the file `COMPATIBILITY`, after a run without a failure."""
    file, rows = os.environ.get("COMPATIBILITY"), session.config.stash.get(ROWS, set())
    if file and rows and exitstatus == pytest.ExitCode.OK:
        head = HEAD.format(python=platform.python_version(), torch=metadata.version("torch"))
        lines = "".join(f"| {' | '.join(row)} |\n" for row in sorted(rows))
        Path(file).write_text(head + lines, encoding="utf-8")
