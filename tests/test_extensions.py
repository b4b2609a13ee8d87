"""Parts of an installed package appear in lists and help texts, and the tests over all registered parts test them."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from classwise.core.errors import ClasswiseError
from classwise.core.settings.registry import Registry, with_installed
from classwise.papers import catalogue
from classwise.stats import registry as metric_registry
from tests.refusals import check_refused

ROOT = Path(__file__).parents[1]
PARTS = '''
"""One part of each kind."""

from fractions import Fraction

import numpy as np

from classwise.attacks.gradient.ascent import PGD
from classwise.data.images import Images
from classwise.data.sets.base import DataSet
from classwise.models.zoo.small_cnn import SmallCNN
from classwise.core.settings.config import configurable
from classwise.training.objectives.adversarial import AdversarialTraining
from classwise.training.schedules.cfa import CCM
from classwise.stats.registry import metric


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

    source = ("nobody2026toys, eq. 1", "madry2018towards")


@configurable
class ToyObjective(AdversarialTraining):
    """Adversarial training under another name."""


@configurable
class ToySchedule(CCM):
    """CCM under another name."""


class ToyModel(SmallCNN):
    """The small network under another name."""


@configurable
class ToyStripes(DataSet):
    """A horizontal or vertical stripe, without files.

    Args:
        bright: the value of the stripe, from 0 to 255.
    """

    name = "toy-stripes"
    source = ("Nobody, Stripes, Journal of Toys, 2020",)
    class_names = ("horizontal", "vertical")
    shape = (1, 8, 8)
    mean = (0.125,)
    std = (0.3307,)
    threat = "Linf:0.2"
    augment = "none"
    sizes = (30, 10)
    files = "none; they are computed"
    bright: int = 255

    def read(self, root, split):
        y = np.arange(self.sizes[self.splits.index(split)]) % 2
        x = np.zeros((len(y), 1, 8, 8), np.uint8)
        x[y == 0, :, 1], x[y == 1, :, :, 1] = self.bright, self.bright
        return self.named(Images(x, y), split)
'''
RECIPE = """
extends: at
name: toy-recipe
description: "Adversarial training with a smaller learning rate."
source: "Madry et al., ICLR 2018"
optimizer: {name: sgd, lr: 0.05, momentum: 0.9, weight_decay: 2.0e-4}
"""
PAPER = """
schema_version: 2
id: toy24
bibliography: {title: Do optimisers agree on the weak classes?, authors: [A. Nobody], venue: a test}
items:
- id: toy24/T1
  kind: table
  section: '2'
  title: SGD against Adam
  finding: the same weak classes
  experiment: {name: weak_classes:Optimisation, varied: [optimisers], claim: toy24/C1}
  settings: {trainings: {'*': plain}}
  printed: {caption: Robust accuracy., rows: [{method: SGD, tot: 50.5, per_class: [1, 100]}, {method: Adam, tot: 49}]}
- id: toy24/M1
  kind: method
  section: '1'
  title: adversarial training
  covered_by: [recipe at]
claims:
- {id: toy24/C1, claim: The optimisers agree., quantity: rank correlation, paper: agree, parts: [optimisers]}
settings: {trainings: {plain: {extends: 'benz20:optimisers', source: section 2}}}
notes:
- {id: '99', kind: ambiguity, items: [toy24/T1], text: The paper does not state the learning rate of Adam.}
"""
ENTRY_POINTS = {
    "classwise.attacks": "toy-attack = toyparts:ToyAttack",
    "classwise.objectives": "toy-objective = toyparts:ToyObjective",
    "classwise.schedules": "toy-schedule = toyparts:ToySchedule",
    "classwise.models": "toy-model = toyparts:ToyModel",
    "classwise.datasets": "toy-stripes = toyparts:ToyStripes",
    "classwise.recipes": "toy = toyrecipes",
    "classwise.papers": "toy = toypapers",
    "classwise.metrics": "\n".join(
        f"toy_{name} = toyparts:toy_{name}" for name in ("confusion", "ratio", "saved", "drop")
    ),
}
EVERYTHING = """
import contextlib, io, json, sys
from pathlib import Path
import numpy as np
import pytest
import classwise as cw
from classwise.auditing.criteria.thresholds import Threshold
from classwise.cli import main
from classwise.cli.tables import audit_facts
from classwise.core.errors import IncompleteError
from classwise.reporting.facts.condition_text import result_text
from classwise.reporting.exports.export import export
from classwise.training import OBJECTIVES, SCHEDULES
from tools import reference

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

def tested(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = pytest.main(list(words))
    return [int(status), out.getvalue()]

names = ("toy_confusion", "toy_ratio", "toy_saved", "toy_drop")
paths = folder / "few", folder / "many"
store = f"--store={folder / 'store'}"
model = cw.load_model("small-cnn", num_classes=2, in_channels=1)
attacked = cw.audit(model, cw.load_data("toy-stripes", bright=200), attacks="toy-attack:steps=1")
print(json.dumps({
    "left out": said("recipes")[2],
    "lists": {part: said(part)[1] for part in ("attacks", "models", "data", "recipes")},
    "explained": said("attacks", "toy-attack")[1],
    "cited": said("cite", "toy-attack"),
    "parts": [*OBJECTIVES, *SCHEDULES],
    "reference": reference.PAGES["data-sets"]() + reference.PAGES["data-set-files"](),
    "audit": [attacked.outcomes.meta.threat, list(attacked.by_class.index)],
    "papers": {
        "list": said("papers", "list", "toy24", "--json"),
        "show": said("papers", "show", "toy24/T1", "--json"),
        "run": said("papers", "run", "toy24/T1", store, "--json"),
        "page": said("papers", "page", "toy24", store),
    },
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
    "tests": tested(*sys.argv[2:]),
}))
"""
TESTS = (
    "-q", "-rN", "-pno:cacheprovider", "-pno:xdist",
    "-k", "(toy- or toy_ or toy24) and not bibliography and not example_that_builds",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",  # the package is imported before its plug-in of pytest
    "tests/attacks/test_starts.py",
    "tests/training/test_objectives.py",
    "tests/models/test_zoo.py",
    "tests/data/sets/test_sets.py",
    "tests/core/test_config.py",
    "tests/stats/test_metric.py",
    "tests/training/test_recipe.py",
    "tests/training/test_budgets.py",
    "tests/training/test_citations.py",
    "tests/papers/test_catalogue.py",
    "tests/papers/test_settings.py",
    "tests/test_cuda.py",
    "tests/test_reference.py",
)  # fmt: skip
"""The files with tests over all registered parts, and the options that choose those of the installed package."""


def install(folder: Path, entry_points: dict[str, str], name: str = "toyparts") -> Path:
    """Write a package as pip installs it: a module, folders of recipes and papers, and metadata with entry points."""
    (folder / f"{name}.py").write_text(PARTS)
    files = (
        ("toyrecipes", "toy-recipe", RECIPE),
        ("toyrecipes", "bad", "objective: nowhere"),
        ("toypapers", "toy24", PAPER),
    )
    for package, file, text in files:
        (folder / package).mkdir(exist_ok=True)
        (folder / package / "__init__.py").touch()
        (folder / package / f"{file}.yaml").write_text(text)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("".join(f"[{group}]\n{line}\n" for group, line in entry_points.items()))
    return folder


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a separate process with the folder in its path."""
    known = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src")])}
    return subprocess.run([sys.executable, *words], env=known, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the package, in which `found` writes pages and files."""
    return install(tmp_path_factory.mktemp("installed"), ENTRY_POINTS)


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """What a process with the package finds."""
    done = python(folder, "-c", EVERYTHING, str(folder), *TESTS)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.slow
def test_parts_of_an_installed_package_are_listed_and_explained(found: dict[str, Any]) -> None:
    names = {"attacks": "toy-attack", "models": "toy-model", "data": "toy-stripes", "recipes": "toy-recipe"}
    assert all(name in found["lists"][part] for part, name in names.items())
    assert "| none; they are computed | `bright`: the value of the stripe" in found["reference"]
    assert found["audit"] == ["Linf:51/255", ["horizontal", "vertical"]]
    assert {"toy-objective", "toy-schedule"} <= set(found["parts"])
    assert "PGD under another name." in found["explained"]
    status, cited, _ = found["cited"]
    assert status == 0
    assert "@misc{nobody2026toys,\n  note = {nobody2026toys, eq. 1}\n}\n\n@inproceedings{madry2018towards," in cited


@pytest.mark.slow
def test_a_bad_recipe_of_an_installed_package_hides_no_other(found: dict[str, Any]) -> None:
    (line,) = found["left out"].splitlines()
    assert line.startswith("recipe 'bad' is left out: unknown objective 'nowhere'")


@pytest.mark.slow
def test_a_paper_of_an_installed_package_runs(found: dict[str, Any], folder: Path) -> None:
    """One YAML file is listed, shown, run and has a page, in which its claim is tested."""
    assert [status for status, _, _ in found["papers"].values()] == [0] * 4, found["papers"]
    outputs = {action: json.loads(out) for action, (_, out, _) in found["papers"].items() if action != "page"}
    assert {item["id"]: item["status"] for item in outputs["list"]} == {"toy24/T1": "runnable", "toy24/M1": "covered"}
    assert [row["tot"] for row in outputs["show"]["printed"]["rows"]] == [50.5, 49]
    assert outputs["show"]["settings"]["full"]["rows"]["SGD"]["optimiser"]["paper"] == ["sgd", "adam"]
    result = outputs["run"]
    (verdict,) = (result[0] if isinstance(result, list) else result)["verdicts"]
    assert (verdict["claim"], verdict["covers"]) == ("toy24/C1", ["optimisers"])
    assert -1 <= verdict["value"] <= 1
    page = (folder / "store" / "pages" / "toy24.html").read_text(encoding="utf-8")
    assert "Do optimisers agree on the weak classes?" in page
    assert "The optimisers agree." in page
    assert '<p class="lead">Of 1 statement, at smoke scale with 1 training of each model: 1 ' in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("id: toy24\n", "id: kdd21\n"), "paper toy24: id 'kdd21'; in the file toy24.yaml it must be toy24"),
        (("id: toy24/M1", "id: M1"), "paper toy24: id 'M1'; in the file toy24.yaml it must be toy24/ID"),
        ((", venue: a test", ""), "paper toy24: bibliography.venue is missing"),
        (("title: SGD against Adam", "title: [SGD"), "paper toy24 is not YAML of plain data"),
        (("weak_classes:Opt", "toyparts:Toy"), "unknown experiment in module 'toyparts': 'Toyimisation'"),
    ],
)
def test_a_paper_that_cannot_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], message: str
) -> None:
    folder = install(tmp_path, ENTRY_POINTS)
    file = folder / "toypapers" / "toy24.yaml"
    monkeypatch.setattr(catalogue, "paper_files", lambda: {"toy24": file})
    for name in ("paper", "items", "experiment"):
        monkeypatch.setattr(catalogue, name, functools.cache(getattr(catalogue, name).__wrapped__))
    assert catalogue.experiment("toy24/T1").item == "toy24/T1"
    for name in ("paper", "items", "experiment"):
        getattr(catalogue, name).cache_clear()
    file.write_text(PAPER.replace(*change))
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(ClasswiseError) as error:
        catalogue.experiment("toy24/T1")
    assert message in str(error.value)


@pytest.mark.slow
def test_metrics_of_an_installed_package_are_shown_wherever_metrics_are(found: dict[str, Any], folder: Path) -> None:
    # Under pgd 2, 4, 4 and 4 of 10 images of the four classes are wrong, and 6 of the last class at most.
    expected = {"toy_confusion": 4 / 40, "toy_ratio": 0.8 / 0.65, "toy_saved": 0.8, "toy_drop": 0.65}
    assert found["by_attack"] == found["facts"] == pytest.approx(expected)
    texts = {name: (folder / name).read_text() for name in ("page.html", "compare.html", "files/attacks.md")}
    for where, text in texts.items() | {("text", found["text"]), ("board", found["board_text"])}:
        assert "toy confusion" in text, where
        assert "toy ratio" in text, where
        assert "1.2" in text, where
    assert "Toy confusion" in (folder / "board.html").read_text()
    assert "Largest share of one kind of error" in texts["page.html"]
    header, *lines = (folder / "files" / "attacks.csv").read_text().splitlines()
    row = dict(zip(header.split(","), lines[1].split(","), strict=True))
    for name, value in expected.items():
        assert float(row[name]) == pytest.approx(value)
        assert row[f"{name}_low"] == row[f"{name}_high"] == ""  # none for classes of 10 images
    confusion, ratio, *others = found["conditions"]
    assert [confusion[0], ratio[0], *(other[0] for other in others)] == [False, True, True, True]
    assert confusion[1].startswith("toy_confusion under pgd is 10.0 % (40 images; no interval)")
    assert ratio[1].startswith("toy_ratio under pgd is 1.2 (40 images; no interval)")
    assert ratio[1].endswith("; required: at most 0.2")
    assert all("is undecided" in line for line in found["undecided"])
    assert set(found["bounds"].values()) == {"nan"}
    assert found["clean"][0] is False
    assert "toy confusion" in (folder / "part.html").read_text()
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
        row["results"] for row in json.loads((folder / "again" / "board.json").read_text())["tables"][0]["rows"]
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
    own = {"cv": ""} if "is also" in message else {}
    monkeypatch.setattr(metric_registry, "METRICS", Registry("metric", own, group="classwise.metrics"))
    check_refused(message, metric_registry.all_metrics.__wrapped__)


@pytest.mark.slow
def test_the_tests_of_all_parts_test_those_of_an_installed_package(found: dict[str, Any]) -> None:
    status, out = found["tests"]
    assert status == 0, out
    assert int(out.splitlines()[-1].split(" passed")[0].split()[-1]) >= 40, out


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
    check_refused(message, list, registry)


def test_an_entry_point_of_another_type_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, {"classwise.attacks": "toy = os:system"}))
    registry: Registry[object] = Registry("attack", {}, base="classwise.attacks.base:Attack", group="classwise.attacks")
    check_refused("is a builtin_function_or_method; give a subclass of", registry.load, "toy")


def test_two_recipes_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = install(tmp_path, {"classwise.recipes": "toy = toyrecipes"})
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "toyrecipes", raising=False)
    own = {"toy-recipe": folder / "toyrecipes" / "toy-recipe.yaml"}
    message = "^recipe 'toy-recipe' of the package 'toyrecipes' has the name of another recipe"
    check_refused(message, with_installed, "recipe", own, "classwise.recipes")


@pytest.mark.parametrize("kind", ["recipe", "paper"])
def test_a_package_without_yaml_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, {f"classwise.{kind}s": "toy = nowhere"}))
    check_refused(
        f"^{kind}s 'toy': 'nowhere' is not a package with YAML files", with_installed, kind, {}, f"classwise.{kind}s"
    )
