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
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from classwise.auditing.run.audit import audit
from classwise.core.errors import ClasswiseError
from classwise.core.files import ownership
from classwise.core.files.ownership import ATTEMPT, OWNER, Attempt, contents, owned
from classwise.core.files.storage import write_text
from classwise.training.train import train
from tests.auditing import toys
from tests.refusals import check_refused

HOLD = """
import sys, time
from collections.abc import Iterator
from pathlib import Path
from classwise.core.files.ownership import owned
with owned(Path(sys.argv[1])):
    print("owned", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other(forked: None, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
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

    def refuse(handle: int, **_: bool) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(ownership, "lock", refuse)


def test_the_second_process_is_refused(other: subprocess.Popen[str], tmp_path: Path) -> None:
    place, host = re.escape(str(tmp_path / "run")), re.escape(platform.node())
    line = rf"{place} is in use by process {other.pid} on {host} \(since .*\); wait until it has ended, or give another"
    check_refused(line, train, "at", budget="short", out=tmp_path / "run", data="digits")
    check_refused(line, audit, toys.model(), toys.images(8), "Linf:0.1", "fgsm", batch_size=32, out=tmp_path / "run")
    assert contents(tmp_path / "run") == []
    (tmp_path / "run" / "recipe.yaml").write_text("")  # as soon as the first one has written it
    check_refused(line, train, "at", budget="short", out=tmp_path / "run", data="digits")


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


def test_a_second_owner_waits_on_request(other: subprocess.Popen[str], tmp_path: Path) -> None:
    lines = []

    def waiting() -> None:
        lines.append("waiting")
        other.kill()

    with owned(tmp_path / "run", waiting=waiting):
        assert json.loads((tmp_path / "run" / OWNER).read_text())["process"] == os.getpid()
    with owned(tmp_path / "run", waiting=waiting):
        assert lines == ["waiting"]


def test_a_new_folder_without_files_is_removed(tmp_path: Path) -> None:
    with owned(tmp_path / "a" / "b"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_lost_a_folder_writes_nothing_more(tmp_path: Path) -> None:
    with owned(tmp_path):
        write_text(tmp_path / "a", "before")
        facts = {"token": "other", "process": 7, "host": "elsewhere", "since": "2026-01-01T00:00:00+00:00"}
        (tmp_path / OWNER).write_text(json.dumps(facts))
        check_refused("is now owned by process 7 on elsewhere", write_text, tmp_path / "parts" / "a", "after")
        check_refused("is now owned by process 7 on elsewhere", write_text, tmp_path / "a", "after")
    assert (tmp_path / "a").read_text() == "before"
    assert json.loads((tmp_path / OWNER).read_text()) == facts


def test_without_locks_a_running_owner_is_detected(
    other: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_locks(monkeypatch)
    check_refused(f"is in use by process {other.pid}", owned(tmp_path / "run").__enter__)
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


# Other machines


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of a fraction of a second."""
    monkeypatch.setattr(ownership, "RENEWAL_SECONDS", 0.05)
    monkeypatch.setattr(ownership, "STALE_SECONDS", 0.5)


def elsewhere(folder: Path, *, seconds: float, **facts: object) -> Path:
    """The file of an owner on another machine, renewed some seconds ago."""
    owner = {"token": "other", "process": 7, "host": "elsewhere", "since": "2026-01-01T00:00:00+00:00", **facts}
    path = folder / OWNER
    path.write_text(json.dumps(owner))
    renewed = path.stat().st_mtime - seconds
    os.utime(path, (renewed, renewed))
    return path


@pytest.mark.usefixtures("quick")
def test_an_owner_renews_its_file(tmp_path: Path) -> None:
    with owned(tmp_path):
        path = tmp_path / OWNER
        content = path.read_bytes()
        for _ in range(2):
            os.utime(path, (0, 0))
            deadline = time.monotonic() + 20
            while not path.stat().st_mtime:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert path.read_bytes() == content


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("locks", [True, False])
def test_a_live_owner_on_another_machine_is_refused(
    locks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine does not share its locks, and its clock differs by an hour."""
    if not locks:
        no_locks(monkeypatch)
    path = elsewhere(tmp_path, seconds=0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(0.05):
            os.utime(path)

    renewal = threading.Thread(target=renew)
    renewal.start()
    try:
        check_refused(r"is in use by process 7 on elsewhere \(since .*\); wait until", owned(tmp_path).__enter__)
    finally:
        ended.set()
        renewal.join()
    assert json.loads(path.read_text())["token"] == "other"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("seconds", [0, 3600])
def test_a_stale_owner_on_another_machine_is_replaced(
    seconds: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere(tmp_path, seconds=seconds)
    started = time.monotonic()
    with owned(tmp_path):
        write_text(tmp_path / "a", "mine")
    if not seconds:
        assert time.monotonic() - started > 0.3
    lines = [record.getMessage() for record in caplog.records]
    assert lines[-1].startswith(f"{tmp_path}: taken over from process 7 on elsewhere (since ")
    assert len(lines) == (1 if seconds else 2)


@pytest.mark.usefixtures("quick")
def test_an_owner_that_lost_its_folder_is_warned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with owned(tmp_path):
        elsewhere(tmp_path, seconds=0)
        deadline = time.monotonic() + 20
        while not caplog.records:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    (record,) = caplog.records
    assert "is now owned by process 7 on elsewhere" in record.getMessage()
    assert (tmp_path / OWNER).exists()


@pytest.mark.parametrize("attempt", [Attempt("slurm-7", 1), Attempt("slurm-7", 0), Attempt("slurm-8", 2), None])
def test_another_job_does_not_replace_an_attempt(attempt: Attempt | None, tmp_path: Path) -> None:
    with owned(tmp_path, Attempt("slurm-7", 1)), pytest.raises(ClasswiseError, match="is in use by process"):
        owned(tmp_path, attempt).__enter__()


@pytest.mark.usefixtures("forked")
def test_a_later_attempt_replaces_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while the earlier one has the lock, and although it runs on."""
    monkeypatch.setenv(ATTEMPT, "slurm-7 1")
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "owned\n"
            monkeypatch.setenv(ATTEMPT, "slurm-7 2")
            with owned(tmp_path):
                write_text(tmp_path / "a", "later")
                assert "an earlier attempt of this job" in caplog.text
                other.kill()
                other.wait()  # and its lock is released
                monkeypatch.delenv(ATTEMPT)
                check_refused(f"is in use by process {os.getpid()} on ", owned(tmp_path).__enter__)
        finally:
            other.kill()
