"""Calls between layers that imports do not show, found in the sources, for the checks of the structure."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from tools.imports import imported_from, named_in_call, source_of

DYNAMIC = ("classwise.core.settings.registry", "classwise.core.settings.extras")
"""The modules that import by names given to them: those of registered parts, and of optional dependencies."""
FILLING = ("add", "append", "extend", "insert", "register", "setdefault", "update")
"""The methods that put a value into a container."""
_MODULE = re.compile(r"(classwise(?:\.\w+)+)(?::[\w.]+)?")


def filled_containers(module: str, layers: Collection[str]) -> Iterator[str]:
    """A line for each value that a module puts into a container of one of the layers, at any place in the module."""
    names = _names_from(module, layers)
    for node in ast.walk(_tree(module)):
        match node:
            case ast.Assign(targets=targets):
                containers = [target.value for target in targets if isinstance(target, ast.Subscript)]
            case ast.AugAssign(target=ast.Name() | ast.Attribute() as container):
                containers = [container]
            case ast.Call(func=ast.Attribute(value=container, attr=method)) if method in FILLING:
                containers = [container]
            case _:
                continue
        for container in containers:
            if (root := _root(container)) in names and isinstance(container, ast.Name | ast.Attribute):
                yield f"hook: {module}:{node.lineno} fills {ast.unparse(container)} of {names[root]}"


def calls_by_key(module: str, layers: Collection[str]) -> Iterator[str]:
    """A line for each function that a module calls by a literal key in a container imported from one of the layers."""
    names = _names_from(module, layers)
    for node in ast.walk(_tree(module)):
        match node:
            case ast.Call(func=ast.Subscript(value=container, slice=ast.Constant(value=str(key)))):
                if (root := _root(container)) in names:
                    yield f"key: {module}:{node.lineno} calls {key!r} in {ast.unparse(container)} of {names[root]}"


def computed_imports(module: str) -> Iterator[str]:
    """A line for each import of a name that is no literal, unless it is of a registry or re-exported by a package."""
    if module in DYNAMIC:
        return
    tree, exports = _tree(module), source_of(module).name == "__init__.py"
    lazy = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__" and exports]
    allowed = {id(node) for function in lazy for node in ast.walk(function)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)):
                if called in ("import_module", "__import__") and not named_in_call(node) and id(node) not in allowed:
                    yield f"import: {module}:{node.lineno} imports a computed name: {ast.unparse(node)}"


def named_modules(module: str, layers: Collection[str]) -> Iterator[str]:
    """A line for each text of a module that is the name of a module, or of an object in one, of one of the layers."""
    for node in ast.walk(_tree(module)):
        match node:
            case ast.Constant(value=str(text)) if named := _MODULE.fullmatch(text):
                if named[1].split(".")[1] in layers and source_of(named[1]).is_file():
                    yield f"name: {module}:{node.lineno} names {text}"


def _tree(module: str) -> ast.Module:
    return _parsed(source_of(module))


@functools.cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _names_from(module: str, layers: Collection[str]) -> dict[str, str]:
    """The names that a module imports from modules of the layers, with those modules."""
    names: dict[str, str] = {}
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = imported_from(node.module, alias.name)
    return {name: source for name, source in names.items() if _layer_of(source) in layers}


def _layer_of(module: str) -> str:
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == "classwise" else ""


def _root(node: ast.AST) -> str:
    """The first name of ``name.attribute.attribute``; empty for another expression."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
