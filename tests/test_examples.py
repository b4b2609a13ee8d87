"""The docstring examples of the public names run with the documented output; those of attacks run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import itertools
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from tools.imports import modules

import classwise as cw
from classwise import ATTACKS, Threat, metrics
from classwise.core.settings.config import make
from classwise.models import save_weights

PUBLIC: dict[str, Any] = {
    **{name: getattr(cw, name) for name in cw.__all__ if name != "__version__"},
    **{f"metrics.{name}": getattr(metrics, name) for name in metrics.__all__},
    **{f"papers.{name}": getattr(cw.papers, name) for name in cw.papers.__all__},
}


def examples(name: str, documented: object) -> list[doctest.DocTest]:
    """The docstring examples of a public object, for a class including those of its methods.

    They start from an empty namespace, so each must import the names that it uses.

    Raises:
        AssertionError: if the docstring of the object has no example.
    """
    finder = doctest.DocTestFinder(recurse=inspect.isclass(documented))
    module = None if isinstance(documented, types.ModuleType) else False
    found = finder.find(documented, name, module=module, globs={})
    own = next((test for test in found if test.name == name), None)
    assert own is not None, f"{name}: the docstring has no example (>>>)"
    assert own.examples, f"{name}: the docstring has no example (>>>)"
    return found


def run(test: doctest.DocTest) -> None:
    """Run the examples of one docstring.

    Raises:
        AssertionError: with doctest's report, if an output differs or an example raises.
    """
    report: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert not report, "".join(report)


@pytest.fixture(autouse=True)
def empty_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and home; the user's data directory is not used."""
    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CLASSWISE_DATA", raising=False)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_example_runs(name: str, empty_folders: Path) -> None:
    for test in examples(name, PUBLIC[name]):
        run(test)
    assert not [path for path in empty_folders.rglob("*") if path.is_file()], "the example leaves files behind"


DOCUMENTED = ("classwise.stats.", "classwise.core.", "classwise.sweeps.")
"""Packages whose functions have examples, also those that are not public names."""


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in modules()
        if name.startswith(DOCUMENTED)
        and name
        not in ("classwise.sweeps.executors.run", "classwise.sweeps.executors.ray")  # cw.sweep; needs a package
    ],
)
def test_the_examples_of_a_module_run(name: str) -> None:
    """Those of functions that are not public names, too; they may use the names of their module."""
    module = importlib.import_module(name)
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == name]
    decorated = [value for value in own if hasattr(value, "arguments")]
    finder = doctest.DocTestFinder()
    found = [finder.find(inspect.unwrap(function), function.__name__, module) for function in decorated]
    for test in itertools.chain(finder.find(module), *found):
        run(test)


@pytest.mark.parametrize("name", ATTACKS)
def test_the_example_of_an_attack_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example is a spec of the attack, and its adversarial images are in the ball."""
    torch.manual_seed(0)
    model = cw.load_model("small-cnn", num_classes=5, in_channels=1, width=0.1)
    save_weights(Path("runs/standard/checkpoints/best.safetensors"), model)
    Path("mine.py").write_text("def attack(model):\n    return lambda images, labels: images\n", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    attack = make(ATTACKS, ATTACKS.load(name).example)
    sys.modules.pop("mine", None)
    assert type(attack) is ATTACKS.load(name)
    images, threat = torch.linspace(0, 1, 4 * 64).view(4, 1, 8, 8), Threat(attack.norms[0], 0.3)
    adversarial = cw.attack(model, images, torch.tensor([0, 1, 2, 3]), attack, threat=threat)
    assert adversarial.shape == images.shape
    distance = threat.distance(adversarial, images)
    assert bool(distance.isnan().all()) == (threat.norm == "spatial")
    assert not (distance > 0.3 + 1e-5).any()


def without() -> None:
    """Do nothing."""


def wrong() -> None:
    """Do nothing.

    Example:
        >>> 1 + 1
        3
    """


def warns() -> None:
    """Do nothing.

    Example:
        >>> import warnings
        >>> warnings.warn("deprecated")
    """


def not_imported() -> None:
    """Do nothing.

    Example:
        >>> PUBLIC
    """


def test_a_name_without_an_example_fails() -> None:
    with pytest.raises(AssertionError, match="without: the docstring has no example"):
        examples("without", without)


@pytest.mark.parametrize("documented", [wrong, warns, not_imported], ids=lambda function: function.__name__)
def test_a_wrong_example_fails(documented: types.FunctionType) -> None:
    (test,) = examples(documented.__name__, documented)
    with pytest.raises(AssertionError, match=r"Got:\n +2|UserWarning: deprecated|NameError: name 'PUBLIC'"):
        run(test)
