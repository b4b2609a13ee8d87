from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from classwise.attacks import ATTACKS
from classwise.attacks.suites import SUITES
from classwise.data import DATA
from classwise.models import MODELS
from classwise.settings import describe, make
from classwise.training.recipe import Recipe, recipe_names

from .conftest import Classwise


@pytest.mark.parametrize(
    ("command", "names"),
    [("data", list(DATA)), ("attacks", [*ATTACKS, *SUITES]), ("models", list(MODELS)), ("recipes", recipe_names())],
)
def test_lists_show_every_name(classwise: Classwise, command: str, names: list[str]) -> None:
    said = classwise(command)
    assert said.status == 0
    assert [line.split()[0] for line in said.out.splitlines()[1:]] == names
    assert list(json.loads(classwise(command, "--json").out)) == names


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attacks_settings(classwise: Classwise, name: str) -> None:
    known = json.loads(classwise("attacks", name, "--json").out)
    assert {"name": name, **known["settings"]} == describe(ATTACKS, make(ATTACKS, name))
    said = classwise("attacks", name).out
    assert all(key in said for key in known["settings"])
    example = said.splitlines()[-1].partition("as a spec: ")[2]
    assert make(ATTACKS, example) == make(ATTACKS, name)


@pytest.mark.parametrize("name", SUITES)
def test_a_suites_members(classwise: Classwise, name: str) -> None:
    assert json.loads(classwise("attacks", name, "--json").out)["versions"] == {
        version: list(specs) for version, specs in SUITES[name].items()
    }
    said = classwise("attacks", name).out
    assert all(f"{name}:version={version}" in said for version in SUITES[name])


@pytest.mark.parametrize(("name", "count"), [("resnet18", 11_173_962), ("wrn-34-10", 46_160_474)])
def test_models_have_the_literatures_sizes(classwise: Classwise, name: str, count: int) -> None:
    known = json.loads(classwise("models", "--json").out)
    assert known[name]["parameters"] == count


def test_a_printed_recipe_is_the_recipe(classwise: Classwise, tmp_path: Path) -> None:
    said = classwise("recipes", "cfa-at", "--set", "epochs=60", "--set", "attack.steps=7")
    file = tmp_path / "mine.yaml"
    file.write_text(said.out)
    assert Recipe.read(str(file)) == Recipe.read("cfa-at", {"epochs": 60, "attack.steps": 7})
    as_json = json.loads(classwise("recipes", str(file), "--json").out)
    assert yaml.safe_load(said.out) == as_json


def test_a_shown_recipe_has_every_default(classwise: Classwise) -> None:
    shown = yaml.safe_load(classwise("recipes", "show", "trades-awp", "--set", "epochs=60").out)
    assert shown["update"] == {"name": "awp", "gamma": 0.005, "begin": 0.05}
    assert shown["attack"]["restarts"] == 1
    assert shown["epochs"] == 60
    assert Recipe.read(shown).parts() == Recipe.read("trades-awp", {"epochs": 60}).parts()
    assert yaml.safe_load(classwise("recipes", "show", "standard").out)["threat"] is None
    for words in (["show"], ["show", "at", "trades"], ["at", "trades"]):
        said = classwise("recipes", *words)
        assert (said.status, said.err.count("\n")) == (2, 1)
        assert "name one recipe" in said.err


def test_what_to_cite(classwise: Classwise) -> None:
    said = classwise("cite", "cfa-at")
    assert said.out.count("@inproceedings{") == 2
    assert "CFA: Class-wise Calibrated Fair Adversarial Training" in said.out
    assert json.loads(classwise("cite", "awp", "--json").out)[0]["year"] == 2020
    assert classwise("cite", "standard").out.startswith("% standard: no paper")
    said = classwise("cite", "cfa-att")
    assert (said.status, said.err.count("\n")) == (2, 1)


def test_changes_need_a_recipe(classwise: Classwise) -> None:
    assert classwise("recipes", "--set", "epochs=60").status == 2


def test_a_look_into_digits(classwise: Classwise) -> None:
    said = classwise("data", "digits", "--split", "test")
    head, *rows = said.out.splitlines()
    assert head == "digits test: 539 images, 1x8x8, torch.uint8"
    assert sum(int(row.split()[-1]) for row in rows[1:]) == 539
    known = json.loads(classwise("data", "digits", "--json").out)
    assert known["images"] == sum(known["counts"].values()) == 539
    assert known["shape"] == [1, 8, 8]
