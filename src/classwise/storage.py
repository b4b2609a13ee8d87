"""Files that are either whole or not there: write to a temporary name, then rename."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from classwise.errors import UserError

_REFUSALS = (
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)
"""What the system answers where a file cannot be made."""


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it is synced and renamed to ``path``, else removed.

    Raises:
        UserError: if the disk is full or the file cannot be written there.
    """
    target = Path(path)
    temporary: Path | None = None
    try:
        with _explained(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
            os.close(handle)
            temporary = Path(name)
            temporary.chmod(0o644)
            yield temporary
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
            temporary.replace(target)
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str]) -> None:
    """See, before long work, that a file can be made under ``path``; nothing is left there.

    Raises:
        UserError: as `replacing` does.
    """
    target = Path(path)
    with _explained(target):
        place = next(folder for folder in target.absolute().parents if folder.exists())
        Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=place)).rmdir()


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    """What the system says when a file cannot be written, in one line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"no space left on the disk while writing {target}; free some and run again") from error
        if error.errno in _REFUSALS:
            raise UserError(f"cannot write {target}: {error.strerror}; give another place") from error
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        UserError: as `replacing` does.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
