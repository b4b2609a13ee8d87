"""The project uses the standard words of its field: no identifier, text or document has one of the checked words."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tools.check_language import names, phrases, python_uses, uses, words_of

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


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def f(tol): return tol", ["tol"]),
        ("class ForeignAttack: pass", ["foreign"]),
        ("import x as inks_of", ["inks"]),
        ("y.keeping = 1", ["keeping"]),
        ("def test_an_image_stands(): pass", ["stands"]),
        ("def test_one_process_alone(): pass", []),
        ("except_ = (BrokenPipeError,)", []),
    ],
)
def test_identifiers_are_searched(source: str, words: list[str]) -> None:
    assert [use.word for use in names(HERE, ast.parse(source))] == words


def test_strings_and_comments_are_searched_with_their_lines() -> None:
    source = 'x = 1  # as it is\ny = """One.\n\nIt tells."""\nz = f"{x} mended"\n'
    assert [(use.line, use.word) for use in python_uses(HERE, source)] == [
        (1, "as it is"),
        (4, "tells"),
        (5, "mended"),
    ]


def test_words_of_identifiers() -> None:
    assert words_of("max_probeCount_APGD") == {"max", "probe", "count", "apgd"}
    assert words_of("__foreign__") == {"foreign"}
