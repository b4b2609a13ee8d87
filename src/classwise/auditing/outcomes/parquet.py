"""Parquet tables with metadata: written atomically with a checksum, and checked when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from classwise.core.errors import ClasswiseError
from classwise.core.files.json_values import json_text
from classwise.core.files.parquet_files import read_parquet
from classwise.core.files.reading import fitting, open_regular, parse_json
from classwise.core.files.schema import SCHEMA_VERSIONS, check_schema_version
from classwise.core.files.storage import replacing, verify

KEY = "classwise"
"""The entry of a file's metadata that has the facts as JSON."""

T = TypeVar("T")


def write_table(
    path: Path, table: pd.DataFrame | pa.Table, kind: str, facts: Mapping[str, Any], key: str = KEY
) -> None:
    """Write a table atomically.

    Args:
        path: the file.
        table: the table.
        kind: its format, of `SCHEMA_VERSIONS`.
        facts: JSON values, stored as metadata beside the schema version.
        key: the entry of the metadata.

    Raises:
        ClasswiseError: as `classwise.core.files.storage.replacing`.
    """
    if isinstance(table, pd.DataFrame):
        table = pa.Table.from_pandas(table, preserve_index=False)
    about = json_text({"schema_version": SCHEMA_VERSIONS[kind], **facts}).encode()
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), key.encode(): about})
    with replacing(path, checksum=True) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


def read_table(path: Path, advice: str, *, damaged: str = "") -> pa.Table:
    """Read a table and check it against its checksums.

    Args:
        path: the file.
        advice: the suggestion in the message for a file that is not Parquet.
        damaged: that for a file that matches none of its checksums; empty: as of `classwise.core.files.storage.verify`.

    Raises:
        FileNotFoundError: if there is no file.
        ClasswiseError: if it is damaged, or not a Parquet file.
    """
    verify(path, damaged)
    try:
        with open_regular(path) as file:
            return read_parquet(file, str(path))
    except (FileNotFoundError, ClasswiseError):
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ClasswiseError(f"{path} is not a valid Parquet file; {advice}") from error


@overload
def facts_of(table: pa.Table, kind: str, where: Path, advice: str, key: str = KEY) -> dict[str, Any]: ...
@overload
def facts_of(table: pa.Table, kind: str, where: Path, advice: str, key: str = KEY, *, entries: type[T]) -> T: ...
def facts_of(
    table: pa.Table, kind: str, where: Path, advice: str, key: str = KEY, *, entries: type[T] | None = None
) -> T | dict[str, Any]:
    """The facts in the metadata of a table.

    Args:
        table: the table, as `read_table` returns it.
        kind: its format.
        where: the file, for error messages.
        advice: the suggestion in the message for a table without facts.
        key: the entry of the metadata.
        entries: a `TypedDict` of the facts; None: only the schema version is checked.

    Raises:
        ClasswiseError: if it has no facts, those of another schema version, or those of other types.
    """
    try:
        facts: dict[str, Any] = parse_json((table.schema.metadata or {})[key.encode()])
        version = int(facts.pop("schema_version"))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ClasswiseError(f"{where} has no metadata of a {kind} written by classwise; {advice}") from error
    check_schema_version(version, SCHEMA_VERSIONS[kind], str(where))
    return facts if entries is None else fitting(entries, facts, str(where), advice)


def metadata_of(path: Path, advice: str) -> Mapping[bytes, bytes]:
    """The metadata of the schema of a file, without its rows.

    Raises:
        ClasswiseError: if it is not a Parquet file.
    """
    try:
        with open_regular(path) as file:
            return pq.read_schema(file).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise ClasswiseError(f"{path} is not a valid Parquet file; {advice}") from error
