"""Deviations of an item from the settings of its paper: the difference of its recipes and scale from the facts."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from classwise.papers.catalogue import experiment
from classwise.papers.context import Training, recipe_at
from classwise.papers.experiment import Experiment
from classwise.papers.run_settings import NONE, evaluation_settings, text, training_settings
from classwise.papers.scales import Scale, on_data_set
from classwise.papers.settings import (
    DATA_SET,
    EPOCHS,
    EVALUATION,
    TRAINING,
    ItemSettings,
    PaperSettings,
    Value,
    item_settings,
    on_data,
)
from classwise.training.recipe import Recipe

EVALUATED = "evaluation"
"""Name of the row of the evaluation; on several data sets, one row for each."""
_SEEDS = "trainings"
_TOLERANCE = 1e-6
_STEPS = re.compile(r"x([\d.]+) at epochs ([\d, ]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?(?: in steps of (\d+))?")
_EPOCHS_APART = 1
"""Difference between milestones that "at the 75th epoch" leaves open."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting of a row: in the paper, in the authors' code, and at a scale.

    Attributes:
        row: name of the training, or ``evaluation``.
        name: name of the setting.
        paper: equivalent values of the paper; empty if it does not state the setting.
        here: value at the scale; None if the row has no such setting.
        code: value of the authors' public code; None if unknown or equal to that of the paper.
    """

    row: str
    name: str
    paper: tuple[Value, ...]
    here: Value | None
    code: Value | None = None

    @property
    def deviates(self) -> bool:
        """Whether the paper states another value."""
        if self.name == EPOCHS and self.paper and self.here is not None:
            return not _epochs(self.paper[0]) <= _epochs(self.here)
        return bool(self.paper) and not any(_same(value, self.here) for value in self.paper)


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A deviation from the settings of a paper, with texts of both values."""

    row: str
    setting: str
    paper: str
    here: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The settings of an item at a scale, beside those of its paper.

    Attributes:
        settings: settings row by row.
        deviations: those that deviate, followed by rows and values of the paper that are not trained.
        ours: rows that the paper does not have.
        reason: why the paper states no settings; empty if it does.
    """

    settings: Sequence[Setting] = ()
    deviations: Sequence[Deviation] = ()
    ours: Sequence[str] = ()
    reason: str = ""

    @property
    def not_stated(self) -> tuple[str, ...]:
        """Names of settings that the paper leaves open in every row."""
        names = dict.fromkeys(one.name for one in self.settings)
        stated = {one.name for one in self.settings if one.paper}
        return tuple(name for name in names if name not in stated)

    def facts(self) -> dict[str, Any]:
        """The comparison as JSON."""
        rows: dict[str, dict[str, Any]] = {}
        for one in self.settings:
            values = {"paper": list(one.paper), "code": one.code, "here": one.here}
            rows.setdefault(one.row, {})[one.name] = values
        deviations = [dataclasses.asdict(one) for one in self.deviations]
        ours = {"rows_not_in_the_paper": list(self.ours), "reason": self.reason}
        return {"rows": rows, "deviations": deviations, "not_stated": list(self.not_stated), **ours}


@dataclass(frozen=True)
class _Row:
    """A training of an item with its recipe."""

    name: str
    training: Training
    recipe: Recipe
    here: Mapping[str, Value] = field(default_factory=dict)


def compare(item: str, scale: str, trainings: int = 1) -> Comparison:
    """Compare the settings of an item at a scale with those of its paper.

    Args:
        item: id of a runnable item, such as ``kdd21/T1``.
        scale: name of one of its scales.
        trainings: number of repetitions with other seeds.
    """
    one = experiment(item)
    chosen = next(value for name, value in one.scales.items() if name == scale)
    return compare_with(item_settings(item) or ItemSettings(trainings={}), one, chosen, trainings)


def compare_with(stated: ItemSettings, experiment: Experiment, scale: Scale, trainings: int = 1) -> Comparison:
    """Compare the trainings of an experiment at a scale with stated settings.

    Args:
        stated: settings of the paper.
        experiment: experiment, which declares its trainings.
        scale: data, network and budget.
        trainings: number of repetitions with other seeds.
    """
    rows = _rows(experiment, scale)
    if not stated.trainings and not stated.evaluations:
        return Comparison(ours=[row.name for row in rows], reason=stated.reason)
    settings, ours = list[Setting](), list[str]()
    used = {row.training.data or scale.data for row in rows}
    for row in rows:
        data = row.training.data or scale.data
        table = stated.training(row.name, row.training.recipe, data)
        if table is None or (data not in stated.data_sets and used & stated.data_sets):
            ours.append(row.name)
        else:
            settings += _beside(row.name, table, {**row.here, _SEEDS: trainings * int(row.here[_SEEDS])})
    data_sets = [data for data in used or {scale.data} if data in stated.data_sets or not used & stated.data_sets]
    for data in sorted(data_sets) if stated.evaluations else ():
        table = on_data(stated.evaluations, data)
        assert table is not None
        name = EVALUATED if len(data_sets) == 1 else f"{EVALUATED}, {data}"
        here = evaluation_settings(on_data_set(scale, data), experiment.attacks.get(scale.name))
        settings += [
            Setting(row=name, name=key, paper=table.values.get(key, ()), here=here[key], code=table.code.get(key))
            for key in EVALUATION
            if key in here
        ]
    deviations = [
        Deviation(row=one.row, setting=one.name, paper=text(*one.paper), here=text(one.here))
        for one in settings
        if one.deviates
    ]
    return Comparison(settings=settings, deviations=[*deviations, *_untrained(stated, rows, scale)], ours=ours)


@cache
def _rows_at(experiment: Experiment, scale_name: str) -> tuple[_Row, ...]:
    """Trainings of an experiment at one of its own scales, with their recipes."""
    scale = next(value for name, value in experiment.scales.items() if name == scale_name)
    return _read_rows(experiment, scale)


def _rows(experiment: Experiment, scale: Scale) -> tuple[_Row, ...]:
    own = next((value for name, value in experiment.scales.items() if name == scale.name), None)
    return _rows_at(experiment, scale.name) if own is scale else _read_rows(experiment, scale)


def _read_rows(experiment: Experiment, scale: Scale) -> tuple[_Row, ...]:
    declared = experiment.trainings(scale)
    rows = []
    for name, training in declared.items():
        own = on_data_set(scale, training.data) if training.data else scale
        recipe = _recipe(own, dataclasses.replace(training, data=""))
        here = training_settings(recipe, own)
        here["initial weights"] = declared[training.start].recipe if training.start else "random"
        rows.append(_Row(name, training, recipe, here))
    kinds = [(_plain(row.training), dataclasses.replace(row.recipe, seed=0).digest()) for row in rows]
    seeds = [{row.recipe.seed for row, other in zip(rows, kinds, strict=True) if other == one} for one in kinds]
    counts = [{_SEEDS: len(each)} for each in seeds]
    return tuple(dataclasses.replace(row, here={**row.here, **count}) for row, count in zip(rows, counts, strict=True))


def _recipe(scale: Scale, training: Training) -> Recipe:
    """The recipe of a training; most items share recipes, which take long to build."""
    key = json.dumps([training.recipe, training.overrides, scale.budget, scale.threat, scale.overrides], default=repr)
    if key not in _RECIPES:
        _RECIPES[key] = recipe_at(scale, training)
    return _RECIPES[key]


_RECIPES: dict[str, Recipe] = {}


def _plain(training: Training) -> Training:
    """A training without its recipe."""
    return dataclasses.replace(training, recipe="", overrides={})


def _beside(row: str, table: PaperSettings, here: Mapping[str, Value]) -> list[Setting]:
    """Settings of a row, those of every training first; parameters of a part only if the recipe has the part."""
    parts = {name.partition(" ")[0] for name in here if name not in TRAINING}
    first = [name for name in TRAINING if name in table.values or name in here]
    found = []
    for name in dict.fromkeys((*first, *table.values, *here)):
        stated = name in table.values and (name in (*TRAINING, EPOCHS) or name.partition(" ")[0] in parts)
        if name in here or stated:
            values = table.values.get(name, ())
            found.append(Setting(row=row, name=name, paper=values, here=here.get(name), code=table.code.get(name)))
    return found


def _untrained(stated: ItemSettings, rows: Sequence[_Row], scale: Scale) -> list[Deviation]:
    """Rows, data sets and values of sweeps of the paper that are not trained."""
    found = list[Deviation]()
    used = {row.training.data or scale.data for row in rows}
    lists = [tables for tables in stated.trainings.values() if len(tables) > 1]
    named = dict.fromkeys(str(data) for tables in lists for table in tables for data in table.values[DATA_SET])
    if missing := [data for data in named if data not in used]:
        found.append(Deviation(row="", setting="further data sets", paper=", ".join(missing), here=NONE))
    for key, tables in stated.trainings.items():
        own = [row for row in rows if stated.key_of(row.name, row.training.recipe) == key]
        if not own and tables:
            found.append(Deviation(row=key, setting="training", paper=tables[0].name, here=NONE))
        found += [_sweep(name, table.values[name], own) for table in tables if own for name in table.sweep]
    return [one for one in found if one.paper]


def _sweep(name: str, values: Sequence[Value], rows: Sequence[_Row]) -> Deviation:
    """The values of a sweep that are not trained; without a text for the paper if there are none."""
    trained = [row.here.get(name) for row in rows]
    missing = [value for value in values if not any(_same(value, other) for other in trained)]
    return Deviation(row="", setting=f"further values of {name}", paper=", ".join(map(text, missing)), here=NONE)


def _epochs(ranges: Value) -> set[int]:
    """The epochs of ranges such as ``101-120, 181-200``."""
    matches = [_RANGE.fullmatch(part) for part in str(ranges).split(", ")]
    assert all(matches), ranges
    ends = [(int(match[1]), int(match[2] or match[1]), int(match[3] or 1)) for match in matches if match]
    return {epoch for first, last, step in ends for epoch in range(first, last + 1, step)}


def _same(paper: Value, here: Value | None) -> bool:
    """Whether two values are equal up to rounding; milestones also if they are one epoch apart."""
    if isinstance(paper, int | float) and isinstance(here, int | float):
        return math.isclose(paper, here, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE**2)
    if paper == here:
        return True
    one, other = (_STEPS.fullmatch(str(value)) for value in (paper, here))
    if one is None or other is None or float(one[1]) != float(other[1]):
        return False
    milestones = [[int(epoch) for epoch in match[2].split(",")] for match in (one, other)]
    return len(milestones[0]) == len(milestones[1]) and all(
        abs(a - b) <= _EPOCHS_APART for a, b in zip(*milestones, strict=True)
    )
