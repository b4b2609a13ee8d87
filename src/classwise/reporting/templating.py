"""Rendering of pages from templates, with the style sheet of both themes and drawings as inline SVG."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from classwise.core.version import __version__
from classwise.reporting.escape import visible
from classwise.reporting.palette import style_rules, variables
from classwise.reporting.svg import FONT, NARROW, Drawing

Context = Mapping[str, Any]
"""Variables of a template."""


def render(template: str, context: Context) -> str:
    """Render a page from a template."""
    return _templates().get_template(template).render({"version": __version__, "style": style(), **context})


def markup(drawing: Drawing) -> Markup:
    """Render a drawing as inline SVG."""
    return Markup(drawing.svg())  # noqa: S704  # drawings escape their texts


def both_widths(draw: Callable[..., Any], *arguments: Any, viewer: str = "") -> Markup:
    """Render a figure as inline SVG, with another drawing of it that replaces it on narrow screens.

    Args:
        draw: draws the figure; with the argument ``width`` for narrow screens.
        *arguments: its other arguments.
        viewer: address of the viewer that groups link to; empty: there is none.
    """
    wide: Drawing = draw(*arguments)
    narrow: Drawing = draw(*arguments, width=NARROW)
    return Markup(  # noqa: S704  # drawings escape their texts
        f'<div class="wide">{wide.svg(viewer=viewer)}</div>'
        f'<div class="narrow">{narrow.svg(hover=False, viewer=viewer)}</div>'
    )


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("classwise.reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["parts"] = environment.get_template("parts.html").module
    return environment


@cache
def style() -> Markup:
    """The style sheet: the template with the colours of both themes, and the mark styles."""
    source = (Path(__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
    for word, value in (("LIGHT", variables("light")), ("DARK", variables("dark")), ("FONT", FONT)):
        source = source.replace(word, value)
    return Markup(re.sub(r"\n *", "\n", source) + style_rules())  # noqa: S704  # a file of this package
