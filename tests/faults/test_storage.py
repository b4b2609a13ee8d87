"""Temporary files, unused folders, and checksums."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from classwise.core.files import storage
from classwise.core.files.storage import (
    CHECKSUMS,
    ResultFolder,
    check_files,
    check_writable,
    is_unused,
    matches,
    remove_stale_temporaries,
    replacing,
    verify,
    write_text,
)
from tests.refusals import check_refused


def _dead(folder: Path) -> Path:
    """The temporary file of a process that was killed."""
    ready, found = os.pipe()
    pid = os.fork()
    if pid == 0:
        with replacing(folder / "state.pt") as temporary:
            temporary.write_bytes(b"half")
            os.write(found, b".")
            signal.pause()
    os.read(ready, 1)
    (path,) = folder.glob(".state.pt.*.tmp")
    remove_stale_temporaries(folder)
    assert path.is_file(), "the process is running"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(ready)
    os.close(found)
    return path


def test_only_the_temporary_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    dead = _dead(tmp_path)
    other = tmp_path / ".notes.tmp"
    other.write_text("somebody's")
    with replacing(tmp_path / "last.safetensors") as living:
        remove_stale_temporaries(tmp_path)
        assert not dead.exists()
        assert living.exists()
        living.write_text("whole")
    assert (tmp_path / "last.safetensors").read_text() == "whole"
    assert other.exists()


def test_a_temporary_file_of_another_machine_is_removed_after_a_day(tmp_path: Path) -> None:
    dead = _dead(tmp_path)
    remote = dead.rename(dead.with_name(".state.pt.00000000.abcdefgh.tmp"))
    remove_stale_temporaries(tmp_path)
    assert remote.exists()
    os.utime(remote, (0, 0))
    remove_stale_temporaries(tmp_path)
    assert not remote.exists()


def test_a_folder_with_early_files_is_unused(tmp_path: Path) -> None:
    assert is_unused(tmp_path / "nothing")
    assert is_unused(tmp_path)
    _dead(tmp_path)
    write_text(tmp_path / "environment.json", "{}", checksum=True)
    assert is_unused(tmp_path, early=["environment.json"])
    assert not is_unused(tmp_path)
    (tmp_path / "thesis.txt").write_text("mine")
    assert not is_unused(tmp_path, early=["environment.json", "thesis.txt"]), "it was not written by this package"


@pytest.mark.parametrize("question", range(4))
def test_a_folder_is_unused_if_another_process_creates_it_during_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: int
) -> None:
    folder, asked = tmp_path / "run", list[str]()

    def then_created(name: str) -> None:
        original = getattr(Path, name)

        def ask(path: Path, *args: Any, **kwargs: Any) -> bool:
            answer: bool = original(path, *args, **kwargs)
            if path == folder:
                asked.append(name)
                if len(asked) == question + 1:
                    folder.mkdir()
            return answer

        monkeypatch.setattr(Path, name, ask)

    for name in ("exists", "is_dir"):
        then_created(name)
    assert is_unused(folder)
    assert asked


def test_a_folder_is_unused_while_it_is_checked(tmp_path: Path) -> None:
    """Another process may inspect the folder at that time, or this process may be killed then."""
    pid = os.fork()
    if pid == 0:

        def kill(*_: object, **__: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        os.unlink = os.rmdir = kill
        check_writable(tmp_path / "recipe.yaml")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    assert is_unused(tmp_path)
    remove_stale_temporaries(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_kill_between_checksum_and_rename_leaves_a_valid_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state.pt"
    write_text(file, "old", checksum=True)

    def fail(*_: object) -> None:
        raise OSError(5, "no rename")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        check_refused("Input/output error", write_text, file, "new", checksum=True)
    assert file.read_text() == "old"
    assert matches(file) is True
    write_text(file, "new")  # listed again, because the folder has a list
    assert matches(file) is True
    file.write_text("changed")
    check_refused(r"state\.pt is damaged: its SHA-256 is not in checksums\.txt; restore it", verify, file)


def test_a_truncated_line_does_not_hide_later_lines(tmp_path: Path) -> None:
    (tmp_path / CHECKSUMS).write_text("0123")
    write_text(tmp_path / "a", "content", checksum=True)
    assert matches(tmp_path / "a") is True
    assert (tmp_path / CHECKSUMS).read_text().splitlines()[1] == f"{hashlib.sha256(b'content').hexdigest()}  a"


def test_concurrent_writers_lose_no_checksum(tmp_path: Path) -> None:
    def write(writer: int) -> None:
        for part in range(20):
            write_text(tmp_path / f"part-{writer}-{part}", f"{writer} {part}", checksum=True)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    valid, damaged, missing, unverified = storage.check_files(tmp_path)
    assert (len(valid), damaged, missing, unverified) == (80, [], [], [])


def test_a_file_copied_without_its_checksum_is_read_unverified(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("any")
    assert matches(tmp_path / "a") is None
    verify(tmp_path / "a")
    verify(tmp_path / "missing")


def result_with_parts(folder: Path) -> Path:
    """The folder of an audit with two parts in a subfolder that has checksums of its own."""
    ResultFolder(folder, "audit").write(settings={})
    for name in ("outcomes/part-0", "outcomes/part-1", "artifacts/logits/part-0"):
        write_text(folder / name, name, checksum=True)
    return folder


@pytest.mark.parametrize("removed", ["outcomes/part-1", "outcomes/checksums.txt", "audit.json"])
def test_missing_files_are_named(removed: str, tmp_path: Path) -> None:
    folder = result_with_parts(tmp_path)
    assert check_files(folder).missing == []
    (folder / removed).unlink()
    assert check_files(folder).missing == [folder / removed]


@pytest.mark.parametrize("removed", ["outcomes", "artifacts/logits", "artifacts"])
def test_missing_folders_are_named(removed: str, tmp_path: Path) -> None:
    folder = result_with_parts(tmp_path)
    shutil.rmtree(folder / removed)
    assert [path.is_relative_to(folder / removed) for path in check_files(folder).missing] == [True]


def test_what_is_no_file_in_the_place_of_one_is_damaged(tmp_path: Path) -> None:
    folder = result_with_parts(tmp_path)
    (folder / "outcomes/part-0").unlink()
    os.mkfifo(folder / "outcomes/part-0")
    (folder / "outcomes/part-1").unlink()
    (folder / "outcomes/part-1").mkdir()
    assert check_files(folder).damaged == [folder / "outcomes/part-0", folder / "outcomes/part-1"]
    check_refused("part-0 is not a regular file", verify, folder / "outcomes/part-0")


def test_files_that_were_removed_on_purpose_are_not_missing(tmp_path: Path) -> None:
    folder = result_with_parts(tmp_path)
    storage.remove(folder / "outcomes/part-0")
    (folder / "outcomes/part-1").unlink()
    storage.note_missing_files(folder / "outcomes")  # what a resumed audit does
    storage.note_removal(folder / "artifacts/logits")
    shutil.rmtree(folder / "artifacts")
    assert check_files(folder).missing == []
    write_text(folder / "outcomes/part-0", "outcomes/part-0", checksum=True)
    write_text(folder / "artifacts/logits/part-0", "new", checksum=True)
    (folder / "outcomes/part-0").unlink()
    (folder / "artifacts/logits/checksums.txt").unlink()
    assert check_files(folder).missing == [folder / "artifacts/logits/checksums.txt", folder / "outcomes/part-0"]


def test_a_write_that_fails_before_the_rename_leaves_no_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(KeyboardInterrupt):
            write_text(tmp_path / "a", "content", checksum=True)
    assert check_files(tmp_path) == ([], [], [], [])


def test_a_writer_that_was_killed_before_the_rename_leaves_no_missing_file(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "content", checksum=True)
    (temporary := tmp_path / f".a.{storage._HOST}.abcd1234.tmp").write_text("")
    (tmp_path / "a").unlink()
    assert check_files(tmp_path).missing == []
    storage.remove_stale_temporaries(tmp_path)
    assert (temporary.exists(), check_files(tmp_path).missing) == (False, [])
