"""What a part and its settings mean and may be, from the docstrings and the types of its class."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args, get_origin

from classwise.core.settings import limits
from classwise.core.settings.docstrings import docstring

_SECTION = re.compile(r"^(?:Args|Attributes|Examples?|Raises|Returns):$", re.MULTILINE)
_FIELD = re.compile(r"^    (\w+): (.*)$")
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def summary(part: object) -> str:
    """The docstring without its sections."""
    return _SECTION.split(docstring(part))[0].strip()


def meanings(cls: type) -> dict[str, str]:
    """What each setting means, by the docstring of the class or of the nearest base that speaks of it."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= _fields(docstring(base))
    return found


def _fields(doc: str) -> dict[str, str]:
    """The entries of the section ``Args``, each on one line and without backticks."""
    found: dict[str, str] = {}
    name, inside = "", False
    for line in doc.splitlines():
        if not line.startswith(" "):
            inside = line == "Args:" or (inside and not line)
        elif inside and (entry := _FIELD.match(line)):
            name, found[entry[1]] = entry[1], entry[2]
        elif inside and name:
            found[name] += f" {line.strip()}"
    return {key: text.replace("`", "") for key, text in found.items()}


def values(cls: type) -> dict[str, str]:
    """The accepted values of each setting, where its type states them: the choices, or the range of a number."""
    fields: dict[str, Any] = getattr(cls, "__pydantic_fields__", {})
    return {name: _allowed(field.annotation, field.metadata) for name, field in fields.items()}


def _allowed(annotation: Any, metadata: list[Any]) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(map(str, get_args(annotation)))
    if annotation is bool:
        return "true, false"
    bounds = [
        f"{sign} {getattr(constraint, key)}"
        for constraint in metadata
        for key, sign in _BOUNDS.items()
        if hasattr(constraint, key) and abs(getattr(constraint, key)) not in (limits.COUNT, limits.NUMBER, limits.SEED)
    ]
    return ", ".join(bounds)
