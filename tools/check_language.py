"""Words that this project does not use, in identifiers, help texts, error messages, docstrings, comments and documents.

Run ``python -m tools.check_language``: it prints each occurrence as ``file:line: word: text`` and exits with status 1
if there is one. Each word has a standard one that replaces it.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

PHRASES = {
    "stands": "is robust, is correctly classified",
    "standing": "robust, survivors",
    "broken": "misclassified, attacked successfully; damaged (of a file)",
    "broken_by": "first_success",
    "twin": "adversarial example, fused copy",
    "twins": "adversarial examples",
    "foreign": "external",
    "tells": "reports, shows",
    "told": "reported, logged",
    "remedy": "fix, suggestion",
    "mend": "fix",
    "mended": "fixed",
    "made up": "simulated",
    "goes on with": "continues, resumes",
    "go on with": "continue, resume",
    "unless you say": "by default",
    "as it is": "clean, unmodified, unchanged",
    "as they are": "clean, unmodified, unchanged",
    "lays": "arranges",
    "inks": "palette, colours",
    "wording": "text, formatting",
    "chronicle": "history, log",
    "cannot tell": "inconclusive",
}
"""Words and phrases of sentences, with the standard words that replace them."""

NAMES = frozenset(
    [
        "broken",
        "stands",
        "standing",
        "draws",
        "alone",
        "foreign",
        "lean",
        "twin",
        "twins",
        "rooms",
        "inks",
        "wording",
        "prose",
        "origin",
        "keeping",
        "feeding",
        "beginning",
        "sharing",
        "preparing",
        "recording",
        "chronicle",
        "told",
        "news",
        "moments",
        "tol",
    ]
)
"""Words inside identifiers; a test's name is a sentence and is searched for `PHRASES`."""

ALLOWED_NAMES = frozenset({"BrokenPipeError", "get_origin", "rel_tol", "abs_tol"})
"""Identifiers of other libraries."""

ALLOWED_TEXT = ("foreignObject",)
"""Texts that are not ours: names of other formats."""

OLD_NAMES = "CHANGELOG.md"
"""The file whose tables list names that have been replaced."""

SOURCES = ("src", "benchmarks", "tools", "tests")
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs", "src")
_SUFFIXES = (".md", ".yaml", ".html", ".css")
_PHRASE = re.compile(
    r"(?<![\w-])(" + "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in PHRASES) + r")(?![\w-])", re.IGNORECASE
)


class Use(NamedTuple):
    """One occurrence of a checked word."""

    file: Path
    line: int
    word: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.word}: {self.text}"


def phrases(file: Path, text: str, first_line: int = 1) -> Iterator[Use]:
    """The checked phrases in a text; one may continue on the next line."""
    for allowed in ALLOWED_TEXT:
        text = text.replace(allowed, "#" * len(allowed))
    lines = text.splitlines()
    for match in _PHRASE.finditer(text):
        line = text.count("\n", 0, match.start())
        yield Use(file, first_line + line, " ".join(match[1].lower().split()), lines[line].strip()[:100])


def words_of(name: str) -> set[str]:
    """The words of an identifier: ``max_probeCount`` has max, probe and count."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def names(file: Path, tree: ast.Module) -> Iterator[Use]:
    """The checked words in the identifiers of a module, and in its own name."""
    found = [(1, file.stem)]
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                found.append((getattr(node, "lineno", 1), value))
    for line, name in dict.fromkeys(found):
        if name in ALLOWED_NAMES:
            continue
        if name.startswith("test_"):
            yield from phrases(file, name.replace("_", " "), line)
            continue
        for word in sorted(words_of(name) & NAMES):
            yield Use(file, line, word, name)


def python_uses(file: Path, text: str) -> Iterator[Use]:
    """The checked words of a Python file: identifiers, strings and comments."""
    yield from names(file, ast.parse(text))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            yield from phrases(file, token.string, token.start[0])


def uses(root: Path = ROOT) -> Iterator[Use]:
    """Every occurrence of a checked word in the project, committed pages included."""
    own = {root / "tools" / "check_language.py", root / "tests" / "test_language.py"}
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            if path not in own:
                yield from python_uses(path.relative_to(root), path.read_text(encoding="utf-8"))
    for name in DOCUMENTS:
        place = root / name
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.suffix in _SUFFIXES:
                found = phrases(path.relative_to(root), path.read_text(encoding="utf-8"))
                yield from (use for use in found if not (name == OLD_NAMES and use.text.startswith("| ")))


def main() -> int:
    """Print every occurrence."""
    found = list(uses())
    for use in found:
        print(f"{use} -> {PHRASES.get(use.word, 'a standard name')}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
