"""The documents of the project and their code blocks, for the tests that read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted(path for path in (DOCS / "tutorials").glob("*.md") if path.stem != "index")
NOTEBOOKS = sorted(path for path in (DOCS / "notebooks").glob("*.md") if path.stem != "index")
DOCUMENTS = [
    ROOT / "README.md",
    *(path for path in sorted(DOCS.rglob("*.md")) if DOCS / "results" not in path.parents and path not in NOTEBOOKS),
]
"""README and the documents of the site, except results, which programs write, and notebooks, which its build runs."""

FENCED = re.compile(r"^```(\w*|{\w+}[^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHELL = ("", "shell")
"""Languages of fenced blocks with commands."""


class Block(NamedTuple):
    """A fenced block: its language, its text, and the file that its first line names (``# mine.py``), if any."""

    language: str
    text: str
    file: str | None


def blocks(document: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    found = []
    for language, text in FENCED.findall(document.read_text(encoding="utf-8")):
        named = re.match(r"# ([\w-]+\.(?:py|yaml))\n", text)
        found.append(Block(language, text, named[1] if named else None))
    return found


def name_of(document: Path) -> str:
    """The path of a document in the project, without ``docs/``."""
    return document.relative_to(ROOT).as_posix().removeprefix("docs/")
