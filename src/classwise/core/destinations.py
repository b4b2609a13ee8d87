"""Where a file is written: through symbolic links; into devices, FIFOs and open descriptors, never in their place."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
from pathlib import Path

from classwise.core.errors import ClasswiseError

_DESCRIPTORS = re.compile(r"/dev/fd|/proc/(\d+)(?:/task/\d+)?/fd")
"""The folders of open descriptors."""
_LINKS = 40
"""The number of links that the kernel follows."""
_REFUSED = {stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a block device"}


def destination(path: str | os.PathLike[str]) -> Path | int:
    """The file that a path leads to through symbolic links, or the number of an open descriptor.

    ``/dev/stdout`` and ``/dev/fd/3`` are descriptors even if they are redirected to a regular file: what the file holds
    already, and what is written to it later, is not ours to replace.

    Raises:
        ClasswiseError: if nothing can be written there: a folder, a socket, a block device, too many links.
    """
    place = Path(path)
    for _ in range(_LINKS):
        folder = _DESCRIPTORS.fullmatch(os.path.realpath(place.parent))
        if folder and place.name.isdecimal() and folder[1] in (None, str(os.getpid())):
            return int(place.name)
        if not place.is_symlink():
            break
        place = place.parent / place.readlink()
    else:
        raise ClasswiseError(f"cannot write {path}: too many levels of symbolic links; give another file")
    kind = _REFUSED.get(stat.S_IFMT(place.stat().st_mode)) if place.exists() else None
    if kind is not None:
        raise ClasswiseError(f"cannot write {path}: it is {kind}; give the name of a file")
    return place


def is_stream(place: Path | int) -> bool:
    """Whether a destination is written to directly: a character device, a FIFO or an open descriptor."""
    return isinstance(place, int) or (place.exists() and not place.is_file())


def is_stdout(path: str | os.PathLike[str]) -> bool:
    """Whether a path leads to this process's stdout."""
    return destination(path) == 1


def check_stream(place: Path | int) -> None:
    """Check that a stream can be written, as far as that shows without opening it.

    Raises:
        OSError: if the descriptor is not open, or the file may not be written.
    """
    if isinstance(place, int):
        os.fstat(place)
    elif not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def send(content: Path, place: Path | int) -> None:
    """Write the content of a file to a stream.

    Raises:
        ClasswiseError: if the reader of a FIFO closes it.
        BrokenPipeError: if that of a descriptor does.
        OSError: if it cannot be written; of a FIFO that no process reads at once (ENXIO), without waiting.
    """
    if isinstance(place, int):
        for printed in (sys.stdout, sys.stderr):
            printed.flush()  # what was printed before comes first
        descriptor = os.dup(place)
    else:
        descriptor = os.open(place, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        os.set_blocking(descriptor, True)
    try:
        with open(content, "rb") as source, open(descriptor, "wb") as stream:
            shutil.copyfileobj(source, stream)
    except BrokenPipeError as error:
        if isinstance(place, int):  # such as stdout into `head`
            raise
        raise ClasswiseError(f"cannot write {place}: its reader closed it; start one that reads to the end") from error


def permissions(place: Path) -> int:
    """The permissions of a file to be replaced; for a new one those of the umask."""
    if place.exists():
        return place.stat().st_mode & 0o777
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
