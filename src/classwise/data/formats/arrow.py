"""Folders written by `save_to_disk` of Hugging Face `datasets`: Arrow files, read without that package."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.files.reading import check_regular, parse_json, read_bytes
from classwise.core.settings import limits
from classwise.core.settings.config import configurable
from classwise.data.formats.tables import ROWS, TableFile, TableFormat
from classwise.data.images import Images

_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The last bytes of a stream; a file that lacks them could have fewer rows."""
_STATE, _SPLITS = "state.json", "dataset_dict.json"


@configurable
class Arrow(TableFormat):
    """The folder of a `Dataset` or a `DatasetDict` of Hugging Face, as written by ``save_to_disk``.

    A folder of a `DatasetDict` has a subfolder for each split. The images must be in the files, as ``save_to_disk``
    stores them.
    """

    def accepts(self, path: Path) -> bool:
        """Whether the path is a folder with ``state.json`` and ``dataset_info.json``, or with ``dataset_dict.json``."""
        whole = (path / _STATE).is_file() and (path / "dataset_info.json").is_file()
        return whole or (path / _SPLITS).is_file()

    def read(self, path: Path, split: str) -> Images:
        """Decode all images of the split, or of the folder of a single data set.

        Raises:
            ClasswiseError: for a missing split, or as `TableFormat.images`.
        """
        if (path / _SPLITS).is_file():
            known = _splits(path)
            if split not in known:
                raise unknown(f"split of {path}", split, known)
            folder = path / split
        else:
            folder, split = path, str(_json(path / _STATE).get("_split") or "")
        others = _splits(folder.parent) if (folder.parent / _SPLITS).is_file() else []
        more = [file for name in others if name != folder.name for file in _tables(folder.parent / name)]
        return self.images(_tables(folder), path.name, split, more)


def _splits(path: Path) -> list[str]:
    """Names of the splits of a `DatasetDict`."""
    return [str(split) for split in _json(path / _SPLITS).get("splits") or ()]


def _tables(folder: Path) -> list[ArrowTable]:
    """The files of a data set, from ``state.json``.

    Raises:
        ClasswiseError: if it names no files of the folder, or a selection of rows.
    """
    state = _json(folder / _STATE)
    names = [str(entry.get("filename", "")) for entry in state.get("_data_files") or () if isinstance(entry, dict)]
    if not names or not all(name and Path(name).name == name for name in names):
        raise ClasswiseError(f"{folder / _STATE} names no files of the folder; save the data set again")
    if state.get("_indices_data_files"):
        raise ClasswiseError(f"{folder} has a selection of rows in another file; save it with a recent datasets")
    return [ArrowTable(folder / name) for name in names]


class ArrowTable(TableFile):
    """A file in the streaming format of Arrow."""

    def schema(self) -> pa.Schema:
        """The schema, after a check that the file has rows."""
        with self._opened() as batches:
            if len(set(batches.schema.names)) < len(batches.schema.names):
                raise ClasswiseError(f"{self.path} has two columns of the same name; rename one of them")
            if not any(batch.num_rows for batch in batches):
                raise ClasswiseError(f"{self.path} has no rows")
            return batches.schema

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Some columns, without images; the file is mapped into memory."""
        with self._opened() as batches:
            parts = [batch.select(list(columns)) for batch in batches]
            for part in parts:
                part.validate(full=True)
            return pa.Table.from_batches(parts)

    def cells(self, column: str) -> Iterator[pa.Array]:
        """The cells of a column, a few rows at a time."""
        with self._opened() as batches:
            for batch in batches:
                cells = batch.column(column)
                cells.validate(full=True)
                yield from (cells.slice(start, ROWS) for start in range(0, len(cells), ROWS))

    @contextmanager
    def _opened(self) -> Iterator[pa.RecordBatchStreamReader]:
        """Map the file into memory; errors of pyarrow become `ClasswiseError`."""
        try:
            check_regular(self.path)
            limits.check_size(self.path.stat().st_size, str(self.path))
            with self.path.open("rb") as file:
                file.seek(-min(len(_END), self.path.stat().st_size), os.SEEK_END)
                if file.read() != _END:
                    raise ClasswiseError(f"{self.path} is truncated or not an Arrow stream; save the data set again")
            with pa.memory_map(str(self.path)) as source, pa.ipc.open_stream(source) as opened:
                yield opened
        except (OSError, pa.ArrowException, MemoryError, UnicodeDecodeError) as error:
            raise ClasswiseError(f"{self.path} cannot be read as an Arrow stream: {error}") from error


def _json(file: Path) -> dict[str, Any]:
    try:
        values = parse_json(read_bytes(file))
    except ClasswiseError:
        raise
    except ValueError as error:
        raise ClasswiseError(f"{file} is not JSON; save the data set again") from error
    if not isinstance(values, dict):
        raise ClasswiseError(f"{file} is not a JSON object; save the data set again")
    return values
