"""Prose uses the standard words of the field: no text, message or document has one of the checked words."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.check_language import phrases, python_uses, uses

HERE = Path("sample.py")


@pytest.mark.slow
def test_no_checked_word_is_used() -> None:
    assert [str(use) for use in uses()] == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("What stands under attack.", "stands"),
        ("The image is Broken.", "broken"),
        ("It goes on\n    with what it has.", "goes on with"),
        ("unless you say so", "unless you say"),
    ],
)
def test_phrases_are_found(text: str, word: str) -> None:
    assert [use.word for use in phrases(HERE, text)] == [word]


@pytest.mark.parametrize("text", ["BrokenPipeError", "understands", "<foreignObject/>", "long-standing", "twinned"])
def test_other_words_are_not(text: str) -> None:
    assert list(phrases(HERE, text)) == []


def test_strings_are_searched_but_no_identifiers() -> None:
    source = 'told = 1\ny = """One.\n\nIt tells."""\nz = f"{told} mended"\n'
    assert [(use.line, use.word) for use in python_uses(HERE, source)] == [(4, "tells"), (5, "mended")]
