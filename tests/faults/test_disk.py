"""A full disk, a failing file system and missing permissions: one line, status 2, and a folder that can be resumed."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from .client import AUDIT, TRAIN, Runner, files_of_run, rows_of_audit, temporaries

ERRORS = ("EXDEV", "ESTALE", "EBUSY", "EIO", "ENOSPC", "EDQUOT", "EPERM")


def _train(runner: Runner, out: Path, **fault: object) -> str:
    """Run a training that a fault ends with an error message; returns the message."""
    line = runner.run([*TRAIN, "--out", out], out, **fault).refusal()
    assert temporaries(out) == []
    return line


def _resumed(runner: Runner, trained: Path, out: Path) -> None:
    begun = (out / "recipe.yaml").is_file()
    runner.succeed([*TRAIN, "--out", out, *(["--resume"] if begun else [])], out)
    assert files_of_run(out) == files_of_run(trained)


def _audit(runner: Runner, trained: Path, audited: Path, out: Path, **fault: object) -> str:
    """Run an audit that a fault ends with an error message, and resume it; returns the message."""
    words = ["audit", trained, *AUDIT, "--out", out]
    line = runner.run(words, out, **fault).refusal()
    assert temporaries(out) == []
    runner.succeed([*words, *(["--resume"] if (out / "audit.json").is_file() else [])], out)
    pd.testing.assert_frame_equal(rows_of_audit(out), rows_of_audit(audited), check_exact=True)
    return line


@pytest.mark.slow
def test_a_state_above_the_file_size_limit_is_one_line(runner: Runner, trained: Path, tmp_path: Path) -> None:
    """The limit is between the sizes of the weights and of the state, so that the write itself fails."""
    sizes = {file.name: file.stat().st_size for file in (trained / "checkpoints").iterdir()}
    limit = (sizes["state.pt"] + sizes["last.safetensors"]) // 2
    assert "state.pt: File too large" in _train(runner, tmp_path / "run", limit=limit)
    _resumed(runner, trained, tmp_path / "run")


@pytest.mark.slow
def test_weights_above_the_file_size_limit_are_one_line(runner: Runner, trained: Path, tmp_path: Path) -> None:
    size = len(files_of_run(trained)["last.safetensors"])
    assert "last.safetensors: File too large" in _train(runner, tmp_path / "run", limit=size // 2)
    _resumed(runner, trained, tmp_path / "run")


@pytest.mark.slow
def test_a_failing_rename_is_one_line(runner: Runner, trained: Path, tmp_path: Path) -> None:
    line = _train(runner, tmp_path / "run", fail=("replace", 6, 1, errno.ESTALE))
    assert "cannot write" in line
    assert "Stale file handle; check the disk and run again" in line
    _resumed(runner, trained, tmp_path / "run")


@pytest.mark.hostile
def test_a_part_that_cannot_be_renamed_is_one_line(
    runner: Runner, trained: Path, audited: Path, tmp_path: Path
) -> None:
    assert "Device or resource busy" in _audit(
        runner, trained, audited, tmp_path / "audit", fail=("replace", 3, 1, errno.EBUSY)
    )


@pytest.mark.hostile
def test_folders_that_cannot_be_synced_are_no_error(runner: Runner, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    runner.succeed([*TRAIN, "--out", out], out, fail=("fsync-folder", 1, 10**6, errno.EINVAL))
    assert files_of_run(out) == files_of_run(trained)


@pytest.mark.hostile
@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_every_failing_call_is_one_line(
    runner: Runner, trained: Path, audited: Path, tmp_path: Path, call: str, name: str
) -> None:
    """Each error at a random call of each kind, in a training or an audit."""
    chance = random.Random(f"{call} {name}")
    number = chance.randrange(1, 10)
    fault = (call, number, 1, getattr(errno, name))
    if chance.random() < 0.5:
        line = _train(runner, tmp_path / "run", fail=fault)
        _resumed(runner, trained, tmp_path / "run")
    else:
        line = _audit(runner, trained, audited, tmp_path / "audit", fail=fault)
    assert ("no space left" if name in ("ENOSPC", "EDQUOT") else "cannot write") in line


@pytest.mark.hostile
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("kilobytes", [8, 100, 400, 700])
def test_a_full_disk_is_one_line(runner: Runner, trained: Path, audited: Path, tmp_path: Path, kilobytes: int) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not permitted")
    try:
        assert "no space left" in _train(runner, disk / "run")
        subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        _resumed(runner, trained, disk / "run")
        filler = disk / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(disk).free - 20_000))
        words = ["audit", trained, *AUDIT, "--out", disk / "audit"]
        assert "no space left" in runner.run(words, disk / "audit").refusal()
        filler.unlink()
        runner.succeed([*words, "--resume"], disk / "audit")
        pd.testing.assert_frame_equal(rows_of_audit(disk / "audit"), rows_of_audit(audited), check_exact=True)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def locked(trained: Path, audited: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder with a run and an audit, without write permission."""
    shutil.copytree(trained, tmp_path / "locked" / "run")
    shutil.copytree(audited, tmp_path / "locked" / "audit")
    folders = [tmp_path / "locked", *(path for path in (tmp_path / "locked").rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    yield tmp_path / "locked"
    for folder in folders:
        folder.chmod(0o755)


@pytest.mark.slow
def test_folders_without_permission_are_one_line(runner: Runner, trained: Path, locked: Path) -> None:
    run, audit = locked / "run", locked / "audit"
    for arguments in (
        [*TRAIN, "--out", locked / "new"],
        ["audit", run, *AUDIT, "--out", locked / "new"],
        ["report", audit],
        ["report", audit, "--export", "csv", "--out", locked.parent / "page.html", "--files", locked / "files"],
    ):
        line = runner.run(arguments, locked, obeys=True).refusal()
        assert "Permission denied" in line, line
    runner.succeed(["report", run, "--check"], locked, obeys=True)
    state = run / "checkpoints" / "state.pt"
    state.chmod(0)
    assert "state.pt: Permission denied" in runner.run(["report", run, "--check"], locked, obeys=True).refusal()
    assert "Permission denied" in runner.run([*TRAIN, "--out", run, "--resume"], locked, obeys=True).refusal()
    state.chmod(0o644)
    assert files_of_run(run) == files_of_run(trained)
    assert not (locked / "new").exists()
