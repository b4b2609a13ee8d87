"""The reader and the writer of all CSV files.

In a written file every field with a separator or a line break is quoted, and no text is a formula.

A spreadsheet starts a row at any line break outside of quotes, and evaluates a cell that begins with ``= + - @``. Names
of classes, models and methods come from users, so each text is escaped, also after a line break within a cell.
"""

from __future__ import annotations

import csv
import io
import math
import numbers
import os
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import write_text

_BREAKS = "\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
"""Line breaks, as of `str.splitlines`."""
_BLANK = r"';\s\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff"
"""Characters that a reader may remove before it evaluates a cell, and those that `spreadsheet_text` inserts."""
_SIGNS = "=+\\-@\uff1d\uff0b\uff0d\uff20"
"""Characters that begin a formula, also at full width."""
FORMULA = re.compile(rf"[{_BLANK}]*[{_SIGNS}]|'*[\t\r\n]")
"""Start of a cell that a spreadsheet would evaluate."""
_BEFORE_SIGN = re.compile(rf"[{_BLANK}]++(?:([{_SIGNS}])|)")
"""The characters before one that begins a formula, if it follows; each is matched once, so long texts are fast."""
_START = rf"(?<=[{_BREAKS};\t])(?!(?<=\r)\n)"
"""Start of a cell after a line break or a separator."""
_QUOTED = re.compile(rf"[\",;'\t{_BREAKS}\x00-\x1f\x7f-\x9f\ufeff]|^\s|\s$")
"""Text that is quoted."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Characters that UTF-8 cannot represent."""


def spreadsheet_text(text: str) -> str:
    r"""Escape text that a spreadsheet would evaluate as a formula.

    An apostrophe is put before ``= + - @`` and the white space before it, where these are at the start of the text, or
    after a line break, a tab or a semicolon within it; and before a tab or a line break at the start. `original_text`
    is the inverse.

    Example:
        >>> spreadsheet_text("=1+1"), spreadsheet_text("cat\r=1+1"), spreadsheet_text("cat-dog")
        ("'=1+1", "cat\r'=1+1", 'cat-dog')
    """
    escaped = _BEFORE_SIGN.sub(lambda run: re.sub(_START, "'", run[0]) if run[1] else run[0], text)
    return f"'{escaped}" if FORMULA.match(text) else escaped


def original_text(text: str) -> str:
    r"""Invert `spreadsheet_text`.

    Example:
        >>> original_text("cat\r'=1+1")
        'cat\r=1+1'
    """
    text = text[1:] if text.startswith("'") and FORMULA.match(text) else text
    return _BEFORE_SIGN.sub(lambda run: re.sub(f"{_START}'", "", run[0]) if run[1] else run[0], text)


def csv_columns(text: str, where: str) -> dict[str, list[str]]:
    r"""Parse CSV with a line of column names: the cells of each column as text; empty lines are skipped.

    Args:
        text: the content of the file; a byte order mark is ignored.
        where: the prefix of an error message.

    Raises:
        ClasswiseError: without a line of names, for a name that occurs twice, a row with another number of cells, or
            a quotation mark at a wrong place.

    Example:
        >>> csv_columns("file_name,camera\ncat/1.png,north\ncat/2.png,\n", "metadata.csv")
        {'file_name': ['cat/1.png', 'cat/2.png'], 'camera': ['north', '']}
    """
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    rows = list[list[str]]()
    try:
        for row in filter(None, reader):
            rows.append(row)
            if len(row) != len(rows[0]):
                raise ClasswiseError(f"{where}, line {reader.line_num}: {len(row)} cells, expected {len(rows[0])}")
    except csv.Error as error:
        raise ClasswiseError(f"{where}, line {reader.line_num}: {error}") from error
    names, *cells = rows or [[]]
    if not names or len({*names}) < len(names):
        raise ClasswiseError(f"{where}: columns {', '.join(names) or 'none'}; expected a first line of distinct names")
    return {name: [row[place] for row in cells] for place, name in enumerate(names)}


def csv_text(frame: pd.DataFrame, *, float_format: str | None = "%.6g", raw: bool = False) -> str:
    r"""Format a frame as CSV: a line of column names and a line per row, without the index.

    Numbers are not quoted, and missing values are empty.

    Args:
        frame: the table.
        float_format: format of floats; None: all digits.
        raw: leave text that a spreadsheet would evaluate unchanged.

    Example:
        >>> csv_text(pd.DataFrame({"class": ["a,b", "=c"], "change": [-0.5, float("nan")]}))
        'class,change\n"a,b",-0.5\n"\'=c",\n'
    """

    def field(value: object) -> str:
        if value is None or value is pd.NA or value is pd.NaT:
            return ""
        if isinstance(value, numbers.Number) and not isinstance(value, complex):
            if not isinstance(value, numbers.Real) or isinstance(value, numbers.Integral):
                return str(value)
            return "" if math.isnan(value) else repr(float(value)) if float_format is None else float_format % value
        text = _SURROGATE.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", str(value))
        text = text if raw else spreadsheet_text(text)
        return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text

    def line(values: Iterable[object]) -> str:
        return ",".join(map(field, values)) or '""'  # a line without a field would be no row

    columns = [frame.iloc[:, place].tolist() for place in range(frame.shape[1])]
    names = [str(name) for name in frame.columns]
    return "".join(f"{line(values)}\n" for values in (names, *zip(*columns, strict=True)))


def write_csv(
    path: str | os.PathLike[str], frame: pd.DataFrame, *, float_format: str | None = "%.6g", raw: bool = False
) -> Path:
    """Write a frame as a CSV file atomically; see `csv_text`.

    Returns:
        The file.

    Raises:
        ClasswiseError: if the file cannot be written.
    """
    write_text(path, csv_text(frame, float_format=float_format, raw=raw))
    return Path(path)
