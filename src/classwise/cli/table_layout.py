"""Layout of a table on a terminal: columns are dropped, or rows are stacked, before a number or a name is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NARROWEST_TEXT = 16
"""Number of characters to which a column of text may be narrowed before a column is dropped."""
FRAME = 3
"""Number of characters that a drawn table adds to each column; one more closes the table."""


class Layout(NamedTuple):
    """The columns of a table that are shown.

    Args:
        places: positions of the columns.
        widths: their widths in characters; empty if each row is stacked instead, one line per cell.
    """

    places: tuple[int, ...]
    widths: tuple[int, ...]


def fit(rows: Sequence[Sequence[str]], available: int, *, text: Sequence[bool], optional: Sequence[int]) -> Layout:
    """Fit a table into a width.

    Columns of text are narrowed first, since their cells continue on the next line. Then optional columns are dropped,
    the first named first. A table that is still too wide is stacked, with all of its columns.

    Args:
        rows: the cells of each row; the first row is the heads. A head continues on the next line between words.
        available: width of the terminal in characters.
        text: whether each column is text; cells of other columns stay on one line.
        optional: positions of the columns that may be dropped.

    Returns:
        The columns to show, and their widths.
    """
    natural = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    least = [
        min(width, NARROWEST_TEXT) if is_text else max(min(_longest_word(head), NARROWEST_TEXT), *map(_width, cells), 0)
        for (head, *cells), width, is_text in zip(zip(*rows, strict=True), natural, text, strict=True)
    ]
    places = list(range(len(natural)))
    for dropped in (None, *optional):
        places = [place for place in places if place != dropped]
        room = available - FRAME * len(places) - 1
        if sum(least[place] for place in places) <= room:
            return Layout(tuple(places), _narrowed(places, natural, least, room))
    return Layout(tuple(range(len(natural))), ())


def _narrowed(places: Sequence[int], natural: Sequence[int], least: Sequence[int], room: int) -> tuple[int, ...]:
    """The natural widths, of which the widest that can be narrowed is, until all fit."""
    widths = {place: natural[place] for place in places}
    while sum(widths.values()) > room:
        widest = max((place for place in places if widths[place] > least[place]), key=widths.__getitem__)
        widths[widest] -= 1
    return tuple(widths.values())


def _longest_word(text: str) -> int:
    return max(map(_width, text.split()), default=0)


def _width(text: str) -> int:
    """Number of terminal cells."""
    from rich.cells import cell_len

    return cell_len(text)
