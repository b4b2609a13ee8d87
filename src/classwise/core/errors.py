"""The one class of error that a user can cause."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

LONGEST = 1000
"""Letters of the longest message."""


def printable(text: str) -> str:
    """The text with control characters and invisible marks as escapes, so that a terminal only displays it."""
    if text.isprintable():
        return text
    shown = (letter.isprintable() or unicodedata.category(letter) == "Zs" for letter in text)
    return "".join(letter if plain else ascii(letter)[1:-1] for letter, plain in zip(text, shown, strict=True))


def one_line(message: str) -> str:
    """The message on one line: control characters written as escapes, the middle of a very long one left out."""
    line = printable(" ".join(message.split()))
    if len(line) > LONGEST:
        line = f"{line[: LONGEST * 2 // 3]} ... {line[-LONGEST // 4 :]}"
    return line


class ClasswiseError(ValueError):
    """An invalid value, file or combination of options, as one line that names it and what is accepted.

    The command line prints the line and exits with status 2.

    Example:
        >>> import classwise as cw
        >>> try:
        ...     cw.load_data("digitz")
        ... except cw.ClasswiseError as error:
        ...     print(error)
        unknown data set 'digitz'; did you mean 'digits'?
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class IncompleteError(ClasswiseError):
    """Images are not yet judged, so the asked number or verdict is unknown.

    The command line prints the line and exits with status 3.
    """


def unknown(kind: str, name: str, known: Iterable[str]) -> ClasswiseError:
    """The error for a name that is not known, with the nearest known one."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"
    return ClasswiseError(f"unknown {kind} {name!r}; {hint}")
