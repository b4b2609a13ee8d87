from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.suites import SUITES
from classwise.core.settings.config import describe, make
from classwise.data import DATA
from classwise.models import MODELS
from classwise.training.recipe import Recipe
from classwise.training.recipe_files import recipe_names

from ..data.writers import write_cifar10
from .conftest import Classwise


@pytest.mark.slow
def test_models_of_other_sources_are_named(classwise: Classwise) -> None:
    assert "timm:NAME, torchvision:NAME" in classwise("models").err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "names"),
    [("data", list(DATA)), ("attacks", [*ATTACKS, *SUITES]), ("models", list(MODELS)), ("recipes", recipe_names())],
)
def test_lists_show_every_name(classwise: Classwise, command: str, names: list[str]) -> None:
    printed = classwise(command).printed
    lines = printed.splitlines()[1:]
    if command == "recipes":
        (at,) = [row for row, line in enumerate(lines) if not line]
        assert lines[at + 1] == "Distillation from a teacher, which is usually larger:"
        apart = [line.split()[0] for line in lines[at + 3 :]]
        assert apart == ["absld", "fair-ard"]
        lines, names = lines[:at], [name for name in names if name not in apart]
        assert classwise("recipes", "--json").facts["absld"]["teacher"] is True
    assert [line.split()[0] for line in lines] == names
    if command == "recipes":
        return
    assert list(classwise(command, "--json").facts) == names


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attacks_settings(classwise: Classwise, name: str) -> None:
    known = classwise("attacks", name, "--json").facts
    made = make(ATTACKS, name)
    assert known["settings"].keys() == {field.name for field in dataclasses.fields(made)}  # type: ignore[arg-type]
    assert {"name": name, **known["settings"]}.items() >= describe(ATTACKS, made).items()
    said = classwise("attacks", name).out
    assert all(key in said for key in known["settings"])
    assert known["about"].keys() == {line.split()[0] for line in _table(said)}
    assert all(found["meaning"] for found in known["about"].values())
    assert known["sources"] or name in ("transfer", "external")
    assert [line.removeprefix("source: ") for line in said.splitlines() if line[:8] == "source: "] == known["sources"]
    assert _example(said) == ATTACKS.load(name).example


def _table(said: str) -> list[str]:
    """The lines of the settings."""
    lines = said.splitlines()
    return lines[next(row for row, line in enumerate(lines) if line.startswith("setting ")) + 1 : -1]


def _example(said: str) -> str:
    return said.splitlines()[-1].partition("as a spec: ")[2]


def test_inherited_settings_have_their_meaning_and_values(classwise: Classwise) -> None:
    steps, step_size, random_init, _, objective = _table(classwise("attacks", "pgd").out)
    assert steps.split(maxsplit=4) == ["steps", "10", ">=", "1", "number of steps per start."]
    assert "absolute" in step_size
    assert random_init.startswith("random_init  uniform  uniform, normal, none  ")
    assert objective.split()[2:6] == ["ce,", "margin,", "dlr,", "kl"]
    about = classwise("attacks", "md", "--json").facts["about"]
    assert about["steps"] == {"values": ">= 2", "meaning": "number of steps per run; at least 2."}, (
        "its own docstring comes first"
    )


@pytest.mark.slow
def test_the_specs_of_attacks_that_need_a_setting_work(
    classwise: Classwise, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "standard").symlink_to(run_folder)
    (tmp_path / "mine.py").write_text("def attack(model):\n    return lambda images, labels: images\n")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    for name in ("transfer", "external"):
        spec = _example(classwise("attacks", name).out)
        said = classwise("audit", run_folder, "--subset=20", "--attack", spec, "--out", tmp_path / name)
        assert (said.status, said.err.count("rror")) == (0, 0)
    sys.modules.pop("mine")


def test_an_attack_of_ones_own_is_shown_too(classwise: Classwise) -> None:
    assert (
        _example(classwise("attacks", "classwise.attacks.gradient.ascent:PGD").printed)
        == "classwise.attacks.gradient.ascent:PGD"
    )


@pytest.mark.parametrize("name", SUITES)
def test_a_suites_members(classwise: Classwise, name: str) -> None:
    assert classwise("attacks", name, "--json").facts["versions"] == {
        version: list(specs) for version, specs in SUITES[name].items()
    }
    said = classwise("attacks", name).out
    assert all(f"{name}:version={version}" in said for version in SUITES[name])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("resnet18", 11_173_962), ("wrn-34-10", 46_160_474)])
def test_models_have_the_literatures_sizes(classwise: Classwise, name: str, count: int) -> None:
    known = classwise("models", "--json").facts
    assert known[name]["parameters"] == count


def test_a_printed_recipe_is_the_recipe(classwise: Classwise, tmp_path: Path) -> None:
    said = classwise("recipes", "cfa-at", "--set", "epochs=60", "--set", "attack.steps=7")
    file = tmp_path / "mine.yaml"
    file.write_text(said.out)
    assert Recipe.read(str(file)) == Recipe.read("cfa-at", {"epochs": 60, "attack.steps": 7})
    as_json = classwise("recipes", str(file), "--json").facts
    assert yaml.safe_load(said.out) == as_json


def test_a_shown_recipe_has_every_default(classwise: Classwise) -> None:
    shown = yaml.safe_load(classwise("recipes", "show", "trades-awp", "--set", "epochs=60").out)
    assert shown["update"] == {"name": "awp", "gamma": 0.005, "start_fraction": 0.05}
    assert shown["attack"]["restarts"] == 1
    assert shown["epochs"] == 60
    assert Recipe.read(shown).parts == Recipe.read("trades-awp", {"epochs": 60}).parts
    assert yaml.safe_load(classwise("recipes", "show", "standard").out)["threat"] is None
    set_by = "# in training, the objective sets attack.random_init: normal, attack.objective: kl"
    assert classwise("recipes", "show", "trades").out.splitlines()[-1] == set_by
    for words in (["show"], ["show", "at", "trades"], ["at", "trades"]):
        assert "expected one recipe" in classwise("recipes", *words).refusal


def test_every_recipe_is_shown_and_read_again(classwise: Classwise) -> None:
    for name in recipe_names():
        said = classwise("recipes", "show", name)
        assert said.status == 0, said.err
        assert Recipe.read(yaml.safe_load(said.out)).parts == Recipe.read(name).parts


@pytest.mark.parametrize("threat", [(), ("--set", "threat=null")])
def test_a_recipe_is_shown_with_a_step_that_follows_its_radius(classwise: Classwise, threat: tuple[str, ...]) -> None:
    shown = yaml.safe_load(classwise("recipes", "show", "cfa-at", *threat).out)
    assert shown["attack"]["step_size"] == "0.25base_eps"
    assert Recipe.read(shown, {"threat": "Linf:0.1"}).parts.attack.step_size == 0.025  # type: ignore[attr-defined]


def test_what_to_cite(classwise: Classwise) -> None:
    said = classwise("cite", "cfa-at")
    assert said.out.count("@inproceedings{") == 2
    assert "CFA: Class-wise Calibrated Fair Adversarial Training" in said.out
    assert classwise("cite", "awp", "--json").facts[0]["year"] == 2020
    assert classwise("cite", "standard").out.startswith("@book{goodfellow2016deep")
    assert classwise("cite", "sgd").out.startswith("% sgd: no paper")
    assert classwise("cite", "autoattack").out.count("@inproceedings{") == 4
    assert classwise("cite", "classwise").out.startswith("@misc{classwise,\n  note = {The classwise developers. ")
    assert f"version {cw.__version__}}}" in classwise("cite", "classwise").out
    said = classwise("cite", "cfa-att")
    assert (said.status, said.err.count("\n")) == (2, 1)


def test_what_to_cite_for_a_file_and_a_run(
    classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("extends: cfa-at\nname: mine\nupdate: awp\n")
    said = classwise("cite", "mine.yaml")
    comment, rest = said.out.split("\n", 1)
    assert comment == "% mine.yaml: Based on cfa-at, with other settings"
    assert rest.count("@inproceedings{") == 3
    Path("mine.yaml").write_text("extends: cfa-at\nname: mine\ndescription: Mine.\nsource: a@b.org,\n")
    assert classwise("cite", "mine.yaml").out.startswith("% mine.yaml: Mine. ab.org,\n@inproceedings{")
    Path("run").mkdir()
    Path("run/recipe.yaml").write_text(cw.Recipe.read("standard").yaml())
    assert classwise("cite", "run").out.startswith("% run: Standard training")
    said = classwise("cite", "missing.yaml")
    assert (said.status, said.err.count("\n")) == (2, 1)


def test_changes_need_a_recipe(classwise: Classwise) -> None:
    assert classwise("recipes", "--set", "epochs=60").status == 2


@pytest.mark.parametrize("spec", ["pgd:steps=20", "autoattack:version=plus"])
def test_settings_of_an_attack_are_refused(classwise: Classwise, spec: str) -> None:
    refusal = classwise("attacks", spec).refusal
    assert refusal.endswith(f"give the name without settings: classwise attacks {spec.partition(':')[0]}")


@pytest.mark.parametrize(
    "option", ["--digest", "--subset=5", "--seed=3", "--split=train", "--root=x", "--data-set=size=8"]
)
def test_options_of_images_need_data(classwise: Classwise, option: str) -> None:
    assert f"{option.partition('=')[0]} needs the images: classwise data DATA" in classwise("data", option).refusal


def test_a_look_into_digits(classwise: Classwise) -> None:
    said = classwise("data", "digits", "--split", "test")
    head, *rows, note = said.out.splitlines()
    assert head == "digits test: 539 images, 1x8x8, torch.uint8"
    assert sum(int(row.split()[-1]) for row in rows[1:]) == 539
    assert note.startswith("few images: the 95 % interval of an accuracy of 50 % of 8 (52 images) is ±14.2 points;")
    assert "few images" not in classwise("data", "digits", "--split", "train").out
    words = ("data", "digits", "--subset", "100", "--seed", "3", "--digest")
    part = classwise(*words).out.strip()
    assert classwise(*words, "--json").facts == {"digest": part}
    assert part == cw.load_data("digits", subset=100, seed=3).fingerprint() != cw.load_data("digits").fingerprint()
    known = classwise("data", "digits", "--json").facts
    assert known["images"] == sum(known["counts"].values()) == 539
    assert known["shape"] == [1, 8, 8]


def test_a_look_into_superclasses(classwise: Classwise, tmp_path: Path) -> None:
    """Those of kdd21 Table 2."""
    head, *rows = classwise(
        "data", "cifar10", "--root", write_cifar10(tmp_path / "cifar-10-batches-py").parent
    ).out.splitlines()[1:]
    assert head.split() == ["label", "class", "images", "superclass"]
    assert [row.split()[-1] for row in rows[:10]] == ["transportation"] * 2 + ["animals"] * 6 + ["transportation"] * 2


def test_a_look_into_pictures_of_mixed_sizes(classwise: Classwise, tmp_path: Path) -> None:
    for name, size in (("cat", (8, 8)), ("dog", (9, 12))):
        (tmp_path / name).mkdir()
        Image.new("RGB", size).save(tmp_path / name / "one.png")
    assert "--data-set size=64" in classwise("data", tmp_path).refusal
    assert "2 images, 3x6x6" in classwise("data", tmp_path, "--data-set", "size=6").out
