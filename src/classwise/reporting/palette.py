"""The colours of pages and figures, for the style sheet and for matplotlib.

Colours differ in lightness as well as in hue (after Okabe and Ito 2008): they are distinguishable with colour vision
deficiency and in greyscale print.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Colour(NamedTuple):
    """A colour in the light and in the dark theme, ``#rrggbb``."""

    light: str
    dark: str


PALETTE: Mapping[str, Colour] = {
    "paper": Colour("#ffffff", "#15181c"),
    "wash": Colour("#f5f6f8", "#1d2126"),
    "rule": Colour("#dde1e6", "#343a42"),
    "faint": Colour("#aab2bb", "#626b76"),
    "soft": Colour("#5c6672", "#9ea7b1"),
    "text": Colour("#1a1f25", "#e8ebee"),
    "main": Colour("#1f6fb2", "#5aa9e6"),
    "pale": Colour("#a9c9e4", "#2f5878"),
    "weak": Colour("#bd4408", "#f58b4c"),
    "good": Colour("#0a7d62", "#4cc3a1"),
    "plum": Colour("#9a4c86", "#d793c0"),
    "gold": Colour("#a87400", "#e3b341"),
}
"""Colours by meaning: ``weak`` is the worst class, ``main`` the data, ``good`` the best class."""

SERIES = ("main", "gold", "plum", "good", "weak")
"""Colours that distinguish series, in order of use."""


class Style(NamedTuple):
    """Fill and stroke of a mark.

    Attributes:
        fill: colour name of the inside, or None.
        stroke: colour name of the line, or None.
        width: line width in pixels.
        dash: lengths of dash and gap in pixels; empty for a solid line.
    """

    fill: str | None = None
    stroke: str | None = None
    width: float = 1.0
    dash: tuple[float, ...] = ()


STYLES: Mapping[str, Style] = {
    "bar": Style(fill="main"),
    "bar-weak": Style(fill="weak"),
    "heat": Style(fill="main"),
    "heat-error": Style(fill="weak"),
    "cell": Style(fill="wash"),
    "gap": Style(fill="pale"),
    "whisker": Style(stroke="text", width=1.2),
    "interval": Style(stroke="weak", width=4.0),
    "tick": Style(stroke="main", width=2.0),
    "rule": Style(stroke="rule"),
    "gap-line": Style(stroke="paper"),
    "divider": Style(stroke="soft", width=1.0),
    "guide": Style(stroke="soft", dash=(3, 3)),
    "guide-main": Style(stroke="main", width=1.4, dash=(3, 3)),
    "guide-weak": Style(stroke="weak", width=1.4, dash=(3, 3)),
    "line": Style(stroke="faint", width=1.0),
    "line-weak": Style(stroke="weak", width=2.0),
    "line-good": Style(stroke="good", width=2.0),
    "line-overall": Style(stroke="text", width=1.6, dash=(5, 3)),
    "text": Style(fill="text"),
    "text-soft": Style(fill="soft"),
    "text-weak": Style(fill="weak"),
    "text-good": Style(fill="good"),
    "text-on": Style(fill="paper"),
    **{f"dot-{colour}": Style(fill=colour) for colour in SERIES},
    **{f"stroke-{colour}": Style(stroke=colour, width=1.8) for colour in SERIES},
}
"""Mark styles by name."""


def variables(theme: str) -> str:
    """CSS custom properties of the theme ``"light"`` or ``"dark"``."""
    return " ".join(f"--{name}: {getattr(colour, theme)};" for name, colour in PALETTE.items())


def style_rules() -> str:
    """CSS rules of all mark styles, for the classes ``m-NAME``."""
    return "\n".join(f".m-{name} {{ {_declarations(style)} }}" for name, style in STYLES.items())


def _declarations(style: Style) -> str:
    parts = [f"fill: var(--{style.fill})" if style.fill else "fill: none"]
    if style.stroke:
        parts += [f"stroke: var(--{style.stroke})", f"stroke-width: {style.width:g}px"]
    if style.dash:
        parts.append(f"stroke-dasharray: {' '.join(f'{length:g}' for length in style.dash)}")
    return "; ".join(parts)
