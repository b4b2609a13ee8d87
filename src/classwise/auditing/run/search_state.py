"""Files of an unfinished search: a table with metadata, and the settings of the search."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from classwise.core.errors import ClasswiseError
from classwise.core.schema import SCHEMA_VERSIONS, check_schema_version
from classwise.core.storage import read_json, replacing, verify, write_text

_FACTS = b"classwise"


def write(path: Path, frame: pd.DataFrame, facts: Mapping[str, Any]) -> None:
    """Write a table and metadata (JSON values) into one file, atomically."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    about = json.dumps({"schema_version": SCHEMA_VERSIONS["curve"], **facts}).encode()
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), _FACTS: about})
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


def read(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read the table and the metadata from a file of `write`.

    Raises:
        ClasswiseError: if the file is damaged, or has another schema version.
    """
    verify(path, "remove it and resume, which repeats this part of the search")
    try:
        with path.open("rb") as file:
            table = pq.read_table(file, page_checksum_verification=True)
        facts: dict[str, Any] = json.loads((table.schema.metadata or {})[_FACTS])
        version = int(facts.pop("schema_version"))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise ClasswiseError(
            f"{path} is damaged; remove it and resume, which repeats this part of the search"
        ) from error
    check_schema_version(version, SCHEMA_VERSIONS["curve"], str(path))
    return table.to_pandas(), facts


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a search, atomically."""
    about = {"schema_version": SCHEMA_VERSIONS["curve"], "settings": settings}
    write_text(path, json.dumps(about, indent=2) + "\n", checksum=True)


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings from a file of `write_settings`.

    Raises:
        ClasswiseError: if the file is damaged, or has another schema version.
    """
    about = read_json(path, "search again in another folder", {"schema_version": int, "settings": dict})
    version = about["schema_version"]
    check_schema_version(version, SCHEMA_VERSIONS["curve"], str(path))
    settings: dict[str, Any] = about["settings"]
    return settings
