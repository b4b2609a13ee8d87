"""The record of a training: command, start weights and normalisation; a resume of a finished run changes no file."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from classwise.auditing.run.audit import audit
from classwise.core.progress.listener import NullProgress
from classwise.core.settings.command_line import recorded
from classwise.data import load_data
from classwise.reporting.facts.provenance import settings_of
from classwise.training.train import train
from tests.auditing.test_audit_folders import AUDIT, contents
from tests.training.test_trainer import SMALL

START: dict[str, Any] = {"budget": "short", "data": "digits", "overrides": SMALL, "epochs": 1}


def test_a_finished_run_is_unchanged_and_its_pages_name_its_command(tmp_path: Path) -> None:
    with recorded(["train", "first"]):
        run = train("at", out=tmp_path / "run", **START)
    before = contents(run.path)
    assert run.environment["command"] == "classwise train first"
    assert set(run.environment["normalisation"]) == {"mean", "std"}
    with recorded(["train", "second"]):
        train("at", out=run.path, resume=True, **START)
    assert contents(run.path) == before
    found = audit(run.path, load_data("digits", split="test", subset=40), out=run.path, **AUDIT)
    shown = dict(settings_of(found))
    assert shown["Training: command"] == "classwise train first"
    assert shown["Weights file"] == str(run.weights_file(run.default_weights()))
    assert "Training: normalisation" not in shown, "it is that of the audited model"


class Stopping(NullProgress):
    """Stops a training in its second epoch."""

    def __init__(self) -> None:
        self.left = 5

    def advance(self, amount: int) -> None:
        """Count steps."""
        self.left -= amount
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)


class Listening(NullProgress):
    """Keeps the lines of the log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        """Keep a line."""
        self.lines.append(line)


def audit_notes(run: Path) -> str:
    """The warning of an audit on the training of its run; empty without one."""
    listener = Listening()
    audit(run, load_data("digits", split="test", subset=20), progress=listener, **AUDIT)
    return next((part for line in listener.lines for part in line.split("; read") if "the training of" in part), "")


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_run_lists_its_earlier_commands_and_its_start(tmp_path: Path) -> None:
    weights = train("at", out=tmp_path / "start", **START).weights_file("last")
    more = {**START, "overrides": {**SMALL, "model.weights": str(weights)}, "out": tmp_path / "run", "epochs": 2}
    with recorded(["train", "first"]), pytest.raises(KeyboardInterrupt):
        train("at", progress=Stopping(), **more)
    assert "has finished 1 of 2 epochs; continue it with classwise train --resume" in audit_notes(tmp_path / "run")
    with recorded(["train", "second"]):
        run = train("at", resume=True, **more)
    assert not audit_notes(run.path)
    assert run.complete
    assert run.environment["command"] == "classwise train second"
    (earlier,) = run.environment["earlier_runs"]
    assert earlier["command"] == "classwise train first"
    assert earlier.keys() <= {"command", "date"}
    assert run.environment["weights_file"] == str(weights)
    assert run.environment["data"]["name"] == "digits"
