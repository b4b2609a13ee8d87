"""Output to paths that are not regular files: links, devices, FIFOs, descriptors, sockets."""

from __future__ import annotations

import os
import select
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from classwise.core.files.destinations import is_stdout
from classwise.core.files.storage import check_writable, write_text
from tests.refusals import check_refused


def test_a_link_remains_and_its_target_is_replaced(tmp_path: Path) -> None:
    """Also a chain of relative links, and one to a file that does not exist yet."""
    (tmp_path / "target").write_text("old")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "one").symlink_to("../target")
    (tmp_path / "two").symlink_to("links/one")
    (tmp_path / "dangling").symlink_to("new/file")
    for link in ("two", "dangling"):
        check_writable(tmp_path / link)
        write_text(tmp_path / link, "new")
        assert (tmp_path / link).is_symlink()
    assert (tmp_path / "target").read_text() == (tmp_path / "new" / "file").read_text() == "new"
    assert (tmp_path / "links" / "one").is_symlink()
    assert not list(tmp_path.rglob(".*"))


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for write in (check_writable, lambda path: write_text(path, "x")):
        check_refused("symbolic links", write, tmp_path / "a")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_is_written_to(tmp_path: Path) -> None:
    write_text("/dev/null", "x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    link = tmp_path / "link"
    link.symlink_to("/dev/full")
    check_writable(link)
    for path in ("/dev/full", link):
        check_refused("no space left", write_text, path, "x")
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)
    assert link.is_symlink()


def test_a_fifo_is_written_to_and_one_without_a_reader_is_refused_at_once(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    check_writable(fifo)
    check_refused("no process reads", write_text, fifo, "x")
    text, received = "x" * 300_000, list[str]()  # more than a pipe holds
    descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    def read() -> None:  # a read before there is a writer would be at the end of the file
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while sum(map(len, received)) < len(text) and poll.poll(10_000):
            received.append(os.read(descriptor, 65_536).decode())
        os.close(descriptor)

    reader = threading.Thread(target=read)
    reader.start()
    write_text(fifo, text)
    reader.join(10)
    assert "".join(received) == text
    assert fifo.is_fifo()


def test_sockets_and_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for name, kind in (("socket", "a socket"), (".", "a folder")):
            for write in (check_writable, lambda path: write_text(path, "x")):
                check_refused(kind, write, name)
    assert stat.S_ISSOCK(Path("socket").stat().st_mode)


def test_a_redirected_stdout_is_written_to_not_replaced(tmp_path: Path) -> None:
    """As with the shell's ``>>``: earlier content remains, in the order of writing."""
    code = (
        "import sys; from classwise.core.files.storage import write_text\n"
        "print('first'); write_text(sys.argv[1], 'second\\n'); print('third')"
    )
    log = tmp_path / "log"
    log.write_text("before\n")
    for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        with log.open("a") as file:
            subprocess.run([sys.executable, "-c", code, name], stdout=file, check=True)
    assert log.read_text() == "before\n" + "first\nsecond\nthird\n" * 3
    assert is_stdout("/dev/stdout")
    assert not is_stdout(log)


def test_a_closed_descriptor_is_refused() -> None:
    check_refused("cannot write /dev/fd/987", check_writable, "/dev/fd/987")


def test_permissions_are_preserved_and_those_of_a_new_file_follow_the_umask(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("old")
    kept.chmod(0o640)
    before = os.umask(0o027)
    try:
        write_text(kept, "new")
        write_text(tmp_path / "new", "new")
    finally:
        os.umask(before)
    kept.chmod(0o604)
    write_text(kept, "again")
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("kept", "new")] == [0o604, 0o640]
