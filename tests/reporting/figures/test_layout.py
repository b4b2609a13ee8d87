"""Titles, legends and names stay inside their figures, in the wide and in the narrow layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import pytest

from classwise.reporting.figures.bars import class_bars
from classwise.reporting.figures.curves import class_curves
from classwise.reporting.figures.dots import Value, dot_rows
from classwise.reporting.figures.heatmap import Confusion, heatmap
from classwise.reporting.figures.layout import Key, legend, title_lines
from classwise.reporting.figures.ranges import range_bars
from classwise.reporting.figures.strip import class_strip
from classwise.reporting.svg import NARROW, Drawing, Group, Label, Mark, shorten, width_of
from classwise.stats.counts import ClassCounts

NAMES = ("a class whose name has forty characters.", "W" * 40, "猫" * 40, "cat")
COUNTS = ClassCounts(np.full(4, 50), np.array([10, 48, 30, 0]))
VALUES = [[Value(share, share - 0.1, share + 0.1, 50)] * 2 for share in (0.2, 0.96, 0.6, 0.1)]
MATRIX = np.array([[10, 40, 0, 0], [2, 48, 0, 0], [0, 0, 30, 20], [50, 0, 0, 0]])
DRAWINGS: dict[str, Callable[[float | None], Drawing]] = {
    "bars": lambda width: class_bars(NAMES, dict.fromkeys(("clean", "pgd", NAMES[0]), COUNTS), range(4), width=width),
    "strip": lambda width: class_strip(NAMES, COUNTS, "under every attack", width=width),
    "ranges": lambda width: range_bars("Bounds", NAMES, [0.1, 0.2, 0, 0.9], [0.4, 0.2, 1, 1], width=width),
    "dots": lambda width: dot_rows(NAMES[0], NAMES, NAMES[:2], VALUES, width=width),
    "rates": lambda width: heatmap(Confusion(MATRIX, NAMES), "rates", under=f"under {NAMES[0]}", width=width),
    "errors": lambda width: heatmap(Confusion(MATRIX, NAMES), "errors", width=width),
    "curves": lambda width: class_curves(
        pd.DataFrame({label: [0.1 * label, 0.2 * label] for label in range(4)}, index=[1, 2]), NAMES, NAMES[0]
    ),
}


def labels(marks: list[Mark]) -> Iterator[Label]:
    for mark in marks:
        if isinstance(mark, Group):
            yield from labels(list(mark.marks))
        elif isinstance(mark, Label):
            yield mark


@pytest.mark.parametrize("width", [None, NARROW, 320.0, 573.0])
@pytest.mark.parametrize("name", DRAWINGS)
def test_texts_stay_inside_the_figure(name: str, width: float | None) -> None:
    """On a page, on a narrow screen, and printed with the width of a column and of a text (240 and 430 points)."""
    drawing = DRAWINGS[name](width)
    if width is not None and name != "curves":  # one panel, whose width is fixed
        assert drawing.width <= width
    for label in labels(drawing.marks):
        wide = width_of(label.text, label.size, bold=label.bold)
        before = {"start": 0.0, "middle": wide / 2, "end": wide}[label.anchor]
        if label.angle == 0:
            assert label.x - before >= -0.5, label
            assert label.x - before + wide <= drawing.width + 0.5, label
        elif label.angle == -90:
            assert label.y - (wide - before) >= 0, label
        assert 0 < label.y <= drawing.height, label


@pytest.mark.parametrize("name", ["bars", "strip", "ranges", "dots", "rates", "errors"])
def test_titles_have_units(name: str) -> None:
    drawing = DRAWINGS[name](None)
    title = " ".join(mark.text for mark in drawing.marks if isinstance(mark, Label) and mark.bold and mark.size == 13)
    assert drawing.label in title
    if name not in {"ranges", "dots"}:  # whose callers give the title
        assert "percent" in title or "number of" in title


def test_a_title_is_wrapped_between_words() -> None:
    marks, below = title_lines("accuracy under every attack together, percent", 200)
    lines = [mark.text for mark in marks if isinstance(mark, Label)]
    assert len(lines) == 2
    assert " ".join(lines) == "accuracy under every attack together, percent"
    assert below > max(mark.y for mark in marks if isinstance(mark, Label))


def test_a_legend_is_wrapped_between_entries() -> None:
    marks, below = legend([Key(f"a method {number}", "dot-main") for number in range(6)], 0, 10, 350)
    rows = {mark.y for mark in marks if isinstance(mark, Label)}
    assert len(rows) > 1
    assert below > max(rows)


def test_wide_letters_count_as_two() -> None:
    assert shorten("猫" * 10, 10) == "猫" * 5 + "…"
    assert width_of("猫", 10) == 10
    assert width_of("e\u0301", 10) == width_of("e", 10)
