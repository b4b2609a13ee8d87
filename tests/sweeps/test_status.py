"""The status of cells from crafted folders."""

from __future__ import annotations

import json
import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from classwise.core.files.ownership import OWNER, owned
from classwise.core.progress.listener import NullProgress
from classwise.core.progress.record import FILE, recorded
from classwise.sweeps.cells import CHANGED, SweepFolder
from classwise.sweeps.executors.run import prepare_sweep
from classwise.sweeps.jobs import JOB
from classwise.sweeps.status import SILENT_SECONDS, CellStatus, counts_text, sweep_status
from classwise.sweeps.tasks import ATTEMPTS, LOG
from tests.refusals import check_refused

HERE = platform.node()


@pytest.fixture
def sweep(tmp_path: Path) -> SweepFolder:
    return prepare_sweep({"recipes": ["at"], "data": ["digits"]}, tmp_path / "sweep")


def start(host: str = HERE, log: int = 0, attempt: str = "a") -> dict[str, Any]:
    return {"attempt": attempt, "event": "start", "host": host, "process": 1, "log": log}


def end(status: int, attempt: str = "a") -> dict[str, Any]:
    return {"attempt": attempt, "event": "end", "status": status}


def craft(sweep: SweepFolder, *events: dict[str, Any], log: str = "") -> Path:
    """Write the attempts and the log of the only cell."""
    (cell,) = sweep.cells()
    task = sweep.task(cell)
    (task / ATTEMPTS).write_text("".join(json.dumps(event) + "\n" for event in events))
    (task / LOG).write_text(log)
    return task


def status(sweep: SweepFolder) -> CellStatus:
    (cell,) = sweep_status(sweep.path)
    return cell


def test_a_new_cell_is_queued(sweep: SweepFolder) -> None:
    assert status(sweep) == CellStatus("at-digits-seed0", "queued")


@pytest.mark.parametrize(
    ("code", "state"),
    [(0, "finished"), (2, "failed"), (143, "stopped"), (130, "stopped"), (-15, "stopped"), (-9, "failed")],
)
def test_a_cell_that_has_ended(sweep: SweepFolder, code: int, state: str) -> None:
    craft(sweep, start(), end(code))
    assert status(sweep).state == state


def test_the_error_is_the_last_line_of_the_last_attempt(sweep: SweepFolder) -> None:
    old = "classwise: an old error\n"
    log = f"{old}12:00:00 training: 4 to do\nclasswise: no space left\nsome launcher's last words\n"
    craft(sweep, start(), end(2), start(log=len(old), attempt="b"), end(2, "b"), log=log)
    assert (status(sweep).error, status(sweep).attempts) == ("no space left", 2)
    craft(sweep, start(), end(2), start(log=len(old), attempt="b"), end(2, "b"), log=f"{old}Killed\n\n")
    assert status(sweep).error == "Killed"
    craft(sweep, start(), end(9))
    assert status(sweep).error == "exit status 9"


@pytest.mark.parametrize("place", ["runs/at-digits-seed0", "runs/at-digits-seed0/audits/audit"])
def test_a_running_cell_has_the_progress_in_its_run_folder(sweep: SweepFolder, place: str) -> None:
    task, folder = craft(sweep, start("elsewhere")), sweep.path / place
    folder.mkdir(parents=True)
    with owned(task), recorded(folder, NullProgress()) as progress:
        assert (status(sweep).state, status(sweep).progress) == ("running", "starting")
        progress.start("pgd", 4000)
        assert (status(sweep).progress, status(sweep).left) == ("pgd 0 %", "")
        record = {"task": "pgd", "done": 1000, "total": 4000, "seconds_left": 600.0}
        (folder / FILE).write_text(json.dumps(record))
        assert status(sweep) == CellStatus(
            "at-digits-seed0", "running", 1, "elsewhere", "pgd", 1000, 4000, "about 10 min"
        )
        assert status(sweep).progress == "pgd 25 %"
        assert not (task / LOG).read_text()


def test_an_attempt_without_an_end_whose_process_is_dead_is_killed(sweep: SweepFolder) -> None:
    task = craft(sweep, start())
    assert status(sweep).state == "killed"
    (task / OWNER).write_text("{}")  # of a process that was killed
    assert status(sweep).state == "killed"


def test_a_process_elsewhere_runs_until_it_is_silent(sweep: SweepFolder) -> None:
    task = craft(sweep, start("elsewhere"))
    assert status(sweep).state == "killed"  # without an owner
    (task / OWNER).write_text("{}")
    assert (status(sweep).state, status(sweep).host) == ("running", "elsewhere")
    before = (task / OWNER).stat().st_mtime - SILENT_SECONDS - 1
    os.utime(task / OWNER, (before, before))
    assert status(sweep).state == "killed"


def test_the_late_end_of_an_attempt_that_was_taken_over_does_not_count(sweep: SweepFolder) -> None:
    task = craft(sweep, start(), start(attempt="b"), end(2))
    with owned(task):
        assert status(sweep).state == "running"
    craft(sweep, start(), start(attempt="b"), end(0, "b"), end(2))
    assert status(sweep).state == "finished"


def test_a_finished_cell_that_gets_another_audit_is_queued(sweep: SweepFolder) -> None:
    plan = {"recipes": ["at"], "data": ["digits"], "audits": {"audit": {}}}
    task = craft(sweep, start(), end(0))
    prepare_sweep(plan, sweep.path)
    assert status(sweep).state == "finished"
    prepare_sweep(plan | {"audits": {"audit": {}, "more": {"attack": "fgsm"}}}, sweep.path)
    assert status(sweep).state == "queued"
    assert "more" in (task / JOB).read_text()
    with owned(task):
        craft(sweep, start(), {"event": CHANGED})
        assert status(sweep).state == "running"  # with the former audits
    craft(sweep, start(), {"event": CHANGED}, end(0))
    assert status(sweep).state == "queued"


@pytest.mark.parametrize("place", ["ours.safetensors", "ours/checkpoints/best.safetensors"])
@pytest.mark.parametrize("field", ["model", "weights"])
def test_a_finished_cell_whose_model_was_replaced_is_queued(tmp_path: Path, place: str, field: str) -> None:
    file, other = tmp_path / place, tmp_path / "other.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    path = str(tmp_path / Path(place).parts[0])
    model = path if field == "model" else {"model": "small-cnn", "weights": path}
    sweep = prepare_sweep({"models": [model], "data": ["digits"]}, tmp_path / "sweep")
    soon = datetime.fromtimestamp(file.stat().st_ctime + 0.001, UTC).isoformat()
    craft(sweep, start() | {"time": soon}, end(0))
    assert status(sweep).state == "finished"
    time.sleep(0.01)
    other.touch()
    os.utime(other, (0, 0))
    other.replace(file)  # an older file, by its date
    assert status(sweep).state == "queued"
    file.unlink()
    assert status(sweep).state == "finished"  # unknown


def test_counts() -> None:
    cells = [CellStatus(name, state) for name, state in (("a", "finished"), ("b", "running"), ("c", "finished"))]  # type: ignore[arg-type]
    assert counts_text(cells) == "1 running, 2 finished"


def test_damaged_cells_are_refused(sweep: SweepFolder) -> None:
    sweep.cells_file.write_text("{}\n")
    check_refused("damaged", sweep_status, sweep.path)
