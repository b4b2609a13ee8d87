"""Plans of benz20: the settings of their grids, and their tables recomputed from the files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from classwise.analysis.feature_sets import NonRobustFeatures
from classwise.models import fingerprint, load_model
from classwise.papers import catalogue
from classwise.papers.experiment import Context, Trainings, recipe_at
from classwise.papers.experiments import class_wise, long_tail, weak_classes
from classwise.papers.experiments.protocol import AT, STANDARD
from classwise.papers.experiments.weak_classes import clean_logits
from classwise.papers.scales import MANY_TRAININGS, Scale
from classwise.training.folder import Run

from ..conftest import Smoke


def recounted(run: Run) -> pd.Series[float]:
    """Robust accuracy of each class for a run, from the files of its audit."""
    fingerprint_of_run = fingerprint(load_model(run.weights_file(run.default_weights())))
    for folder in (run.path / "audits").glob("*/outcomes"):
        settings = json.loads((folder.parent / "audit.json").read_text())["settings"]
        if (
            {*settings["attacks"]} != {"clean", "PGD"}
            or settings["trace"]
            or settings["model_hash"] != fingerprint_of_run
        ):
            continue  # other attacks, one image, or other weights of the run
        frame = pd.concat([pd.read_parquet(part) for part in sorted(folder.glob("*.parquet"))])
        both = frame.pivot_table(index=["index", "label"], columns="attack", values="correct", aggfunc="first")
        return both["PGD"].astype(float).groupby("label").mean()
    raise AssertionError(run.recipe.name)


@pytest.mark.parametrize("scale", MANY_TRAININGS.values(), ids=lambda scale: scale.name)
@pytest.mark.parametrize("grid", long_tail.TECHNIQUES.values(), ids=list(long_tail.TECHNIQUES))
def test_grids_are_recipes(scale: Scale, grid: Callable[[Scale, str], Trainings]) -> None:
    """Every setting at every scale is a valid recipe; all differ from each other and from plain training."""
    found = [recipe_at(scale, training) for training in grid(scale, "7").values()]
    digests = {recipe.digest() for recipe in found}
    assert len(digests) == len(found)
    assert recipe_at(scale, AT).digest() not in digests
    for recipe in found:
        for schedule in recipe.schedules:
            assert isinstance(schedule, dict)
            assert 0 <= int(schedule.get("start_epoch", 0)) < recipe.epochs
            assert schedule.get("critical", "7") == schedule.get("target", "7") == "7"


@pytest.mark.parametrize("scale", weak_classes.SCALES.values(), ids=lambda scale: scale.name)
def test_networks_are_recipes(scale: Scale) -> None:
    """Each network is trained once with and once without attacks; at smoke scale one network replaces all."""
    experiment = catalogue.experiment("benz20/P2.1")
    assert isinstance(experiment, weak_classes.Networks)
    found, plain = ([recipe_at(scale, training) for training in grid.values()] for grid in experiment.grids(scale))
    names = {recipe.model.name for recipe in found}
    expected = 2 if scale.name == "smoke" else 1 + len(experiment.networks)
    assert len(found) == len({recipe.digest() for recipe in found}) == expected
    assert names >= ({weak_classes.SMOKE_NETWORK} if scale.name == "smoke" else set(experiment.networks))
    assert [recipe.model.name for recipe in plain] == (
        [] if scale.name == "smoke" else [recipe.model.name for recipe in found]
    )
    assert found[0].digest() == recipe_at(scale, AT).digest()


def test_changes_are_relative_to_the_plain_model(smoke: Smoke) -> None:
    result = smoke.results["benz20/P3.7"]
    plain, other = (recounted(smoke.run_of("benz20/P3.7", recipe)) for recipe in ("at", "logit-similarity"))
    row = next(row for row in result.tables[0].rows if row.name == "cosine 1")
    shown = [float(cell.text) for cell in row.cells]
    found = [
        100 * value
        for accuracies in (other, other - plain)
        for value in (accuracies.mean(), accuracies.min(), np.ptp(accuracies))
    ]
    found[4] = 100 * (other.min() - plain.min())
    found[5] = 100 * (np.ptp(other) - np.ptp(plain))
    assert shown == pytest.approx(found, abs=0.051)


def test_the_critical_class_is_selected_on_the_validation_split(smoke: Smoke) -> None:
    result = smoke.results["benz20/P3.3"]
    epochs = pd.read_parquet(smoke.run_of("benz20/P3.3").path / "epochs.parquet")
    valid = epochs[epochs["split"] == "valid"]
    head = result.tables[0].heads[1]
    weakest = valid.loc[valid.groupby("epoch")["robust"].idxmin(), "class"]
    assert head in set(weakest.astype(str))
    front = [row.cells[-1].text for row in result.tables[0].rows]
    assert "yes" in front


@pytest.mark.parametrize("scale", MANY_TRAININGS.values(), ids=lambda scale: scale.name)
def test_learning_rates_are_stepwise_and_cyclic(scale: Scale) -> None:
    recipes = {name: recipe_at(scale, training) for name, training in weak_classes.lr_schedules(scale).items()}
    stepwise, cyclic = (recipes[name].parts.lr_schedule for name in ("stepwise", "cyclic"))
    assert [stepwise.factor(share) for share in (0.0, 0.4, 0.6, 0.8)] == pytest.approx([1, 1, 0.1, 0.01])
    assert cyclic.factor(0.0) == cyclic.factor(1.0) == 0
    assert max(cyclic.factor(share / 100) for share in range(101)) == 1
    if scale.name == "full":
        assert isinstance(recipes["cyclic"].optimizer, dict)
        assert recipes["cyclic"].optimizer["lr"] == 0.2


def test_optimisation_contains_the_unmodified_model_once() -> None:
    experiment = catalogue.experiment("benz20/P2.2")
    assert isinstance(experiment, weak_classes.Optimisation)
    for scale in MANY_TRAININGS.values():
        grid, _ = experiment.grids(scale)
        settings = [
            (training.recipe, tuple(sorted(map(str, training.overrides.items())))) for training in grid.values()
        ]
        assert len(settings) == len(set(settings))
        assert ("at", ()) in settings


def test_the_radii_of_a_standard_model() -> None:
    """The radii are 0.25, 0.5, 1, 2 and 8 of 255."""
    names = [class_wise.radius_name(MANY_TRAININGS["full"], share) for share in class_wise.RADII]
    assert names == [f"PGD at {radius}/255" for radius in ("0.25", "0.5", "1", "2", "8")]


def test_robustness_falls_with_the_radius(smoke: Smoke) -> None:
    rows = smoke.results["benz20/F1"].tables[0].rows
    averages = [float(row.cells[0].text) for row in rows]
    assert len(rows) == 1 + len(class_wise.RADII)
    assert all(np.diff(averages) <= 1), "two steps may miss one of 100 images"


def test_clean_logits_equal_the_audit(smoke: Smoke) -> None:
    context = Context(MANY_TRAININGS["smoke"], smoke.store)
    images = context.test_images
    logits = clean_logits(smoke.run_of("benz20/P2.4").model(), images)
    right = logits.argmax(axis=1) == images.y.numpy()
    trained = context.train(AT)
    found = context.audit(trained, {"PGD": context.pgd({"name": "pgd", "steps": 20, "step_size": "0.1eps"})})
    assert right.sum() == found.counts("clean").correct.sum()


def test_a_feature_set_is_cached(smoke: Smoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file returns the same pixels and target labels; another setting has another file."""
    context = Context(MANY_TRAININGS["smoke"], smoke.store)
    trained = context.train(STANDARD)
    images = context.train_images.take(slice(20))
    maker = NonRobustFeatures(steps=2)
    direct = maker(trained.model(), images)
    first = weak_classes.cached_set(tmp_path, maker, trained, images, context)
    weak_classes.cached_set(tmp_path, NonRobustFeatures(steps=1), trained, images, context)
    assert len(list(tmp_path.glob("features-*.npz"))) == 2
    monkeypatch.setattr(NonRobustFeatures, "__call__", None)
    again = weak_classes.cached_set(tmp_path, maker, trained, images, context)
    for cached in (first, again):
        assert cached.fingerprint() == direct.fingerprint()
    assert not torch.equal(first.y, images.y)


def test_measurements_name_the_network_that_is_evaluated(smoke: Smoke) -> None:
    """At smoke scale, P2.6 trains no network on its set."""
    for item, network in (("benz20/P2.5", "trained on the set"), ("benz20/P2.6", "the set's own network")):
        quantities = [measurement.quantity for measurement in smoke.results[item].measurements]
        assert [quantity.split(", ")[-1] for quantity in quantities] == ["trained on the original", network]
        assert len(smoke.results[item].runs) == 2
