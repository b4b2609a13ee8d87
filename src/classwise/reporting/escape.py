"""Text that is not ours (names of classes, models, attacks, paths) in CSV, Markdown, HTML and SVG."""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree as ET

import pandas as pd
from markupsafe import Markup

from classwise.core.errors import ClasswiseError

FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
"""How a cell begins that a spreadsheet would compute, or that would read as one whose apostrophe was removed."""
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Control characters, marks that change the direction of the text after them, and what XML and UTF-8 cannot hold."""
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|&~#$])")
_DRAWN = frozenset({"svg", "g", "title", "rect", "path", "circle", "text", "image"})
_XML = "{http://www.w3.org/2000/svg}"


def visible(text: str) -> str:
    """The text with control characters and marks of direction by their code points: ``a⟨U+000A⟩b``."""
    return _HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def markup_text(text: str) -> str:
    """The text as content or as a quoted attribute of HTML and XML."""
    return html.escape(visible(text), quote=True)


def markdown_text(text: str) -> str:
    """The text as inline Markdown (GitHub's), also inside a table: nothing in it is taken for Markdown or HTML."""
    found = _MARKDOWN.sub(r"\\\1", visible(text))
    return re.sub(r"^\s+|\s+$", lambda blank: "".join(f"&#{ord(letter)};" for letter in blank[0]), found)


def spreadsheet_text(text: str) -> str:
    """The text so that a spreadsheet takes it for text.

    An apostrophe is put before what begins with ``= + - @``, a tab or a line break, also behind apostrophes: removing
    one apostrophe from every text that `FORMULA` fits gives the original.
    """
    return f"'{text}" if FORMULA.match(text) else text


def spreadsheet_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with `spreadsheet_text` in its text cells and heads; numbers stay numbers."""
    found = frame.copy()
    for place in range(found.shape[1]):
        column = found.iloc[:, place]
        if not pd.api.types.is_numeric_dtype(column):
            texts = [spreadsheet_text(cell) if isinstance(cell, str) else cell for cell in column]
            found.isetitem(place, pd.array(texts, dtype=object))
    found.columns = pd.Index([spreadsheet_text(str(name)) for name in found.columns])
    return found


def checked_svg(text: str) -> Markup:
    """A drawing that was read from a file, as markup.

    Raises:
        ClasswiseError: if it holds anything but the shapes and texts of a `Drawing`.
    """
    fault = _fault(text)
    if fault:
        raise ClasswiseError(f"figure: only shapes and texts of a drawing are accepted, got {fault}")
    return Markup(text)  # noqa: S704  # checked above


def _fault(text: str) -> str:
    """What a drawing does not hold; empty if there is no such thing."""
    if "<!" in text or "<?" in text:
        return "a declaration"
    try:
        elements = list(ET.fromstring(text).iter())  # noqa: S314  # without declarations there are no entities
    except ET.ParseError as error:
        return str(error)
    strange = [element.tag for element in elements if element.tag.removeprefix(_XML) not in _DRAWN]
    attributes = [pair for element in elements for pair in element.attrib.items()]
    strange += [
        f"{key}={value[:40]}"
        for key, value in attributes
        if key.startswith("on") or (key.endswith("href") and not value.startswith("data:image/png;base64,"))
    ]
    return strange[0] if strange else ""
