from __future__ import annotations

from xml.etree import ElementTree as ET

import numpy as np
import pytest

from classwise.reporting.figures.bars import class_bars
from classwise.reporting.figures.strip import class_strip
from classwise.reporting.svg import Box, Drawing, Group
from classwise.stats.counts import ClassCounts


def bars(drawing: Drawing) -> dict[str, Box]:
    """The bar behind each hover text."""
    return {
        group.title: mark
        for group in drawing.marks
        if isinstance(group, Group)
        for mark in group.marks
        if isinstance(mark, Box)
    }


def test_bars_are_as_long_as_the_accuracies(names: tuple[str, ...], counts: dict[str, ClassCounts]) -> None:
    found = bars(class_bars(names, counts, [3, 2, 0, 1]))
    assert len(found) == 12
    for title, bar in found.items():
        name, _, rest = title.partition(", ")
        attack, _, reading = rest.partition(": ")
        accuracy = counts[attack].accuracy[names.index(name)]
        assert reading.startswith(f"{100 * accuracy:.1f}\u00a0% of 1,000 (95\u00a0% interval ")
        longest = max(found.values(), key=lambda box: box.width)
        assert bar.width / longest.width == pytest.approx(accuracy / 0.95)


def test_the_worst_class_of_each_panel_is_highlighted(names: tuple[str, ...], counts: dict[str, ClassCounts]) -> None:
    found = bars(class_bars(names, counts, [3, 2, 0, 1]))
    weak = [title.partition(":")[0] for title, bar in found.items() if bar.style == "bar-weak"]
    assert weak == ["bird, clean", "cat, pgd", "cat, all"]


def test_an_absent_class_has_no_bar(names: tuple[str, ...]) -> None:
    sums = ClassCounts(np.array([10, 0, 10, 10]), np.array([5, 0, 6, 7]))
    assert len(bars(class_bars(names, {"all": sums}, [0, 1, 2, 3]))) == 3


def test_many_attacks_wrap_and_stay_on_the_page(names: tuple[str, ...], counts: dict[str, ClassCounts]) -> None:
    many = {f"attack {number}": counts["pgd"] for number in range(17)}
    drawing = class_bars(names, many, [0, 1, 2, 3])
    assert drawing.width <= 1040
    assert max(bar.x + bar.width for bar in bars(drawing).values()) <= drawing.width
    ET.fromstring(drawing.svg())


def test_the_strip_shows_every_class_and_the_interval_of_the_worst(
    names: tuple[str, ...], counts: dict[str, ClassCounts]
) -> None:
    text = class_strip(names, counts["all"], "every attack").svg()
    root = ET.fromstring(text)
    assert [title.text.partition(":")[0] for title in root.iter("title") if title.text] == list(names)
    assert text.count('class="interval"') == 0
    assert text.count('class="m-interval"') == 1
