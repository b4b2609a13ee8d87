from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

from classwise.reporting.svg import Box, Dot, Drawing, Group, Label, Line, shorten
from tests.refusals import check_refused


@pytest.fixture
def drawing() -> Drawing:
    bar = Group(
        [Box(10, 10, 40, 12, "bar", 0.5), Line([(0, 0), (20, 5)], "whisker")], 'a "b" < c & d', (10, 10, 40, 12)
    )
    area = Line([(0, 0), (5, 5), (0, 5)], "gap", closed=True)
    turned = Label(50, 30, "<script>", angle=-45, bold=True, anchor="end")
    return Drawing(100, 50, 'x "y"', [bar, area, Dot(60, 20, 4, "dot-weak"), turned])


def test_svg_is_well_formed_and_escapes_text(drawing: Drawing) -> None:
    root = ET.fromstring(drawing.svg())
    assert root.get("aria-label") == 'x "y"'
    assert [title.text for title in root.iter("title")] == ['a "b" < c & d']
    assert next(root.iter("text")).text == "<script>"


def test_marks_carry_style_classes_and_no_colours(drawing: Drawing) -> None:
    assert '<path d="M10 10h40v12h-40z" class="m-bar" opacity=".50"/>' in drawing.svg()
    assert "#" not in drawing.svg()


def test_a_closed_line_is_closed_and_coordinates_are_short(drawing: Drawing) -> None:
    assert '<path d="M0 0L5 5L0 5Z" class="m-gap"/>' in drawing.svg()


def test_lines_that_look_alike_are_one_path_without_points_on_straight_lines() -> None:
    flat = [Line([(0, 5), (10, 5), (20.04, 5), (30, 8)], "rule"), Line([(0, 0), (0, 9)], "rule")]
    other = [Line([(0, 0), (4, 0), (2, 0)], "guide"), Line([(1, 1)], "guide", opacity=0.5)]
    assert re.findall(r'd="([^"]*)"', Drawing(40, 10, "", [*flat, *other]).svg()) == [
        "M0 5L20 5L30 8M0 0L0 9",
        "M0 0L4 0L2 0",
        "M1 1",
    ]


def test_turned_labels_turn_around_their_place() -> None:
    assert (
        '<text transform="translate(5 6)rotate(-45)">a</text>' in Drawing(9, 9, "", [Label(5, 6, "a", angle=-45)]).svg()
    )


def test_an_unknown_style_fails() -> None:
    with pytest.raises(AssertionError, match="glitter"):
        Drawing(9, 9, "", [Box(0, 0, 1, 1, "glitter")]).svg()


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_the_same_drawing_gives_the_same_bytes(drawing: Drawing, tmp_path: Path, kind: str) -> None:
    for name in ("one", "two"):
        drawing.save(tmp_path / f"{name}.{kind}")
    assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()


def test_png_shows_boxes_where_they_are(tmp_path: Path) -> None:
    Drawing(100, 50, "", [Box(50, 0, 50, 25, "bar")]).save(tmp_path / "a.png")
    picture = Image.open(tmp_path / "a.png").convert("RGB")
    assert picture.size == (312, 156)  # 300 pixels an inch: 100 CSS pixels are 75 points
    assert picture.getpixel((234, 31)) == (0x1F, 0x6F, 0xB2)  # upper right, the colour "main"
    assert picture.getpixel((234, 125)) == picture.getpixel((78, 31)) == (255, 255, 255)


def test_a_standalone_file_contains_its_colours(drawing: Drawing) -> None:
    text = drawing.standalone()
    ET.fromstring(text)
    assert "--main: #1f6fb2" in text
    assert ".m-bar {" in text


def test_a_folder_that_cannot_be_created_is_a_classwise_error(drawing: Drawing, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_refused("cannot write", drawing.save, tmp_path / "file" / "a.svg")


def test_long_names_are_truncated() -> None:
    assert shorten("goldfish bowl", 9) == "goldfish…"
    assert shorten("cat", 9) == "cat"


def test_labels_have_their_own_look() -> None:
    """The svg element has the size, anchor and style that most labels have; all others state theirs."""
    labels = [
        Label(0, 0, "a", size=11, anchor="end"),
        Label(0, 0, "b", "text-soft", 11),
        Label(0, 0, "c", size=9, anchor="end"),
    ]
    root = ET.fromstring(Drawing(10, 10, "test", [Group(labels[:2], "both"), labels[2]]).svg())
    shown = [
        (text.text, *(text.get(name, root.get(name)) for name in ("font-size", "text-anchor", "class")))
        for text in root.iter("text")
    ]
    assert shown == [(label.text, str(label.size), label.anchor, f"m-{label.style}") for label in labels]
    assert ET.tostring(root, encoding="unicode").count("font-size") == 2
