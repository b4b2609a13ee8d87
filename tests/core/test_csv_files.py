"""CSV files: every row has its cells for any reader, and no text is evaluated by a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import hypothesis
import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from classwise.core.errors import ClasswiseError
from classwise.core.files.csv_files import csv_columns, csv_text, original_text, spreadsheet_text, write_csv

SPECIAL = "=+-@'\"\t\r\n;,|a1 \x00\x07\x0b\x0c\x1b\x1c\x85\u00a0\u200b\u202e\u2028\u2029\ufeff\uff1d"
TEXTS = st.text(st.sampled_from(SPECIAL) | st.characters(exclude_categories=["Cs"]), max_size=8)
CELLS = TEXTS | st.floats(allow_nan=False) | st.integers(-(2**50), 2**50)
BREAKS = "[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029\t;]"
HIDDEN = "\x00\x07\x1b\u200b\u202e\ufeff"


def parsed(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def begins_a_formula(cell: str) -> bool:
    """Whether a spreadsheet could evaluate a cell, or what follows a line break or a separator in it."""
    starts = [re.sub(f"^[\\s{HIDDEN}]+", "", part) for part in re.split(BREAKS, cell)]
    return cell[:1] in {*"\t\r\n"} or any(start[:1] in {*"=+-@\uff1d"} for start in starts if start)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=4), st.tuples(TEXTS, TEXTS))
@example([('x\r=HYPERLINK("http://x")', "a,b")], ("=name", "value"))
@example([("", "")], ("", "\ufeff=1"))
@example([("a\r\n\r\n-1", "\u2028@x")], ("a", "b"))
def test_rows_and_cells_are_read_back_and_none_is_a_formula(
    rows: list[tuple[object, object]], names: tuple[str, str]
) -> None:
    frame = pd.DataFrame(rows, dtype=object)
    frame.columns = pd.Index(names)
    safe, raw = (parsed(csv_text(frame, float_format=None, raw=raw)) for raw in (False, True))
    for written, unescaped, row in zip(safe, raw, [names, *rows], strict=True):
        for cell, other, value in zip(written, unescaped, row, strict=True):
            if isinstance(value, str):
                assert original_text(cell) == other == value
                assert not begins_a_formula(cell)
            else:
                assert float(cell) == float(other) == value


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_a_column_alone_has_a_row_for_each_cell(texts: list[str]) -> None:
    rows = parsed(csv_text(pd.DataFrame({"name": pd.Series(texts, dtype=object)})))
    assert [original_text(cell) for (cell,) in rows[1:]] == texts


@given(st.lists(TEXTS, min_size=1, max_size=3), st.tuples(TEXTS, TEXTS))
@example([""], ("", "\ufeff"))
def test_columns_are_read_back(texts: list[str], names: tuple[str, str]) -> None:
    names = ("\ufeff" + names[0], names[1])  # the first byte order mark is removed
    hypothesis.assume(len({names[0], names[0][1:], names[1]}) == 3)
    frame = pd.DataFrame({name: pd.Series(texts, dtype=object) for name in names})
    read = csv_columns(csv_text(frame, raw=True).replace('"\ufeff', '\ufeff"', 1), "here")
    assert read == {names[0][1:]: texts, names[1]: texts}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "here: columns none; expected a first line of distinct names"),
        ("a,b,a\n", "here: columns a, b, a; expected a first line of distinct names"),
        ("a,b\n1,2\n\n3\n", "here, line 4: 1 cells, expected 2"),
        ('a,b\n"1"2,3\n', "here, line 2: ',' expected after '\"'"),
        ('a,b\n1,"2\n', "here, line 2: unexpected end of data"),
    ],
)
def test_a_table_that_cannot_be_parsed_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ClasswiseError) as caught:
        csv_columns(text, "here")
    assert str(caught.value) == message


@given(TEXTS)
def test_no_line_break_is_outside_of_quotes(text: str) -> None:
    """Also for readers whose line breaks are those of `str.splitlines`."""
    unquoted = re.sub(r'"(?:[^"]|"")*"', "", csv_text(pd.DataFrame({"name": [text], "value": [1]}, dtype=object)))
    assert len(unquoted.splitlines()) == 2


def test_numbers_stay_numbers_and_missing_values_are_empty() -> None:
    frame = pd.DataFrame(
        {
            "=class": ["-1", "b", None],
            "value": [-0.5, np.nan, -np.inf],
            "n": [-3, 4, 5],
            "found": [True, False, None],
        }
    )
    assert csv_text(frame) == '"\'=class",value,n,found\n"\'-1",-0.5,-3,True\nb,,4,False\n,-inf,5,\n'
    assert csv_text(pd.DataFrame({"third": [1 / 3]}), float_format="%.2f") == "third\n0.33\n"
    assert csv_text(pd.DataFrame({"third": [1 / 3]}), float_format=None) == f"third\n{1 / 3!r}\n"


@pytest.mark.parametrize("text", ["\n" * 200_000, ";" * 200_000 + "=", "a\r\n" * 100_000, "'" * 200_000])
def test_long_texts_take_linear_time(text: str) -> None:
    assert original_text(spreadsheet_text(text)) == text


def test_a_file_is_utf_8_with_line_feeds(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "new" / "names.csv", pd.DataFrame({"name": pd.Series(["é", "\ud800"], dtype=object)}))
    assert file.read_bytes() == "name\né\n⟨U+D800⟩\n".encode()


def test_there_is_no_other_writer_and_no_other_reader_in_the_package() -> None:
    root = Path(__file__).parents[2]
    sources = [path for folder in ("src", "benchmarks", "tools") for path in (root / folder).rglob("*.py")]
    assert len(sources) > 300
    writer, reader = re.compile(r"\.to_csv\(|csv\.(Dict)?[Ww]riter"), re.compile(r"read_csv\(|csv\.(Dict)?[Rr]eader")
    assert [path for path in sources if writer.search(path.read_text(encoding="utf-8"))] == []
    readers = {path.name for path in (root / "src").rglob("*.py") if reader.search(path.read_text(encoding="utf-8"))}
    assert readers == {"csv_files.py"}
