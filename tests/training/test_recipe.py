"""Recipes: completion, validation before data is read, overrides by dotted field."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from classwise.core.errors import ClasswiseError
from classwise.threat.ball import Threat
from classwise.training.lr_schedules import Constant, Cosine, Cyclic, LRSchedule, MultiStep, OneCycle, PiecewiseLinear
from classwise.training.recipe import Recipe
from classwise.training.recipe_files import recipe_names

from ..refusals import refused


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_the_package_is_complete(name: str) -> None:
    recipe = Recipe.read(name)
    assert recipe.name == name
    assert recipe.description.endswith(".")
    assert not recipe.description.startswith("Based on"), "it is not that of the recipe that it extends"
    assert recipe.source
    complete = recipe.completed(recipe.parts.threat or Threat("Linf", 0.1))
    again = Recipe.read(yaml.safe_load(complete.yaml()))
    assert again == complete
    assert again.digest() == complete.digest()


BASED = "Based on cfa-at, with other settings."


@pytest.mark.parametrize(
    ("overrides", "kept"),
    [
        ({}, True),
        ({"seed": 3, "data.name": "mnist", "data.subset": 100, "precision.dtype": "bfloat16"}, True),
        ({"name": "mine", "checkpoint_epochs": [1]}, True),
        ({"epochs": 200}, True),  # as before
        ({"data.augment": "none"}, False),
        ({"optimizer.lr": 0.05}, False),
        ({"schedules": "[]"}, False),
        ({"seed": 3, "model.width": 0.5}, False),
    ],
    ids=str,
)
def test_other_settings_do_not_have_the_description_and_the_source(overrides: dict[str, Any], kept: bool) -> None:
    whole = Recipe.read("cfa-at")
    for recipe in (Recipe.read("cfa-at", overrides), Recipe.read(whole, overrides)):
        assert (recipe.description, recipe.source) == ((whole.description, whole.source) if kept else (BASED, ""))
        assert Recipe.read(recipe, {"optimizer.lr": 0.01}).description == BASED.replace("cfa-at", recipe.name)


def test_a_description_that_is_stated_is_kept() -> None:
    recipe = Recipe.read("cfa-at", {"epochs": 7, "description": "Seven epochs.", "name": "seven"})
    assert (recipe.description, recipe.source) == ("Seven epochs.", "")
    nothing: dict[str, Any] = {"name": "mine", "objective": "at"}
    assert Recipe.read(nothing, {"epochs": 7}).description == ""
    short = Recipe.read("cfa-at", {"epochs": 7}, budget="short")
    assert (short.name, short.description) == (
        "cfa-at-short",
        "Based on cfa-at with budget short, with other settings.",
    )


def test_a_recipe_that_extends_another_has_its_own_description_and_source(tmp_path: Path) -> None:
    file, second = tmp_path / "mine.yaml", tmp_path / "second.yaml"
    file.write_text("extends: cfa-at\nname: mine\nschedules: []\n")
    recipe = Recipe.read(file)
    assert (recipe.name, recipe.description, recipe.source) == ("mine", BASED, "")
    second.write_text(f"extends: {file}\nsource: a note\n")
    recipe = Recipe.read(second)
    assert (recipe.description, recipe.source) == ("Based on mine, with other settings.", "a note")


def test_recipes_have_the_settings_of_the_papers() -> None:
    recipe = Recipe.read("cfa-trades")
    parts = recipe.parts
    assert (recipe.epochs, recipe.batch_size, recipe.data.validation) == (200, 128, 0.02)
    assert parts.threat == Threat("Linf", 8 / 255)
    assert {type(part).__name__: dataclasses.asdict(part) for part in parts.schedules} == {  # type: ignore[call-overload]
        "CCM": {"start_epoch": 0, "lambda1": 0.3},
        "CCR": {"start_epoch": 0, "lambda2": 0.5},
    }
    assert dataclasses.asdict(parts.averaging) == {  # type: ignore[call-overload]
        "decay": 0.85,
        "start_fraction": 0.25,
        "patience": 20,
        "gate": "absolute",
        "threshold": None,
        "worst": "auto",
    }
    assert dataclasses.asdict(parts.attack) == {  # type: ignore[call-overload]
        "steps": 10,
        "step_size": 2 / 255,
        "random_init": "normal",
        "restarts": 1,
        "objective": "kl",
    }


@pytest.mark.parametrize(
    ("name", "epochs", "expected"),
    [
        ("he-lis", 12, {"schedules.0.epochs": 12}),
        ("he-cmp", 15, {"schedules.0.epochs": 14}),
        ("dafa", 11, {"schedules.0.start_epoch": 7}),
        ("dafa", 1, {"schedules.0.start_epoch": 1}),
        ("frl", 4, {"schedules.0.halve_every": 2}),
        ("ldam", 200, {"schedules.0.start_epoch": 160}),
        ("cfa-trades", 30, {}),
    ],
)
def test_another_number_of_epochs_scales_the_epochs_of_schedules(
    name: str, epochs: int, expected: dict[str, int]
) -> None:
    overrides = Recipe.read(name).epoch_overrides(epochs)
    assert overrides == {"epochs": epochs, **expected}
    assert Recipe.read(name, overrides).epochs == epochs


@pytest.mark.parametrize(
    ("overrides", "field", "value"),
    [
        ({"epochs": 3}, lambda r: r.epochs, 3),
        ({"optimizer.lr": "0.05"}, lambda r: r.parts.optimizer.lr, 0.05),
        ({"attack.steps": 7}, lambda r: r.parts.attack.steps, 7),
        ({"attack": "fgsm"}, lambda r: type(r.parts.attack).__name__, "FGSM"),
        ({"data.subset": 100}, lambda r: r.data.subset, 100),
        ({"precision.dtype": "bfloat16"}, lambda r: r.precision.dtype, "bfloat16"),
        ({"schedules.0.lambda1": 0.9}, lambda r: r.parts.schedules[0].lambda1, 0.9),
        (
            {"averaging.gate": "relative", "averaging.threshold": 0.5},
            lambda r: r.parts.averaging.threshold,
            0.5,
        ),
        ({"threat": "Linf:4/255"}, lambda r: r.parts.threat.epsilon, 4 / 255),
    ],
)
def test_every_field_can_be_changed(overrides: Mapping[str, Any], field: Any, value: object) -> None:
    assert field(Recipe.read("cfa-at", overrides)) == value


@pytest.mark.parametrize(
    ("name", "overrides", "says"),
    [
        ("cfa-tradess", {}, "unknown recipe 'cfa-tradess'; did you mean 'cfa-trades'?"),
        ("no/such.yaml", {}, "does not exist in the working directory "),
        ("at", {"epoch": 3}, "recipe has no field 'epoch'; did you mean 'epochs'?"),
        ("at", {"epochs": 0}, "epochs = 0"),
        ("at", {"threat": "Linf:-1"}, "epsilon = -1.0"),
        ("at", {"attack.step_size": 0}, "step_size = 0"),
        ("at", {"optimizer.momentun": 0.5}, "optimizer 'sgd' has no field 'momentun'; did you mean 'momentum'?"),
        (
            "at",
            {"optimizer.nesterov": True, "optimizer.momentum": 0},
            "nesterov = true: needs a momentum above 0",
        ),
        ("at-adam", {"optimizer.betas": [0.9, 1]}, "betas.1 = 1: Input should be less than 1"),
        ("at", {"data.nam": "x"}, "recipe has no field 'data.nam'; did you mean 'data.name'?"),
        ("at", {"model.wdith": 1}, "recipe has no field 'model.wdith'; did you mean 'model.width'?"),
        ("at", {"model": {"wdith": 1}}, "recipe has no field 'model.wdith'; did you mean 'model.width'?"),
        ("at", {"model.qqq": 1}, "recipe has no field 'model.qqq'; known: model."),
        ("at", {"model.name": "smal-cnn"}, "unknown model 'smal-cnn'; did you mean 'small-cnn'"),
        ("at", {"model.width": "x"}, "recipe field 'model': width = 'x'"),
        (
            "at",
            {"data.unlabelled": {"nam": "x"}},
            "recipe has no field 'data.unlabelled.nam'; did you mean 'data.unlabelled.name'?",
        ),
        ("at", {"objective": "tradse"}, "unknown objective 'tradse'; did you mean 'trades'?"),
        ("at", {"schedules": ["ccr"]}, "schedule 'ccr' needs beta, which this objective does not use; use trades"),
        ("at", {"selection": "wurst"}, "unknown selection 'wurst'; did you mean 'worst'?"),
        ("trades", {"attack": "tpgd"}, "this objective sets objective of the inner attack, which TemperaturePGD"),
        ("at", {"precision.dtype": "float16"}, "dtype = 'float16'"),
        ("cfa-at", {"schedules.lambda1": 1}, "the list has no item lambda1; items are 0 to 0, as in 'schedules.0'"),
        ("cfa-trades", {"schedules.ccm.lambda1": 0.3}, "items are 0 to 1, as in 'schedules.0.lambda1'"),
        ("at", {"schedules.0.lambda1": 0.3}, "the list has no item 0; it is empty"),
        ("cfa-at", {"schedules.3.lambda1": 1}, "the list has no item 3"),
        ("fast-at", {"lr_schedule.peak": 1}, "peak = 1"),
        (
            "fast-at",
            {"lr_schedule": {"name": "three-stage", "points": [[0.5, 1], [0.5, 0]]}},
            "[0.5, 0.5] must increase",
        ),
        (
            "frl",
            {"data.validation": 0, "selection": "last"},
            "'frl' reads valid.clean, which needs a validation split; set data.validation = 0.02",
        ),
        (
            "wat",
            {"data.validation": 0, "selection": "last"},
            "'wat' reads valid.count, which needs a validation split; set data.validation = 0.02",
        ),
        (
            "trades",
            {"data.validation": 0, "schedules": ["dafa-average"], "averaging": "ema"},
            "reads valid.average_confidence, which needs a validation split; set data.validation = 0.02",
        ),
        ("frl", {"objective": "at"}, "needs beta, which this objective does not use"),
        ("auto-beta", {"objective": "at"}, "'auto-beta' needs beta, which this objective does not use"),
        (
            "dafa",
            {"objective": "at"},
            "'dafa' sets weights of the term clean, but this objective has the term robust only",
        ),
        ("frl", {"objective": "mart"}, "'frl' sets weights of the term clean"),
        ("effective-number", {"schedules.0.terms": ["clean"]}, "but this objective has the term robust only"),
        ("ldam", {"schedules": ["ldam", "lis"]}, "more than one schedule sets the scale"),
        (
            "cfa-trades",
            {"objective.scaled": True},  # both divide by 1 + beta, so the loss would be divided twice
            "'ccr' divides the loss by 1 + beta, and so does objective.scaled",
        ),
        (
            "at",
            {"schedules": ["fair-ard"]},
            "schedule 'fair-ard' reads train.steps, which this objective does not measure; use ard or",
        ),
        (
            "fair-ard",
            {"schedules": ["absld"]},
            "schedule 'absld' needs clean_temperature, which this objective does not use; use rslad",
        ),
        ("absld", {"schedules": ["ldam"]}, "'ldam' needs logit_margin, which this objective does not use; use at"),
        ("absld", {"schedules": ["balanced-softmax"]}, "'balanced-softmax' needs logit_adjustment, which"),
        ("absld", {"objective.criterion": "label-smoothing"}, "criterion 'label-smoothing': this objective has no"),
        ("absld", {"objective.criterion": {"name": "softmax", "margin": 1}}, "criterion 'softmax': this objective has"),
        ("fair-ard", {"objective.criterion": "focal"}, "criterion 'focal': this objective has no loss of the labels"),
        ("fair-ard", {"schedules.0": {"name": "class-weights", "terms": ["clean"]}}, "has the term robust only"),
        ("at", {"schedules": ["csr"]}, "'csr' needs pair_weight, which this objective does not use; use csr"),
        ("standard", {"schedules": ["robust-lt"]}, "'robust-lt' needs epsilon, which this objective"),
        ("standard", {"schedules": ["towards-class:target=0"]}, "needs target, which this objective"),
        ("at", {"objective.criterion": "he"}, "criterion 'he' needs a model that returns cosines"),
        ("dafa", {"schedules.0.start_epoch": 0}, "start_epoch = 0"),
        ("dafa", {"schedules.0.terms": ["cleen"]}, "terms.0 = 'cleen'"),
        ("faal", {"reduction.radius": 0}, "radius = 0"),
        ("cfol", {"schedules.0.gamma": 1.5}, "gamma = 1.5"),
        ("effective-number", {"schedules.0.base": 1}, "base = 1"),
        ("fair-tat", {"schedules.0.smoothing": 0}, "smoothing = 0"),
        ("he-cmp", {"schedules.0.first": 1.5}, "first = 1.5"),
        ("he-lis", {"schedules.0.last": 0}, "last = 0"),
        ("focal", {"objective.criterion.gamma": -1}, "gamma = -1"),
        ("logit-similarity", {"reduction.strength": -1}, "strength = -1"),
        ("critical-class", {"schedules.0.weight": -1}, "weight = -1"),
        ("auto-beta", {"schedules.0.start_epoch": 0}, "start_epoch = 0"),
        ("cfa-at", {"schedules.0.start_epoch": -3}, "start_epoch = -3"),
        ("fat", {"objective.tau": [0, 1]}, "tau must have one value more than milestones"),
        ("sy-far", {"reduction.smoothing": 0}, "smoothing = 0"),
        ("codat", {"reduction.rho": -1}, "rho = -1"),
        ("at", {"reduction": "mean:radius=0.2"}, "reduction 'mean' has no settings"),
        ("trades", {"reduction.rho": 0.1}, "reduction 'mean' has no settings"),
        ("at", {"reduction": "fall"}, "unknown reduction 'fall'"),
        ("at", {"averaging": "fawa-iut:confidence=0.4"}, "confidence"),
        ("at", {"averaging": "fawa-iut:confidence=1"}, "confidence"),
        ("at", {"averaging": "fawa-iut:threshold=2"}, "threshold"),
        ("at", {"selection": "within-eror"}, "did you mean 'within-error'?"),
        ("at", {"checkpoint_epochs": "[3, 201]"}, "contains 201; it must"),
        ("at", {"checkpoint_epochs": "[0]"}, "checkpoint_epochs"),
        ("at", {"checkpoint_epochs": "12"}, "checkpoint_epoch"),
        ("at", {"precision.graphs": "often"}, "graphs = 'often'"),
        ("at-adam", {"optimizer.betas": [0.9, 2]}, "betas.1 = 2"),
    ],
)
def test_invalid_values_raise_errors(name: str, overrides: Mapping[str, Any], says: str) -> None:
    assert says in refused(Recipe.read, name, overrides)


def test_the_threat_of_a_run_must_suit_the_attacks() -> None:
    recipe = Recipe.read("at", {"threat": None, "attack": "nattack"})
    assert "NAttack does not support L2; it supports Linf" in refused(recipe.completed, Threat("L2", 1.0))


def test_a_file_may_extend_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: cfa-at\nname: mine\ndata: {subset: 500}\nepochs: 4\n")
    recipe = Recipe.read(file)
    assert (recipe.name, recipe.epochs, recipe.data.subset, recipe.data.augment) == ("mine", 4, 500, "crop-flip")


@pytest.mark.parametrize("text", ["[1, 2]", "a: b: c", "just words"])
def test_an_invalid_recipe_file_raises_an_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert "mine.yaml" in refused(Recipe.read, file)


def test_the_digest_ignores_names_and_paths_only() -> None:
    recipe = Recipe.read("at")
    assert recipe.digest() == Recipe.read("at", {"name": "other", "data.root": "/elsewhere"}).digest()
    assert recipe.digest() != Recipe.read("at", {"seed": 1}).digest()
    assert recipe.digest() != Recipe.read("at", {"optimizer.lr": 0.2}).digest()


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (Constant(), {0.0: 1.0, 1.0: 1.0}),
        (MultiStep(), {0.0: 1.0, 0.499: 1.0, 0.5: 0.1, 0.75: 0.01, 1.0: 0.01}),
        (OneCycle(), {0.0: 0.0, 0.2: 0.5, 0.4: 1.0, 0.7: 0.5, 1.0: 0.0}),
        (Cosine(), {0.0: 1.0, 0.5: 0.5, 1.0: 0.0}),
        (Cyclic(), {0.0: 0.0, 0.25: 0.5, 0.5: 1.0, 0.75: 0.5, 0.999: 0.002}),
        (Cyclic(cycles=2, peak=0.25, low=0.2), {0.0: 0.2, 0.125: 1.0, 0.3125: 0.6, 0.5: 0.2, 0.625: 1.0}),
        (
            PiecewiseLinear(),
            {0.0: 0.0, 1 / 30: 0.5, 1 / 15: 1.0, 3.5 / 15: 0.55, 0.4: 0.1, 0.6: 0.055, 0.8: 0.01, 1.0: 0.001},
        ),
        (PiecewiseLinear(points=((0.5, 2.0), (0.75, 1.0))), {0.0: 2.0, 0.5: 2.0, 0.625: 1.5, 0.9: 1.0}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_lr_schedules_by_hand(rate: LRSchedule, expected: dict[float, float]) -> None:
    for progress, factor in expected.items():
        assert rate.factor(progress) == pytest.approx(factor, abs=1e-12)


def test_data_and_model_may_be_text() -> None:
    as_text = Recipe.read(
        "at", {"data": "digits:subset=100", "model": "small-cnn:width=0.5", "model.options": {"depth": 2}}
    )
    plain = {
        "data": {"name": "digits", "subset": 100},
        "model": {"name": "small-cnn", "width": 0.5, "options": {"depth": 2}},
    }
    assert as_text == Recipe.read("at", plain)
    assert Recipe.read("at", {"model": "mynets:Net"}).model.name == "mynets:Net"
    with pytest.raises(ClasswiseError, match=r"recipe has no field 'model\.depth'; did you mean 'model\.width'"):
        Recipe.read("at", {"model": "small-cnn:depth=2"})
