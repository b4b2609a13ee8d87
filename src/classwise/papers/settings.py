"""Settings that the papers state: of their trainings and of their evaluations, by item and row.

They are written in ``PAPER.yaml``. Its section ``settings`` has tables of settings by name, ``trainings`` and
``evaluations``: ``extends`` names a table whose values are inherited, ``not stated`` lists settings that the paper
leaves open, ``code`` has the values of the authors' public code, and ``sweep`` lists settings whose values are all
trained. A list is a choice of equivalent values.

The ``settings`` of an item name its tables: ``trainings`` by the name of a row (with wildcards), or by ``recipe NAME``;
several tables differ in their data set. ``ours`` marks rows that the paper does not have. ``with`` has settings of the
item that replace those of its tables of trainings. A text names an item with the same settings. ``no_settings`` is the
reason why the paper states none.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from classwise.core.config import number
from classwise.core.errors import unknown
from classwise.papers import catalogue

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
EVALUATION = ("attacks", "test images", "images of costly attacks", "threat", "steps", "step size", "precision")
"""Settings of an evaluation; steps and step size are those of PGD."""
_KEYS = ("extends", "source", "not stated", "code", "sweep")


@dataclass(frozen=True, kw_only=True)
class PaperSettings:
    """Settings of a training or an evaluation, as stated by a paper.

    Attributes:
        name: name of the table in the facts.
        source: source of the values.
        values: settings to their equivalent values; an empty tuple for a setting that the paper does not state.
        code: settings to the value of the authors' public code.
        sweep: settings whose values are all trained.
    """

    name: str
    source: str
    values: Mapping[str, tuple[Value, ...]]
    code: Mapping[str, Value]
    sweep: tuple[str, ...] = ()


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
    values |= _values({key: value for key, value in plain.items() if key not in _KEYS})
    values |= dict.fromkeys(plain.get("not stated", ()), ())
    code = {**(base.code if base else {}), **{key: read(value) for key, value in plain.get("code", {}).items()}}
    source = plain.get("source", base.source if base else "")
    return PaperSettings(name=own, source=source, values=values, code=code, sweep=tuple(plain.get("sweep", ())))


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
