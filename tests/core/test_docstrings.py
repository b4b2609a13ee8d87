"""Texts that docstrings give, also where the interpreter removes docstrings."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from classwise.core.settings import docstrings
from classwise.core.settings.docstrings import docstring


@dataclasses.dataclass
class Documented:
    """Documented.

    Args:
        size: a size.
    """

    size: int = 0

    def method(self) -> None:
        """Document a method."""


@dataclasses.dataclass
class Bare:
    size: int = 0


def changed() -> None:
    """Document."""


def test_docstrings_are_read_from_the_source_if_they_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def inner() -> None:
        """Document an inner function."""

    parts = [Documented, Documented.method, inner, changed, docstrings.docstring]
    expected = [docstring(part) for part in parts]
    assert all(expected)
    monkeypatch.setattr(docstrings, "_REMOVES", 0)
    for part in parts:
        monkeypatch.setattr(part, "__doc__", None)
    assert [docstring(part) for part in parts] == expected
    changed.__doc__ = "Set later."
    assert docstring(changed) == "Set later."
    assert docstring(Bare) == ""
    Bare.__module__ = "no.such.module"
    assert docstring(Bare) == ""


LISTED = """
from classwise.cli import main
from classwise.reporting.evidence.facts import GUARDS, docstring
from classwise.stats.registry import all_metrics
print([docstring(guard.function) for guard in GUARDS.values()], [metric.about for metric in all_metrics().values()])
words = [[], ["audit"], ["report"], ["sweep", "status"], ["papers", "list"], ["evidence", "verify"]]
for word in words:
    print(main([*word, "--help"]))
print(main(["attacks"]), main(["attacks", "pgd"]), main(["models", "small-cnn"]))
"""


def test_no_level_of_optimisation_changes_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    optimised = subprocess.run(
        [sys.executable, "-OO", "-c", LISTED], capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False
    )
    assert optimised.returncode == 0, optimised.stderr
    exec(LISTED, {})
    plain = capsys.readouterr().out.splitlines()
    assert len(plain) > 250
    assert optimised.stdout.splitlines() == plain
