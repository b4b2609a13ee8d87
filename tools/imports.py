"""The import graph of the package, parsed from its sources, for the checks of its structure."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src"


class Import(NamedTuple):
    """An import of a module.

    Args:
        module: the importing module.
        target: the imported module.
        line: line number of the import.
        lazy: whether the import is inside a function.
        for_types: whether the import is only for type checking.
    """

    module: str
    target: str
    line: int
    lazy: bool
    for_types: bool


def modules() -> list[str]:
    """The names of all modules of the package, sorted."""
    paths = (SOURCE / "classwise").rglob("*.py")
    names = (".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in paths)
    return sorted(name.removesuffix(".__init__") for name in names)


def source_of(module: str) -> Path:
    """The file of a module."""
    folder = SOURCE.joinpath(*module.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def package_of(module: str) -> str:
    """The folder of a module as a package name: itself for the name of a package."""
    return module if source_of(module).name == "__init__.py" else module.rpartition(".")[0]


def imports_of(module: str) -> tuple[Import, ...]:
    """All imports of a module of the package, including lazy imports and ``import_module`` of a literal name."""
    return _imports(module, source_of(module))


@functools.cache
def _imports(module: str, file: Path) -> tuple[Import, ...]:

    def visit(node: ast.AST, lazy: bool, for_types: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, alias.name, child.lineno, lazy, for_types)
            elif isinstance(child, ast.ImportFrom):
                if child.level or child.module is None:
                    raise ValueError(f"{module}:{child.lineno} is a relative import; write the full module name")
                if child.module == "classwise":
                    for alias in child.names:
                        yield Import(module, f"classwise.{alias.name}", child.lineno, lazy, for_types)
                else:
                    for target in dict.fromkeys(imported_from(child.module, alias.name) for alias in child.names):
                        yield Import(module, target, child.lineno, lazy, for_types)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                yield from visit(child, True, for_types)
            elif isinstance(child, ast.Call) and (name := named_in_call(child)):
                yield Import(module, name, child.lineno, lazy, for_types)
            elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                for statement in child.body:
                    yield from visit(ast.Module([statement], []), lazy, True)
                for statement in child.orelse:
                    yield from visit(ast.Module([statement], []), lazy, for_types)
            else:
                yield from visit(child, lazy, for_types)

    return tuple(visit(ast.parse(file.read_text(encoding="utf-8")), False, False))


def named_in_call(node: ast.Call) -> str:
    """The module that ``import_module("name")`` imports; empty for another call, or a name that is computed."""
    match node:
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]):
            return name if called in ("import_module", "__import__") else ""
    return ""


def imported_from(package: str, name: str) -> str:
    """The module that ``from package import name`` refers to: a submodule of that name, else the package itself."""
    if package.startswith("classwise."):
        place = SOURCE.joinpath(*package.split("."), name)
        if place.with_suffix(".py").is_file() or (place / "__init__.py").is_file():
            return f"{package}.{name}"
    return package


def import_graph() -> dict[str, set[str]]:
    """Each module of the package with the modules that it imports, including lazy imports and those for types."""
    names = modules()
    return {name: {statement.target for statement in imports_of(name)} & set(names) for name in names}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components with more than one node or a self-loop (Tarjan, 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    components: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        path.append(node)
        for other in sorted(graph[node]):
            if other not in number:
                visit(other)
            if other in path:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == number[node]:
            start = path.index(node)
            component = sorted(path[start:])
            del path[start:]
            if len(component) > 1 or node in graph[node]:
                components.append(component)

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return components
