"""Characters of names that an exported file cannot show, and the notice about them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

FONT = "DejaVu Sans"
"""The font of figures as PNG and PDF, which comes with matplotlib."""
SHAPING = (3, 11)
"""The first version of matplotlib that writes from right to left."""
SHOWN = 8
"""Number of characters that a notice names."""

_ACCENTS = frozenset("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327")
"""Accents of LaTeX commands such as ``\\'``, which Latin letters up to U+017F are converted to."""
_TYPESET = frozenset("¡¿§¶©®™£€ßæÆøØåÅœŒłŁıªº¹³±÷¬µ·°¼½¾‘’“”…†‡•‰")
"""Other characters outside ASCII that LaTeX reads without further packages."""


def latex_lacks(text: str) -> set[str]:
    """The characters of a LaTeX source that pdfLaTeX does not typeset without further packages.

    Example:
        >>> latex_lacks("chat, caf\u00e9, \u732b")
        {'猫'}
    """
    return {character for character in set(text) if not _typeset(character)}


def _typeset(character: str) -> bool:
    if character.isascii() or character in _TYPESET:
        return True
    parts = unicodedata.normalize("NFD", character)
    return ord(character) <= 0x17F and len(parts) == 2 and parts[0].isascii() and parts[1] in _ACCENTS


def figure_fonts() -> list[str]:
    """The fonts of figures as PNG and PDF: `FONT`, and where it lacks a character those of ``font.family``, if set."""
    import matplotlib as mpl

    families = list(mpl.rcParams["font.family"])
    return [FONT, *(family for family in families if families != ["sans-serif"] and family != FONT)]


def figure_lacks(texts: Iterable[str]) -> set[str]:
    """The characters that figures as PNG and PDF do not show: in none of the fonts, or from right to left.

    Example:
        >>> figure_lacks(["chat", "\u732b"])
        {'猫'}
    """
    import matplotlib as mpl
    from matplotlib.font_manager import FontProperties, findfont, get_font

    fonts = [get_font(findfont(FontProperties(family=[family]))) for family in figure_fonts()]
    shaped = mpl.__version_info__[:2] >= SHAPING
    return {
        character
        for character in set().union(*texts)
        if not any(font.get_char_index(ord(character)) for font in fonts)
        or (not shaped and unicodedata.bidirectional(character) in {"R", "AL"})
    }


def notice(in_latex: set[str], in_figures: set[str]) -> str:
    """One line that names the characters that the files do not show, and what to do; empty if there is none."""
    parts = []
    if in_latex:
        parts.append(
            f"pdfLaTeX does not typeset {_listed(in_latex)} in the .tex files; compile them with XeLaTeX or LuaLaTeX "
            "and a font that has these characters"
        )
    if in_figures:
        parts.append(
            f"figures as PNG and PDF do not show {_listed(in_figures)}; export svg, or set font.family in a "
            "matplotlibrc file to a font that has these characters"
        )
    return "; ".join([*parts, "or give other class_names"]) if parts else ""


def _listed(characters: set[str]) -> str:
    first = sorted(characters)[:SHOWN]
    more = f" and {len(characters) - len(first)} more" if len(characters) > len(first) else ""
    return " ".join(f"{character if _visible(character) else ''}(U+{ord(character):04X})" for character in first) + more


def _visible(character: str) -> bool:
    return character.isprintable() and not unicodedata.combining(character)
