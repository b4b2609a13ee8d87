"""Files of outcomes: a folder of Parquet files, written in blocks during an audit, readable by any Parquet reader."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from classwise.auditing.outcomes import parquet as tables
from classwise.auditing.outcomes.meta import ALL, TABLE_COLUMNS, Meta
from classwise.core.errors import ClasswiseError, did_you_mean, quoted
from classwise.core.files.parquet_files import read_parquet
from classwise.core.files.reading import open_regular
from classwise.core.files.storage import MARKERS
from classwise.core.settings.names import checked_names
from classwise.stats.counts import IntArray

Columns = Mapping[str, NDArray[Any]]
"""Rows of outcomes as arrays (N,) by column; ``index`` is one of them."""

COLUMNS: Mapping[str, str] = {
    "index": "int64",  # index of the image in the data set
    "name": "string",  # name of the image: its path relative to the data, or the id of its row; null without one
    "label": "int64",
    "attack": "string",
    "epsilon": "float64",  # the radius for this image; 0 for clean
    "prediction": "Int64",  # null where the row was skipped or its logits are NaN or +inf, or all -inf
    "correct": "bool",
    "p_label": "float64",  # softmax confidence in the label
    "p_predicted": "float64",
    "runner_up": "Int64",  # the class of the second largest logit
    "margin": "float64",  # logit of the label minus the largest other logit
    "confidence_variance": "float64",  # population variance of the confidences over the classes
    "distance": "float64",  # from the clean image to the returned one, in the norm of the threat
    "iterations": "Int64",  # steps up to the returned image
    "forwards": "Int64",  # passes spent, verification included
    "backwards": "Int64",
    "zero_gradients": "Int64",  # gradients that were zero everywhere; null if the attack does not report it
    "queries": "Int64",  # model queries of an attack without gradients; null if the attack does not report it
    "minimal_distance": "float64",  # to the nearest adversarial example found, infinite for none; null if unreported
    "correct_repeats": "Int64",  # correct passes of the returned image, of `Meta.repeats`; null for one pass
    "first_success": "string",  # the attack that succeeded first, or clean; null while the image is robust
    "status": "string",  # ok, nan (no prediction) or skipped (misclassified earlier in a cascade)
}
"""The columns of the table and their pandas types; the groupings of the metadata are further int64 columns."""

NAME = "name"
"""Optional column; an older table may have a grouping of this name instead."""
REPORTED = ("zero_gradients", "queries", "minimal_distance")
"""Optional columns, which only some attacks report."""
REPEATS = "correct_repeats"
"""Optional column of audits with several passes for each decision."""

_META = tables.KEY.encode()


def typed(frame: pd.DataFrame, meta: Meta) -> pd.DataFrame:
    """The frame with exactly the columns of `COLUMNS` and the metadata's groupings, in their types.

    Missing columns of `REPORTED`, `REPEATS` and `NAME` are null.

    Raises:
        ClasswiseError: if any other column is missing or occurs twice, a value is not of its type, or a grouping has
            the name of another column.
    """
    types = _types(meta)
    check_groupings([group for group in meta.groups if group != NAME], meta.attacks)
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ClasswiseError(f"the table of outcomes has the column {twice!r} twice; column names must differ")
    if list(frame.columns) != list(types):
        frame = frame.reindex(columns=list(types))
    given = zip(types.items(), frame.dtypes, strict=True)
    changed = {column: _converted(frame[column], kind) for (column, kind), dtype in given if str(dtype) != kind}
    return frame.assign(**changed) if changed else frame


def _converted(column: pd.Series[Any], kind: str) -> pd.Series[Any]:
    """A column in another type.

    Raises:
        ClasswiseError: if a value would change, as 0.5 would as an integer and a missing value as a boolean.
    """
    exact = {"int64": "Int64", "bool": "boolean"}.get(kind, kind)
    try:
        return column.astype(exact).astype(kind)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError) as error:
        raise ClasswiseError(
            f"the column {column.name!r} of outcomes has a value of another type ({error}); expected {kind}"
        ) from error


def check_groupings(groupings: Iterable[str], attacks: Iterable[str]) -> None:
    """Check that no grouping has the name of a column of the outcomes, of tables of classes, or of an attack.

    Raises:
        ClasswiseError: naming the first one that does.
    """
    for name in checked_names([*groupings], "groupings"):
        if name in taken_columns(attacks):
            raise ClasswiseError(f"grouping {name!r}: the name is taken; choose another")


def taken_columns(attacks: Iterable[str]) -> frozenset[str]:
    """Names that a grouping may not have."""
    return frozenset({*COLUMNS, *TABLE_COLUMNS, ALL, *attacks})


def filled(blocks: Sequence[Columns], meta: Meta) -> pd.DataFrame:
    """Concatenate blocks of rows into one typed frame; columns missing in a block are null."""
    nulls = [np.full(len(block["index"]), None, dtype=object) for block in blocks]
    columns = {
        label: _joined([block.get(label, null) for block, null in zip(blocks, nulls, strict=True)], kind)
        for label, kind in _types(meta).items()
    }
    return pd.DataFrame(columns, copy=False)


def _types(meta: Meta) -> dict[str, str]:
    """The type of each column."""
    return {**COLUMNS, **dict.fromkeys(meta.groups, "int64")}


def _joined(parts: Sequence[NDArray[Any]], kind: str) -> Any:
    """The parts of one column as one array of a type."""
    values = np.concatenate(parts)
    if kind == "Int64":  # integers stay exact next to nulls
        missing = pd.isna(values)
        return pd.arrays.IntegerArray(np.where(missing, 0, values).astype(np.int64), missing)
    return pd.array(values, dtype="string") if kind == "string" else values.astype(kind, copy=False)


def name(number: int) -> str:
    """Name of the file with this number."""
    return f"part-{number:05d}.parquet"


def listed(folder: Path) -> list[Path]:
    """The files in a folder, in order; empty if the folder does not exist."""
    return sorted(folder.glob("part-*.parquet"))


def write(path: Path, frame: pd.DataFrame, meta: Meta) -> None:
    """Write a file atomically; the metadata is stored in the Parquet schema.

    Raises:
        ClasswiseError: if the disk is full or the folder cannot be written.
    """
    write_table(path, pa.Table.from_pandas(typed(frame, meta), preserve_index=False), meta)


def write_table(path: Path, table: pa.Table, meta: Meta) -> None:
    """As `write`, of a table with the columns and types of a file."""
    tables.write_table(path, table, "outcomes", meta.flat)


def read(path: Path) -> tuple[pd.DataFrame, Meta]:
    """Read a file.

    Raises:
        ClasswiseError: if it is damaged, was not written by classwise, or has another schema version.
    """
    table, meta = read_table(path)
    return typed(table.to_pandas(), meta), meta


def read_table(path: Path) -> tuple[pa.Table, Meta]:
    """As `read`, without conversion to pandas."""
    in_audit = path.match("outcomes/part-*.parquet")  # resuming the audit recomputes its rows
    damaged = "remove it and resume the audit" if in_audit else ""
    advice = damaged or "give the folder of an audit, a run with one audit, or a file of outcomes"
    try:
        table = tables.read_table(path, advice, damaged=damaged)
    except FileNotFoundError as error:
        hint = did_you_mean(path) or "; give an audit, or a table of outcomes"
        raise ClasswiseError(f"there is no file or folder {path}{hint}") from error
    if NAME not in table.column_names:  # of an earlier version
        table = table.add_column([*COLUMNS].index(NAME), NAME, pa.nulls(len(table), pa.string()))
    return table, Meta.from_json((table.schema.metadata or {}).get(_META, b""), str(path))


def read_meta(path: Path) -> Meta:
    """Read the metadata of a file only.

    Raises:
        ClasswiseError: if it was not written by classwise, or has another schema version.
    """
    stored = tables.metadata_of(path, "restore it from a copy, or repeat the audit")
    return Meta.from_json(stored.get(_META, b""), str(path))


def image_numbers(path: Path) -> dict[str, IntArray]:
    """The images of each attack in a file, a number for each row; empty if it cannot be read (see `read_table`)."""
    try:
        with open_regular(path) as file:
            table = read_parquet(file, str(path), ["attack", "index"])
        labels, numbers = table["attack"].unique().to_pylist(), table["index"].to_numpy()
        return {str(label): numbers[pc.equal(table["attack"], label).to_numpy()] for label in labels}
    except (pa.ArrowException, OSError, ClasswiseError):
        return {}


def read_all(path: Path) -> tuple[pd.DataFrame, Meta]:
    """Read one file, a folder of files, or an audit's folder; the metadata are the last file's, with all notes.

    A policy and the code are among them only if every file has the same.

    Raises:
        ClasswiseError: if there are no outcomes, or as `read` does.
    """
    if path.is_file():
        return read(path)
    folder = path / "outcomes" if (path / "outcomes").is_dir() else path
    read_files = [read(file) for file in listed(folder)]
    if not read_files:
        if (path / MARKERS["curve"]).is_file():
            raise ClasswiseError(f"{path} is the folder of a curve or of a worst-class search; expected an audit")
        hint = did_you_mean(path) or f"; create some with: classwise audit MODEL --data DATA --out {quoted(path)}"
        raise ClasswiseError(f"{path} contains no outcomes{hint}")
    notes = dict.fromkeys(note for _, meta in read_files for note in meta.notes)
    policies = {meta.policy for _, meta in read_files}
    policy = policies.pop() if len(policies) == 1 else None
    meta = dataclasses.replace(read_files[-1][1], notes=tuple(notes)).stating(policy=policy)
    if any(other.code != meta.code for _, other in read_files):
        meta = dataclasses.replace(meta, code=None)
    return pd.concat([frame for frame, _ in read_files], ignore_index=True), meta
