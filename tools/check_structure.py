"""Check the structure of the package: print the violations, and exit with status 1 if there are any.

    python -m tools.check_structure

Violations are

- circular imports, and imports from a later layer than their own; lazy imports and those for type checking count;
- folders of one layer that import each other, where the root of a package is a folder too;
- hooks: a value that a later layer puts into a container of an earlier one, a module imported by a computed name, a
  function called by its key in another layer's container, and a text that names a module of a later layer;
- public names without an example in their docstring, and registered parts without an example or without a source (or
  ``no_source``, the reason why there is none).

The lines of each package, and the longest files and functions, are printed, not limited.
"""

from __future__ import annotations

import ast
import collections
import inspect
import sys
from collections.abc import Collection, Iterator

from tools.hooks import calls_by_key, computed_imports, filled_containers, named_modules
from tools.imports import SOURCE, Import, circles, import_graph, imports_of, modules, package_of, source_of

LAYERS = (
    "core",
    "stats",
    "data",
    "threat",
    "models",
    "attacks",
    "training",
    "auditing",
    "posthoc",
    "maite",
    "reporting",
    "sweeps",
    "analysis",
    "papers",
    "testing",
    "cli",
)
"""The packages in order: a module imports only from its own package and from earlier ones."""


def import_circles() -> Iterator[str]:
    """A line for each import circle of modules, except circles through the package's `__init__`."""
    graph = import_graph()
    graph = {name: targets - {"classwise"} for name, targets in graph.items() if name != "classwise"}
    yield from (f"circle: {' <-> '.join(circle)}" for circle in circles(graph))


def folder_circles(layers: Collection[str] = LAYERS) -> Iterator[str]:
    """A line for each circle of folders in one of the layers, and one for the imports between each two folders of it.

    The root of a package is a folder too. What the ``__init__`` of a layer imports does not count: it re-exports names.
    """
    between: dict[tuple[str, str], list[Import]] = collections.defaultdict(list)
    for module in modules():
        if module.count(".") < 2 and source_of(module).name == "__init__.py":
            continue
        for found in imports_of(module):
            here, there = package_of(module), package_of(found.target)
            if here != there and _layer(found.target) == _layer(module) in layers and there.startswith("classwise."):
                between[here, there].append(found)
    graph: dict[str, set[str]] = collections.defaultdict(set)
    for here, there in between:
        graph[here].add(there)
        graph[there] |= set()
    for circle in circles(graph):
        yield f"folders: {' <-> '.join(circle)}"
        for (here, there), statements in between.items():
            if here in circle and there in circle:
                pairs = {f"{one.module.removeprefix(here + '.')} imports {one.target}": None for one in statements}
                yield f"folders:   {here} -> {there}: {', '.join(pairs)}"


def hooks() -> Iterator[str]:
    """A line for each way in which a layer calls another that its imports do not show."""
    for module in modules():
        layer = _layer(module)
        place = LAYERS.index(layer) if layer in LAYERS else len(LAYERS)
        earlier, later = LAYERS[:place], LAYERS[place + 1 :]
        yield from filled_containers(module, earlier)
        yield from calls_by_key(module, LAYERS)
        yield from computed_imports(module)
        yield from named_modules(module, later)


def wrong_layers() -> Iterator[str]:
    """A line for each import from a later layer, and each module in none.

    The package's own ``__init__``, which re-exports names of all layers, may import and be imported anywhere.
    """
    for module in modules():
        if module == "classwise":
            continue
        if (layer := _layer(module)) not in LAYERS:
            yield f"no layer: {module}"
            continue
        for found in imports_of(module):
            other = _layer(found.target) if found.target.startswith("classwise.") else None
            if other in LAYERS and LAYERS.index(other) > LAYERS.index(layer):
                yield f"layer: {module}:{found.line} imports {found.target}"


def _layer(module: str) -> str:
    name = ".".join(module.split(".")[1:2])
    return "cli" if name in ("__main__", "run") else name


def sizes(longest: int = 5) -> Iterator[str]:
    """Statements and lines of each package, and the longest files and functions."""
    statements: collections.Counter[str] = collections.Counter()
    lines: collections.Counter[str] = collections.Counter()
    files: collections.Counter[str] = collections.Counter()
    functions: collections.Counter[str] = collections.Counter()
    for module in modules():
        text = source_of(module).read_text(encoding="utf-8")
        tree = ast.parse(text)
        package = module.split(".")[1] if "." in module else module
        files[module] = len(text.splitlines())
        lines[package] += files[module]
        for node in ast.walk(tree):
            is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            statements[package] += isinstance(node, ast.stmt) and not is_docstring
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions[f"{module}.{node.name}"] = (node.end_lineno or node.lineno) - node.lineno + 1
    for package in sorted(lines):
        yield f"{package}: {statements[package]:,} statements, {lines[package]:,} lines"
    yield f"all: {statements.total():,} statements, {lines.total():,} lines, {len(files):,} files"
    for kind, counted in (("file", files), ("function", functions)):
        yield f"longest {kind}s: " + ", ".join(f"{name} ({count})" for name, count in counted.most_common(longest))


def undocumented() -> Iterator[str]:
    """A line for each public class or function without an example, and each part without a source or an example."""
    import classwise
    from classwise.attacks import ATTACKS
    from classwise.core.settings.description import Described
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
    return [*import_circles(), *wrong_layers(), *folder_circles(), *hooks(), *undocumented()]


def main() -> int:
    """Print the sizes and the violations.

    Returns:
        1 if there are any, else 0.
    """
    found = violations()
    sys.stdout.writelines(f"{line}\n" for line in sizes())
    sys.stdout.writelines(f"{line}\n" for line in found or [f"{SOURCE.name}: no violation"])
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
