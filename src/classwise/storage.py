"""Files that are either whole or not there: write to a temporary name, then rename."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from classwise.errors import UserError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it is synced and renamed to ``path``, else removed.

    Raises:
        UserError: if the disk is full or the folder cannot be written.
    """
    target = Path(path)
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        temporary.chmod(0o644)
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        temporary.replace(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"no space left on the disk while writing {target}; free some and run again") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise UserError(f"cannot write {target}: {error.strerror}") from error
        raise
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        UserError: as `replacing` does.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
