from __future__ import annotations

import re

import numpy as np
import pandas as pd

from classwise.papers.experiments.closed_form import accuracy_curves, scatter
from classwise.papers.theory.toy_model import ToyModel
from classwise.reporting.figures.lines import BOTTOM, HEIGHT, NAMED, TOP, Series, class_lines, line_chart
from classwise.reporting.palette import SERIES

PLACES = [1.0, 2.0, 4.0]
ACCURACY = np.array([[0.2, 0.5, 0.9], [0.3, 0.6, 0.8], [0.1, 0.7, 0.95]])


def test_each_class_has_a_line_and_the_extremes_are_highlighted() -> None:
    table = pd.DataFrame(ACCURACY, index=PLACES, columns=["cat", "dog", "car"]).assign(overall=ACCURACY.mean(axis=1))
    svg = line_chart("Title", class_lines(table), "radius").svg()
    assert re.findall(r"<title>(\w+): from ([\d.]+) to ([\d.]+)<", svg) == [
        ("dog", "50.0", "70.0"),
        ("car", "90.0", "95.0"),
        ("cat", "20.0", "10.0"),
        ("overall", "53.3", "58.3"),
    ]
    assert ">cat 10.0<" in svg
    assert ">radius<" in svg
    assert svg.count("<circle") == 6  # of the lowest and the highest


def test_of_many_classes_only_the_extremes_are_named() -> None:
    for classes in (NAMED, NAMED + 1):
        table = pd.DataFrame([np.linspace(0, 1, classes)] * 2, index=[1, 2], columns=[f"c{n}" for n in range(classes)])
        named = [line.name for line in class_lines(table) if line.named]
        assert len(named) == (classes if classes == NAMED else 2)
        assert named[-2:] == [f"c{classes - 1}", "c0"]


def test_positions_and_values_are_drawn_to_scale() -> None:
    drawing = line_chart("Title", [Series("one", PLACES, [0.0, 0.5, 1.0], "line")], "x")
    path = re.findall(r'<g><title>one[^<]*</title><path d="M([^"]*)"', drawing.svg())[0]
    points = [tuple(map(float, point.split())) for point in path.split("L")]
    assert [y for _, y in points] == [HEIGHT - BOTTOM, TOP + (HEIGHT - TOP - BOTTOM) / 2, TOP]
    (first, _), (second, _), (third, _) = points
    assert abs((second - first) * 2 - (third - second)) < 0.21  # 1 to 2 is half of 2 to 4


def test_several_bands_and_names_have_the_colours_of_their_lines() -> None:
    bands = [Series(colour, PLACES, [0.2] * 3, f"stroke-{colour}", [0.1] * 3, [0.3] * 3) for colour in SERIES[:2]]
    single, both = (line_chart("T", some, "x").svg() for some in (bands[:1], bands))
    filled = [re.findall(r"<path[^>]*opacity[^>]*>", svg) for svg in (single, both)]
    assert "gap" in filled[0][0]
    assert [f"dot-{colour}" in path for colour, path in zip(SERIES[:2], filled[1], strict=True)] == [True, True]
    dots = re.findall(r"<circle[^>]*>", both)
    assert [sum(f"dot-{colour}" in dot for dot in dots) for colour in SERIES[:2]] == [
        len(PLACES) + 1
    ] * 2  # one at the name


def test_numbers_below_the_axis_do_not_touch() -> None:
    svg = line_chart("T", [Series("one", [1, 5, 10, 100, 300], [0.1] * 5, "line")], "1/T").svg()
    assert [number for number in ("1", "5", "10", "100", "300") if f">{number}</text>" in svg] == [
        "1",
        "10",
        "100",
        "300",
    ]


def test_names_of_lines_at_zero_stay_above_the_numbers_of_the_axis() -> None:
    lines = [Series(f"c{n}", PLACES, [1.0, 0.5, 0.0], "line") for n in range(5)]
    svg = line_chart("T", [*lines, Series("top", PLACES, [1.0] * 3, "line")], "x").svg()
    names = [float(y) for y in re.findall(r'y="([\d.]+)"[^>]*>c\d 0\.0<', svg)]
    numbers = [float(y) for y in re.findall(r'y="([\d.]+)"[^>]*>[124]<', svg)]
    assert len(names) == 5
    assert max(names) <= min(numbers) - 12  # the height of a number
    assert np.diff(sorted(names)).min() >= 12


def test_missing_values_are_left_out() -> None:
    assert "one" not in line_chart("T", [Series("one", PLACES, [float("nan")] * 3, "line")], "x").svg()


def test_both_panels_of_the_toy_figure() -> None:
    model = ToyModel()
    points = scatter(model.sample(100)).svg()
    assert points.count("<circle") == 200
    assert "class +1: 100 points" in points
    curves = accuracy_curves(model, np.linspace(0.05, 4, 50)).svg()
    assert re.findall(r"<title>([^:]*):", curves) == ["+1 clean", "+1 robust", "−1 clean", "−1 robust"]
    assert scatter(model.sample(100)).svg() == points
