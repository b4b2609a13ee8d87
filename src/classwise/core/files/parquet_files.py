"""Reading Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from classwise.core.settings.limits import check_size


def read_parquet(file: BinaryIO, where: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read an open Parquet file in this thread.

    `pyarrow.parquet.read_table` and `pandas.read_parquet` read in threads that may release buffers of the file after
    they have returned. If Python ends in this moment, the process aborts, with status 134 after a complete result.

    Args:
        file: the file, open for reading.
        where: its name in messages.
        columns: the columns to read; None: all.

    Raises:
        ClasswiseError: if it is too large (`classwise.core.settings.limits`).
        pyarrow.ArrowException: if it is damaged or not a Parquet file.
    """
    with pq.ParquetFile(file, page_checksum_verification=True) as opened:
        check_size(8 * opened.metadata.num_rows * len(columns or opened.schema_arrow), where)
        return opened.read(columns=columns, use_threads=False)
