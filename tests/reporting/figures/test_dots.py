from __future__ import annotations

import math

import pytest

from classwise.reporting.figures.dots import Value, dot_rows
from classwise.reporting.svg import Dot, Drawing, Group, Line


def intervals(drawing: Drawing) -> dict[str, tuple[float, float, float]]:
    """Left end, dot and right end of each interval, in pixels, by hover text."""
    found = {}
    for group in drawing.marks:
        if isinstance(group, Group) and group.marks:
            line, dot = group.marks
            assert isinstance(line, Line)
            assert isinstance(dot, Dot)
            found[group.title] = (line.points[0][0], dot.x, line.points[1][0])
    return found


def test_intervals_are_drawn_to_scale_with_hover_texts() -> None:
    drawing = dot_rows(
        "t", ["cat", "dog"], ["a", "b"], [[Value(0.2, 0.1, 0.4, 100)] * 2, [Value(0.4, 0.3, 0.5, 90)] * 2]
    )
    found = intervals(drawing)
    assert len(found) == 4
    low, middle, high = found["cat, a: 20.0\u00a0% of 100 (95\u00a0% interval 10.0–40.0\u00a0%)"]
    other = found["dog, b: 40.0\u00a0% of 90 (95\u00a0% interval 30.0–50.0\u00a0%)"]
    assert (middle - low) * 2 == pytest.approx(high - middle)
    assert other[1] == pytest.approx(high)


def test_differences_are_drawn_around_zero() -> None:
    drawing = dot_rows("t", ["cat"], ["b"], [[Value(-0.02, -0.05, 0.01, 100)]], difference=True)
    ((title, (low, _, high)),) = intervals(drawing).items()
    zero = next(mark.points[0][0] for mark in drawing.marks if isinstance(mark, Line) and mark.style == "divider")
    assert title == "cat, b: −2.0 percentage points on 100 images (95\u00a0% interval −5.0 to +1.0)"
    assert (zero - low) == pytest.approx(5 * (high - zero))


def test_a_class_without_images_has_a_name_and_no_dot() -> None:
    nothing = Value(math.nan, math.nan, math.nan, 0)
    drawing = dot_rows("t", ["cat", "dog"], ["a"], [[nothing], [Value(0.4, 0.3, 0.5, 90)]])
    assert len(intervals(drawing)) == 1
    assert "cat" in drawing.svg()
    assert "nan" not in drawing.svg()
