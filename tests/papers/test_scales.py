"""The precision of a scale on a device: float32 where bfloat16 is slower."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from classwise.auditing.run.result import Audit
from classwise.core.compute.precision import FAST
from classwise.core.settings.config import configurable
from classwise.papers import scales
from classwise.papers.catalogue import experiment, runnable
from classwise.papers.claims import Measurement, Test
from classwise.papers.cost import forecast
from classwise.papers.experiment import Context, Experiment, Findings, Training, recipe_at
from classwise.papers.experiments.fair_training import UnfairChoice
from classwise.papers.interval_estimators import interval
from classwise.papers.result import Result
from classwise.papers.runner import _result, run
from classwise.papers.scales import FASHION, FULL, REDUCED, SMOKE, TIAN, Scale, medium, on_data_set
from classwise.papers.store import Store
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.intervals import Estimate
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
@pytest.mark.parametrize("scale", [REDUCED, FASHION, FULL, medium(TIAN)], ids=["reduced", "fashion", "full", "medium"])
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


def test_medium_has_the_networks_and_data_of_full_scale_and_the_budget_of_short_trainings() -> None:
    """Every training of every item, each with a validation split, from which the selected weights follow."""
    found = set()
    for name in runnable():
        one = experiment(name)
        full, chosen = one.scales["full"], one.scales.get("medium")
        declared = {} if chosen is None else {**one.trainings(chosen), **one.conditional_trainings(chosen)}
        published = {**one.trainings(full), **one.conditional_trainings(full)}
        assert bool(declared) == bool(published), name
        for row, training in declared.items():
            assert chosen is not None
            recipe, paper = recipe_at(chosen, training), recipe_at(full, published.get(row, training))
            found.add((recipe.epochs, recipe.data.validation > 0, getattr(recipe.parts.averaging, "gate", "absolute")))
            assert (recipe.model, recipe.threat) == (paper.model, paper.threat), (name, row)
            assert recipe.data.augment == paper.data.augment
            assert recipe.selection == ("last" if training.recipe == "standard" else "auto"), (name, row)
            assert "rice" in recipe.source.lower() or "he-short" in recipe.source
    assert found == {(30, True, "absolute")}
    assert "medium" not in experiment("benz20/P1.2").scales


@configurable
class _Totals(Experiment, trainings={"AT": Training(recipe="at")}):
    """Accuracy of one model; of its last weights in some repetitions."""

    item: str = "cfa23/E1"
    last: tuple[int, ...] = (0,)

    def run(self, context: Context) -> Findings:
        trained = context.train_all(self.trainings(context.scale))["AT"]
        which = "last" if context.scale.repetition in self.last else None
        audit = context.audit(trained, {"PGD": "pgd:steps=2"}, which=which)
        value = float(audit.counts("PGD").accuracy.mean())
        cells = [Cell(f"{value}"), Cell(str(audit.outcomes.meta.model_hash))]
        test = Test(claim="cfa23/C10", estimand="total", estimators=[interval(Estimate(value, value - 1, value + 1))])
        measured = Measurement.of("benz20/C10", "total", Estimate(value, value, value))
        return Findings(tables=[Table("Total", ("", "", ""), [Row("", cells)])], tests=[test], measurements=[measured])


def test_medium_scale_evaluates_the_selected_and_the_last_weights(tmp_path: Path) -> None:
    """Of each of three trainings, unless the experiment names the weights; also where both are the same epoch."""
    small = medium(dataclasses.replace(SMOKE, name="full")).with_overrides(epochs=4, selection="three-quarters")
    store = Store(tmp_path / "store")
    assert _Totals.scales["medium"].last_weights
    found = _result(_Totals(), Context(small, store), small.trainings)
    assert (found.evidence.trainings, len(found.tables), len(store.runs)) == (3, 6, 3)
    last = [table for table in found.tables if "; the last weights" in table.caption]
    hashes = [
        [table.rows[0].cells[1].text for table in found.tables if (table in last) is chosen] for chosen in (False, True)
    ]
    assert [one == other for one, other in zip(*hashes, strict=True)] == [True, False, False]
    both = ["total", "total; the last weights in place of the selected ones"]
    assert [verdict.estimand for verdict in found.verdicts] == both
    assert [verdict.trainings for verdict in found.verdicts] == [3, 3]
    assert [measurement.quantity for measurement in found.measurements] == both
    named = _result(_Totals(last=(0, 1, 2)), Context(small, store), small.trainings)
    assert [table.rows for table in named.tables] == [table.rows for table in last]
    assert [verdict.estimand for verdict in named.verdicts] == ["total"]
