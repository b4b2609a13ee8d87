"""A command run in this process, and a run trained once for all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from classwise.cli import main

QUICK = [
    "--epochs=2",
    "--set=threat=Linf:0.1",
    "--set=data.subset=120",
    "--set=data.validation=0.2",
    "--set=data.augment=none",
    "--set=model.name=small-cnn",
    "--set=model.width=0.1",
    "--set=batch_size=32",
    "--set=attack=pgd:steps=2",
    "--set=validation_attack=pgd:steps=2",
]
"""A training of two seconds on digits."""


class Said(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def printed(self) -> str:
        """The output of a command that succeeds."""
        assert self.status == 0, self.err
        return self.out

    @property
    def facts(self) -> Any:
        """The same, read as JSON."""
        return json.loads(self.printed)

    @property
    def refusal(self) -> str:
        """The one line of a command that refuses its input and prints nothing else."""
        assert (self.status, self.out) == (2, ""), self
        (line,) = self.err.splitlines()
        assert line.startswith("classwise: ")
        return line


Classwise = Callable[..., Said]


@pytest.fixture
def classwise(capsys: pytest.CaptureFixture[str]) -> Classwise:
    def run(*words: str | Path) -> Said:
        capsys.readouterr()
        status = main([str(word) for word in words])
        return Said(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests only read it."""
    folder = tmp_path_factory.mktemp("runs") / "quick"
    assert main(["train", "cfa-at", "--budget=short", "--data=digits", f"--out={folder}", *QUICK]) == 0
    return folder
