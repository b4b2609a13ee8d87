"""The order of the layers: a module imports only from its own layer and from those on its left."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.imports import Import, circles, import_graph, imported_from, imports_of, modules, source_of

LAYERS = (
    "core",
    "stats",
    "data",
    "models",
    "attacks",
    "training",
    "auditing",
    "reporting",
    "sweeps",
    "analysis",
    "papers",
    "testing",
    "cli",
)
"""From left to right."""

WITHOUT_CIRCLES = (
    "core",
    "stats",
    "data",
    "models",
    "attacks",
    "training",
    "auditing",
    "reporting",
    "sweeps",
    "analysis",
    "papers",
    "testing",
    "cli",
)
"""The layers without circular imports between their modules, including lazy imports and those for types."""

HEAVY = {"torch", "numpy", "scipy", "pandas", "matplotlib", "sklearn", "pyarrow", "PIL", "pydantic", "jinja2", "rich"}


def layer_of(module: str) -> str | None:
    """The layer of a module; None for the package itself, which re-exports names of all layers."""
    parts = module.split(".")
    if len(parts) == 1:
        return None
    if parts[1] in ("__main__", "run"):
        return "cli"
    return parts[1]


@functools.cache
def graph_of_layers() -> dict[str, set[str]]:
    """The import graph without the package's `__init__`, which re-exports names of all layers."""
    graph = {name: targets for name, targets in import_graph().items() if layer_of(name) is not None}
    return {name: targets & graph.keys() for name, targets in graph.items()}


def to_the_right(module: str) -> Iterator[Import]:
    own = layer_of(module)
    if own is None:
        return
    for found in imports_of(module):
        if not found.target.startswith("classwise."):
            continue
        other = layer_of(found.target)
        if other is None:
            continue
        if LAYERS.index(other) > LAYERS.index(own):
            yield found


@pytest.mark.slow
@pytest.mark.parametrize("module", modules())
def test_imports_go_only_leftwards(module: str) -> None:
    layer = layer_of(module)
    assert layer is None or layer in LAYERS, f"{module} is in no known layer; add it to LAYERS"
    assert not [f"line {found.line}: {layer} imports {found.target}" for found in to_the_right(module)]


@pytest.mark.slow
@pytest.mark.parametrize("layer", WITHOUT_CIRCLES)
def test_no_modules_of_a_layer_import_each_other_in_a_circle(layer: str) -> None:
    graph = graph_of_layers()
    inside = {module for module in graph if layer_of(module) == layer}
    assert circles({module: graph[module] & inside for module in inside}) == []


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": set(), "f": {"f", "a"}, "g": {"a", "e"}}
    assert circles(graph) == [["b", "c"], ["f"]]


def test_an_import_of_a_submodule_by_name_is_an_import_of_it() -> None:
    assert imported_from("classwise.attacks", "losses") == "classwise.attacks.losses"
    assert imported_from("classwise.attacks", "engine") == "classwise.attacks.engine"
    assert imported_from("classwise.attacks", "ATTACKS") == "classwise.attacks"


@pytest.mark.parametrize("module", [name for name in modules() if source_of(name).name == "__init__.py"])
def test_packages_import_nothing_heavy(module: str) -> None:
    """Listing a registry and starting the command line must be fast."""
    heavy = [
        f"line {found.line}: {found.target}"
        for found in imports_of(module)
        if found.target.partition(".")[0] in HEAVY and not (found.lazy or found.for_types)
    ]
    assert not heavy


def test_a_wrong_import_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports at the top, in a function, for types only, and by a name in a string."""
    monkeypatch.setattr("tools.imports.SOURCE", tmp_path)
    folder = tmp_path / "classwise" / "stats"
    folder.mkdir(parents=True)
    (folder / "wrong.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "import classwise.reporting.page\n"
        "if TYPE_CHECKING:\n    from classwise.models import MODELS\n"
        "def f():\n    from classwise.attacks import ATTACKS\n    from classwise.core import errors\n"
        "    return importlib.import_module('classwise.training.train').train\n"
    )
    found = list(to_the_right("classwise.stats.wrong"))
    assert [(one.line, layer_of(one.target), one.lazy, one.for_types) for one in found] == [
        (2, "reporting", False, False),
        (4, "models", False, True),
        (6, "attacks", True, False),
        (8, "training", True, False),
    ]
