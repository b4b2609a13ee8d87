"""Exclusive ownership of the folder of a run, an audit or a task by one process.

The owner locks the folder's file ``.owner``, writes its process, host and a random token into it, and renews the
modification time of the file. `check` compares the token before each rename, so a process that has lost the folder
writes nothing more. Another process may own the folder if

- the owner ran on this machine and has ended, which the lock of the operating system shows, or its process id;
- the owner ran on another machine and has not renewed the file for `STALE_SECONDS`: some network file systems do not
  share locks between machines. Ages are differences of times of the file system, and a renewal is a changed time, so
  clocks that differ between machines have no effect; or
- the owner is an earlier attempt of the same job: an engine that restarts a job has given up its earlier attempt,
  which may still run on a machine that is cut off (`Attempt`).

Taking over the folder of an owner that has not released it logs a warning.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import platform
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.core.errors import ClasswiseError
from classwise.core.files.json_values import json_text
from classwise.core.files.reading import check_regular, fitting, open_regular, parse_json, read_bytes

if sys.platform != "win32":
    import fcntl

OWNER = ".owner"
"""The file that the owner of a folder locks; `contents` omits it."""
WAIT_SECONDS = 0.2
"""Time between two attempts to own a folder of another process."""
RENEWAL_SECONDS = 10.0
"""Time between two renewals of an owner."""
STALE_SECONDS = 60.0
"""An owner on another machine that has not renewed its file for this time has lost the folder."""
ATTEMPT = "CLASSWISE_ATTEMPT"
"""Environment variable: the job of an engine that this process belongs to, a space, and the number of the attempt."""

_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_LOCKED = (errno.EACCES, errno.EAGAIN)
_DIGITS = 18
"""The most digits of the number of an attempt."""
_owned: dict[Path, str] = {}
"""The token of each folder owned by this process."""

logger = logging.getLogger(__name__)


class Owner(TypedDict, total=False):
    """The content of `OWNER`; an owner that is writing it has none yet."""

    token: str
    process: int
    host: str
    since: str
    attempt: str | None


class Attempt(NamedTuple):
    """The attempt of an engine's job that a process belongs to.

    Attributes:
        job: an identifier that a restarted job keeps.
        number: increases with each attempt.

    Example:
        >>> Attempt("slurm-12_3", 2).variable
        'slurm-12_3 2'
        >>> Attempt.parse("slurm-12_3 2")
        Attempt(job='slurm-12_3', number=2)
    """

    job: str
    number: int

    @property
    def variable(self) -> str:
        """The value of the environment variable `ATTEMPT`."""
        return f"{self.job} {self.number}"

    @staticmethod
    def parse(variable: str) -> Attempt | None:
        """Read a value of the environment variable `ATTEMPT`; None if it is not one."""
        job, _, number = variable.rpartition(" ")
        return Attempt(job, int(number)) if job and number.isdecimal() and len(number) <= _DIGITS else None

    def replaces(self, owner: Owner) -> bool:
        """Whether the owner is an earlier attempt of the same job."""
        earlier = Attempt.parse(owner.get("attempt") or "")
        return earlier is not None and earlier.job == self.job and earlier.number < self.number


@contextmanager
def owned(folder: Path, attempt: Attempt | None = None, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Own a folder for the duration of the block.

    A missing folder is created, and removed at the end if it is still empty. A folder in which no file can be created
    is not owned: later writes into it fail with their own error. Waits for up to `STALE_SECONDS` to see whether an
    owner on another machine is running.

    Args:
        folder: the folder.
        attempt: the attempt of an engine's job; by default that of the environment variable `ATTEMPT`.
        waiting: if another process owns the folder, call this once, and wait until the folder is released.

    Raises:
        ClasswiseError: if another process owns the folder, without ``waiting``; the message names that process.
    """
    attempt = attempt or Attempt.parse(os.environ.get(ATTEMPT, ""))
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    handle = _acquired(folder, attempt, waiting)
    if handle is None:
        yield
        return
    place = folder.resolve()
    token = _owned[place] = uuid.uuid4().hex
    ended = threading.Event()
    renewal = threading.Thread(target=_renew, args=(place, token, handle, ended), name="ownership", daemon=True)
    try:
        owner = {
            "token": token,
            "process": os.getpid(),
            "host": platform.node(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "attempt": attempt.variable if attempt else None,
        }
        content = json_text(owner).encode()
        os.pwrite(handle, content, 0)
        os.ftruncate(handle, len(content))
        renewal.start()
        yield
    finally:
        ended.set()
        if renewal.ident is not None:
            renewal.join()
        if read_owner(place).get("token") == _owned.pop(place):
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
        if folder in _owned and (owner := read_owner(folder)).get("token") != _owned[folder]:
            raise ClasswiseError(f"{folder} is now owned by {_name(owner)}; this process has written nothing since")


def contents(folder: Path) -> list[Path]:
    """List the entries of a folder without `OWNER`; empty if the folder does not exist."""
    return [path for path in folder.iterdir() if path.name != OWNER] if folder.is_dir() else []


class FolderInUseError(ClasswiseError):
    """Another process owns a folder."""


def _acquired(folder: Path, attempt: Attempt | None, waiting: Callable[[], None] | None) -> int | None:
    """Open, and if possible lock, the owner file of a folder that no other process owns; None if it cannot be created.

    Raises:
        FolderInUseError: if another process owns the folder, without ``waiting``.
    """
    waited = False
    while True:
        handle = _opened(folder)
        if handle is None:
            return None
        try:
            _take(folder, handle, attempt)
        except BaseException as error:
            os.close(handle)
            if waiting is None or not isinstance(error, FolderInUseError):
                raise
            if not waited:
                waiting()
            waited = True
            time.sleep(WAIT_SECONDS)
            continue
        if os.fstat(handle).st_nlink:
            return handle
        os.close(handle)  # the previous owner removed the file after it was opened here


def _opened(folder: Path) -> int | None:
    path = folder / OWNER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_regular(path)
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    except OSError as error:
        if error.errno in _READ_ONLY:
            return None
        raise ClasswiseError(f"cannot write {path}: {error.strerror}; give another folder") from error


def _take(folder: Path, handle: int, attempt: Attempt | None) -> None:
    """Lock the owner file if the system has locks.

    Raises:
        FolderInUseError: if another process owns the folder.
    """
    refused: OSError | None = None
    try:
        lock(handle)
    except OSError as error:
        refused = error
    owner = read_owner(folder)
    if attempt and attempt.replaces(owner):
        _log_takeover(folder, owner, "an earlier attempt of this job")
    elif (refused and refused.errno in _LOCKED) or _is_running(folder, owner, locked=refused is None):
        advice = "wait until it has ended, or give another folder"
        raise FolderInUseError(f"{folder} is in use by {_name(owner)}; {advice}") from refused
    elif owner and os.fstat(handle).st_nlink:
        _log_takeover(folder, owner, "which has ended")


def _log_takeover(folder: Path, owner: Owner, reason: str) -> None:
    logger.warning("%s: taken over from %s, %s", folder, _name(owner), reason)


def lock(handle: int, *, wait: bool = False) -> None:
    """Lock an open file until it is closed or the process ends.

    Raises:
        OSError: if another process has the lock and ``wait`` is false, or the system has no file locks.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def read_owner(folder: Path) -> Owner:
    """Read the owner file of a folder; empty if there is none, it is being written, or it is damaged."""
    path = folder / OWNER
    try:
        return fitting(Owner, parse_json(read_bytes(path)), str(path))
    except ValueError:
        return {}


def _name(owner: Owner) -> str:
    if not {"process", "host", "since"} <= owner.keys():
        return "another process"
    return f"process {owner['process']} on {owner['host']} (since {owner['since']})"


def _is_running(folder: Path, owner: Owner, *, locked: bool) -> bool:
    """Whether the owner of a folder runs, if this process has the lock of the folder, or the folder has no locks."""
    if not owner:
        return False
    if owner.get("host") != platform.node():
        return _is_renewed(folder, owner)
    if locked and not owner.get("attempt"):  # a later attempt may own a folder that its earlier attempt has locked
        return False
    if owner.get("process") == os.getpid():
        return folder.resolve() in _owned
    return _is_process(owner.get("process")) and _age(folder) < STALE_SECONDS


def _is_process(number: int | None) -> bool:
    """Whether a process of this machine has a number."""
    if number is None or number < 1 or sys.platform == "win32":  # where signal 0 is Ctrl-C
        return False
    try:
        os.kill(number, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _is_renewed(folder: Path, owner: Owner) -> bool:
    """Wait until the owner of a folder renews its file (True), releases it, or becomes stale (False)."""
    last = _renewed_at(folder)
    deadline = time.monotonic() + STALE_SECONDS - _age(folder)
    if time.monotonic() < deadline:
        logger.warning("%s: waiting for at most %.0f s: is %s running?", folder, STALE_SECONDS, _name(owner))
    while time.monotonic() < deadline:
        time.sleep(min(RENEWAL_SECONDS / 10, 1.0))
        current = read_owner(folder)
        if not current or current.get("token") != owner.get("token"):
            return bool(current)
        if _renewed_at(folder) != last:
            return True
    return False


def _renewed_at(folder: Path) -> float:
    """The modification time of the owner file; opening the file makes network file systems ask the server for it."""
    with contextlib.suppress(OSError, ClasswiseError), open_regular(folder / OWNER) as file:
        return os.fstat(file.fileno()).st_mtime
    return 0.0


def _age(folder: Path) -> float:
    """Seconds since the owner file was renewed, by the clock of the file system."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        return os.fstat(probe.fileno()).st_mtime - _renewed_at(folder)


def _renew(folder: Path, token: str, handle: int, ended: threading.Event) -> None:
    """Renew the owner file until this process releases or loses the folder; try again to lock it if it was locked."""
    while not ended.wait(RENEWAL_SECONDS):
        if (owner := read_owner(folder)).get("token") != token:
            logger.warning("%s is now owned by %s; this process writes nothing more there", folder, _name(owner))
            return
        with contextlib.suppress(OSError):
            os.utime(handle if os.utime in os.supports_fd else folder / OWNER)
        with contextlib.suppress(OSError):  # still locked by the earlier attempt, or a file system without locks
            lock(handle)
