"""Tasks and the local executor."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from classwise.core.errors import ClasswiseError
from classwise.core.files.ownership import owned
from classwise.sweeps.executors.local import Local
from classwise.sweeps.tasks import LOG, attempts, record, run_task
from tests.launching import write_programs

pytestmark = pytest.mark.usefixtures("forked")


@pytest.mark.slow
def test_calls_run_in_order_until_one_fails(tmp_path: Path) -> None:
    folder = write_programs(
        tmp_path / "task", "print('one')", "import sys; print('two'); sys.exit(7)", "print('three')"
    )
    assert run_task(folder) == 7
    assert (folder / LOG).read_text() == "one\ntwo\n"
    start, end = attempts(folder)
    assert start["event"] == "start"
    assert start["host"]
    assert (end["event"], end["status"], end["attempt"]) == ("end", 7, start["attempt"])


@pytest.mark.slow
def test_an_attempt_that_was_killed_has_no_end(tmp_path: Path) -> None:
    program = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    (ended,) = Local().run([write_programs(tmp_path / "task", program)])
    assert ended.status == -signal.SIGKILL
    assert [line["event"] for line in attempts(ended.folder)] == ["start"]


def test_a_truncated_last_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "attempts.jsonl").write_text('{"event": "changed"}\n{"event": "en')
    assert attempts(tmp_path) == [{"event": "changed"}]


@pytest.mark.slow
def test_a_task_whose_audits_have_changed_runs_again(tmp_path: Path) -> None:
    """The event of the change belongs to no attempt."""
    folder = write_programs(tmp_path / "task", "pass")
    record(folder, event="changed")
    assert run_task(folder) == 0
    assert [line["event"] for line in attempts(folder)] == ["changed", "start", "end"]


def test_a_task_runs_once_at_a_time(tmp_path: Path) -> None:
    folder = write_programs(tmp_path, "pass")
    with owned(folder), pytest.raises(ClasswiseError, match="in use by"):
        run_task(folder)


@pytest.mark.slow
def test_tasks_overlap_as_workers_allow_and_all_end(tmp_path: Path) -> None:
    meet = (
        "import pathlib, time; pathlib.Path({mine!r}).touch()\n"
        "while not pathlib.Path({other!r}).exists(): time.sleep(0.01)"
    )
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    folders = [
        write_programs(tmp_path / "one", meet.format(mine=a, other=b)),
        write_programs(tmp_path / "two", meet.format(mine=b, other=a)),
    ]
    assert sorted(Local(workers=2).run(folders)) == sorted((folder, 0) for folder in folders)


@pytest.mark.slow
def test_closing_stops_the_calls(tmp_path: Path) -> None:
    endless = write_programs(tmp_path / "endless", "import time; time.sleep(600)")
    ended = Local(workers=2).run([write_programs(tmp_path / "short", "pass"), endless])
    assert next(ended).folder.name == "short"
    ended.close()  # type: ignore[attr-defined]
    with owned(endless):  # released by its process
        pass


@pytest.mark.parametrize("written", [True, False])
def test_an_attempt_that_is_interrupted_at_its_start_has_an_end(
    written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray interrupts a cancelled task at any place, also within the write of the start."""
    write_programs(tmp_path, "pass")
    calls = []

    def interrupted(*given: object) -> None:
        calls.append(given)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync" if written else "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_task(tmp_path)
    found = [(line["event"], line.get("status")) for line in attempts(tmp_path)]
    assert found == ([("start", None), ("end", 143)] if written else [])
