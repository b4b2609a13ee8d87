from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from classwise.reporting.figures.axes import ticks
from classwise.reporting.figures.curves import class_curves, class_table
from classwise.reporting.svg import Drawing, Group, Line

NAMES = ("ship", "cat", "dog")
ROBUST = {0: [0.1, 0.5, 0.6], 1: [0.2, 0.15, 0.1], 2: [0.3, 0.3, 0.4]}


def epochs() -> pd.DataFrame:
    rows = [
        {
            "epoch": epoch,
            "split": split,
            "class": NAMES[label],
            "label": label,
            "count": 100,
            "robust": value,
            "clean": None,
        }
        for split in ("train", "valid")
        for label, values in ROBUST.items()
        for epoch, value in enumerate(values if split == "valid" else [1.0, 1.0, 1.0])
    ]
    return pd.DataFrame(rows)


def styles(drawing: Drawing) -> dict[str, str]:
    groups = (mark for mark in drawing.marks if isinstance(mark, Group))
    return {
        group.title.partition(":")[0]: mark.style for group in groups for mark in group.marks if isinstance(mark, Line)
    }


def test_the_table_has_epochs_from_one_and_a_column_per_class() -> None:
    table = class_table(epochs(), "valid", "robust")
    assert table.index.tolist() == [1, 2, 3]
    assert table.to_dict("list") == ROBUST


@pytest.mark.parametrize(("split", "measure"), [("test", "robust"), ("valid", "clean"), ("valid", "nothing")])
def test_a_measure_without_values_is_empty(split: str, measure: str) -> None:
    assert class_table(epochs(), split, measure).empty


def test_worst_and_best_of_the_last_epoch_are_highlighted() -> None:
    drawing = class_curves(class_table(epochs(), "valid", "robust"), NAMES, "t", overall=np.array([0.2, 0.3, 0.4]))
    assert styles(drawing) == {"ship": "line-good", "cat": "line-weak", "dog": "line", "overall": "line-overall"}


def test_the_shade_spans_the_best_and_the_worst_of_every_epoch() -> None:
    drawing = class_curves(class_table(epochs(), "valid", "robust"), NAMES, "t")
    (band,) = [mark for mark in drawing.marks if isinstance(mark, Line) and mark.closed]
    rule = {round(100 * value): y for value, y in zip((0.0, 0.2, 0.4, 0.6), rules(drawing), strict=True)}
    per_point = (rule[0] - rule[60]) / 60
    assert [(rule[0] - y) / per_point for _, y in band.points] == pytest.approx([30, 50, 60, 10, 15, 10])


def rules(drawing: Drawing) -> list[float]:
    """Heights of the grid lines, from the lowest value."""
    return [mark.points[0][1] for mark in drawing.marks if isinstance(mark, Line) and mark.style == "rule"]


def test_one_epoch_is_enough_and_missing_values_are_gaps() -> None:
    class_curves(pd.DataFrame({0: [0.3], 1: [0.4]}, index=[1]), NAMES, "t").svg()
    text = class_curves(pd.DataFrame({0: [0.3, math.nan, 0.5], 1: [0.4, 0.4, 0.4]}, index=[1, 2, 3]), NAMES, "t").svg()
    assert "nan" not in text


def test_hundreds_of_classes_leave_the_band_and_the_extremes() -> None:
    values = pd.DataFrame(np.random.default_rng(0).random((60, 200)), index=range(1, 61))
    drawing = class_curves(values, [str(label) for label in range(200)], "t")
    assert len(styles(drawing)) == 2
    assert len(drawing.svg()) < 20_000


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 0.647, [0, 0.2, 0.4, 0.6, 0.8]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.05, 0.08, [-0.05, 0, 0.05, 0.1]),
        (3, 3, [3, 4, 5, 6]),
    ],
)
def test_ticks_are_round_and_span_the_values(low: float, high: float, expected: list[float]) -> None:
    found = ticks(low, high)
    assert found[0] <= low < high + 1e-12 or low == high
    assert found[-1] >= high
    if low != high:
        steps = np.diff(found)
        assert steps == pytest.approx(steps[0])
        assert found == pytest.approx(expected)


@pytest.mark.parametrize("low", [0.0, -5e-17])
def test_ticks_of_values_that_are_equal_but_for_rounding(low: float) -> None:
    found = ticks(low, 5e-17)
    assert len(found) == len(set(found)) > 1
    assert found[0] <= 0 <= found[-1]
