"""The form of the error messages that a user can see: ``python -m tools.check_errors`` prints those that violate it.

The messages are collected from the source: every call of `ClasswiseError`, of its subclasses and of
`classwise.core.errors.unknown`. A value in a message is shown as ``{expression}``. A message

- is one line of at most two sentences or clauses, without a period at its end;
- starts with a value, an option or a word in lower case, and has no exclamation mark;
- has no word of `tools.check_language.PHRASES`;
- names what is wrong and what is accepted, separated by punctuation, or says what must or can be done.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.check_language import phrases
from tools.imports import SOURCE

ERRORS = frozenset({"ClasswiseError", "IncompleteError", "DataNotFoundError", "unknown"})
CLAUSES = 2
"""The largest number of sentences; a semicolon separates what is wrong from what is accepted."""
_SENTENCE = re.compile(r"[.!?] +(?=[A-Z])")
_ACCEPTED = re.compile(
    r"[;:,]|\b(must|should|expected|requires?|needs?|only|cannot|use|give|set|such as|does not|has no|contains no)\b"
)
_HINT = re.compile(r"\{\w*(hint|advice|suggestion)\b")
"""A value that says what is accepted."""


class Message(NamedTuple):
    """An error message in the source.

    Args:
        file: the file, relative to the package's folder.
        line: line number.
        text: the message; a value is ``{expression}``.
    """

    file: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


def text_of(node: ast.expr) -> str | None:
    """The text of a string expression; None if it is not one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (
            part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"  # type: ignore[attr-defined]
            for part in node.values
        )
        return "".join(map(str, parts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left), text_of(node.right)
        return None if left is None or right is None else left + right
    return None


def messages_of(file: Path, source: str) -> Iterator[Message]:
    """The messages of a file; a message that is computed elsewhere is left out, a name in `unknown` completed."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        text = text_of(node.args[0]) if name in ERRORS else None
        if text is not None:
            yield Message(
                file, node.lineno, f"unknown {text} {{name}}; did you mean {{near}}?" if name == "unknown" else text
            )


def messages(source: Path = SOURCE) -> Iterator[Message]:
    """All messages of the package."""
    for path in sorted(source.rglob("*.py")):
        yield from messages_of(path.relative_to(source), path.read_text(encoding="utf-8"))


def faults(text: str) -> list[str]:
    """What violates the form in a message, as words; empty for none."""
    plain = re.sub(r"\{[^}]*\}", "V", text)
    found = []
    if "\n" in text:
        found.append("more than one line")
    if len(_SENTENCE.findall(plain)) >= CLAUSES:
        found.append("more than two sentences")
    if re.search(r"(?<!\.\.)\.$", plain):
        found.append("a period at the end")
    if "!" in plain:
        found.append("an exclamation mark")
    if re.match(r"[A-Z][a-z]+ [a-z]", text):
        found.append("a capital at the start")
    if re.search(r" {2}|\s$|^\s| [;,:]", plain):
        found.append("spacing")
    found += [f"the word {use.word!r}" for use in phrases(Path(), plain)]
    if not _ACCEPTED.search(plain) and not _HINT.search(text):
        found.append("nothing about what is accepted")
    return found


def main() -> int:
    """Print every message that violates the form.

    Returns:
        1 if there is one, else 0.
    """
    bad = [(message, faults(message.text)) for message in messages()]
    for message, found in bad:
        if found:
            print(f"{message} -> {', '.join(found)}")
    return int(any(found for _, found in bad))


if __name__ == "__main__":
    sys.exit(main())
