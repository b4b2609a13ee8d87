"""The record of a training: command, start weights and normalisation; a resume of a finished run changes no file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from classwise.core.command_line import recorded
from classwise.reporting.provenance import settings_of
from classwise.training.folder import Run
from classwise.training.train import train
from tests.auditing.test_records import AUDIT, audit, contents
from tests.training.test_trainer import SMALL

START: dict[str, Any] = {"data": "digits", "overrides": SMALL, "epochs": 1}


def test_a_finished_run_is_unchanged_and_its_pages_name_its_command(tmp_path: Path) -> None:
    with recorded(["train", "first"]):
        run = train("at", out=tmp_path / "run", **START)
    before = contents(run.path)
    assert run.environment["command"] == "classwise train first"
    assert set(run.environment["normalisation"]) == {"mean", "std"}
    with recorded(["train", "second"]):
        train("at", out=run.path, resume=True, **START)
    assert contents(run.path) == before
    found = audit(run.path, run_data(), out=run.path, **AUDIT)
    shown = dict(settings_of(found))
    assert shown["Training: command"] == "classwise train first"
    assert shown["Weights file"] == str(run.weights_file(run.default_weights()))
    assert "Training: normalisation" not in shown, "it is that of the audited model"


def test_an_unfinished_run_lists_its_earlier_commands_and_its_start(tmp_path: Path) -> None:
    with recorded(["train", "start"]):
        start = train("at", out=tmp_path / "start", **START)
    with recorded(["train", "first"]):
        weights = start.weights_file("last")
        overrides = {**SMALL, "model.weights": str(weights)}
        run = train("at", out=tmp_path / "run", data="digits", overrides=overrides, epochs=1)
    assert run.environment["weights_file"] == str(weights)
    run.epochs_file.unlink()  # as if it was stopped before the end of the epoch
    Run(run.path).state_file.unlink()
    (run.path / "checksums.txt").unlink()
    assert not Run(run.path).complete
    facts = json.loads(run.environment_file.read_text())
    assert facts["command"] == "classwise train first"


def run_data() -> Any:
    from classwise.data import load_data

    return load_data("digits", split="test", subset=40)
