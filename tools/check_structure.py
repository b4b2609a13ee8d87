"""Check the structure of the package: print the violations, and exit with status 1 if there are any.

    python -m tools.check_structure

Violations are

- circular imports, including lazy imports and those for type checking;
- files of more than `FILE_LINES` lines, except those with a reason in `LONG_FILES`;
- functions of more than `FUNCTION_LINES` lines;
- public names without an example in their docstring, and registered parts without an example or without a source (or
  ``no_source``, the reason why there is none).
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping

from tools.imports import SOURCE, circles, import_graph, modules, source_of

FILE_LINES = 400
FUNCTION_LINES = 80
LONG_FILES: Mapping[str, str] = {}
"""Modules whose files may be longer, with the reason."""


def import_circles() -> Iterator[str]:
    """A line for each import circle of modules, except circles through the package's `__init__`."""
    graph = import_graph()
    graph = {name: targets - {"classwise"} for name, targets in graph.items() if name != "classwise"}
    yield from (f"circle: {' <-> '.join(circle)}" for circle in circles(graph))


def long_files(reasons: Mapping[str, str] = LONG_FILES, limit: int = FILE_LINES) -> Iterator[str]:
    """A line for each file that is too long without a reason, or has a reason without being too long."""
    for module in modules():
        lines = len(source_of(module).read_text(encoding="utf-8").splitlines())
        if lines > limit and module not in reasons:
            yield f"file of {lines} lines: {module}"
        if lines <= limit and module in reasons:
            yield f"unused entry of LONG_FILES: {module}"


def long_functions(limit: int = FUNCTION_LINES) -> Iterator[str]:
    """A line for each function that is too long, including decorators and docstring."""
    for module in modules():
        for node in ast.walk(ast.parse(source_of(module).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                lines = (node.end_lineno or node.lineno) - first + 1
                if lines > limit:
                    yield f"function of {lines} lines: {module}.{node.name}"


def undocumented() -> Iterator[str]:
    """A line for each public class or function without an example, and each part without a source or an example."""
    import classwise
    from classwise.attacks import ATTACKS
    from classwise.core.description import Described
    from classwise.training import OBJECTIVES, SCHEDULES

    for name in classwise.__all__:
        value = getattr(classwise, name)
        if (inspect.isclass(value) or inspect.isfunction(value)) and ">>>" not in (inspect.getdoc(value) or ""):
            yield f"no example: classwise.{name}"
    for registry in (ATTACKS, OBJECTIVES, SCHEDULES):
        kind = registry.kind
        for name in registry:
            part = registry.load(name)
            described = isinstance(part, type) and issubclass(part, Described)
            if not (described and bool(part.source) != bool(part.no_source)):
                yield f"{'both source and no_source' if described and part.source else 'no source'}: {kind} {name}"
            if not (described and part.example):
                yield f"no example: {kind} {name}"


def violations() -> list[str]:
    """Every violation as one line."""
    return [*import_circles(), *long_files(), *long_functions(), *undocumented()]


def main() -> int:
    """Print the violations.

    Returns:
        1 if there are any, else 0.
    """
    found = violations()
    sys.stdout.writelines(f"{line}\n" for line in found or [f"{SOURCE.name}: no violation"])
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
