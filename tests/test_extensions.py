"""Parts of an installed package appear in lists and help texts, and the tests over all registered parts test them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from classwise.core.errors import ClasswiseError
from classwise.core.registry import Registry

ROOT = Path(__file__).parents[1]
PARTS = '''
"""One part of each kind."""

from classwise.attacks.gradient.ascent import PGD
from classwise.data.images import Images
from classwise.data.sets.digits import Digits
from classwise.models.zoo.small_cnn import SmallCNN
from classwise.core.config import configurable
from classwise.training.objectives.adversarial import AdversarialTraining
from classwise.training.schedules.cfa import CCM


@configurable
class ToyAttack(PGD):
    """PGD under another name."""


@configurable
class ToyObjective(AdversarialTraining):
    """Adversarial training under another name."""


@configurable
class ToySchedule(CCM):
    """CCM under another name."""


class ToyModel(SmallCNN):
    """The small network under another name."""


class ToyDigits(Digits):
    """The digits under another name."""

    name = "toy-digits"
'''
RECIPE = """
extends: at
name: toy-recipe
description: "Adversarial training with a smaller learning rate."
source: "Madry et al., ICLR 2018"
optimizer: {name: sgd, lr: 0.05, momentum: 0.9, weight_decay: 2.0e-4}
"""
ENTRY_POINTS = {
    "classwise.attacks": "toy-attack = toyparts:ToyAttack",
    "classwise.objectives": "toy-objective = toyparts:ToyObjective",
    "classwise.schedules": "toy-schedule = toyparts:ToySchedule",
    "classwise.models": "toy-model = toyparts:ToyModel",
    "classwise.datasets": "toy-digits = toyparts:ToyDigits",
    "classwise.recipes": "toy = toyrecipes",
}


def install(folder: Path, entry_points: dict[str, str], name: str = "toyparts") -> Path:
    """Write a package as pip installs it: a module, a folder of recipes, and metadata with the entry points."""
    (folder / f"{name}.py").write_text(PARTS)
    recipes = folder / "toyrecipes"
    recipes.mkdir()
    (recipes / "__init__.py").touch()
    (recipes / "toy-recipe.yaml").write_text(RECIPE)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("".join(f"[{group}]\n{line}\n" for group, line in entry_points.items()))
    return folder


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a separate process with the folder in its path."""
    known = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src")])}
    return subprocess.run([sys.executable, *words], env=known, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.slow
def test_parts_of_an_installed_package_are_listed_and_explained(tmp_path: Path) -> None:
    script = (
        "import io, json, contextlib\n"
        "from classwise.cli import main\n"
        "output = {}\n"
        "for words in (['attacks'], ['models'], ['data'], ['recipes'], ['attacks', 'toy-attack']):\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "        assert main(words) == 0\n"
        "    output[' '.join(words)] = out.getvalue()\n"
        "from classwise.training import OBJECTIVES, SCHEDULES\n"
        "output['parts'] = [*OBJECTIVES, *SCHEDULES]\n"
        "print(json.dumps(output))\n"
    )
    done = python(install(tmp_path, ENTRY_POINTS), "-c", script)
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout.splitlines()[-1])
    assert "toy-attack" in output["attacks"]
    assert "toy-model" in output["models"]
    assert "toy-digits" in output["data"]
    assert "toy-recipe" in output["recipes"]
    assert {"toy-objective", "toy-schedule"} <= set(output["parts"])
    assert "PGD under another name." in output["attacks toy-attack"]


@pytest.mark.slow
def test_the_tests_of_all_parts_test_those_of_an_installed_package(tmp_path: Path) -> None:
    files = (
        "tests/attacks/test_starts.py",
        "tests/training/test_objectives.py",
        "tests/training/test_passes.py",
        "tests/models/test_zoo.py",
        "tests/data/sets/test_sets.py",
        "tests/core/test_config.py",
        "tests/training/test_recipe.py",
        "tests/training/test_budgets.py",
        "tests/training/test_citations.py",
        "tests/test_benchmarks.py",
        "tests/test_cuda.py",
        "tests/test_docs.py",
    )
    words = ("-m", "pytest", "-q", "-rN", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "toy-", *files)
    done = python(install(tmp_path, ENTRY_POINTS), *words)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.splitlines()[-1].split(" passed")[0].split()[-1])
    assert passed >= 20, done.stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("pgd = toyparts:ToyAttack", "attack 'pgd' of the package 'toyparts' is also one of 'classwise'"),
        ("toy = toyparts", "attack 'toy' of the package 'toyparts': 'toyparts' is not of the form package.module:name"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, {"classwise.attacks": line}))
    registry: Registry[object] = Registry(
        "attack", {"pgd": "classwise.attacks.gradient.ascent:PGD"}, group="classwise.attacks"
    )
    assert registry["pgd"] == "classwise.attacks.gradient.ascent:PGD"
    with pytest.raises(ClasswiseError, match=message):
        list(registry)


def test_an_entry_point_of_another_type_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, {"classwise.attacks": "toy = os:system"}))
    registry: Registry[object] = Registry("attack", {}, base="classwise.attacks.base:Attack", group="classwise.attacks")
    with pytest.raises(ClasswiseError, match="is a builtin_function_or_method; give a subclass of"):
        registry.load("toy")


def test_two_recipes_of_one_name_are_refused(tmp_path: Path) -> None:
    folder = install(tmp_path, {"classwise.recipes": "toy = toyrecipes"})
    (folder / "toyrecipes" / "at.yaml").write_text(RECIPE)
    done = python(folder, "-m", "classwise", "recipes")
    assert done.returncode == 2
    assert "recipe 'at' of the package 'toyrecipes' has the name of another recipe" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_package_without_recipes_is_refused(tmp_path: Path) -> None:
    done = python(install(tmp_path, {"classwise.recipes": "toy = nowhere"}), "-m", "classwise", "recipes")
    assert done.returncode == 2
    assert "recipes 'toy': 'nowhere' is no package with YAML files" in done.stderr
