"""Docstrings that help texts, lists and results show, also where the interpreter has removed them (``python -OO``)."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

_REMOVES = 2
"""The level of optimisation from which the interpreter removes docstrings."""


def docstring(part: Any) -> str:
    """The docstring of a class or a function, without its indentation; empty for none.

    If the interpreter removes docstrings, it is read from the source; if there is no source, it is empty.

    Example:
        >>> docstring(docstring).split(",")[0]
        'The docstring of a class or a function'
    """
    written = part.__doc__ or ""
    if sys.flags.optimize < _REMOVES or (written and not inspect.isclass(part)):  # dataclasses write one for a class
        return inspect.cleandoc(written)
    return _in_source(part.__module__).get(getattr(part, "__qualname__", ""), "")


@functools.cache
def _in_source(module: str) -> Mapping[str, str]:
    """The docstrings in the source of a module by the qualified names of its classes and functions."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError):  # no source, as in a session
        return {}
    return dict(_within(tree, ""))


def _within(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{child.name}"
            yield name, ast.get_docstring(child) or ""
            yield from _within(child, f"{name}." if isinstance(child, ast.ClassDef) else f"{name}.<locals>.")
        else:
            yield from _within(child, prefix)
