"""The structure of the package: the order of its layers, no circular imports, packages that import nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tools.check_structure import folder_circles, hooks, import_circles, wrong_layers
from tools.imports import circles, imported_from, imports_of, modules, source_of

HEAVY = {"torch", "numpy", "scipy", "pandas", "matplotlib", "sklearn", "pyarrow", "PIL", "pydantic", "jinja2", "rich"}


@pytest.mark.slow
def test_imports_go_to_earlier_layers_without_circles() -> None:
    assert [*wrong_layers(), *import_circles(), *folder_circles(), *hooks()] == []


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


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Write modules of a made-up package, which the checks read instead of this one."""
    monkeypatch.setattr("tools.imports.SOURCE", tmp_path)

    def write_modules(texts: dict[str, str]) -> None:
        for name, text in texts.items():
            file = tmp_path / "classwise" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    return write_modules


def test_wrong_imports_are_found(write: Callable[[dict[str, str]], None]) -> None:
    """Imports at the top, in a function, for types only, and by a name in a string; a package in no layer."""
    wrong = (
        "from typing import TYPE_CHECKING\n"
        "import classwise.reporting.page\n"
        "if TYPE_CHECKING:\n    from classwise.models import MODELS\n"
        "def f():\n    from classwise.attacks import ATTACKS\n    from classwise.core import errors\n"
        "    return importlib.import_module('classwise.training.train').train\n"
    )
    write({"nosuch/it.py": "", "stats/wrong.py": wrong})
    assert list(wrong_layers()) == [
        "no layer: classwise.nosuch.it",
        "layer: classwise.stats.wrong:2 imports classwise.reporting.page",
        "layer: classwise.stats.wrong:4 imports classwise.models",
        "layer: classwise.stats.wrong:6 imports classwise.attacks",
        "layer: classwise.stats.wrong:8 imports classwise.training.train",
    ]


def test_folders_that_import_each_other_are_found(write: Callable[[dict[str, str]], None]) -> None:
    """Two folders, and a folder and the root of its package; the names that a package re-exports do not count."""
    write(
        {
            "data/__init__.py": "from classwise.data.sets.base import Known\n",
            "data/images.py": "",
            "data/sets/__init__.py": "",
            "data/sets/base.py": "from classwise.data.images import Images\n",
            "attacks/__init__.py": "",
            "attacks/base.py": "def f():\n    from classwise.attacks.engine.queue import Queue\n",
            "attacks/engine/__init__.py": "",
            "attacks/engine/queue.py": "from classwise.attacks import base\nfrom classwise.data.images import Images\n",
            "stats/a/x.py": "import classwise.stats.b.y\n",
            "stats/b/y.py": "from classwise.stats.a.z import f\n",
            "stats/a/z.py": "",
        }
    )
    assert list(folder_circles()) == [
        "folders: classwise.attacks <-> classwise.attacks.engine",
        "folders:   classwise.attacks -> classwise.attacks.engine: base imports classwise.attacks.engine.queue",
        "folders:   classwise.attacks.engine -> classwise.attacks: queue imports classwise.attacks.base",
        "folders: classwise.stats.a <-> classwise.stats.b",
        "folders:   classwise.stats.a -> classwise.stats.b: x imports classwise.stats.b.y",
        "folders:   classwise.stats.b -> classwise.stats.a: y imports classwise.stats.a.z",
    ]


FILLED = "hook: classwise.reporting.text:2 fills hooks of classwise.core.hooks"


@pytest.mark.parametrize(
    ("module", "text", "found"),
    [
        ("reporting.text", "from classwise.core.hooks import hooks\nhooks['text'] = f\n", FILLED),
        ("reporting.text", "from classwise.core.hooks import hooks\nhooks.update(text=f)\n", FILLED),
        ("reporting.text", "from classwise.core.hooks import hooks\nhooks += [f]\n", FILLED),
        (
            "reporting.text",
            "import classwise.core.hooks as core\ndef f():\n    core.hooks.append(f)\n",
            "hook: classwise.reporting.text:3 fills core.hooks of classwise.core.hooks",
        ),
        ("core.hooks", "hooks = {}\nhooks['text'] = str\n", ""),
        (
            "stats.tables",
            "from classwise.core.hooks import hooks\nhooks['text'](1)\n",
            "key: classwise.stats.tables:2 calls 'text' in hooks of classwise.core.hooks",
        ),
        (
            "core.text",
            "from classwise.core.hooks import hooks\nhooks['text'](1)\n",
            "key: classwise.core.text:2 calls 'text' in hooks of classwise.core.hooks",
        ),
        ("core.hooks", "hooks = {}\nhooks['text'](1)\n", ""),
        (
            "papers.store",
            "importlib.import_module(name)\n",
            "import: classwise.papers.store:1 imports a computed name: importlib.import_module(name)",
        ),
        (
            "papers.store",
            "__import__('classwise.' + name)\n",
            "import: classwise.papers.store:1 imports a computed name: __import__('classwise.' + name)",
        ),
        ("core.settings.registry", "importlib.import_module(name)\n", ""),
        ("papers.store", "importlib.import_module('classwise.core.hooks')\n", ""),
        (
            "stats.text",
            "load_object('classwise.reporting.text:text')\n",
            "name: classwise.stats.text:1 names classwise.reporting.text:text",
        ),
        ("papers.store", "load_object('classwise.reporting.text:text')\n", ""),
    ],
)
def test_calls_that_imports_do_not_show_are_found(
    write: Callable[[dict[str, str]], None], module: str, text: str, found: str
) -> None:
    texts = {"core/hooks.py": "hooks = {}\n", "reporting/text.py": ""}
    write({**texts, f"{module.replace('.', '/')}.py": text})
    assert list(hooks()) == ([found] if found else [])
