"""Outcomes on disk: Parquet parts, written in blocks as they come, readable by any tool that reads Parquet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from classwise.auditing.meta import Meta
from classwise.core.errors import ClasswiseError
from classwise.core.storage import replacing, verify

COLUMNS: Mapping[str, str] = {
    "index": "int64",  # the image's number in the data set
    "label": "int64",
    "attack": "string",
    "epsilon": "float64",  # the radius for this image; 0 for clean
    "prediction": "Int64",  # null where the row was skipped or its logits are not finite
    "correct": "bool",
    "p_label": "float64",  # softmax confidence in the label
    "p_predicted": "float64",
    "runner_up": "Int64",  # the class of the second largest logit
    "margin": "float64",  # logit of the label minus the largest other one
    "confidence_variance": "float64",  # population variance of the confidences over the classes
    "distance": "float64",  # from the clean image to the kept one, in the threat's norm
    "iterations": "Int64",  # steps up to the kept image
    "forwards": "Int64",  # passes spent, verification included
    "backwards": "Int64",
    "zero_gradients": "Int64",  # how many of the gradients were zero everywhere; null if the attack does not tell
    "queries": "Int64",  # logits that an attack without gradients asked for; null if the attack does not tell
    "minimal_distance": "float64",  # to the nearest misclassified point that was met, infinite for none; else null
    "first_success": "string",  # the attack that broke the image, or clean; null while it stands
    "status": "string",  # ok, nan (logits not finite) or skipped (broken before, in a cascade)
}
"""The columns of the table and their pandas types; further int64 columns hold the groupings of the metadata."""

REPORTED = ("zero_gradients", "queries", "minimal_distance")
"""The columns that only some attacks fill, from their own records; a table may lack them."""

_META = b"classwise"


def typed(frame: pd.DataFrame, meta: Meta) -> pd.DataFrame:
    """The frame with exactly the columns of `COLUMNS` and of the metadata's groupings, in their types.

    Raises:
        ClasswiseError: if a column is missing that is not of `REPORTED`; those are null.
    """
    types = {**COLUMNS, **dict.fromkeys(meta.groups, "int64")}
    absent = [column for column in types if column not in frame.columns and column not in REPORTED]
    if absent:
        raise ClasswiseError(f"the table of outcomes has no column {absent[0]!r}")
    return frame.reindex(columns=list(types)).astype(types)


def filled(blocks: Sequence[pd.DataFrame], meta: Meta) -> pd.DataFrame:
    """Blocks of rows as one typed frame; columns that no block has are null."""
    rows = {label: np.concatenate([_column(block, label) for block in blocks]) for label in (*COLUMNS, *meta.groups)}
    return typed(pd.DataFrame(rows), meta)


def _column(block: pd.DataFrame, label: str) -> np.ndarray[Any, Any]:
    if label not in block.columns:
        return np.full(len(block), None if COLUMNS[label] == "string" else np.nan, dtype=object)
    column = block[label]
    # Whole numbers stay exact and strings stay strings beside rows that have none.
    return column.to_numpy(dtype=object) if COLUMNS.get(label) in ("Int64", "string") else column.to_numpy()


def name(number: int) -> str:
    """The file name of a part."""
    return f"part-{number:05d}.parquet"


def listed(folder: Path) -> list[Path]:
    """The parts in a folder, in order; none if there is no such folder."""
    return sorted(folder.glob("part-*.parquet"))


def write(path: Path, frame: pd.DataFrame, meta: Meta) -> None:
    """Write a part, whole or not at all; the metadata goes into the Parquet schema.

    Raises:
        ClasswiseError: if the disk is full or the folder cannot be written.
    """
    table = pa.Table.from_pandas(typed(frame, meta), preserve_index=False)
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), _META: meta.to_json().encode()})
    with replacing(path, checksum=True) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


def read(path: Path) -> tuple[pd.DataFrame, Meta]:
    """Read a part.

    Raises:
        ClasswiseError: if it is damaged, not ours, or of a newer version.
    """
    of_audit = path.match("outcomes/part-*.parquet")  # the audit computes its rows again
    advice = "remove it and resume the audit" if of_audit else ""
    verify(path, advice)
    try:
        with path.open("rb") as file:
            table = pq.read_table(file, page_checksum_verification=True)
    except FileNotFoundError as error:
        raise ClasswiseError(f"there is no file {path}") from error
    except (pa.ArrowException, OSError) as error:
        advice = advice or "give the folder of an audit, a run with one audit, or a file of outcomes"
        raise ClasswiseError(f"{path} is not a valid Parquet file; {advice}") from error
    meta = Meta.from_json((table.schema.metadata or {}).get(_META, b""), str(path))
    return typed(table.to_pandas(), meta), meta


def read_all(path: Path) -> tuple[pd.DataFrame, Meta]:
    """Read one part, a folder of parts, or an audit's folder; the metadata is the last part's, with all notes.

    Raises:
        ClasswiseError: if there are no outcomes, or as `read` does.
    """
    if path.is_file():
        return read(path)
    folder = path / "outcomes" if (path / "outcomes").is_dir() else path
    found = [read(part) for part in listed(folder)]
    if not found:
        raise ClasswiseError(
            f"{path} holds no outcomes; make some with: classwise audit MODEL --data DATA --out {path}"
        )
    notes = dict.fromkeys(note for _, meta in found for note in meta.notes)
    meta = dataclasses.replace(found[-1][1], notes=tuple(notes))
    return pd.concat([frame for frame, _ in found], ignore_index=True), meta
