from __future__ import annotations

import re

import numpy as np
import pytest

from classwise.reporting.figures.heatmap import Confusion, heatmap
from classwise.reporting.svg import Drawing, Group, Line

MATRIX = np.array([[90, 4, 6, 0], [2, 80, 8, 10], [30, 0, 70, 0], [0, 50, 0, 50]])
CONFUSION = Confusion(MATRIX, ("ship", "cat", "truck", "dog"), (0, 1, 0, 1), ("vehicles", "animals"))


def hover(drawing: Drawing) -> list[str]:
    return [mark.title for mark in drawing.marks if isinstance(mark, Group)]


def test_grouping_permutes_rows_and_columns_alike() -> None:
    grouped = CONFUSION.grouped()
    assert grouped.names == ("ship", "truck", "cat", "dog")
    assert grouped.groups == (0, 0, 1, 1)
    assert grouped.dense.tolist() == [[90, 6, 4, 0], [30, 70, 0, 0], [2, 8, 80, 10], [0, 0, 50, 50]]


def test_each_cell_has_a_hover_text() -> None:
    found = hover(heatmap(CONFUSION.grouped(), "rates"))
    assert len(found) == 11  # none for cells without an image
    assert "dog: 50 of 100 (50.0\u00a0%) misclassified as cat" in found
    assert "ship: 90 of 100 (90.0\u00a0%) classified correctly" in found


def test_errors_hide_the_diagonal() -> None:
    shown = re.findall(r">(\d+)</text>", heatmap(CONFUSION, "errors").svg())
    assert sorted(map(int, shown)) == [2, 4, 6, 8, 10, 30, 50]


def test_superclasses_are_framed() -> None:
    frames = [mark for mark in heatmap(CONFUSION.grouped(), "rates").marks if isinstance(mark, Line) and mark.closed]
    sides = [max(x for x, _ in frame.points) - min(x for x, _ in frame.points) for frame in frames]
    assert sides == pytest.approx([76, 76])  # two cells of 38 pixels each


def test_many_classes_are_aggregated_into_superclasses() -> None:
    condensed, note = CONFUSION.condensed(most=3)
    assert condensed.names == ("vehicles", "animals")
    assert condensed.dense.tolist() == [[196, 4], [10, 190]]
    assert "4 classes are aggregated into their 2 superclasses; errors within a superclass count as the diag" in note
    found = hover(heatmap(condensed, "rates"))
    assert "vehicles: 196 of 200 (98.0\u00a0%) classified within the superclass" in found


def test_without_superclasses_the_classes_with_most_errors_are_shown() -> None:
    condensed, note = Confusion(MATRIX, CONFUSION.names).condensed(most=2)
    assert condensed.names == ("truck", "dog")
    assert condensed.dense.tolist() == [[70, 0], [0, 50]]
    assert "80 of their images" in note


def test_few_classes_are_not_condensed() -> None:
    assert CONFUSION.condensed() == (CONFUSION, "")


def test_a_class_without_images_is_blank() -> None:
    matrix = MATRIX.copy()
    matrix[1] = 0
    found = hover(heatmap(Confusion(matrix, CONFUSION.names), "rates"))
    assert not [title for title in found if title.startswith("cat:")]
    assert "dog: 50 of 100 (50.0\u00a0%) misclassified as cat" in found


def test_no_error_at_all_can_be_drawn() -> None:
    drawing = heatmap(Confusion(np.diag([3, 4]), ("a", "b")), "errors")
    assert "nan" not in drawing.svg()
    assert not [title for title in hover(drawing) if "misclassified as" in title and "0 of" not in title]
