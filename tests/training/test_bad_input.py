"""Invalid input to `train`: a one-line error and no run folder, or a warning."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from classwise.data import Images, load_data
from classwise.threat.ball import Threat, large_radius_text
from classwise.training import SCHEDULES
from classwise.training.classes import signals
from classwise.training.recipe import Recipe
from classwise.training.train import train

from ..auditing.toys import Listener
from ..refusals import check_refused, refused
from .test_trainer import SMALL

TINY: dict[str, Any] = SMALL | {"data.subset": 120, "data.augment": "none", "epochs": 2}


def not_trained(recipe: str, out: Path, overrides: dict[str, Any], data: str | Images = "digits") -> str:
    message = refused(train, recipe, out=out, data=data, overrides=TINY | overrides)
    assert not out.exists()
    return message


SPLIT = "which needs a validation split; set data.validation = 0.02"
NEEDY = [name for name in SCHEDULES if any(read.startswith("valid.") for read in SCHEDULES.load(name).reads)]


ATTACKED = [
    name
    for name in SCHEDULES
    if SCHEDULES.load(name).reads & signals.ATTACKED and "signals" not in vars(SCHEDULES.load(name))
]
UNSPLIT: dict[str, Any] = {"data.validation": 0, "selection": "last"}


@pytest.mark.parametrize(
    ("recipe", "overrides", "says"),
    [
        *(("trades", UNSPLIT | {"schedules": [name]}, rf"schedule '{name}' reads valid\..*{SPLIT}") for name in NEEDY),
        *(("standard", {"schedules": [name]}, f"schedule '{name}' (reads|sets|needs)") for name in ATTACKED),
        (
            "standard",
            {"schedules": ["ccm"]},
            "reads train.robust, which needs an inner attack; this objective has none",
        ),
        ("cfa-at-chart", UNSPLIT, "data.validation = 0: selection and averaging need a validation split"),
        ("cfa-trades", {"objective": "nonsense"}, "unknown objective"),
    ],
)
def test_an_invalid_recipe_is_refused_before_data_is_read(
    recipe: str, overrides: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("data was read")

    monkeypatch.setattr("classwise.training.setup.load_data", read)
    assert re.search(says, not_trained(recipe, tmp_path / "run", overrides))


def test_there_are_schedules_that_need_validation_and_attacks() -> None:
    assert {"frl", "wat"} <= set(NEEDY)
    assert {"ccm", "fair-tat"} <= set(ATTACKED)


def test_beta_for_an_unknown_class(tmp_path: Path) -> None:
    for name in ("cat", "10"):
        overrides: dict[str, Any] = {"schedules": [{"name": "vector-beta", "beta": {name: 0.5}}]}
        assert not_trained("trades", tmp_path / "run", overrides).startswith(f"unknown class '{name}'; ")
    images = load_data("digits", split="train", subset=120)
    overrides = {"data.subset": None, "schedules": [{"name": "vector-beta", "beta": {"4": 0.5}}]}
    message = not_trained("trades", tmp_path / "run", overrides, images.take(images.y != 4))
    assert message == "class '4' has no training image; choose another class"


def test_negative_weights_are_clamped_and_reported_once(tmp_path: Path) -> None:
    steep = {"name": "class-weights", "kind": "robust-error", "strength": 40}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = train(
            "at",
            budget="short",
            out=tmp_path / "run",
            data="digits",
            overrides=TINY | {"epochs": 3, "schedules": [steep]},
        )
    said = [str(warning.message) for warning in caught if "negative" in str(warning.message)]
    assert said == ["schedule 'class-weights': strength = 40 gives negative weights, clamped at 0"]
    weights = run.epochs.query("split == 'train' and epoch > 0")["robust_weight"]
    assert weights.min() == 0
    assert weights.max() > 1


@pytest.mark.slow
@pytest.mark.parametrize("gate", ["fawa", "fawa-iut"])
def test_a_threshold_that_no_epoch_reaches(gate: str, tmp_path: Path) -> None:
    """The average of all epochs is saved instead, and the log reports it."""
    listener = Listener()
    overrides = TINY | {
        "averaging": {"name": gate, "threshold": 1.0, "start_fraction": 0.0, "decay": 0.5},
        "selection": "last",
    }
    run = train("at", budget="short", out=tmp_path / "run", data="digits", overrides=overrides, progress=listener)
    events = [event for event in run.events if event["event"] == "fawa"]
    assert [(event["admitted"], event["plain_average_saved"]) for event in events] == [(False, True)] * 2
    expected = "average refused, no epoch admitted yet: average of all epochs saved"
    assert sum(expected in line for line in listener.lines) == 2
    plain = overrides | {"averaging": {"name": "ema", "start_fraction": 0.0, "decay": 0.5}}
    ema = train("at", budget="short", out=tmp_path / "ema", data="digits", overrides=plain)
    for name, value in ema.model("average").state_dict().items():
        assert torch.equal(run.model("average").state_dict()[name], value), name


ADVICE = "set validation_attack.step_size=0.5eps"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            {"threat": "Linf:8"},
            [large_radius_text(Threat("Linf", 8), (1, 8, 8))],
        ),
        (
            {"threat": "Linf:0.25"},
            ["the threat is Linf:0.25; the usual one for digits is Linf:0.1 (--set threat=Linf:0.1)"],
        ),
        (
            {"attack.step_size": "2/255"},
            ["attack: 2 steps of 0.00784 reach 0.0157, less than the radius 0.1; set attack.step_size=0.5eps"],
        ),
        (
            {"attack.step_size": 0.06},
            ["attack: steps of 0.06 are more than half of the radius 0.1; set attack.step_size=0.5eps"],
        ),
        (
            {"validation_attack.step_size": "0.4eps"},
            [f"validation_attack: 2 steps of 0.4eps reach 0.08, less than the radius 0.1; {ADVICE}"],
        ),
        ({}, []),
    ],
)
def test_unusual_or_unreachable_radii_are_reported(overrides: dict[str, Any], said: list[str], tmp_path: Path) -> None:
    listener = Listener()
    train(
        "at",
        budget="short",
        out=tmp_path / "run",
        data="digits",
        overrides=TINY | {"attack.step_size": "0.5eps", "epochs": 1} | overrides,
        progress=listener,
    )
    words = ("radius", "threat", "the ball of every image")
    assert [line for line in listener.lines if any(word in line for word in words)] == said


def test_data_may_be_a_path_but_no_other_type(tmp_path: Path) -> None:
    images = load_data("digits", split="train", subset=60)
    np.savez(tmp_path / "mine.npz", x=images.pixels(slice(None)).numpy(), y=images.y.numpy())
    overrides = TINY | {"data.subset": None, "epochs": 1}
    run = train("at", budget="short", out=tmp_path / "run", data=tmp_path / "mine.npz", overrides=overrides)
    assert run.recipe.data.name == str(tmp_path / "mine.npz")
    check_refused(
        r"train\(\): data = .*: must be text, a path or an Images",
        train,
        "at",
        budget="short",
        out=tmp_path / "other",
        data=(images.x, images.y),
        overrides=overrides,
    )


def test_a_class_may_be_given_by_its_label_and_model_options_one_by_one() -> None:
    assert Recipe.read("critical-class", {"schedules.0.critical": "3"}) == Recipe.read(
        "critical-class", {"schedules.0.critical": 3}
    )
    deep = Recipe.read("at", {"model.name": "wideresnet", "model.options.depth": 16})
    assert deep.model.options == {"depth": 16}
