"""Parquet files in the Hugging Face image layout: encoded images, label columns, and class names in the metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from classwise.core import limits
from classwise.core.config import Count, configurable
from classwise.core.errors import ClasswiseError
from classwise.data.formats.base import Format, begins_with, check_regular, split_of_file
from classwise.data.formats.image_files import decode, stack
from classwise.data.images import Column, Images, check_labels

_LABELS = ("label", "fine_label", "labels")
_COARSE = "coarse_label"
_ROWS = 16
"""Number of rows whose encoded images are in memory at once."""


@configurable
class Parquet(Format):
    """A Parquet file, or a folder of Parquet files with the split in their names (``train-00000-of-00002.parquet``).

    The label column is ``label``, ``fine_label`` or ``labels``, else the only column of class labels. A column
    ``coarse_label`` contains the superclasses. Every other integer column becomes a column of the images.

    Attributes:
        label: name of the label column, if not the default.
        size: resize the shorter side to this and crop the central square.
        resize: with ``size``, resize the shorter side to this before the crop.
    """

    label: str | None = None
    size: Count | None = None
    resize: Count | None = None

    def accepts(self, path: Path) -> bool:
        """Whether the path is a Parquet file, by suffix or content, or a folder of such files."""
        if path.is_dir():
            return bool(_shards(path))
        return path.suffix == ".parquet" or begins_with(path, b"PAR1")

    def read(self, path: Path, split: str) -> Images:
        """Decode all images of the split.

        Raises:
            ClasswiseError: for a truncated file, a damaged image (with its row), different sizes, or a missing column.
        """
        files = _files_of_split(path, split) if path.is_dir() else [path]
        schemas = [_schema(file) for file in files]
        schema = schemas[0]
        features = _features(schema)
        for file, other in zip(files, schemas, strict=True):
            if not other.equals(schema) or _features(other) != features:
                raise ClasswiseError(f"{file}: columns or class names differ from those of {files[0].name}")
        column = _image_column(schema, features, files[0])
        label = _label_column(schema, features, self.label, files[0])
        integers = [name for name in schema.names if name != column and pa.types.is_integer(schema.field(name).type)]
        if len(integers) > limits.GROUPINGS:
            raise ClasswiseError(
                f"{files[0]} has {len(integers)} integer columns; at most {limits.GROUPINGS} are supported"
            )
        tables = [_read_table(file, integers) for file in files]
        # Labels before images: they are checked faster.
        columns = {name: _column(tables, name, features, files[0]) for name in integers}
        check_labels(columns[label].ids, columns[label].names, path.stem)
        x = stack(
            (where, decode(content, where, self.size, self.resize))
            for file in files
            for where, content in _contents(file, column)
        )
        y = columns.pop(label)
        coarse = columns.get(_COARSE) if label != _COARSE else None
        parents = None if coarse is None else _parents(y, coarse)
        return Images(
            x,
            y.ids,
            class_names=y.names,
            name=path.stem,
            split=split if path.is_dir() else split_of_file(path),
            superclasses=parents,
            superclass_names=coarse.names if coarse is not None and parents is not None else None,
            columns=columns,
        )


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet")) or sorted((folder / "data").glob("*.parquet"))


def _files_of_split(folder: Path, split: str) -> list[Path]:
    """The files ``[prefix-]split[-00000-of-00002[-hash]].parquet``, which must have the same prefix."""
    files = _shards(folder)
    pattern = re.compile(rf"(?:(.+)[-_.])?{re.escape(split)}(?:-\d+-of-\d+(?:-\w+)?)?")
    prefixes = {file: match.group(1) for file in files if (match := pattern.fullmatch(file.stem))}
    if len(set(prefixes.values())) != 1:
        names = ", ".join(file.name for file in list(prefixes or files)[:4])
        count = "several data sets" if prefixes else "no file"
        raise ClasswiseError(f"{folder} has {count} for the split {split!r} ({names}); give the path of the file")
    return list(prefixes)


@contextmanager
def _opened(file: Path) -> Iterator[pq.ParquetFile]:
    """Open the file and read its footer; errors of pyarrow become `ClasswiseError`."""
    try:
        check_regular(file)
        limits.check_size(file.stat().st_size, str(file))
        # Opened here, because for a path pyarrow derives partition columns from folder names.
        with file.open("rb") as source, pq.ParquetFile(source, page_checksum_verification=True) as opened:
            yield opened
    except OSError as error:  # includes pyarrow's input and output errors
        raise ClasswiseError(f"{file} cannot be read as Parquet: {error}") from error
    except (pa.ArrowException, MemoryError, UnicodeDecodeError) as error:
        raise ClasswiseError(f"{file} is truncated or not a Parquet file: {error}") from error


def _schema(file: Path) -> pa.Schema:
    """The schema of a file, after checks that it has rows and does not exceed the memory."""
    with _opened(file) as opened:
        metadata = opened.metadata
        if metadata.num_rows == 0:
            raise ClasswiseError(f"{file} has no rows")
        schema = opened.schema_arrow
        if len(set(schema.names)) < len(schema.names):
            raise ClasswiseError(f"{file} has two columns of the same name")
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(number)
                size = max(chunk.total_uncompressed_size, 0)
                limits.check_size(size, f"{file}, column {chunk.path_in_schema!r}", max(chunk.total_compressed_size, 1))
        return schema


def _read_table(file: Path, columns: Sequence[str]) -> pa.Table:
    """The integer columns of a file."""
    with _opened(file) as opened:
        limits.check_size(opened.metadata.num_rows * 16 * len(columns), f"{file}, {opened.metadata.num_rows} rows")
        return opened.read(columns=list(columns))


def _features(schema: pa.Schema) -> Mapping[str, Mapping[str, Any]]:
    """The features in the metadata written by the `datasets` library; empty if there are none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):  # missing, or another layout
        return {}
    if not isinstance(features, dict):
        return {}
    return {str(key): value for key, value in features.items() if isinstance(value, dict)}


def _image_column(schema: pa.Schema, features: Mapping[str, Mapping[str, Any]], file: Path) -> str:
    for name in schema.names:
        kind = schema.field(name).type
        has_bytes = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
        if has_bytes or (pa.types.is_binary(kind) and features.get(name, {}).get("_type") == "Image"):
            return str(name)
    raise ClasswiseError(f"{file} has no image column (struct with 'bytes'); its columns: {', '.join(schema.names)}")


def _label_column(schema: pa.Schema, features: Mapping[str, Mapping[str, Any]], label: str | None, file: Path) -> str:
    integers = [name for name in schema.names if pa.types.is_integer(schema.field(name).type)]
    if label is not None:
        if label not in integers:
            raise ClasswiseError(
                f"{file} has no integer column {label!r}; its integer columns: {', '.join(integers) or 'none'}"
            )
        return label
    named = [name for name in integers if features.get(name, {}).get("_type") == "ClassLabel"]
    for candidates in ([name for name in _LABELS if name in integers], named, integers):
        if len(candidates) == 1 or (candidates and candidates[0] in _LABELS):
            return str(candidates[0])
    raise ClasswiseError(
        f"{file}: the label column is ambiguous; give label=, one of: {', '.join(integers) or 'no integer column'}"
    )


def _contents(file: Path, column: str) -> Iterator[tuple[str, bytes]]:
    """Yield the encoded images, read a few rows at a time, since a small page may expand to many equal rows."""
    row = 0
    with _opened(file) as opened:
        for batch in opened.iter_batches(batch_size=_ROWS, columns=[column]):
            for value in batch.column(0):  # one cell at a time: a Python list would hold all of them twice
                cell = value.as_py()
                content = cell.get("bytes") if isinstance(cell, dict) else cell
                if not content:
                    raise ClasswiseError(
                        f"{file}, row {row}: the image is not in the file (paths of other files are not supported)"
                    )
                if len(content) > limits.FREE_BYTES:
                    raise ClasswiseError(
                        f"{file}, row {row}: image of {len(content):,} bytes; at most {limits.FREE_BYTES:,} are read"
                    )
                yield f"{file}, row {row}", content
                row += 1


def _column(tables: Sequence[pa.Table], name: str, features: Mapping[str, Mapping[str, Any]], file: Path) -> Column:
    if any(table.column(name).null_count for table in tables):
        raise ClasswiseError(f"{file}: column {name!r} has empty cells")
    values = np.concatenate([table.column(name).to_numpy() for table in tables]).astype(np.int64)
    where = f"{file}, column {name!r}"
    names = features.get(name, {}).get("names")
    if names:
        if not isinstance(names, list) or not all(isinstance(text, str) for text in names):
            raise ClasswiseError(f"{where}: the class names in the metadata must be a list of strings")
        limits.check_classes(len(names), len(values), where)
        return Column(torch.from_numpy(values), tuple(names))
    limits.check_classes(int(values.max()) + 1, len(values), where)
    return Column(torch.from_numpy(values), tuple(str(number) for number in range(int(values.max()) + 1)))


def _parents(y: Column, coarse: Column) -> list[int] | None:
    """The superclass of each class; None if a class has several superclasses or no images."""
    parents: Tensor = torch.full((len(y.names),), -1)
    parents[y.ids] = coarse.ids
    return parents.tolist() if bool((parents[y.ids] == coarse.ids).all() and (parents >= 0).all()) else None
