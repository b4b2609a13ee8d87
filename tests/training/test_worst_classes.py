"""The worst class or the worst fifth of the classes: in the gates of FAWA, in the selection, and in runs."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from classwise.data import Images
from classwise.threat.ball import Threat
from classwise.training.averaging import EMA, FAWA, IUTFAWA, Average, Averager, ChartFAWA
from classwise.training.recipe import Recipe
from classwise.training.train import train
from classwise.training.worst_classes import resolve_worst, worst_accuracy

from ..auditing.toys import Listener
from .by_hand import event_of
from .on_digits import TINY
from .test_cfa import weights


@pytest.mark.parametrize(
    ("classes", "worst", "fifth"),
    [(2, "class", 0.0), (10, "class", 0.05), (20, "class", 0.15), (21, "fifth", 0.2), (200, "fifth", 1.95)],
)
def test_more_than_20_classes_are_many(classes: int, worst: str, fifth: float) -> None:
    """Class c has the value c / 10, which shows the classes in the mean; the fifth is rounded up."""
    values = torch.arange(classes).flip(0) / 10
    assert resolve_worst("auto", classes) == worst
    assert worst_accuracy(values.tolist(), "class") == 0
    assert worst_accuracy(values.tolist(), "fifth") == pytest.approx(fifth)
    assert worst_accuracy(values.tolist(), "auto") == worst_accuracy(values.tolist(), worst)


def test_classes_without_images_do_not_count() -> None:
    values = torch.tensor([math.nan, *[0.1] * 20, math.nan, 0.0])
    assert worst_accuracy(values.tolist(), "auto") == pytest.approx(0.08)  # 21 classes, the lowest 5
    assert worst_accuracy(values[:21].tolist(), "auto") == pytest.approx(0.1)  # 20 classes
    assert math.isnan(worst_accuracy(values[:1].tolist(), "auto"))


def test_the_defaults_of_the_threshold() -> None:
    gates = [
        (FAWA(), 10, ("absolute", "class", 0.2)),
        (FAWA(), 21, ("absolute", "fifth", 0.05)),
        (FAWA(gate="relative"), 10, ("relative", "class", 0.8)),
        (FAWA(gate="relative"), 200, ("relative", "fifth", 0.8)),
        (FAWA(worst="class"), 200, ("absolute", "class", 0.2)),
        (FAWA(worst="fifth"), 10, ("absolute", "fifth", 0.05)),
        (FAWA(threshold=0.24), 200, ("absolute", "fifth", 0.24)),
    ]
    for gate, classes, (kind, worst, threshold) in gates:
        resolved = FAWA(decay=gate.decay, gate=kind, worst=worst, threshold=threshold)  # type: ignore[arg-type]
        assert gate.for_classes(classes) == resolved == resolved.for_classes(5)
    assert ChartFAWA().for_classes(21).worst == "fifth"
    assert IUTFAWA().for_classes(200) == IUTFAWA()
    assert EMA().for_classes(200) == EMA()


def test_the_worst_fifth_opens_a_gate_that_the_worst_class_never_opens() -> None:
    """25 classes of two images: a class has 0, 0.5 or 1, some class always 0; the lowest five have a mean of 0.1."""
    robust = torch.tensor([0.0] * 4 + [0.5] * 16 + [1.0] * 5)
    signals = {"valid.robust": robust, "valid.soft": robust}

    def admitted(gate: Averager) -> bool:
        return bool(event_of(gate.after_epoch(Average(), weights(1.0), signals, 0.5))["admitted"])

    for threshold in (0.2, 0.05, 1e-6):
        assert not admitted(FAWA(worst="class", threshold=threshold))
    assert admitted(FAWA())
    assert admitted(FAWA(worst="fifth"))
    assert not admitted(FAWA(threshold=0.11))
    relative = FAWA(gate="relative", start_fraction=0.0)
    state = relative.after_epoch(Average(), weights(1.0), signals, 0.5)
    for share, expected in ((0.125, True), (0.13, False)):  # 0.8 of 0.125 is reached, of 0.13 not
        later = dataclasses.replace(state, facts=state.facts | {"history": [share]})
        assert event_of(relative.after_epoch(later, weights(1.0), signals, 0.5))["admitted"] is expected


def test_the_chart_averages_the_worst_fifth() -> None:
    soft = {"valid.soft": torch.tensor([0.0, 0.5] + [1.0] * 20)}
    assert ChartFAWA().score_and_threshold([], soft)[0] == pytest.approx(3.5 / 5)
    assert ChartFAWA(worst="class").score_and_threshold([], soft)[0] == 0


def of_many_classes(classes: int) -> Images:
    """Images of a constant colour per class, which a network learns to separate only in part."""
    y = torch.arange(classes).repeat_interleave(6)
    x = torch.rand(len(y), 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Images(x, y, [str(label) for label in range(classes)], "noise", "train")


@pytest.mark.slow
@pytest.mark.parametrize("classes", [20, 21])
@pytest.mark.parametrize("recipe", ["at", "cfa-at"])
def test_a_run_states_and_logs_the_choice(recipe: str, classes: int, tmp_path: Path) -> None:
    listener = Listener()
    overrides: dict[str, Any] = TINY | {"data.subset": None, "epochs": 1}
    run = train(recipe, out=tmp_path / "run", data=of_many_classes(classes), overrides=overrides, progress=listener)
    many = classes > 20
    assert run.recipe.selection == ("overall+worst-fifth" if many else "overall+worst")
    said = [line for line in listener.lines if "of classes" in line]
    users = {"at": "the selection uses", "cfa-at": "FAWA and the selection use"}[recipe]
    limit = ", threshold 0.05" if recipe == "cfa-at" else ""
    assert said == ([f"21 classes: {users} the mean of the worst 20 % of classes{limit}"] if many else [])
    if recipe == "cfa-at":
        resolved = {"worst": "fifth", "threshold": 0.05} if many else {"worst": "class", "threshold": 0.2}
        assert run.recipe.averaging.items() >= (resolved | {"gate": "absolute"}).items()  # type: ignore[union-attr]
    again = train(recipe, out=run.path, data=of_many_classes(classes), overrides=overrides, resume=True)
    assert again.recipe.digest() == run.recipe.digest()


@pytest.mark.slow
def test_an_explicit_choice_is_kept_and_classes_without_images_do_not_count(tmp_path: Path) -> None:
    explicit: dict[str, Any] = {"selection": "overall+worst", "averaging.worst": "class", "averaging.threshold": 0.1}
    overrides: dict[str, Any] = TINY | {"data.subset": None, "epochs": 1}
    listener = Listener()
    run = train(
        "cfa-at",
        out=tmp_path / "class",
        data=of_many_classes(30),
        overrides=overrides | explicit,
        progress=listener,
    )
    assert run.recipe.selection == "overall+worst"
    assert run.recipe.averaging.items() >= {"worst": "class", "threshold": 0.1}.items()  # type: ignore[union-attr]
    assert not any("of classes" in line for line in listener.lines)
    images = of_many_classes(30)
    few = train("cfa-at", out=tmp_path / "few", data=images.take(images.y < 20), overrides=overrides)
    assert few.recipe.selection == "overall+worst"


def test_a_recipe_without_a_number_of_classes_keeps_the_choice_open() -> None:
    recipe = Recipe.read("cfa-at")
    complete = recipe.completed(Threat("Linf", 0.1))
    assert complete.selection == "auto"
    assert complete.averaging.items() >= {"worst": "auto", "threshold": None}.items()  # type: ignore[union-attr]
    assert complete.completed(Threat("Linf", 0.1), 200) == recipe.completed(Threat("Linf", 0.1), 200)
