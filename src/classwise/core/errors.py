"""Errors caused by invalid input, the formatting of their messages, and warnings."""

from __future__ import annotations

import difflib
import errno
import functools
import os
import re
import shlex
import unicodedata
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

LONGEST = 1000
"""The maximal length of a message in characters."""
MAX_LISTED = 20
"""The number of known names up to which an error for an unknown name lists all."""
NEAREST = 5
"""The number of names that it lists otherwise."""

_OUT_OF_MEMORY = re.compile(
    r"out of memory|not enough memory|allocate memory|bad_alloc|could not create a (memory|primitive)"
    r"|start new thread|error return without exception set|failed to map segment from shared object$"
)
"""Messages of torch, oneDNN, Python and the dynamic linker about a lack of memory, also for a thread."""


def printable(text: str) -> str:
    """Escape control and invisible characters, so that the text cannot control a terminal."""
    if text.isprintable():
        return text
    plain = (char.isprintable() or unicodedata.category(char) == "Zs" for char in text)
    return "".join(char if shown else ascii(char)[1:-1] for char, shown in zip(text, plain, strict=True))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, also of a library in C, means that the memory is exhausted.

    Example:
        >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: not enough memory")), is_out_of_memory(ValueError("x"))
        (True, False)
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError | SystemError | ImportError) and _OUT_OF_MEMORY.search(str(error)) is not None


def quoted(path: object) -> str:
    """A path as a word of a command, in quotation marks if it needs them.

    Example:
        >>> quoted("runs/at"), quoted("my audit")
        ('runs/at', "'my audit'")
    """
    return shlex.quote(str(path))


def one_line(message: str) -> str:
    """Format a message as one line: control characters are escaped, the middle of a very long message is omitted."""
    line = printable(" ".join(message.split()))
    if len(line) > LONGEST:
        line = f"{line[: LONGEST * 2 // 3]} ... {line[-LONGEST // 4 :]}"
    return line


class ClasswiseError(ValueError):
    """An invalid value, file or combination of options. The message is one line: the value and what is accepted.

    The command line prints the message and exits with status 2.

    Example:
        >>> from classwise.core.errors import unknown
        >>> print(unknown("attack", "pdg", ["pgd", "apgd"]))
        unknown attack 'pdg'; did you mean 'pgd'? Known: apgd, pgd
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def first_line(error: BaseException) -> str:
    """The first line of an error's message; of an error in TorchScript the last one, which has the cause."""
    lines = str(error).strip().splitlines() or [""]
    return lines[-1 if "failed in the TorchScript interpreter" in lines[0] else 0]


class IncompleteError(ClasswiseError):
    """Attacks have not yet run on all images, so the requested number or verdict is unknown.

    The command line prints the message and exits with status 3.
    """


class ArgumentError(ClasswiseError):
    """A value that an argument of a function does not accept; the message begins with ``FUNCTION(): ``.

    The command line and plans print the rest, since their options are named after the arguments.
    """

    @property
    def without_function(self) -> str:
        """The message without the name of the function."""
        return str(self).partition("(): ")[2]


class DataNotFoundError(ClasswiseError):
    """The files of a named data set are in none of the data directories, and could not be downloaded."""


def did_you_mean(path: str | os.PathLike[str]) -> str:
    """The hint for a path that does not exist: ``; did you mean PATH?``, or empty if nothing has a similar name.

    Each missing part is compared with its neighbours: with folders, or, if it is the end of a path with a suffix, with
    files of this suffix, then with all files, then with folders.
    """
    whole = Path(path).expanduser()
    try:
        missing = next(place for place in reversed((whole, *whole.parents)) if not place.exists())
        neighbours = [neighbour for neighbour in missing.parent.iterdir() if not neighbour.name.startswith(".")]
        kinds: tuple[Callable[[Path], bool], ...] = (Path.is_dir,)
        if missing == whole and whole.suffix:
            kinds = (lambda file: file.suffix == whole.suffix and file.is_file(), Path.is_file, Path.is_dir)
        for is_kind in kinds:
            found = {neighbour.name.casefold(): neighbour for neighbour in sorted(neighbours) if is_kind(neighbour)}
            if near := difflib.get_close_matches(missing.name.casefold(), found, n=1):
                corrected = found[near[0]] / whole.relative_to(missing)
                hint = "" if corrected.exists() else did_you_mean(corrected)
                return hint or f"; did you mean {corrected if corrected.exists() else found[near[0]]}?"
    except (StopIteration, OSError, ValueError):  # the path exists, the folder cannot be listed, or it has a NUL
        pass
    return ""


def unknown(kind: str, name: str, known: Iterable[str], prefix: str = "", owner: str = "") -> ClasswiseError:
    """The error for an unknown name, which suggests the nearest known name and lists the known names.

    Of more than `MAX_LISTED` names, only the nearest ones are listed, or all if none is near.

    Args:
        kind: what the name should name, such as ``field``.
        name: the unknown name.
        known: the known names.
        prefix: text before each name.
        owner: what has the known names, such as ``attack 'pgd'``.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=NEAREST, cutoff=0.5)
    listed = ", ".join(prefix + name for name in names) or "none"
    hint = f"known: {listed}"
    if near:
        few = len(names) <= MAX_LISTED
        of_many = f"Nearest of {len(names):,} known: {', '.join(prefix + name for name in near)}"
        hint = f"did you mean {prefix + near[0]!r}? {f'Known: {listed}' if few else of_many}"
    missing = f"{owner} has no {kind}" if owner else f"unknown {kind}"
    return ClasswiseError(f"{missing} {prefix + name!r}; {hint}")


@functools.cache
def warn_once(text: str) -> None:
    """Emit a `UserWarning` once per process and text."""
    warnings.warn(text, UserWarning, stacklevel=3)
