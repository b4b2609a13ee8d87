"""Exclusive ownership of the folder of a run or an audit by one process.

The owner locks the folder's file ``.owner`` and writes its process, host and a random token into it. The operating
system releases the lock of a process that dies, so a stale file never blocks. On a file system without locks, or one
that does not share them between machines, the last process to write its token owns the folder. `check` compares the
token before each rename, so a process that has lost the folder writes nothing more.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from classwise.core.errors import ClasswiseError

if sys.platform != "win32":
    import fcntl

OWNER = ".owner"
"""The file that the owner of a folder locks; `contents` omits it."""

_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_LOCKED = (errno.EACCES, errno.EAGAIN)
_owned: dict[Path, str] = {}
"""The token of each folder owned by this process."""


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Own a folder for the duration of the block.

    A missing folder is created, and removed at the end if it is still empty. A folder in which no file can be created
    is not owned: later writes into it fail with their own error.

    Raises:
        ClasswiseError: if another process owns the folder; the message names that process.
    """
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    handle = _locked(folder)
    if handle is None:
        yield
        return
    place = folder.resolve()
    _owned[place] = uuid.uuid4().hex
    try:
        owner = {
            "token": _owned[place],
            "process": os.getpid(),
            "host": platform.node(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(owner).encode(), 0)
        yield
    finally:
        if _owner_of(place).get("token") == _owned.pop(place):
            with contextlib.suppress(OSError):  # the folder was removed, or has become read-only
                (place / OWNER).unlink()
        os.close(handle)
        for empty in new:
            with contextlib.suppress(OSError):  # not empty: the usual case
                empty.rmdir()


def check(path: Path) -> None:
    """Check, before a file is renamed to ``path``, that this process still owns its folder.

    Raises:
        ClasswiseError: if another process owns the folder now.
    """
    if not _owned:
        return
    place = path.resolve()
    for folder in place.parents:
        if folder in _owned and (owner := _owner_of(folder)).get("token") != _owned[folder]:
            raise ClasswiseError(f"{folder} is now owned by {_name(owner)}; this process has written nothing since")


def contents(folder: Path) -> list[Path]:
    """List the entries of a folder without `OWNER`; empty if the folder does not exist."""
    return [path for path in folder.iterdir() if path.name != OWNER] if folder.is_dir() else []


def _locked(folder: Path) -> int | None:
    """Open and lock the owner file of a folder; None if it cannot be created.

    Raises:
        ClasswiseError: if another process owns the folder.
    """
    path = folder / OWNER
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        except OSError as error:
            if error.errno in _READ_ONLY:
                return None
            raise ClasswiseError(f"cannot write {path}: {error.strerror}; give another folder") from error
        try:
            _lock(handle)
        except OSError as error:
            owner = _owner_of(folder)
            # Without locks, the folder is known to be in use only if its owner runs on this machine.
            if error.errno in _LOCKED or _is_running(owner):
                os.close(handle)
                advice = "wait until it has ended, or give another folder"
                raise ClasswiseError(f"{folder} is in use by {_name(owner)}; {advice}") from error
        if os.fstat(handle).st_nlink:
            return handle
        os.close(handle)  # the previous owner removed the file after it was opened here


def _lock(handle: int) -> None:
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _owner_of(folder: Path) -> dict[str, Any]:
    """Read the owner file of a folder; empty if there is none, or it is being written."""
    try:
        owner = json.loads((folder / OWNER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _name(owner: dict[str, Any]) -> str:
    if not {"process", "host", "since"} <= owner.keys():
        return "another process"
    return f"process {owner['process']} on {owner['host']} (since {owner['since']})"


def _is_running(owner: dict[str, Any]) -> bool:
    """Whether the owner is known to be another running process of this machine."""
    process = owner.get("process")
    if owner.get("host") != platform.node() or not isinstance(process, int) or process == os.getpid():
        return False
    if sys.platform == "win32":  # where signal 0 is Ctrl-C
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
