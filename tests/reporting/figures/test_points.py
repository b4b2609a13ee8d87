from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classwise.reporting.figures.dots import Value
from classwise.reporting.figures.points import Cloud, clouds, scatter, trade_off, unexceeded
from classwise.reporting.svg import NARROW, Dot, Group, Label, Line, width_of


def test_names_of_clouds_in_one_place_do_not_overlap() -> None:
    """Of three groups with one median, and of one elsewhere, whose name stays there."""
    middle, away = np.full(3, 0.5), np.array([0.0, 1.0])
    x, y = np.concatenate([middle, away]), np.concatenate([middle, away * 0])
    panel = Cloud("clean", x, y, np.array([0, 1, 2, 3, 3]))
    svg = clouds("Title", [panel], ["bird", "cat", "horse", "ship"], range(4)).svg()
    found = re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>(bird|cat|horse|ship)</text>', svg)
    places = {name: float(place) for place, name in found}
    heights = sorted(places[name] for name in ("bird", "cat", "horse"))
    assert np.diff(heights).min() >= 13
    assert heights[1] == places["bird"]


@given(st.lists(st.tuples(st.floats(0.5, 1.5), st.floats(0, 1)), min_size=1, max_size=30))
def test_texts_of_a_scatter_plot_do_not_overlap(points: list[tuple[float, float]]) -> None:
    """A name without a free place is in the hover text only; the first has always one."""
    names = [f"class {number}" for number in range(len(points))]
    x, y = np.array(points).T
    drawing = scatter("Title", names, x, y, ("norm", "accuracy"), "a note")
    texts = [mark for mark in drawing.marks if isinstance(mark, Label) and not mark.angle]
    boxes = []
    for text in texts:
        wide = width_of(text.text, text.size, bold=text.bold)
        left = text.x - {"start": 0, "middle": wide / 2, "end": wide}[text.anchor]
        boxes.append((left, text.y - 9, left + wide, text.y + 1))
    for one, other in itertools.combinations(boxes, 2):
        assert not (one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3])
    assert names[int(np.argmax(y))] in {text.text for text in texts}
    hovers = [mark.title for mark in drawing.marks if isinstance(mark, Group)]
    assert sorted(hover.split(":")[0] for hover in hovers) == sorted(names)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8))
def test_no_point_is_higher_in_both_coordinates_than_an_unexceeded_one(
    points: list[tuple[int, int]],
) -> None:
    def exceeds(one: tuple[int, int], other: tuple[int, int]) -> bool:
        return one[0] > other[0] and one[1] > other[1]

    expected = [not any(exceeds(other, point) for other in points) for point in points]
    assert unexceeded(np.array(points, dtype=np.float64)) == expected
    assert any(expected)


def methods(*pairs: tuple[float, float]) -> list[tuple[Value, Value]]:
    return [(Value(x, x - 0.01, x + 0.01, 500), Value(y, y - 0.02, y + 0.02, 500)) for x, y in pairs]


def test_a_trade_off_has_dots_at_the_accuracies_and_crosses_at_their_intervals() -> None:
    values = methods((0.41, 0.22), (0.45, 0.12), (0.43, 0.18), (0.42, 0.1))
    drawing = trade_off("Title", ["a", "b", "c", "d"], values, ("overall", "worst"))
    groups = [mark for mark in drawing.marks if isinstance(mark, Group)]
    dots = {group.title[0]: mark for group in groups for mark in group.marks if isinstance(mark, Dot)}
    assert {name: dot.style for name, dot in dots.items()} == {
        "a": "dot-main",
        "b": "dot-main",
        "c": "dot-main",
        "d": "gap",
    }
    names = "abcd"
    for axis, pixel in ((0, "x"), (1, "y")):
        shares = [pair[axis].value for pair in values]
        pixels = [getattr(dots[name], pixel) for name in names]
        assert np.corrcoef(shares, pixels)[0, 1] == pytest.approx((1, -1)[axis])
    lines = [mark.points for mark in drawing.marks if isinstance(mark, Line) and mark.style == "line"]
    slope = (dots["b"].x - dots["a"].x) / 0.04
    for name, across, upward in zip(names, lines[::2], lines[1::2], strict=True):
        assert across[1][0] - across[0][0] == pytest.approx(0.02 * slope)
        assert upward[0][0] == upward[1][0] == dots[name].x
        assert across[0][1] == across[1][1] == dots[name].y


@pytest.mark.parametrize(("count", "width"), [(9, NARROW), (20, NARROW), (20, None)])
def test_a_crowded_trade_off_has_numbers_and_a_list_of_the_names(count: int, width: float | None) -> None:
    names = [f"a method, number {number}" for number in range(count)]
    values = methods(*((0.4 + 0.001 * number, 0.3 - 0.004 * number) for number in range(count)))
    drawing = trade_off("Title", names, values, ("overall", "worst"), width=width)
    assert width is None or drawing.width <= width
    labels = [mark for mark in drawing.marks if isinstance(mark, Label)]
    assert [label.text for label in labels if label.text.startswith("a method")] == names
    assert sum(label.text == "3" for label in labels) == 2
    for label in labels:
        wide = width_of(label.text, label.size, bold=label.bold)
        start = label.x - {"start": 0, "middle": wide / 2, "end": wide}[label.anchor]
        assert label.angle or (start >= 0 and start + wide <= drawing.width), label
        assert label.y <= drawing.height
