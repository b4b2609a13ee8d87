"""benz20's plans: what their grids train, and their tables recounted from the files."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from classwise.papers.benz20 import long_tail, networks
from classwise.papers.experiment import Bench, Result
from classwise.papers.scales import MANY_TRAININGS, Scale
from classwise.papers.store import Store

from .conftest import Smoke

GRIDS = (
    long_tail.class_weights,
    long_tail.effective_numbers,
    long_tail.ldam_margins,
    long_tail.resampled_classes,
    long_tail.cosine_penalties,
    long_tail.towards_weakest,
)


def recounted(smoke: Smoke, result: Result, recipe: str) -> pd.Series[float]:
    """Robust accuracy of each class for the run of a recipe, from the files of its audit."""
    key = next(key for key, name in result.runs.items() if name == recipe)
    for folder in (smoke.store.path / "runs" / key / "audits").glob("*/outcomes"):
        frame = pd.concat([pd.read_parquet(part) for part in sorted(folder.glob("*.parquet"))])
        if set(frame["attack"]) == {"clean", "PGD"}:
            both = frame.pivot_table(index=["index", "label"], columns="attack", values="correct", aggfunc="first")
            return both["PGD"].astype(float).groupby("label").mean()
    raise AssertionError(recipe)


@pytest.mark.parametrize("scale", MANY_TRAININGS.values(), ids=lambda scale: scale.name)
@pytest.mark.parametrize("grid", GRIDS)
def test_grids_are_recipes(
    scale: Scale, grid: Callable[[Scale, str], long_tail.Grid], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every setting at every scale is read, each another training, and none is plain."""
    bench = Bench(scale, Store(tmp_path_factory.mktemp("grids") / "store"))
    found = [bench.recipe(recipe, changes) for recipe, changes in grid(scale, "7").values()]
    digests = {one.digest() for one in found}
    assert len(digests) == len(found)
    assert bench.recipe("at").digest() not in digests
    for one in found:
        for schedule in one.schedules:
            assert isinstance(schedule, dict)
            assert 0 <= int(schedule.get("begin", 0)) < one.epochs
            assert schedule.get("critical", "7") == schedule.get("target", "7") == "7"


@pytest.mark.parametrize("scale", networks.SCALES.values(), ids=lambda scale: scale.name)
def test_networks_are_recipes(scale: Scale, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each network is trained once with and once without attacks; at smoke one stands for all."""
    bench = Bench(scale, Store(tmp_path_factory.mktemp("networks") / "store"))
    experiment = networks.AllNetworks()
    found = [bench.recipe(recipe, changes) for recipe, changes in experiment.grid(scale).values()]
    plain = [bench.recipe(recipe, changes) for recipe, changes in experiment.standard(scale).values()]
    names = {one.model.name for one in found}
    assert (
        len(found) == len({one.digest() for one in found}) == (2 if scale.name == "smoke" else 1 + len(networks.WIDTHS))
    )
    assert names >= ({networks.STAND_IN} if scale.name == "smoke" else set(networks.WIDTHS))
    assert [one.model.name for one in plain] == ([] if scale.name == "smoke" else [one.model.name for one in found])
    assert found[0].digest() == bench.recipe("at").digest()


def test_metrics_of_class_accuracies() -> None:
    accuracy = np.array([[0.2, 0.5, 0.8], [0.4, 0.4, 0.1]])
    assert long_tail.average(accuracy) == pytest.approx([0.5, 0.3])
    assert long_tail.worst(accuracy) == pytest.approx([0.2, 0.1])
    assert long_tail.discrepancy(accuracy) == pytest.approx([0.6, 0.3])


def test_changes_are_against_the_plain_model(smoke: Smoke) -> None:
    result = smoke.results["benz20/P3.7"]
    plain, other = (recounted(smoke, result, recipe) for recipe in ("at", "logit-similarity"))
    row = next(row for row in result.tables[0].rows if row.name == "cosine 1")
    shown = [float(cell.text) for cell in row.cells]
    told = [100 * value for one in (other, other - plain) for value in (one.mean(), one.min(), np.ptp(one))]
    told[4] = 100 * (other.min() - plain.min())
    told[5] = 100 * (np.ptp(other) - np.ptp(plain))
    assert shown == pytest.approx(told, abs=0.051)


def test_the_critical_class_is_that_of_the_validation_split(smoke: Smoke) -> None:
    result = smoke.results["benz20/P3.3"]
    key = next(key for key, name in result.runs.items() if name == "at")
    epochs = pd.read_parquet(smoke.store.path / "runs" / key / "epochs.parquet")
    valid = epochs[epochs["split"] == "valid"]
    head = result.tables[0].heads[1]
    weakest = valid.loc[valid.groupby("epoch")["robust"].idxmin(), "class"]
    assert head in set(weakest.astype(str))
    front = [row.cells[-1].text for row in result.tables[0].rows]
    assert "yes" in front
