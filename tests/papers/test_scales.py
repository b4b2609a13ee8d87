"""The precision of a scale on a device: float32 where bfloat16 is slower."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from classwise.auditing.run.result import Audit
from classwise.core.precision import FAST
from classwise.papers import scales
from classwise.papers.catalogue import experiment, runnable
from classwise.papers.cost import forecast
from classwise.papers.experiment import recipe_at
from classwise.papers.experiments.fair_training import UnfairChoice
from classwise.papers.result import Result
from classwise.papers.runner import run
from classwise.papers.scales import FASHION, FULL, REDUCED, SMOKE, Scale, on_data_set
from classwise.papers.store import Store
from classwise.training.folder import Run


@pytest.fixture(params=[True, False], ids=["fast bfloat16", "slow bfloat16"])
def multiplies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the CPU multiplies bfloat16, as PyTorch reports it."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: request.param, raising=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    return bool(request.param)


def test_every_scale_has_the_dtype_that_is_faster_on_the_device(multiplies: bool) -> None:
    for name in runnable():
        for scale in experiment(name).scales.values():
            there = scale.on_device("cpu")
            assert (there is scale) is multiplies
            dtypes = {there.precision.dtype, there.overrides.get("precision.dtype", "float32")}
            assert multiplies or dtypes == {"float32"}
            assert multiplies or "bfloat16" not in there.about


@pytest.mark.parametrize("name", ["cfa23/E1", "kdd21/T1", "benz20/F2"])
def test_recipes_differ_in_the_dtype_alone(name: str) -> None:
    for scale in experiment(name).scales.values():
        there = scale.with_float32()
        trainings = experiment(name).trainings(scale)
        assert experiment(name).trainings(there) == trainings
        for training in trainings.values():
            recipe = recipe_at(scale, training)
            precision = dataclasses.replace(recipe.precision, dtype="float32")
            assert recipe_at(there, training) == dataclasses.replace(recipe, precision=precision)


@pytest.mark.parametrize("data", [*scales.PAPER_DATA, *scales.OWN_DATA])
@pytest.mark.parametrize("scale", [REDUCED, FASHION, FULL], ids=["reduced", "fashion", "full"])
def test_another_data_set_keeps_the_dtype(scale: Scale, data: str) -> None:
    assert on_data_set(scale.with_float32(), data) == on_data_set(scale, data).with_float32()


def test_a_forecast_is_of_the_dtype_of_the_run(multiplies: bool) -> None:
    rate = {"float32": 1.0, "bfloat16": 2.0}
    found = forecast("cfa23/E1", "reduced", rate=lambda recipe, _: rate[recipe.precision.dtype])
    assert list(found.passes_per_second.values()) == [2.0 if multiplies else 1.0]


def test_a_run_records_the_dtype_of_the_device(
    multiplies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = {**SMOKE.overrides, "epochs": 1, "precision.dtype": FAST.dtype, "precision.channels_last": True}
    fast = dataclasses.replace(SMOKE, about="digits in bfloat16", overrides=overrides, precision=FAST)
    monkeypatch.setattr(UnfairChoice, "scales", {"smoke": fast})
    store = Store(tmp_path / "store")
    run("cfa23/E1", "smoke", store.path)
    (recipe,) = store.runs
    dtype = "bfloat16" if multiplies else "float32"
    assert Run.open(recipe.parent).recipe.precision.dtype == dtype
    audits = [Audit.load(file.parent) for file in recipe.parent.glob("audits/*/audit.json")]
    assert {audit.outcomes.meta.precision["dtype"] for audit in audits} == {dtype}
    assert dtype in Result.load(store.result_file("cfa23/E1", "smoke")).setting
