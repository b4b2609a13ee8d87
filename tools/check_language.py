"""Words of everyday language that this project does not use in prose: help texts, errors, docstrings, documents.

Run ``python -m tools.check_language``: it prints each occurrence as ``file:line: word: text`` and exits with status 1
if there is one. Identifiers and comments are not searched.
"""

from __future__ import annotations

import ast
import re
import sys
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
    "unless you say": "by default",
    "says so": "reports this, states this",
    "as it is": "clean, unmodified, unchanged",
    "lays": "arranges",
    "inks": "palette, colours",
    "wording": "text, formatting",
    "chronicle": "history, log",
}
"""Words and phrases of sentences, with the standard words that replace them."""

SOURCES = ("src", "benchmarks", "tools")
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "action.yml",
    ".github",
    "checkpoints",
    "docs",
    "src",
)
_SUFFIXES = (".md", ".yaml", ".yml", ".html", ".css")
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
    lines = text.splitlines()
    for match in _PHRASE.finditer(text):
        line = text.count("\n", 0, match.start())
        yield Use(file, first_line + line, " ".join(match[1].lower().split()), lines[line].strip()[:100])


def python_uses(file: Path, text: str) -> Iterator[Use]:
    """The checked phrases in the strings of a Python file: docstrings, help texts and messages."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from phrases(file, node.value, node.lineno)


def uses(root: Path = ROOT) -> Iterator[Use]:
    """Every occurrence of a checked phrase in the project, committed pages included."""
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            if path != Path(__file__).resolve():
                yield from python_uses(path.relative_to(root), path.read_text(encoding="utf-8"))
    for name in DOCUMENTS:
        place = root / name
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.suffix in _SUFFIXES:
                found = phrases(path.relative_to(root), path.read_text(encoding="utf-8"))
                # The tables of CHANGELOG list names that were replaced.
                yield from (use for use in found if not (name == "CHANGELOG.md" and use.text.startswith("| ")))


def main() -> int:
    """Print every occurrence."""
    found = list(uses())
    for use in found:
        print(f"{use} -> {PHRASES[use.word]}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
