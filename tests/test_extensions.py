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
from classwise.stats import metric as stats_metric

ROOT = Path(__file__).parents[1]
PARTS = '''
"""One part of each kind."""

from fractions import Fraction

import numpy as np

from classwise.attacks.gradient.ascent import PGD
from classwise.data.images import Images
from classwise.data.sets.digits import Digits
from classwise.models.zoo.small_cnn import SmallCNN
from classwise.core.config import configurable
from classwise.training.objectives.adversarial import AdversarialTraining
from classwise.training.schedules.cfa import CCM
from classwise.stats.metric import metric


@metric(title="toy confusion", reads="confusion", higher_is_better=False, rational=True)
def toy_confusion(matrix):
    """Largest share of one kind of error."""
    return Fraction(int((matrix - np.diag(np.diag(matrix))).max()), max(int(matrix.sum()), 1))


@metric(title="toy ratio", unit="number")
def toy_ratio(counts):
    """Highest class accuracy divided by the mean."""
    return np.nanmax(counts.accuracy) / max(np.nanmean(counts.accuracy), 1e-9)


@metric(reads="outcomes", mean_over_seeds=False)
def toy_saved(outcomes):
    """Share of the first ten images that are correct."""
    return outcomes["correct"].head(10).mean()


@metric(reads="clean and counts")
def toy_drop(clean, counts):
    """Share of the clean accuracy that the attack leaves."""
    return counts.correct.sum() / clean.correct.sum()


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
    "classwise.metrics": "\n".join(
        f"toy_{name} = toyparts:toy_{name}" for name in ("confusion", "ratio", "saved", "drop")
    ),
}
METRICS = """
import contextlib, dataclasses, io, json, sys
from pathlib import Path
import numpy as np
import classwise as cw
from classwise.auditing.compare.thresholds import Threshold
from classwise.cli import main
from classwise.cli.tables import audit_facts
from classwise.core.errors import IncompleteError
from classwise.reporting.condition_text import result_text
from classwise.reporting.exports import export
from classwise.stats import metric

metric.RESAMPLES = 50
folder = Path(sys.argv[1])
labels = np.repeat([0, 1, 2, 3], 10)

def audit(wrong):
    predicted = np.where(np.arange(40) % 10 < wrong, (labels + 1) % 4, labels)
    predicted[:2] = labels[:2]
    return cw.Audit(cw.Outcomes.from_predictions(labels, labels, {"pgd": predicted}), name=f"wrong-{wrong}")

few, many = audit(4), audit(6)
few.save(folder / "few"), many.save(folder / "many")
export(few, folder / "files", ("csv", "md", "tex"))
cw.report(few, folder / "page.html")
board = cw.board({"few": few, "many": many})
board.save(folder / "board")
cw.report(board, folder / "board.html")
again = cw.board(folder / "board" / "board.json")
again.save(folder / "again")
comparison = cw.compare({"few": few, "many": many})
cw.report(comparison, folder / "compare.html")
seeds = cw.compare({"few": [few, audit(3)], "many": many})
rows = few.outcomes.frame
part = cw.Audit(cw.Outcomes(rows[(rows["attack"] == "clean") | (rows["index"] != 5)], few.outcomes.meta))
cw.report(part, folder / "part.html")

def decided(audit, text):
    try:
        return [Threshold.parse(text).holds(audit), result_text(audit, Threshold.parse(text))]
    except IncompleteError as error:
        return str(error)

def said(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main([str(word) for word in words])
    return [status, out.getvalue(), err.getvalue()]

names = ("toy_confusion", "toy_ratio", "toy_saved", "toy_drop")
paths = folder / "few", folder / "many"
print(json.dumps({
    "by_attack": {name: few.by_attack.loc["pgd", name] for name in names},
    "facts": {name: audit_facts(few)["summary"]["pgd"][name] for name in names},
    "text": str(few),
    "conditions": [decided(few, f"{name}(pgd) > 0.2") for name in names],
    "undecided": [decided(part, f"{name}(all) > 0.2") for name in names],
    "bounds": {name: str(part.by_attack.loc["all", f"{name}_lower_bound"]) for name in names},
    "clean": decided(part, "toy_confusion(clean) > 0.2"),
    "table": {name: list(comparison.table[name]) for name in names},
    "seeds": {name: str(seeds.table.loc["few", name]) for name in names},
    "compare": said("compare", *paths, "--fail-if", "toy_confusion(all) > 5%", "--json"),
    "fails": said("compare", *paths, "--fail-if", "toy_confusion(all) >= 1/20")[0],
    "board": {name: list(board.table[name]) for name in names},
    "board_text": str(board),
    "again": {name: str(again.table.loc[0, name]) for name in names},
}))
"""


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
def test_metrics_of_an_installed_package_are_shown_wherever_metrics_are(tmp_path: Path) -> None:
    done = python(install(tmp_path, ENTRY_POINTS), "-c", METRICS, str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    # Under pgd 2, 4, 4 and 4 of 10 images of the four classes are wrong, and 6 of the last class at most.
    expected = {"toy_confusion": 4 / 40, "toy_ratio": 0.8 / 0.65, "toy_saved": 0.8, "toy_drop": 0.65}
    assert found["by_attack"] == found["facts"] == pytest.approx(expected)
    texts = {name: (tmp_path / name).read_text() for name in
             ("page.html", "compare.html", "files/attacks.md", "files/attacks.tex")}  # fmt: skip
    for where, text in texts.items() | {("text", found["text"]), ("board", found["board_text"])}:
        assert "toy confusion" in text, where
        assert "toy ratio" in text, where
        assert "1.2" in text, where
    assert "Toy confusion" in (tmp_path / "board.html").read_text()
    assert "Largest share of one kind of error" in texts["page.html"]
    header, *lines = (tmp_path / "files" / "attacks.csv").read_text().splitlines()
    row = dict(zip(header.split(","), lines[1].split(","), strict=True))
    for name, value in expected.items():
        assert float(row[name]) == pytest.approx(value)
        assert float(row[f"{name}_low"]) <= value <= float(row[f"{name}_high"])
        assert float(row[f"{name}_low"]) < float(row[f"{name}_high"])
    confusion, ratio, *others = found["conditions"]
    assert [confusion[0], ratio[0], *(each[0] for each in others)] == [False, True, True, True]
    assert confusion[1].startswith("toy_confusion under pgd is 10.0 % (40 images; 95 % interval ")
    assert ratio[1].startswith("toy_ratio under pgd is 1.2 (40 images; 95 % interval ")
    assert ratio[1].endswith("; required: at most 0.2")
    assert all("is undecided" in line for line in found["undecided"])
    assert set(found["bounds"].values()) == {"nan"}
    assert found["clean"][0] is False
    assert "toy confusion" in (tmp_path / "part.html").read_text()
    assert found["table"]["toy_confusion"] == pytest.approx([0.1, 0.15])
    assert found["seeds"]["toy_confusion"] == str((4 + 3) / 80)
    assert found["seeds"]["toy_saved"] == "nan"
    status, out, err = found["compare"]
    assert (status, found["fails"]) == (0, 1)  # the change is exactly 1/20
    assert json.loads(out)["methods"]["many"]["toy_confusion"] == 0.15
    assert err == ""
    assert found["board"]["toy_confusion"] == pytest.approx([0.1, 0.15])
    # A row from a JSON file has counts only, which do not say which images are correct with and without the attack.
    assert found["again"] == {
        "toy_confusion": "nan",
        "toy_ratio": str(found["board"]["toy_ratio"][0]),
        "toy_saved": "nan",
        "toy_drop": "0.65",
    }
    (results, _) = (
        each["results"] for each in json.loads((tmp_path / "again" / "board.json").read_text())["tables"][0]["rows"]
    )
    assert results["toy_drop"] == {"value": 0.65, "low": None, "high": None}
    assert results["toy_saved"] is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("toy = os:getcwd", "metric 'os:getcwd' is a builtin_function_or_method; give a function with the decorator"),
        (
            "clean = toyparts:toy_ratio",
            "metric 'clean': the name must be letters, digits and _, and not n, judged, low",
        ),
        ("toy-ratio = toyparts:toy_ratio", "metric 'toy-ratio': the name must be letters"),
        ("cv = toyparts:toy_ratio", "metric 'cv' of the package 'toyparts' is also one of 'classwise'"),
    ],
)
def test_a_metric_that_cannot_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, {"classwise.metrics": line}))
    monkeypatch.setattr(stats_metric, "METRICS", Registry("metric", {"cv": ""}, group="classwise.metrics"))
    monkeypatch.setattr(stats_metric.METRICS, "_own", {} if "is also" not in message else {"cv": ""})
    with pytest.raises(ClasswiseError, match=message):
        stats_metric.all_metrics.__wrapped__()


@pytest.mark.slow
def test_the_tests_of_all_parts_test_those_of_an_installed_package(tmp_path: Path) -> None:
    files = (
        "tests/attacks/test_starts.py",
        "tests/training/test_objectives.py",
        "tests/training/test_passes.py",
        "tests/models/test_zoo.py",
        "tests/data/sets/test_sets.py",
        "tests/core/test_config.py",
        "tests/stats/test_metric.py",
        "tests/training/test_recipe.py",
        "tests/training/test_budgets.py",
        "tests/training/test_citations.py",
        "tests/test_benchmarks.py",
        "tests/test_cuda.py",
        "tests/test_docs.py",
    )
    words = ("-m", "pytest", "-q", "-rN", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "toy- or toy_", *files)
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
