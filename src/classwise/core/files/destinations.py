"""Destinations of output: symbolic links are followed; devices, FIFOs and open descriptors are never replaced."""

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
"""The folders of open file descriptors."""
_LINKS = 40
"""The maximal number of symbolic links that the kernel follows."""
_REFUSED = {stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a block device"}


def destination(path: str | os.PathLike[str]) -> Path | int:
    """Resolve the symbolic links of a path, to a file or to the number of an open descriptor.

    ``/dev/stdout`` and ``/dev/fd/3`` are descriptors even if they are redirected to a regular file, because earlier and
    later content of that file must not be replaced.

    Raises:
        ClasswiseError: for a folder, a socket, a block device, or too many links.
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
    """Check that a stream can be written, as far as that is possible without opening it.

    Raises:
        OSError: if the descriptor is not open, or the file is not writable.
    """
    if isinstance(place, int):
        os.fstat(place)
    elif not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def send(content: Path, place: Path | int) -> None:
    """Copy a file to a stream.

    Raises:
        ClasswiseError: if the reader of a FIFO closes it.
        BrokenPipeError: if the reader of a descriptor closes it.
        OSError: if the stream cannot be written; ENXIO, without waiting, if no process reads the FIFO.
    """
    if isinstance(place, int):
        for printed in (sys.stdout, sys.stderr):
            printed.flush()  # earlier output comes first
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
        raise ClasswiseError(f"cannot write {place}: its reader closed it before the end of the output") from error


def permissions(place: Path) -> int:
    """The permissions of an existing file; for a new file those of the umask."""
    if place.exists():
        return place.stat().st_mode & 0o777
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
