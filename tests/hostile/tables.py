"""Tables of outcomes and names: garbage in labels, predictions and verdicts, and names that are taken or cannot be shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from classwise.auditing.outcomes.table import Outcomes
from tests.hostile.case import ATTACK, EITHER, REFUSED, Case, audit, small

IMAGES = 8
LABELS = [0, 0, 0, 0, 1, 1, 1, 1]
NAN = float("nan")
TAKEN = ("clean", "all", "n", "low", "high", "class", "pgd_low", "all_high", "clean_judged")
"""Labels of attacks that tables use for something else."""
UNPRINTABLE = ("", " ", "\t", "\ud800", "a\udfff")
NOT_NAMES: tuple[Any, ...] = (None, NAN, 3, True, ["a"], {"a": 1}, *UNPRINTABLE)
VALUES: tuple[Any, ...] = (None, NAN, -1, 2, 0.5, 2**40, 10**9, "1", "cat", "", True, "NaN", -(2**63), 1e300)

COLUMNS: dict[str, tuple[Any, ...]] = {
    "label": (None, NAN, -1, 2, 0.5, 2**40, "cat", "", 1e300),
    "prediction": (-1, 2, 0.5, 2**40, "cat", "", 1e300),
    "correct": (None, NAN, 2, "False", "cat", 0.5),
    "attack": (None, NAN, "cw", "all", "", 3),
    "index": (None, NAN, 0.5, "a", 0),
}
"""Values of columns, for all rows, that only a refusal answers."""
FIELDS: dict[str, tuple[Any, ...]] = {
    "class_names": ("ab", None, 3, [], ["a"], ["a", "a"], ["a", "a "], {"a": 0, "b": 1}, *(["a", name] for name in NOT_NAMES)),
    "attacks": (None, "pgd", [], {}, {"clean": None}, *({"clean": None, "pgd": None, name: None} for name in (*TAKEN[1:], *UNPRINTABLE))),
    "families": (5, {"t": ["cw"]}, {"": ["pgd"]}, {"t": 3}),
    "groups": (5, {"label": ["a", "b"]}, {"pgd": ["a", "b"]}, {"site": ["a", "a"]}, {"": ["a"]}),
    "superclasses": ("01", [0], [0, 2], [0, None], [0.5, 0], [-1, 0], [0, 1]),
    "threat": (8, "", " ", "Linf", "Linf:abc", "L2:-1", "Linf:1e9", ["Linf:1"], "\ud800"),
    "model": (5, None, "\ud800"),
    "data": (5, None, "\udc80"),
    "split": (5, "\ud800"),
    "cascade": ("no", 2),
    "early_stop": ("no", 2),
    "seed": ("x", 1.5, [1]),
    "bogus": (1,),
}  # fmt: skip
"""Values of fields of the metadata that only a refusal answers."""


def table(change: Callable[[pd.DataFrame, dict[str, Any]], None]) -> Callable[[Path], object]:
    """A writer of a file of outcomes whose rows and metadata are changed first."""

    def write(path: Path) -> None:
        good = Outcomes.from_predictions(LABELS, LABELS, {"pgd": LABELS[::-1]}, ["cat", "dog"], threat="Linf:0.1")
        frame, about = good.frame.astype(object), json.loads(good.meta.to_json())
        change(frame, about)
        columns = {name: _column(frame[name]) for name in frame}
        pq.write_table(pa.table(columns).replace_schema_metadata({b"classwise": json.dumps(about).encode()}), path)

    return write


def _column(values: pd.Series[Any]) -> pa.Array:
    """The values as a column; as text if they have several types."""
    plain = [None if value is pd.NA else value for value in values]
    try:
        return pa.array(plain)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return pa.array([None if value is None else ascii(value) for value in plain])


def with_column(name: str, values: list[Any]) -> Callable[[Path], object]:
    """A writer of outcomes with other values in a column."""

    def change(frame: pd.DataFrame, _: dict[str, Any]) -> None:
        frame[name] = pd.Series(values, dtype=object)

    return table(change)


def with_field(name: str, value: Any) -> Callable[[Path], object]:
    """A writer of outcomes with another value in the metadata."""
    return table(lambda _, about: about.update({name: value}))


def named_data(names: list[str]) -> Callable[[Path], object]:
    """A writer of images of ten classes with these names."""

    def write(path: Path) -> None:
        np.savez(path, x=np.zeros((20, 1, 8, 8), np.uint8), y=np.arange(20) % 10, class_names=np.array(names))

    return write


def cases(random: Random) -> Iterator[Case]:
    """Hostile tables and names."""
    report = ("report", "x.parquet", "--out=out/page.html")
    for column, values in COLUMNS.items():
        for value in values:
            files = {"x.parquet": with_column(column, [value] * 2 * IMAGES)}
            yield Case(f"rows: {column}={small(value)}", report, files)
    for field, values in FIELDS.items():
        for value in values:
            yield Case(f"metadata: {field}={small(value)}", report, {"x.parquet": with_field(field, value)})
            compare = ("compare", "x.parquet", "@audit")
            yield Case(f"compared metadata: {field}={small(value)}", compare, {"x.parquet": with_field(field, value)})
    for number in range(40):
        column = random.choice([*COLUMNS, "epsilon", "runner_up", "status", "first_success"])
        drawn = [random.choice(VALUES) for _ in range(2 * IMAGES)]
        yield Case(f"rows: random {number} in {column}", report, {"x.parquet": with_column(column, drawn)}, EITHER)
    for label in (*TAKEN, *UNPRINTABLE):
        statuses = EITHER if label == "pgd_low" else REFUSED  # there is no attack pgd beside it
        yield Case(f"attack named {small(label)}", audit(f"--attack={label}=fgsm"), {}, statuses)
        yield Case(f"second attack named {small(label)}", audit("--attack=pgd:steps=1", f"--attack={label}=fgsm"))
    for name in (*UNPRINTABLE, "a\nb", "=1+1", "@audit"):
        yield Case(f"method named {small(name)}", ("compare", f"{name}=@audit", "@audit"), {}, EITHER)
    on = ("audit", "@run", "--data=x.npz", "--threat=Linf:0.1", ATTACK, "--out=out", "--json")
    digits = list("0123456789")
    for name in ("0", " 0", "", "  ", "0\u200b", "\u00e9", "x" * 100, "=1", "a\nb"):
        files = {"x.npz": named_data([*digits[:9], name])}
        yield Case(f"last class named {small(name)}", on, files, REFUSED if name.strip() in ("0", "") else EITHER)
