"""Drawings: lists of marks, rendered as SVG for pages or with matplotlib as PNG and PDF.

Coordinates are pixels from the top left corner. Marks refer to styles (`palette.STYLES`) instead of colours, so that a
drawing follows the theme of its page. The output is deterministic.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from classwise.core.files.storage import replacing, write_text
from classwise.core.settings.thread_warnings import warnings_filtered
from classwise.reporting.characters import figure_fonts
from classwise.reporting.escape import markup_text, visible
from classwise.reporting.links import images_link
from classwise.reporting.palette import PALETTE, STYLES, style_rules, variables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NARROW = 350.0
"""Width of a drawing for narrow screens, in pixels."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
LETTER = 0.58
"""Mean width of a Latin letter relative to the font size, for estimates of text widths."""
BOLD = 1.07
"""Mean width of a bold letter relative to a regular one."""

_STRAIGHT = 0.05
"""Twice the area, in square pixels, of a triangle of three points that are drawn as a straight line."""

_WIDE = {"m": 0.88, "w": 0.8, "M": 0.9, "W": 0.98, "@": 1.0, "%": 0.9}

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]
T = TypeVar("T")


@dataclass(frozen=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    style: str
    opacity: float = 1.0
    round: float = 0.0


@dataclass(frozen=True)
class Line:
    """A line through points, or if closed the outline of an area."""

    points: Sequence[Point]
    style: str
    closed: bool = False
    opacity: float = 1.0


@dataclass(frozen=True)
class Dot:
    """A filled circle."""

    x: float
    y: float
    radius: float
    style: str


@dataclass(frozen=True)
class Label:
    """A line of text with its baseline at ``y``."""

    x: float
    y: float
    text: str
    style: str = "text"
    size: float = 12.0
    anchor: Anchor = "start"
    bold: bool = False
    angle: float = 0.0


@dataclass(frozen=True, eq=False)
class Image:
    """A square image with pixels (C, H, W) in [0, 1], drawn without smoothing."""

    x: float
    y: float
    side: float
    pixels: NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Group:
    """Marks with a common hover text.

    Attributes:
        marks: the marks.
        title: the hover text.
        box: x, y, width and height of an additional hover area.
        images: which images the marks count, as keys of the state of a viewer; empty if that is unknown.
    """

    marks: Sequence[Mark]
    title: str
    box: tuple[float, float, float, float] | None = None
    images: Mapping[str, object] = field(default_factory=dict)


Mark = Box | Line | Dot | Label | Image | Group


@dataclass(frozen=True)
class Drawing:
    """Marks on a canvas.

    Args:
        width: width of the canvas in pixels.
        height: height of the canvas in pixels.
        label: text alternative for assistive technology.
        marks: marks in drawing order.
    """

    width: float
    height: float
    label: str
    marks: list[Mark] = field(default_factory=list)

    @staticmethod
    def titled(width: float, height: float, title: str, *marks: Mark) -> Drawing:
        """A drawing with its title in one line at the top."""
        return Drawing(width, height, title, [Label(0, 14, title, "text", 13, bold=True), *marks])

    def svg(self, *, hover: bool = True, viewer: str = "") -> str:
        """Render an ``<svg>`` element for a page whose style sheet contains `palette.style_rules`.

        Args:
            hover: whether to include the hover texts, which touch screens do not show.
            viewer: address of the viewer that groups link to; empty: there is none.
        """
        marks = self.marks if hover or viewer else list(_flat(self.marks))
        role = "group" if viewer else "img"  # links in an image are not reachable
        labels = [mark for mark in _flat(marks) if isinstance(mark, Label)]
        usual = _Usual(
            _most_common([label.size for label in labels], Label.size),
            _most_common([label.anchor for label in labels], Label.anchor),
            _most_common([label.style for label in labels], Label.style),
        )
        if STYLES[usual.style].stroke:
            raise ValueError(f"labels of style {usual.style!r}: all marks would inherit its stroke")
        return (
            f'<svg viewBox="0 0 {_n(self.width)} {_n(self.height)}" width="{_n(self.width)}" '
            f'height="{_n(self.height)}" font-size="{_n(usual.size)}" text-anchor="{usual.anchor}" '
            f'class="m-{usual.style}" role="{role}" aria-label="{markup_text(self.label)}">'
            + "".join(_elements(marks, usual, viewer))
            + "</svg>"
        )

    def standalone(self, scale: float = 1.0) -> str:
        """Render an SVG file with embedded styles of the light theme, ``scale`` times the size of the drawing."""
        return standalone(self.svg(), scale)

    def figure(self, scale: float = 1.0) -> Figure:
        """Render a matplotlib figure in the light theme at 96 pixels per inch, times ``scale``."""
        from matplotlib.figure import Figure

        size = (scale * self.width / 96, scale * self.height / 96)
        figure = Figure(figsize=size, dpi=96, facecolor=PALETTE["paper"].light)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_xlim(0, self.width)
        axes.set_ylim(self.height, 0)
        axes.set_axis_off()
        for order, mark in enumerate(_flat(self.marks)):
            _add(axes, mark, order, scale)
        return figure

    @property
    def texts(self) -> list[str]:
        """The texts of the labels, in the form that matplotlib draws."""
        return [_drawn(mark.text) for mark in _flat(self.marks) if isinstance(mark, Label)]

    def save(self, path: str | os.PathLike[str], width: float = math.inf) -> None:
        """Write the drawing as ``.svg``, ``.png`` or ``.pdf``, without timestamps.

        Args:
            path: the file.
            width: a wider drawing is scaled down to this width in pixels.

        Raises:
            ClasswiseError: if the file cannot be written.
        """
        kind, scale = Path(path).suffix.removeprefix("."), min(1.0, width / self.width)
        if kind == "svg":
            write_text(path, self.standalone(scale))
            return
        from matplotlib import rc_context

        dates = {"CreationDate": None} if kind == "pdf" else {}
        # Type 42 fonts keep the text of a PDF searchable; journals reject type 3.
        fonts = rc_context({"pdf.fonttype": 42, "font.family": figure_fonts()})
        with replacing(path) as temporary, fonts, warnings_filtered("ignore", "Glyph .* missing from"):
            # `classwise.reporting.characters` warns of these glyphs
            self.figure(scale).savefig(temporary, format=kind, dpi=300, metadata=dates)


def standalone(svg: str, scale: float = 1.0) -> str:
    """The text of an SVG file with embedded styles of the light theme.

    Args:
        svg: an element of `Drawing.svg`.
        scale: size of the file relative to that of the drawing.
    """
    head, body = svg.split(">", 1)
    if scale != 1:
        head = re.sub(r' (width|height)="([\d.]+)"', lambda size: f' {size[1]}="{_n(scale * float(size[2]))}"', head)
    page = f"svg {{ {variables('light')} background: #fff; font-family: {FONT}; }}"
    style = f"{page}\n.hit {{ fill: transparent; }}\n{style_rules()}"
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{style}</style>{body}\n'


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """Estimated width of a text in pixels."""
    return size * sum(map(_letter_width, text)) * (BOLD if bold else 1.0)


def shorten(text: str, letters: int) -> str:
    """Truncate a text to the width of ``letters`` small Latin letters, with an ellipsis."""
    width, room = LETTER * letters + 1e-9, LETTER * (letters - 1) + 1e-9
    places = [*itertools.takewhile(lambda place: place <= width, itertools.accumulate(map(_letter_width, text)))]
    if len(places) == len(text):
        return text
    return text[: sum(place <= room for place in places)].rstrip() + "…"


@functools.lru_cache(4096)
def _letter_width(letter: str) -> float:
    """Width of a letter relative to the font size; letters of wide scripts, such as Chinese, are squares."""
    if unicodedata.combining(letter):
        return 0.0
    if unicodedata.east_asian_width(letter) in {"W", "F"}:
        return 1.0
    return _WIDE.get(letter, 0.7 if letter.isupper() else LETTER)


def _flat(marks: Sequence[Mark]) -> Iterator[Box | Line | Dot | Label | Image]:
    for mark in marks:
        if isinstance(mark, Group):
            yield from _flat(mark.marks)
        else:
            yield mark


def _n(value: float) -> str:
    """Format a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


class _Usual(NamedTuple):
    """Size, anchor and style of most labels of a drawing, which its other labels replace."""

    size: float
    anchor: Anchor
    style: str


def _most_common(values: Sequence[T], default: T) -> T:
    return Counter(values).most_common(1)[0][0] if values else default


def _elements(marks: Sequence[Mark], usual: _Usual, viewer: str) -> Iterator[str]:
    """The elements of marks; lines that follow each other and look alike are one path."""
    for look, alike in itertools.groupby(marks, _look_of_line):
        if look is None:
            yield from (_element(mark, usual, viewer) for mark in alike)
        else:
            path = "".join(_path(mark) for mark in alike if isinstance(mark, Line))
            yield f'<path d="{path}" {look}/>'


def _look_of_line(mark: Mark) -> str | None:
    """The attributes of an open line; None for another mark."""
    if not isinstance(mark, Line) or mark.closed:
        return None
    return f"{_look(mark.style)}{_opacity(mark.opacity)}"


def _look(style: str) -> str:
    if style not in STYLES:
        raise AssertionError(style)
    return f'class="m-{style}"'


def _path(line: Line) -> str:
    """The path through the points of a line, without those on the straight line between their neighbours."""
    points = [(round(x, 1), round(y, 1)) for x, y in line.points]
    kept = points[:1]
    for point, following in itertools.pairwise(points[1:]):
        (x0, y0), (x1, y1), (x2, y2) = kept[-1], point, following
        between = min(x0, x2) <= x1 <= max(x0, x2) and min(y0, y2) <= y1 <= max(y0, y2)
        if not between or abs((x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)) > _STRAIGHT:
            kept.append(point)
    kept += points[1:][-1:]
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in kept) + "Z" * line.closed


def _element(mark: Mark, usual: _Usual, viewer: str = "") -> str:
    if isinstance(mark, Group):
        hit = ""
        if mark.box is not None:
            x, y, width, height = (_n(value) for value in mark.box)
            hit = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" class="hit"/>'
        inner = "".join(_element(child, usual) for child in mark.marks)
        title = f"<title>{markup_text(mark.title)}</title>"
        if not viewer or not mark.images:
            return f"<g>{title}{hit}{inner}</g>"
        target = markup_text(images_link(viewer, mark.images))
        return f'<a href="{target}">{title}<g>{hit}{inner}</g></a>'
    if isinstance(mark, Image):
        from classwise.reporting.image_data import data_uri

        place = f'x="{_n(mark.x)}" y="{_n(mark.y)}" width="{_n(mark.side)}" height="{_n(mark.side)}"'
        return f'<image {place} style="image-rendering: pixelated" href="{data_uri(mark.pixels)}"/>'
    look = _look(mark.style)
    match mark:
        case Box() if mark.round:
            place = f'x="{_n(mark.x)}" y="{_n(mark.y)}" width="{_n(mark.width)}" height="{_n(mark.height)}"'
            return f'<rect {place} rx="{_n(mark.round)}" {look}{_opacity(mark.opacity)}/>'
        case Box():
            path = f"M{_n(mark.x)} {_n(mark.y)}h{_n(mark.width)}v{_n(mark.height)}h-{_n(mark.width)}z"
            return f'<path d="{path}" {look}{_opacity(mark.opacity)}/>'
        case Line():
            return f'<path d="{_path(mark)}" {look}{_opacity(mark.opacity)}/>'
        case Dot():
            return f'<circle cx="{_n(mark.x)}" cy="{_n(mark.y)}" r="{_n(mark.radius)}" {look}/>'
        case Label():
            anchor = f' text-anchor="{mark.anchor}"' if mark.anchor != usual.anchor else ""
            size = f' font-size="{_n(mark.size)}"' if mark.size != usual.size else ""
            weight = ' font-weight="600"' if mark.bold else ""
            x, y = _n(mark.x), _n(mark.y)
            turned = f'transform="translate({x} {y})rotate({_n(mark.angle)})"'
            place = turned if mark.angle else f'x="{x}" y="{y}"'
            style = f" {look}" if mark.style != usual.style else ""
            return f"<text {place}{size}{style}{anchor}{weight}>{markup_text(mark.text)}</text>"


def _opacity(value: float) -> str:
    return f' opacity="{value:.2f}"'.replace("0.", ".") if value < 1 else ""


def _drawn(text: str) -> str:
    """The text of a label with matplotlib; letters and their accents are composed where there is a composed letter."""
    return unicodedata.normalize("NFC", visible(text))


def _add(axes: object, mark: Box | Line | Dot | Label | Image, order: int, scale: float) -> None:
    """Draw one mark on the axes of `Drawing.figure`, with widths of lines and sizes of texts times ``scale``."""
    from matplotlib import patches
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    assert isinstance(axes, Axes)
    if isinstance(mark, Image):
        levels = mark.pixels if len(mark.pixels) == 3 else np.repeat(mark.pixels.mean(axis=0, keepdims=True), 3, axis=0)
        extent = (mark.x, mark.x + mark.side, mark.y + mark.side, mark.y)
        pixels = np.clip(levels.transpose(1, 2, 0), 0, 1)
        axes.imshow(pixels, extent=extent, zorder=order, interpolation="nearest", aspect="auto")
        return
    style = STYLES[mark.style]
    fill = PALETTE[style.fill].light if style.fill else "none"
    stroke = PALETTE[style.stroke].light if style.stroke else "none"
    points = scale * 72 / 96  # matplotlib's widths and sizes are in points
    match mark:
        case Box():
            corner = (mark.x, mark.y)
            axes.add_patch(
                patches.Rectangle(corner, mark.width, mark.height, facecolor=fill, alpha=mark.opacity, zorder=order)
            )
        case Line() if mark.closed:
            axes.add_patch(
                patches.Polygon(mark.points, facecolor=fill, edgecolor=stroke, alpha=mark.opacity, zorder=order)
            )
        case Line():
            dash: tuple[float, Sequence[float]] | Literal["-"] = (0, style.dash) if style.dash else "-"
            xs, ys = zip(*mark.points, strict=True)
            width = style.width * points
            axes.add_line(
                Line2D(xs, ys, color=stroke, linewidth=width, linestyle=dash, alpha=mark.opacity, zorder=order)
            )
        case Dot():
            axes.add_patch(patches.Circle((mark.x, mark.y), mark.radius, facecolor=fill, zorder=order))
        case Label():
            axes.text(
                mark.x,
                mark.y,
                _drawn(mark.text).replace("$", r"\$"),
                color=fill,
                fontsize=mark.size * points * 0.94,  # DejaVu is wider than common screen fonts
                ha={"start": "left", "middle": "center", "end": "right"}[mark.anchor],
                va="baseline",
                fontweight="bold" if mark.bold else "normal",
                rotation=-mark.angle,
                rotation_mode="anchor",
                zorder=order,
            )
