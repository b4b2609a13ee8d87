"""The arithmetic of the scales, and what medium scale takes from full scale."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from classwise.core.settings.config import configurable
from classwise.papers.catalogue import experiment, runnable
from classwise.papers.claims import Measurement, Test
from classwise.papers.experiment import Context, Experiment, Findings, Training, recipe_at
from classwise.papers.interval_estimators import interval
from classwise.papers.runner import _result
from classwise.papers.scales import FASHION, FULL, REDUCED, SMALL, SMOKE, Name, medium
from classwise.papers.store import Store
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.intervals import Estimate


@pytest.mark.parametrize("item", runnable())
def test_no_scale_chooses_the_arithmetic_by_the_processor(item: str) -> None:
    """Small scale computes in float32 alone; reduced scale trains in bfloat16 and evaluates in float32."""
    arithmetic: dict[Name, set[str]] = {"small": {"float32"}, "reduced": {"bfloat16"}}
    for name, dtypes in arithmetic.items():
        if name in (scales_of := experiment(item).scales):
            trainings = experiment(item).trainings(scales_of[name])
            recipes = [recipe_at(scales_of[name], one) for one in trainings.values()]
            assert {recipe.precision.dtype for recipe in recipes} <= dtypes
            assert scales_of[name].precision.dtype == "float32" or not trainings
            about = scales_of[name].about
            assert not recipes or ("bfloat16" in about) == (dtypes == {"bfloat16"})
            if "PreActResNet-18" in about:
                others = {recipe.name.removesuffix("-short") for recipe in recipes if recipe.model.name == "resnet18"}
                assert others <= {"mart"}
            else:
                assert "ResNet-18" not in about or not recipes


def test_the_guide_states_the_images_of_costly_attacks() -> None:
    """Attacks of thousands of passes at the scales below full."""
    guide = (Path(__file__).parents[2] / "docs/papers/index.md").read_text(encoding="utf-8")
    stated = f"use\n  {SMALL.few:,} test images, as at `small` and `reduced`"
    assert stated in guide
    assert {SMALL.few, REDUCED.few, FASHION.few, medium(FULL).few} == {SMALL.few}


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
            found.add((recipe.epochs, recipe.data.validation != 0, getattr(recipe.parts.averaging, "gate", "absolute")))
            assert (recipe.model, recipe.threat) == (paper.model, paper.threat), (name, row)
            assert recipe.data.augment == paper.data.augment
            assert recipe.selection == ("last" if training.recipe == "standard" else "auto"), (name, row)
            assert recipe.name.endswith("-short"), (name, row)
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


@pytest.mark.slow
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
