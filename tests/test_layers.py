"""The structure of the package: the order of its layers, no circular imports, packages that import nothing heavy."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.check_structure import import_circles, wrong_layers
from tools.imports import circles, imported_from, imports_of, modules, source_of

HEAVY = {"torch", "numpy", "scipy", "pandas", "matplotlib", "sklearn", "pyarrow", "PIL", "pydantic", "jinja2", "rich"}


@pytest.mark.slow
def test_imports_go_to_earlier_layers_without_circles() -> None:
    assert [*wrong_layers(), *import_circles()] == []


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": set(), "f": {"f", "a"}, "g": {"a", "e"}}
    assert circles(graph) == [["b", "c"], ["f"]]


def test_an_import_of_a_submodule_by_name_is_an_import_of_it() -> None:
    assert imported_from("classwise.attacks", "losses") == "classwise.attacks.losses"
    assert imported_from("classwise.attacks", "engine") == "classwise.attacks.engine"
    assert imported_from("classwise.attacks", "ATTACKS") == "classwise.attacks"


def test_packages_import_nothing_heavy() -> None:
    """Listing a registry and starting the command line must be fast."""
    assert [
        f"{module}:{found.line}: {found.target}"
        for module in modules()
        if source_of(module).name == "__init__.py"
        for found in imports_of(module)
        if found.target.partition(".")[0] in HEAVY and not (found.lazy or found.for_types)
    ] == []


def test_wrong_imports_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports at the top, in a function, for types only, and by a name in a string; a package in no layer."""
    monkeypatch.setattr("tools.imports.SOURCE", tmp_path)
    for package in ("stats", "nosuch"):
        (tmp_path / "classwise" / package).mkdir(parents=True)
    (tmp_path / "classwise" / "nosuch" / "it.py").write_text("")
    (tmp_path / "classwise" / "stats" / "wrong.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "import classwise.reporting.page\n"
        "if TYPE_CHECKING:\n    from classwise.models import MODELS\n"
        "def f():\n    from classwise.attacks import ATTACKS\n    from classwise.core import errors\n"
        "    return importlib.import_module('classwise.training.train').train\n"
    )
    assert list(wrong_layers()) == [
        "no layer: classwise.nosuch.it",
        "layer: classwise.stats.wrong:2 imports classwise.reporting.page",
        "layer: classwise.stats.wrong:4 imports classwise.models",
        "layer: classwise.stats.wrong:6 imports classwise.attacks",
        "layer: classwise.stats.wrong:8 imports classwise.training.train",
    ]
