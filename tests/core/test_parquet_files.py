"""Reading Parquet files without threads that outlive the read."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import classwise
from classwise.core.files.parquet_files import read_parquet

SOURCES = Path(classwise.__file__).parent


def test_columns_are_read() -> None:
    table = pa.table({"index": [3, 1], "label": ["a", "b"], "more": [0.5, 1.5]})
    file = io.BytesIO()
    pq.write_table(table, file)
    for columns in (None, ["label", "index"]):
        file.seek(0)
        assert read_parquet(file, "here", columns).equals(table if columns is None else table.select(columns))
    with pytest.raises(pa.ArrowInvalid):
        read_parquet(io.BytesIO(b"no table"), "here")


def test_no_reader_releases_buffers_in_threads_after_a_read() -> None:
    """Python that ends meanwhile aborts: of 90 shards with `pyarrow.parquet.read_table` eleven did, with status 134."""
    called = re.compile(r"\b(?:pq\.read_table|pd\.read_parquet|dataset\.dataset)\(")
    assert [str(file) for file in SOURCES.rglob("*.py") if called.search(file.read_text(encoding="utf-8"))] == []
