"""One owner at a time for the folder of a run or an audit.

The owner holds a lock on the folder's file ``.owner`` and writes into it who it is, with a token of its own. The system
drops the lock of a process that dies, so a file that it left never blocks. Where a file system has no locks, or does
not share them between machines, the last one to write its token owns the folder: `check` compares the token before
each rename, so a process that has lost the folder writes nothing beside its successor.
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
"""The file of a folder that is locked by its owner; no part of what the folder holds."""

_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_HELD = (errno.EACCES, errno.EAGAIN)
_owned: dict[Path, str] = {}
"""The token of each folder that this process owns."""


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Own a folder; it is made if it does not exist, and removed at the end if it is new and still empty.

    A folder in which no file can be created is not owned: what is written there fails by itself.

    Raises:
        ClasswiseError: if another process owns the folder; the line names it.
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
    """Check, before a file is renamed to ``path``, that this process still owns the folder that it is for.

    Raises:
        ClasswiseError: if another process has taken the folder over.
    """
    if not _owned:
        return
    place = path.resolve()
    for folder in place.parents:
        if folder in _owned and (owner := _owner_of(folder)).get("token") != _owned[folder]:
            raise ClasswiseError(f"{folder} now belongs to {_name(owner)}; this process has written nothing since then")


def contents(folder: Path) -> list[Path]:
    """What a folder holds, without the file of its owner; nothing if there is no such folder."""
    return [path for path in folder.iterdir() if path.name != OWNER] if folder.is_dir() else []


def _locked(folder: Path) -> int | None:
    """The open and locked file of a folder's owner; None where none can be created.

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
            raise ClasswiseError(f"cannot write {path}: {error.strerror}; give another place") from error
        try:
            _lock(handle)
        except OSError as error:
            owner = _owner_of(folder)
            # Without locks, only a living process of this machine is known to own the folder.
            if error.errno in _HELD or _lives(owner):
                os.close(handle)
                advice = "wait until it has ended, or give another folder"
                raise ClasswiseError(f"{folder} is in use by {_name(owner)}; {advice}") from error
        if os.fstat(handle).st_nlink:
            return handle
        os.close(handle)  # its owner removed the file after it was opened here


def _lock(handle: int) -> None:
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _owner_of(folder: Path) -> dict[str, Any]:
    """What the owner of a folder has written; nothing if there is none, or it is being written."""
    try:
        found = json.loads((folder / OWNER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _name(owner: dict[str, Any]) -> str:
    if not {"process", "host", "since"} <= owner.keys():
        return "another process"
    return f"process {owner['process']} on {owner['host']} (since {owner['since']})"


def _lives(owner: dict[str, Any]) -> bool:
    """Whether the owner is known to be another living process of this machine."""
    process = owner.get("process")
    if owner.get("host") != platform.node() or not isinstance(process, int) or process == os.getpid():
        return False
    if sys.platform == "win32":  # there signal 0 is Ctrl-C
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
