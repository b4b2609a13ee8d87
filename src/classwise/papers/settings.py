"""Settings that the papers state: of their trainings and of their evaluations, by item and row.

They are written in ``PAPER.yaml``. Its section ``settings`` has tables of settings by name, ``trainings`` and
``evaluations``: ``extends`` names a table whose values are inherited, ``not stated`` lists settings that the paper
leaves open, ``code`` has the values of the authors' public code, ``public code`` lists settings with the values of the
publication or public code of a method that the paper trains as its authors do, and ``sweep`` lists settings whose
values are all trained. A list is a choice of equivalent values.

An architecture is that of the public code of a network (`classwise.papers.networks`), unless a table states it.

The ``settings`` of an item name its tables: ``trainings`` by the name of a row (with wildcards), or by ``recipe NAME``;
several tables differ in their data set. ``ours`` marks rows that the paper does not have. ``with`` has settings of the
item that replace those of its tables of trainings. A text names an item with the same settings. ``no_settings`` is the
reason why the paper states none.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.suites import SUITES
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.arguments import checked
from classwise.core.settings.config import Spec, describe, number, relative_step
from classwise.data import DATA
from classwise.papers import catalogue
from classwise.papers.catalogue import experiment, find
from classwise.papers.experiment import Experiment, Training, name_and_options, recipe_at
from classwise.papers.networks import ARCHITECTURE, architecture, published_architecture
from classwise.papers.scales import Name, Scale, on_data_set, radius
from classwise.papers.store import Store
from classwise.reporting.tables import Cell, Row, Table
from classwise.threat.ball import Threat
from classwise.training import AVERAGERS, CRITERIA, LR_SCHEDULES, OBJECTIVES, OPTIMISERS, SCHEDULES, UPDATES
from classwise.training.averaging import FAWA
from classwise.training.lr_schedules import MultiStep, OneCycle, PiecewiseLinear
from classwise.training.recipe import Recipe
from classwise.training.selection import AtFraction, resolve_selection

Value = float | str
OURS = "ours"
"""Table of rows that the paper does not have."""
DATA_SET = "data set"
TRAINING = (
    DATA_SET,
    "training images",
    "validation share",
    "augmentation",
    "network",
    "network width",
    *ARCHITECTURE,
    "initial weights",
    "loss",
    "attack",
    "class schedules",
    "reduction",
    "update",
    "averaging",
    "epochs",
    "batch size",
    "optimiser",
    "learning rate",
    "momentum",
    "weight decay",
    "learning-rate schedule",
    "selection",
    "validation attack",
    "precision",
    "trainings",
)
"""Settings of every training; the parameters of its parts come in addition, such as ``loss beta``."""
EPOCHS = "evaluated epochs"
"""Epochs whose weights are evaluated besides the selected and the last ones; only where a paper states them."""
ATTACK = ("threat", "attack steps", "attack step size", "attack initialisation", "attack loss", "attack mode")
"""Settings of adversarial training."""
EVALUATION = (
    "attacks",
    "split",
    "test images",
    "images of costly attacks",
    "threat",
    "steps",
    "step size",
    "precision",
)
"""Settings of an evaluation; steps and step size are those of PGD."""
CONDITIONS = (DATA_SET, "network", "network width", "threat", "attacks", "steps", "step size")
"""Settings that a printed number is compared in with a measured one."""
_ENTRY = ("id", "paper", "kind", "section", "title", "parameters", "finding", "covered_by", "same_as")
_PUBLIC = "public code"
_KEYS = ("extends", "source", "not stated", "code", _PUBLIC, "sweep")


@dataclass(frozen=True, kw_only=True)
class PaperSettings:
    """Settings of a training or an evaluation, as stated by a paper.

    Attributes:
        name: name of the table in the facts.
        source: source of the values.
        values: settings to their equivalent values; an empty tuple for a setting that the paper does not state.
        code: settings to the value of the authors' public code.
        sweep: settings whose values are all trained.
        public: settings with the values of the method's own publication or public code, which `source` names.
    """

    name: str
    source: str
    values: Mapping[str, tuple[Value, ...]]
    code: Mapping[str, Value]
    sweep: tuple[str, ...] = ()
    public: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class ItemSettings:
    """Tables of an item.

    Attributes:
        trainings: row names with wildcards, or ``recipe NAME``, to tables; empty for rows that are ours.
        evaluations: tables of the evaluation, one for each data set.
        reason: why the paper states no settings; empty if it does.
    """

    trainings: Mapping[str, Sequence[PaperSettings]]
    evaluations: Sequence[PaperSettings] = ()
    reason: str = ""

    @property
    def data_sets(self) -> set[str]:
        """The data sets on which the paper trains the rows."""
        return {str(data) for tables in self.trainings.values() for table in tables for data in table.values[DATA_SET]}

    def key_of(self, row: str, recipe: str) -> str | None:
        """The first key that matches a row or its recipe; None for a row without settings."""
        names = (row, f"recipe {recipe}")
        return next((key for key in self.trainings if any(fnmatch.fnmatchcase(name, key) for name in names)), None)

    def training(self, row: str, recipe: str, data: str) -> PaperSettings | None:
        """Settings of a row on a data set; None for a row that the paper does not have."""
        key = self.key_of(row, recipe)
        return None if key is None else on_data(self.trainings[key], data)


def on_data(tables: Sequence[PaperSettings], data: str) -> PaperSettings | None:
    """The table of a data set; the first one for a data set that the paper does not use; None without tables."""
    of_data = (table for table in tables if data in table.values.get(DATA_SET, ()))
    return next(of_data, tables[0] if tables else None)


@cache
def item_settings(item: str) -> ItemSettings | None:
    """Settings that the paper states for an item; None if the facts have neither settings nor a reason.

    Args:
        item: item id, such as ``kdd21/T1``.

    Raises:
        ClasswiseError: if the facts name an unknown table.
    """
    known = catalogue.find(item)
    paper, entry = known.paper, known.settings
    if known.no_settings:
        return ItemSettings(trainings={}, reason=known.no_settings)
    if isinstance(entry, str):
        return item_settings(entry) if entry else None
    own = _values(entry.get("with", {}))
    trainings = {
        str(key): () if names == OURS else [_replaced(_table(paper, "trainings", name), own) for name in _listed(names)]
        for key, names in entry.get("trainings", {}).items()
    }
    evaluations = [_table(paper, "evaluations", name) for name in _listed(entry.get("evaluation", []))]
    return ItemSettings(trainings=trainings, evaluations=evaluations)


@cache
def _table(paper: str, kind: Literal["trainings", "evaluations"], name: str) -> PaperSettings:
    """Read a table with the values that it inherits; a table of another paper is named ``PAPER:NAME``."""
    other, _, own = name.rpartition(":")
    paper = other or paper
    tables = catalogue.paper(paper).settings[kind]
    if own not in tables:
        raise unknown(f"table of settings of {paper}", own, tables)
    plain = tables[own]
    base = _table(paper, kind, plain["extends"]) if "extends" in plain else None
    values = dict(base.values) if base else {}
    stated = _values({key: value for key, value in plain.items() if key not in _KEYS})
    public = (base.public - set(stated) if base else frozenset()) | set(plain.get(_PUBLIC, ()))
    values |= stated
    values |= dict.fromkeys(plain.get("not stated", ()), ())
    code = {**(base.code if base else {}), **{key: read(value) for key, value in plain.get("code", {}).items()}}
    source = plain.get("source", base.source if base else "")
    return PaperSettings(
        name=own, source=source, values=values, code=code, sweep=tuple(plain.get("sweep", ())), public=public
    )


def _replaced(table: PaperSettings, values: Mapping[str, tuple[Value, ...]]) -> PaperSettings:
    """Replace values of a table; parameters only if the table has the part."""
    own = {name: value for name, value in values.items() if name in (*TRAINING, EPOCHS) or name in table.values}
    return dataclasses.replace(table, values={**table.values, **own})


def _values(plain: Mapping[str, Any]) -> dict[str, tuple[Value, ...]]:
    """Equivalent values of each setting; none for null."""
    return {key: () if value is None else tuple(map(read, _listed(value))) for key, value in plain.items()}


def read(value: object) -> Value:
    """Read a value of the facts or of a recipe: a number, a fraction such as ``8/255``, yes or no, or a text."""
    plain = number(value)
    if isinstance(plain, bool):
        return "yes" if plain else "no"
    return float(plain) if isinstance(plain, int | float) else str(plain)


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


NOTHING = "none"
ALL = "all"
NOT_STATED = "not stated"
_LEVELS, _DIGITS = 255, 6
"""A value with more digits is written as a multiple of 1/255 if it is one."""


def training_settings(recipe: Recipe, scale: Scale) -> dict[str, Value]:
    """Settings of a training.

    Args:
        recipe: recipe of the training at the scale.
        scale: scale adapted to the data set of the training.
    """
    parts = recipe.parts
    optimiser = describe(OPTIMISERS, parts.optimizer)
    classes = len(DATA.load(scale.data).class_names)
    here: dict[str, Value] = {
        DATA_SET: scale.data,
        "training images": _count(scale.train),
        "validation share": recipe.data.validation,
        "augmentation": _name(recipe.data.augment),
        "network": recipe.model.name,
        "network width": recipe.model.width,
        **architecture(recipe.model, scale.data),
        "loss": OBJECTIVES.name_of(type(parts.objective)),
        "attack": NOTHING,
        "class schedules": ", ".join(SCHEDULES.name_of(type(schedule)) for schedule in parts.schedules) or NOTHING,
        "reduction": _name(recipe.reduction),
        "update": UPDATES.name_of(type(parts.update)),
        "averaging": AVERAGERS.name_of(type(parts.averaging)),
        "epochs": recipe.epochs,
        "batch size": recipe.batch_size,
        "optimiser": f"{optimiser['name']}, Nesterov" if optimiser.get("nesterov") else optimiser["name"],
        "learning rate": parts.optimizer.lr,
        "learning-rate schedule": _schedule(recipe),
        "selection": _selection(recipe, classes),
        "precision": recipe.precision.dtype,
    }
    here |= {name: optimiser[key] for name, key in _OF_OPTIMISER.items() if key in optimiser}
    if parts.objective.attacks:
        here |= _attack_settings(recipe)
    if recipe.selection != "last" and not isinstance(parts.selection, AtFraction):
        steps, size = getattr(parts.validation_attack, "steps", 1), _step(parts.validation_attack, recipe)
        name = ATTACKS.name_of(type(parts.validation_attack))
        here["validation attack"] = f"{name}, {steps} steps of {number_text(size)}"
    if recipe.checkpoint_epochs:
        here[EPOCHS] = epoch_ranges(recipe.checkpoint_epochs)
    if recipe.data.unlabelled is not None and scale.train is not None:
        here["unlabelled images"] = scale.train
    return here | dict(_parameters(recipe, classes))


def evaluation_settings(
    scale: Scale, attacks: Mapping[str, Spec] | None = None, split: str = Experiment.split
) -> dict[str, Value]:
    """Settings of the evaluation at a scale; those of the attack only if they are declared, or set by the scale.

    Args:
        scale: scale adapted to the data set.
        attacks: the declared attacks by label; None for PGD with the settings of the paper.
        split: split of the evaluated images.
    """
    here: dict[str, Value] = {
        "split": split,
        "test images": _count(scale.test),
        "images of costly attacks": _count(scale.few),
        "threat": _threat(scale.threat),
        "precision": scale.precision.dtype,
    }
    named = [name_and_options(spec) for spec in (attacks or {}).values()]
    if named:
        here["attacks"] = ", ".join(name for name, _ in named)
    own = named[0][1] if len(named) == 1 else scale.evaluation
    if "steps" in own:
        here["steps"] = read(own["steps"])
    if "step_size" in own:
        here["step size"] = _absolute(own["step_size"], scale.threat)
    if scale.attack_steps is not None and not named:
        here["steps"] = scale.attack_steps
        here["step size"] = 2 / scale.attack_steps * radius(scale.threat)
    return here


def text(*values: Value | None) -> str:
    """Text of the equivalent values of a setting; "not stated" without values."""
    return " or ".join(NOTHING if value is None else number_text(value) for value in values) or NOT_STATED


def number_text(value: Value) -> str:
    """Text of a value; multiples of 1/255 as fractions."""
    if not isinstance(value, int | float):
        return str(value)
    decimal = f"{value:,.10g}"
    levels = round(value * _LEVELS)
    whole = float(value).is_integer()
    return decimal if whole or len(decimal) <= _DIGITS or value != levels / _LEVELS else f"{levels}/{_LEVELS}"


_OF_OPTIMISER = {"momentum": "momentum", "weight decay": "weight_decay"}


def _count(images: int | None) -> Value:
    return ALL if images is None else images


def _name(part: str | Mapping[str, Any]) -> str:
    return part.partition(":")[0] if isinstance(part, str) else str(part["name"])


def _threat(spec: str) -> str:
    return f"{Threat.parse(spec).norm}:{number_text(radius(spec))}"


def _step(attack: Attack, recipe: Recipe) -> float:
    """Absolute step size of an attack in the radius of a recipe."""
    assert recipe.threat is not None, "set by the scale"
    return _absolute(getattr(attack, "step_size", "1eps"), recipe.threat)


def _absolute(step_size: float | str, threat: str) -> float:
    """A step size in the radius of a threat."""
    factor, relative = relative_step(read(step_size))
    return factor * radius(threat) if relative else factor


def _attack_settings(recipe: Recipe) -> dict[str, Value]:
    assert recipe.threat is not None, "set by the scale"
    attack = recipe.parts.attack
    described = describe(ATTACKS, attack)
    return {
        "threat": _threat(recipe.threat),
        "attack": described["name"],
        "attack steps": described.get("steps", 1),
        "attack step size": _step(attack, recipe),
        "attack initialisation": described.get("random_init", NOTHING),
        "attack loss": described.get("objective", "ce"),
        "attack mode": recipe.attack_mode,
    }


def _schedule(recipe: Recipe) -> str:
    """Learning-rate schedule in epochs."""
    schedule, epochs = recipe.parts.lr_schedule, recipe.epochs
    if isinstance(schedule, MultiStep):
        milestones = sorted({round(at * epochs) for at in schedule.milestones} - {epochs})
        return f"x{schedule.gamma:g} at epochs {', '.join(map(str, milestones))}" if milestones else "constant"
    if isinstance(schedule, OneCycle):
        return f"one-cycle, peak at epoch {schedule.peak * epochs:.3g}"
    if isinstance(schedule, PiecewiseLinear):
        rate = recipe.parts.optimizer.lr
        points = (f"{rate * factor:.3g} at epoch {at * epochs:.3g}" for at, factor in schedule.points)
        return f"linear between {', '.join(points)}"
    described = describe(LR_SCHEDULES, schedule)
    options = [f"{key} {value}" for key, value in described.items() if key != "name"]
    return ", ".join([described["name"], *options])


def _selection(recipe: Recipe, classes: int) -> str:
    """The evaluated epoch, or the rule that selects it."""
    if isinstance(recipe.parts.selection, AtFraction):
        return f"epoch {round(recipe.parts.selection.share * recipe.epochs)}"
    return "last epoch" if recipe.selection == "last" else resolve_selection(recipe.selection, classes)


def epoch_ranges(numbers: Sequence[int]) -> str:
    """Epochs in increasing order as ranges: ``101-120, 181-200``, ``5-50 in steps of 5``."""
    runs = list[list[int]]()
    for epoch in sorted(numbers):
        if runs and (len(runs[-1]) == 1 or epoch - runs[-1][-1] == runs[-1][1] - runs[-1][0]):
            runs[-1].append(epoch)
        else:
            runs.append([epoch])
    return ", ".join(_run_text(run) for run in runs)


def _run_text(run: Sequence[int]) -> str:
    """Equally spaced numbers as a range."""
    step = run[1] - run[0] if len(run) > 1 else 1
    return f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" + (f" in steps of {step}" if step > 1 else "")


def _parameters(recipe: Recipe, classes: int) -> Iterator[tuple[str, Value]]:
    """Parameters of the loss, the class schedules, the update and the averaging."""
    parts = recipe.parts
    objective = describe(OBJECTIVES, parts.objective)
    objective.pop("criterion", None)
    criterion = describe(CRITERIA, parts.objective.criterion)
    yield "criterion", criterion["name"]
    yield from _flat("loss", objective, recipe.epochs).items()
    yield from _flat("criterion", criterion, recipe.epochs).items()
    for schedule in parts.schedules:
        described = describe(SCHEDULES, schedule)
        yield from _flat(described["name"], described, recipe.epochs).items()
    yield from _flat("update", describe(UPDATES, parts.update), recipe.epochs).items()
    averaging = parts.averaging.for_classes(classes) if isinstance(parts.averaging, FAWA) else parts.averaging
    yield from _flat("averaging", describe(AVERAGERS, averaging), recipe.epochs).items()


def _flat(prefix: str, described: Mapping[str, Any], epochs: int) -> dict[str, Value]:
    """Options of a part as settings; a fraction of training becomes an epoch, and None is left out."""
    flat: dict[str, Value] = {}
    for key, value in described.items():
        if key == "name" or value is None:
            continue
        if key == "start_fraction":
            flat[f"{prefix} start epoch"] = round(value * epochs)
        elif isinstance(value, list | tuple):
            flat[f"{prefix} {key}".replace("_", " ")] = ", ".join(map(str, value)) or NOTHING
        else:
            flat[f"{prefix} {key}".replace("_", " ")] = read(value)
    return flat


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
        public: whether the value of the paper is that of the method's own publication or public code.
    """

    row: str
    name: str
    paper: tuple[Value, ...]
    here: Value | None
    code: Value | None = None
    public: bool = False

    @property
    def stated(self) -> str:
        """Text of the value of the paper; marked if it is that of public code."""
        return f"{text(*self.paper)} ({_PUBLIC})" if self.public and self.paper else text(*self.paper)

    @property
    def deviates(self) -> bool:
        """Whether the paper states another value."""
        if self.name == EPOCHS and self.paper and self.here is not None:
            return not _epochs(self.paper[0]) <= _epochs(self.here)
        return bool(self.paper) and not any(_same(value, self.here) for value in self.paper)


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
    deviations: Sequence[Setting] = ()
    ours: Sequence[str] = ()
    reason: str = ""

    @property
    def not_stated(self) -> tuple[str, ...]:
        """Names of settings that the paper leaves open in every row."""
        names = dict.fromkeys(setting.name for setting in self.settings)
        stated = {setting.name for setting in self.settings if setting.paper}
        return tuple(name for name in names if name not in stated)

    def facts(self) -> dict[str, Any]:
        """The comparison as JSON."""
        rows: dict[str, dict[str, Any]] = {}
        for setting in self.settings:
            values = {"paper": list(setting.paper), "code": setting.code, "here": setting.here}
            rows.setdefault(setting.row, {})[setting.name] = values
        deviations = [
            {"row": other.row, "setting": other.name, "paper": other.stated, "here": text(other.here)}
            for other in self.deviations
        ]
        ours = {"rows_not_in_the_paper": list(self.ours), "reason": self.reason}
        return {"rows": rows, "deviations": deviations, "not_stated": list(self.not_stated), **ours}


@dataclass(frozen=True)
class _Row:
    """A training of an item with its settings."""

    name: str
    training: Training
    here: Mapping[str, Value]


@cache
def compare(item: str, scale: str, trainings: int | None = None) -> Comparison:
    """Compare the settings of an item at a scale with those of its paper.

    Args:
        item: id of a runnable item, such as ``kdd21/T1``.
        scale: name of one of its scales.
        trainings: number of repetitions with other seeds; None for that of the scale.
    """
    one = experiment(item)
    chosen = next(value for name, value in one.scales.items() if name == scale)
    return compare_with(item_settings(item) or ItemSettings(trainings={}), one, chosen, trainings or chosen.trainings)


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
        attacks = scale.entry(experiment.attacks) if experiment.attacks else None
        here = evaluation_settings(on_data_set(scale, data), attacks, experiment.split)
        settings += [
            Setting(row=name, name=key, paper=table.values.get(key, ()), here=here[key], code=table.code.get(key))
            for key in EVALUATION
            if key in here
        ]
    deviations = [setting for setting in settings if setting.deviates]
    return Comparison(settings=settings, deviations=[*deviations, *_untrained(stated, rows, scale)], ours=ours)


def _rows(experiment: Experiment, scale: Scale) -> tuple[_Row, ...]:
    """Trainings of an experiment at a scale."""
    declared = experiment.trainings(scale)
    scales = {name: on_data_set(scale, own.data) if own.data else scale for name, own in declared.items()}
    recipes = {name: recipe_at(scale, own) for name, own in declared.items()}
    models = {
        name: (dataclasses.replace(own, recipe="", overrides={}), dataclasses.replace(recipes[name], seed=0).digest())
        for name, own in declared.items()
    }
    rows = []
    for name, training in declared.items():
        here = training_settings(recipes[name], scales[name])
        here["initial weights"] = declared[training.start].recipe if training.start else "random"
        here[_SEEDS] = len({recipes[other].seed for other, model in models.items() if model == models[name]})
        rows.append(_Row(name, training, here))
    return tuple(rows)


def _beside(row: str, table: PaperSettings, here: Mapping[str, Value]) -> list[Setting]:
    """Settings of a row, those of every training first; parameters of a part only if the recipe has the part."""
    table = _with_architecture(table, here)
    parts = {name.partition(" ")[0] for name in here if name not in TRAINING}
    first = [name for name in TRAINING if name in table.values or name in here]
    found = []
    for name in dict.fromkeys((*first, *table.values, *here)):
        stated = name in table.values and (name in (*TRAINING, EPOCHS) or name.partition(" ")[0] in parts)
        if name in here or stated:
            values, code = table.values.get(name, ()), table.code.get(name)
            public = name in table.public
            found.append(Setting(row=row, name=name, paper=values, here=here.get(name), code=code, public=public))
    return found


def _with_architecture(table: PaperSettings, here: Mapping[str, Value]) -> PaperSettings:
    """Add the published architecture of the network that is trained, or of all that the paper names if it is another.

    The data set is that of the paper.
    """
    names, data_sets = ([str(value) for value in table.values.get(key, ())] for key in ("network", DATA_SET))
    chosen = [str(here["network"])] if here["network"] in names else names
    data = next((known for known in data_sets if known == here[DATA_SET]), next(iter(data_sets), ""))
    values: dict[str, tuple[Value, ...]] = {}
    for name in chosen if data else ():
        for key, value in published_architecture(name, data).items():
            values[key] = (*values.get(key, ()), value)
    return dataclasses.replace(table, values={**values, **table.values})


def _untrained(stated: ItemSettings, rows: Sequence[_Row], scale: Scale) -> list[Setting]:
    """Rows, data sets and values of sweeps of the paper that are not trained."""
    found = list[Setting]()
    used = {row.training.data or scale.data for row in rows}
    lists = [tables for tables in stated.trainings.values() if len(tables) > 1]
    named = dict.fromkeys(str(data) for tables in lists for table in tables for data in table.values[DATA_SET])
    if missing := [data for data in named if data not in used]:
        found.append(Setting(row="", name="further data sets", paper=(", ".join(missing),), here=NOTHING))
    for key, tables in stated.trainings.items():
        own = [row for row in rows if stated.key_of(row.name, row.training.recipe) == key]
        if not own and tables:
            found.append(Setting(row=key, name="training", paper=(tables[0].name,), here=NOTHING))
        for name, values in ((name, table.values[name]) for table in tables if own for name in table.sweep):
            trained = [row.here.get(name) for row in own]
            further = [text(value) for value in values if not any(_same(value, other) for other in trained)]
            found.append(Setting(row="", name=f"further values of {name}", paper=(", ".join(further),), here=NOTHING))
    return [setting for setting in found if setting.paper != ("",)]


def _epochs(ranges: Value) -> set[int]:
    """The epochs of ranges such as ``101-120, 181-200``."""
    matches = [_RANGE.fullmatch(part) for part in str(ranges).split(", ")]
    if not all(matches):
        raise ClasswiseError(f"epochs {str(ranges)!r}: must be ranges such as 101-120, 181-200")
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


SHOWN: tuple[Name, ...] = ("full", "medium", "reduced", "small")
"""The scales that are compared with the paper; the numbers of smoke mean nothing."""


def comparisons(item: str, trainings: int | None = None) -> dict[Name, Comparison]:
    """Comparisons of an item with its paper, by scale, for a number of repetitions, or that of each scale."""
    return {scale: compare(item, scale, trainings) for scale in SHOWN if scale in find(item).scales}


@checked
def item_facts(item: str) -> dict[str, Any]:
    """An item as JSON: its entry in the catalogue, its scales and settings, its printed numbers and its notes.

    Args:
        item: item id, such as ``kdd21/T1``.

    Raises:
        ClasswiseError: if the id is unknown.

    Example:
        >>> import classwise as cw
        >>> facts = cw.papers.item_facts("kdd21/T3")
        >>> facts["scales"], facts["printed"]["rows"][0]["tot"], len(facts["notes"])
        (['smoke', 'small', 'reduced', 'medium', 'full'], 51.8, 9)
    """
    known = find(item)
    return {
        **{name: getattr(known, name) for name in (*_ENTRY, "status", "command", "missing")},
        "scales": list(known.scales),
        "deviations": {scale: deviation_lines(comparison) for scale, comparison in comparisons(item).items()},
        "settings": {scale: comparison.facts() for scale, comparison in comparisons(item).items()},
        "printed": catalogue.printed(item),
        "notes": [dataclasses.asdict(note) for note in known.notes],
    }


@checked
def inventory(papers: Sequence[str] = (), store: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """The items of papers as `item_facts`, each with ``run_at``: the scales at which a store has a result of it.

    Args:
        papers: names of papers; empty for all.
        store: folder of a store; None for no results.

    Raises:
        ClasswiseError: if a paper is unknown, or the store is missing.

    Example:
        >>> import classwise as cw
        >>> [item["id"] for item in cw.papers.inventory(["cfa23"]) if item["kind"] == "attack"]
        ['cfa23/A1', 'cfa23/A2']
    """
    items = [item for name in papers or catalogue.papers() for item in catalogue.paper(name).items]
    kept = None if store is None else Store(store, create=False)
    run = [
        [scale for scale in item.scales if kept is not None and kept.result_file(item.id, scale).is_file()]
        for item in items
    ]
    return [item_facts(item.id) | {"run_at": run_at} for item, run_at in zip(items, run, strict=True)]


def settings_table(item: str) -> Table | None:
    """Table of the settings of an item: those of the paper, of its code and of each scale.

    Equal settings of several rows share a row, and equal values of several scales are stated once. A row that some
    scales do not have shares that of another whose values are equal at its scales. None without stated settings.
    """
    compared = comparisons(item)
    by_scale = {
        scale: {(setting.row, setting.name): setting for setting in comparison.settings}
        for scale, comparison in compared.items()
    }
    keys = dict.fromkeys(key for known in by_scale.values() for key in known)
    if not keys:
        return None
    groups: dict[tuple[str, str, tuple[str | None, ...]], list[str]] = {}
    for row, name in sorted(keys, key=lambda key: TRAINING.index(key[1]) if key[1] in TRAINING else len(TRAINING)):
        found = [known.get((row, name)) for known in by_scale.values()]
        stated = next(setting for setting in found if setting is not None)
        paper = stated.stated if stated.code is None else f"{stated.stated}; authors' code: {text(stated.code)}"
        here = tuple(None if setting is None else text(setting.here) for setting in found)
        same = (
            key
            for key in groups
            if key[:2] == (name, paper) and all(own in (None, other) for own, other in zip(here, key[2], strict=True))
        )
        groups.setdefault(next(same, (name, paper, here)), []).append(row)
    every = {row for row, _ in keys}
    rows = []
    for (name, paper, here), own in groups.items():
        scales: dict[str, list[str]] = {}
        for scale, value in zip(by_scale, here, strict=True):
            if value is not None:
                scales.setdefault(value, []).append(scale)
        at_scales = (
            f"{value} ({', '.join(known)})" if len(known) < len(by_scale) else value for value, known in scales.items()
        )
        rows.append(Row(name, [Cell(_where(own, every)), Cell(paper), Cell("; ".join(at_scales))]))
    return Table(f"{item}: settings", ("setting", "rows", "paper", "here"), rows)


def deviation_lines(compared: Comparison) -> list[str]:
    """Deviations of a comparison as lines of text; equal ones of several rows share a line."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for deviation in compared.deviations:
        key = (
            deviation.name,
            f"{text(*deviation.paper)} ({_PUBLIC if deviation.public else 'paper'})",
            text(deviation.here),
        )
        groups.setdefault(key, []).append(deviation.row)
    every = {entry.row for entry in compared.settings}
    lines = []
    for (setting, paper, here), rows in groups.items():
        where = _where(rows, every) if any(rows) else ""
        lines.append(f"{f'{where}: ' if where and where != ALL_ROWS else ''}{setting}: {paper}, {here} (here)")
    return lines


def printed_under(item: str) -> tuple[str, str]:
    """What the printed numbers of an item were measured on: data set and network; attack and radius.

    Example:
        >>> from classwise.papers.settings import printed_under
        >>> printed_under("cfa23/T2")
        ('cifar10, preactresnet18', 'AutoAttack, Linf:8/255')
    """
    settings = item_settings(item)
    if settings is None or not settings.evaluations:
        return "", ""
    evaluated = settings.evaluations[0].values
    trained = next((tables[0].values for tables in settings.trainings.values() if tables), {})
    attacks = text(*evaluated.get("attacks", ("PGD",)))
    names = {", ".join(SUITES["autoattack"]["standard"]): "AutoAttack", "pgd": "PGD", NOT_STATED: "attack not named"}
    attack = names.get(attacks, attacks)
    if attack.endswith("PGD") and evaluated.get("steps"):
        attack = f"{attack}-{text(*evaluated['steps'])}"
    images = ", ".join(text(*trained.get(name, ())) for name in (DATA_SET, "network"))
    return images, f"{attack}, {text(*evaluated.get('threat', ()))}"


def measured_otherwise(item: str, scale: str) -> str:
    """The `CONDITIONS` that differ at a scale from those of the printed numbers, as text; empty if they are equal."""
    compared = comparisons(item).get(scale)  # type: ignore[call-overload]
    if compared is None:
        return "scale"
    names = {deviation.name for deviation in compared.deviations}
    return ", ".join(name for name in CONDITIONS if name in names)


ALL_ROWS = "all"


def _where(rows: Sequence[str], every: set[str]) -> str:
    """Names of rows; ``all`` for all trainings."""
    trained = {row for row in every if not row.startswith(EVALUATED)}
    if not trained or not trained <= set(rows):
        return "; ".join(rows)
    return "; ".join([ALL_ROWS, *(row for row in rows if row not in trained)])
