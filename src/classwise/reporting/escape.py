"""Escaping of user-supplied text (names of classes, models, attacks, paths) in Markdown, LaTeX, HTML and SVG.

CSV files are written by `classwise.core.files.csv_files`.
"""

from __future__ import annotations

import html
import re
import unicodedata
from xml.etree import ElementTree as ET

from markupsafe import Markup

from classwise.core.errors import ClasswiseError

_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Control characters, bidirectional marks, and characters that XML or UTF-8 cannot represent."""
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|&~#$])")
_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",
    "]": "{]}",
    "\u00a0": "~",
    "\u2013": "--",
    "\u2014": "---",
    "\u2212": "$-$",
    "\u00d7": r"$\times$",
    "\u00b2": r"\textsuperscript{2}",
    "\u27e8": r"\textlangle{}",
    "\u27e9": r"\textrangle{}",
}
_SVG_ELEMENTS = frozenset({"svg", "g", "title", "rect", "path", "circle", "text", "image"})
_XML = "{http://www.w3.org/2000/svg}"


def visible(text: str) -> str:
    """Replace control characters and bidirectional marks by their code points: ``a⟨U+000A⟩b``."""
    return _HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def markup_text(text: str) -> str:
    """Escape text for the content or a quoted attribute of HTML and XML."""
    return html.escape(visible(text), quote=True)


def markdown_text(text: str) -> str:
    """Escape text for inline Markdown (GitHub flavour), also in a table: it contains no Markdown or HTML syntax."""
    escaped = _MARKDOWN.sub(r"\\\1", visible(text))
    return re.sub(r"^\s+|\s+$", lambda blank: "".join(f"&#{ord(letter)};" for letter in blank[0]), escaped)


def latex_text(text: str) -> str:
    """Escape text for LaTeX, also at the start of a table row: it contains no command or special character.

    Letters and their accents are composed where Unicode has the composed letter, which more fonts have.
    """
    return "".join(_LATEX.get(letter, letter) for letter in unicodedata.normalize("NFC", visible(text)))


def checked_svg(text: str) -> Markup:
    """Validate an SVG drawing that was read from a file, and return it as markup.

    Raises:
        ClasswiseError: if it contains anything but the shapes and texts of a `Drawing`.
    """
    problem = _first_problem(text)
    if problem:
        raise ClasswiseError(f"figure: must contain only the shapes and texts of a drawing, got {problem}")
    return Markup(text)  # noqa: S704  # checked above


def _first_problem(text: str) -> str:
    """The first element or attribute that a drawing may not contain; empty if there is none."""
    if "<!" in text or "<?" in text:
        return "a declaration"
    try:
        elements = list(ET.fromstring(text).iter())  # noqa: S314  # without declarations there are no entities
    except ET.ParseError as error:
        return str(error)
    unexpected = [element.tag for element in elements if element.tag.removeprefix(_XML) not in _SVG_ELEMENTS]
    attributes = [pair for element in elements for pair in element.attrib.items()]
    unexpected += [
        f"{key}={value[:40]}"
        for key, value in attributes
        if key.startswith("on") or (key.endswith("href") and not value.startswith("data:image/png;base64,"))
    ]
    return unexpected[0] if unexpected else ""
