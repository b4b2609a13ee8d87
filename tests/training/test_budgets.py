"""Budgets of recipes, and errors in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import classwise
from classwise.cli import main
from classwise.threat.ball import Threat
from classwise.training import recipe as recipes
from classwise.training.averaging import FAWA
from classwise.training.recipe import Recipe
from classwise.training.recipe_files import budget_names, budgets_of, recipe_names

from ..refusals import refused
from .on_digits import TINY

DIGESTS = {
    "at": "c3caccd59b6a70d8faf57a856e70d8ca89d4826bf4d1f0b58539939420068c92",
    "cfa-trades": "750d0a4232373f33c2d4f672a467d68889335386a17bb6fd2cad9b9ec5639969",
    "frl": "9ef9d21673d114a15bc4ec09b8169f92dbbf73837163ae633e3a21a5d9bb7c84",
    "frontier": "4b196282fcb5a6fecef35b29ee84cf1228d1161543e14621d95771df7dfb24fa",
    "he-mart": "533df54108c217b95af8739efcaade6a1303ad9ce8c129461661ca87ff13a34f",
}
"""Of five complete recipes with the budget ``short``, as recorded when step sizes began to follow the radius."""


def completed_short(name: str) -> Recipe:
    recipe = Recipe.read(name, budget="short")
    return recipe.completed(recipe.parts.threat or Threat("Linf", 8 / 255), classes=10)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_has_the_short_budget(name: str) -> None:
    assert budget_names() == budgets_of(name) == ["short"]
    short = completed_short(name)
    assert short.name == f"{name}-short"
    assert short.epochs <= 30


@pytest.mark.parametrize("name", DIGESTS)
def test_the_complete_short_recipe_is_unchanged(name: str) -> None:
    assert completed_short(name).digest() == DIGESTS[name]


@pytest.mark.parametrize("name", ["cfa-at", "cfa-fat", "cfa-trades"])
def test_short_cfa_has_the_relative_gate_and_one_override_sets_that_of_the_paper(name: str) -> None:
    short = Recipe.read(name, budget="short")
    assert "relative gate of FAWA" in short.description
    paper = Recipe.read(name, {"averaging.gate": "absolute"}, budget="short")
    gates = [FAWA(gate="relative", threshold=0.8, worst="class"), FAWA(gate="absolute", threshold=0.2, worst="class")]
    assert [recipe.completed(Threat("Linf", 0.1), 10).parts.averaging for recipe in (short, paper)] == gates
    assert Recipe.read(name).completed(Threat("Linf", 0.1), 10).parts.averaging == gates[1]


def test_overrides_apply_after_the_budget() -> None:
    recipe = Recipe.read("cfa-at", {"epochs": 12, "optimizer.lr": "1/10"}, budget="short")
    assert (recipe.name, recipe.epochs, recipe.parts.optimizer.lr) == ("cfa-at-short", 12, 0.1)


def test_a_run_with_a_budget_is_named_after_it(tmp_path: Path) -> None:
    run = classwise.train("at-ema", budget="short", out=tmp_path / "run", data="digits", overrides=TINY | {"epochs": 1})
    assert run.recipe.name == "at-ema-short"
    assert run.recipe.lr_schedule == {"name": "one-cycle", "peak": 0.4}


@pytest.mark.parametrize(
    ("name", "budget", "says"),
    [
        ("at", "shrot", "unknown budget 'shrot'; did you mean 'short'?"),
        ("at", "x", "unknown budget 'x'; known: short"),
        ("at-short", None, "unknown recipe 'at-short'; use at with --budget short"),
        ("cfa-tradess-short", None, "unknown recipe 'cfa-tradess-short'; did you mean 'cfa-trades'?"),
        ({"epochs": 3}, "short", "recipe 'custom' has no budget 'short'"),
        (Recipe.read("at"), "short", "recipe 'at' has no budget 'short'"),  # it is complete
    ],
)
def test_invalid_values_raise_errors(name: Any, budget: str | None, says: str) -> None:
    assert says in refused(Recipe.read, name, budget=budget)


def test_a_file_inherits_the_budgets_of_the_extended_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "extends: cfa-at\nname: mine\nbatch_size: 64\n"
        "budgets:\n  tiny: {epochs: 2, description: 'Two epochs of {name}.'}\n"
    )
    assert budgets_of(str(file)) == ["short", "tiny"]
    short, tiny = (Recipe.read(file, budget=budget) for budget in ("short", "tiny"))
    assert (short.name, short.epochs, short.batch_size) == ("mine-short", 30, 64)
    assert short.averaging == {"name": "fawa", "decay": 0.85, "start_fraction": 0.25, "gate": "relative"}
    assert (tiny.name, tiny.epochs, tiny.description) == ("mine-tiny", 2, "Two epochs of mine.")
    assert tiny.optimizer == Recipe.read("cfa-at").optimizer


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("3", "must map budgets to overrides"),
        ("{short: 3}", "'short': 3 must map a budget"),
        ("{short: {3: 1}}", "must map a budget"),
        ("{3: {}}", "must map a budget"),
        ("{short: {epoch: 3}}", "recipe has no field 'epoch'; did you mean 'epochs'?"),
        (
            "{short: {unchanged: 3}}",
            "must list fields of the budget: description, source, optimizer.lr, lr_schedule",
        ),
        ("{short: {unchanged: [lr]}}", "must list fields of the budget"),
        ("{short: {unchanged: [[lr]]}}", "must list fields of the budget"),
        ("{short: {budgets: {}}}", "recipe has no field 'budgets'"),
    ],
)
def test_an_invalid_budget_raises_an_error(block: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"extends: at\nbudgets: {block}\n")
    assert says in refused(Recipe.read, file, budget="short")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """Record the recipes whose parts are built during a test."""
    found: list[Recipe] = []
    build = recipes.build_parts

    def counted(recipe: Recipe) -> recipes.Parts:
        found.append(recipe)
        return build(recipe)

    monkeypatch.setattr(recipes, "build_parts", counted)
    return found


@pytest.mark.slow
def test_a_run_builds_its_parts_once(built: list[Recipe], tmp_path: Path) -> None:
    overrides = TINY | {"epochs": 1}
    classwise.train("cfa-trades", budget="short", out=tmp_path / "a", data="digits", overrides=overrides)
    assert len(built) == 1
    plan = Recipe.read("faal", overrides | {"data.name": "digits"})
    classwise.train(plan, out=tmp_path / "b", data="digits", seed=0)
    assert len(built) == 2


@pytest.mark.slow
def test_the_command_line_builds_the_parts_of_a_run_once(built: list[Recipe], tmp_path: Path) -> None:
    overrides = [f"--set={field}={json.dumps(value)}" for field, value in (TINY | {"epochs": 1}).items()]
    words = ["train", "cfa-trades", "--budget=short", "--data=digits", *overrides]
    assert main([*words, f"--out={tmp_path / 'run'}"]) == 0
    assert len(built) == 1
    assert main([*words, "--estimate"]) == 0
    assert len(built) == 2


def test_a_completed_recipe_reuses_its_parts() -> None:
    """The parts are not built again."""
    for name in ("cfa-trades", "he-mart", "csr", "rst", "frontier"):
        recipe = Recipe.read(name, budget="short")
        complete = recipe.completed(Threat("Linf", 0.1))
        assert complete.parts == Recipe.read(yaml.safe_load(complete.yaml())).parts
        assert complete.times_batch(2).parts == complete.parts
        assert complete.times_batch(2).batch_size == 2 * recipe.batch_size
