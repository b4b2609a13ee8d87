"""One owner of a folder at a time, on file systems with and without locks."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from classwise.auditing.audit import audit
from classwise.core import ownership
from classwise.core.errors import ClasswiseError
from classwise.core.ownership import OWNER, contents, owned
from classwise.core.storage import write_text
from classwise.training.train import train
from tests.auditing import toys

HOLD = """
import sys, time
from collections.abc import Iterator
from pathlib import Path
from classwise.core.ownership import owned
with owned(Path(sys.argv[1])):
    print("owned", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which owns the folder ``run``."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "owned\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks."""

    def refuse(handle: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(ownership, "_lock", refuse)


def test_the_second_process_is_refused(other: subprocess.Popen[str], tmp_path: Path) -> None:
    place, host = re.escape(str(tmp_path / "run")), re.escape(platform.node())
    line = rf"{place} is in use by process {other.pid} on {host} \(since .*\); wait until it has ended, or give another"
    with pytest.raises(ClasswiseError, match=line):
        train("at", budget="short", out=tmp_path / "run", data="digits")
    with pytest.raises(ClasswiseError, match=line):
        audit(toys.model(), toys.images(8), "Linf:0.1", "fgsm", batch_size=32, out=tmp_path / "run")
    assert contents(tmp_path / "run") == []
    (tmp_path / "run" / "recipe.yaml").write_text("")  # as soon as the first one has written it
    with pytest.raises(ClasswiseError, match=line):
        train("at", budget="short", out=tmp_path / "run", data="digits")


def test_the_lock_of_a_dead_process_does_not_block(other: subprocess.Popen[str], tmp_path: Path) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert (tmp_path / "run" / OWNER).is_file()
    with owned(tmp_path / "run"):
        write_text(tmp_path / "run" / "a", "mine")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["a"]


def test_two_owners_in_one_process(tmp_path: Path) -> None:
    with owned(tmp_path), pytest.raises(ClasswiseError, match=f"is in use by process {os.getpid()} on "):
        owned(tmp_path).__enter__()


def test_a_new_folder_without_files_is_removed(tmp_path: Path) -> None:
    with owned(tmp_path / "a" / "b"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_lost_a_folder_writes_nothing_more(tmp_path: Path) -> None:
    with owned(tmp_path):
        write_text(tmp_path / "a", "before")
        facts = {"token": "other", "process": 7, "host": "elsewhere", "since": "2026-01-01T00:00:00+00:00"}
        (tmp_path / OWNER).write_text(json.dumps(facts))
        with pytest.raises(ClasswiseError, match="is now owned by process 7 on elsewhere"):
            write_text(tmp_path / "parts" / "a", "after")
        with pytest.raises(ClasswiseError, match="is now owned by process 7 on elsewhere"):
            write_text(tmp_path / "a", "after")
    assert (tmp_path / "a").read_text() == "before"
    assert json.loads((tmp_path / OWNER).read_text()) == facts


def test_without_locks_a_running_owner_is_detected(
    other: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_locks(monkeypatch)
    with pytest.raises(ClasswiseError, match=f"is in use by process {other.pid}"):
        owned(tmp_path / "run").__enter__()
    other.kill()
    other.wait()
    with owned(tmp_path / "run"):
        write_text(tmp_path / "run" / "a", "mine")


def test_a_folder_that_cannot_be_written_is_not_owned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    with owned(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_a_clock_that_jumps_changes_no_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Durations use the monotonic clock: a jump of the system time by ten years or back stops no audit early."""
    times = iter(10**9 * (1 + turn % 2) for turn in range(10**6))
    monkeypatch.setattr(time, "time", lambda: float(next(times)))
    found = audit(toys.model(), toys.images(40), "Linf:0.1", "fgsm", batch_size=32, max_time=600, out=tmp_path / "a")
    assert found.complete
    assert 0 <= found.environment["seconds"] < 600
