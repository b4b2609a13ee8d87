"""Tables of encoded images and labels in the layout of Hugging Face `datasets`, in Parquet or Arrow files."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError
from classwise.core.settings import limits
from classwise.core.settings.config import Count, configurable
from classwise.data.formats.base import Format
from classwise.data.image_files import Decoder, stack
from classwise.data.image_names import KEYS, text_of
from classwise.data.images import ONE_CLASS, Column, Images, check_labels
from classwise.data.labels import Classes, encode_labels, in_order, log_empty_classes

_LABELS = ("label", "fine_label", "labels")
_COARSE = "coarse_label"
ROWS = 16
"""Number of rows whose encoded images are in memory at once."""
Features = Mapping[str, Mapping[str, Any]]
"""The features in the metadata written by `datasets`, by column."""


class TableFile(ABC):
    """A file with a table.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def schema(self) -> pa.Schema:
        """The schema, after checks that the file has rows and does not exceed the memory.

        Raises:
            ClasswiseError: if the file is invalid.
        """

    @abstractmethod
    def read(self, columns: Sequence[str]) -> pa.Table:
        """Some columns, without images."""

    @abstractmethod
    def cells(self, column: str) -> Iterator[pa.Array]:
        """The cells of a column, a few rows at a time."""


@configurable
class TableFormat(Format, ABC):
    """Base class of tables with a column of encoded images and one of labels.

    The label column is ``label``, ``fine_label`` or ``labels``, else the only column of class labels. A column
    ``coarse_label`` contains the superclasses. The names of the images are a column of text or integers such as
    ``file_name`` or ``id`` (`classwise.data.image_names.KEYS`), else the paths beside the encoded images. Every other
    integer column becomes a column of the images.

    Attributes:
        image: name of the image column; by default the first one.
        label: name of the label column, if not the default; a column of integers or text.
        classes: the label of each class in the order of the model's logits, for text or integers that are not
            0, 1, 2, ...; the classes of text are by default its distinct values in all splits, in ascending order.
        size: resize the shorter side to this and crop the central square.
        resize: with ``size``, resize the shorter side to this before the crop.
    """

    image: str | None = None
    label: str | None = None
    classes: Classes | None = None
    size: Count | None = None
    resize: Count | None = None

    def images(
        self, files: Sequence[TableFile], name: str, split: str, other_splits: Sequence[TableFile] = ()
    ) -> Images:
        """Decode the images of all files.

        Args:
            files: the files of the split.
            name: name of the data set in reports.
            split: name of the split.
            other_splits: the files of the other splits, whose labels of text are classes too.

        Raises:
            ClasswiseError: for a truncated file, a damaged image (with its row), different sizes, or a missing column.
        """
        schemas = [file.schema() for file in files]
        schema, first = schemas[0], files[0].path
        features = _features(schema)
        for file, other in zip(files, schemas, strict=True):
            if not other.equals(schema) or _features(other) != features:
                raise ClasswiseError(f"{file.path}: columns or class names differ from those of {first.name}")
        column = _image_column(schema, features, self.image, first)
        label = _label_column(schema, features, self.label, first)
        integers = [key for key in schema.names if key != column and pa.types.is_integer(schema.field(key).type)]
        if len(integers) > limits.GROUPINGS:
            raise ClasswiseError(
                f"{first} has {len(integers)} integer columns; at most {limits.GROUPINGS} are supported"
            )
        texts = [key for key in schema.names if _is_text(schema.field(key).type)]
        own = next((key for key in KEYS if key in (*integers, *texts) and key != label), None)
        tables = [file.read(sorted({*integers, label, *filter(None, [own])})) for file in files]
        # Labels before images: they are checked faster.
        names = [text_of(value) for table in tables for value in (table.column(own).to_pylist() if own else ())]
        if own in integers and len({*names}) == len(names) > 1:
            integers.remove(own)  # with another value for each image, it is no grouping
        columns = {key: _column(tables, key, features, first, None) for key in integers if key != label}
        classes = self.classes
        if classes is None and _is_text(schema.field(label).type):
            more = [file.read([label]) for file in other_splits if _has_text(file.schema(), label)]
            found = {value for table in (*tables, *more) for value in table.column(label).unique().to_pylist()}
            classes = tuple(sorted(value for value in found if value is not None))
        y = _column(tables, label, features, first, classes)
        check_labels(y.ids, y.names, name)
        if classes is not None:
            log_empty_classes(y.names, torch.bincount(y.ids, minlength=len(y.names)).tolist(), str(first))
        decode = Decoder(self.size, self.resize)
        cells = (cell for file in files for cell in _contents(file, column))
        paths = list[str]()
        x = stack((cell.where, decode(cell.content, cell.where)) for cell in _noting(cells, paths))
        coarse = columns.get(_COARSE)
        parents = None if coarse is None else _parents(y, coarse)
        return Images(
            x,
            y.ids,
            class_names=y.names,
            name=name,
            split=split,
            superclasses=parents,
            superclass_names=coarse.names if coarse is not None and parents is not None else None,
            columns=columns,
            image_names=names or paths,
        )


def _features(schema: pa.Schema) -> Features:
    """The features in the metadata written by the `datasets` library; empty if there are none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):  # missing, or another layout
        return {}
    if not isinstance(features, dict):
        return {}
    return {str(key): value for key, value in features.items() if isinstance(value, dict)}


def _image_column(schema: pa.Schema, features: Features, image: str | None, file: Path) -> str:
    for name in schema.names if image is None else {image} & {*schema.names}:
        kind = schema.field(name).type
        has_bytes = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
        if has_bytes or (pa.types.is_binary(kind) and features.get(name, {}).get("_type") == "Image"):
            return str(name)
    what = "image column" if image is None else f"column {image!r} of images"
    raise ClasswiseError(f"{file} has no {what} (struct with 'bytes'); its columns: {', '.join(schema.names)}")


def _label_column(schema: pa.Schema, features: Features, label: str | None, file: Path) -> str:
    kinds = {name: schema.field(name).type for name in schema.names}
    wanted = [name for name in _LABELS if name in kinds] if label is None else [label]
    lists = next((name for name in wanted if name in kinds and pa.types.is_nested(kinds[name])), None)
    if lists is not None:
        raise ClasswiseError(f"{file}: column {lists!r} has several labels per image; {ONE_CLASS}")
    integers = [name for name, kind in kinds.items() if pa.types.is_integer(kind)]
    if label is not None:
        if label not in integers and not _is_text(kinds.get(label)):
            raise ClasswiseError(
                f"{file} has no integer column {label!r}; its integer columns: {', '.join(integers) or 'none'}"
            )
        return label
    usual = [name for name in wanted if name in integers or _is_text(kinds[name])]
    named = [name for name in integers if features.get(name, {}).get("_type") == "ClassLabel"]
    for candidates in (usual, named, integers):
        if len(candidates) == 1 or (candidates and candidates[0] in _LABELS):
            return str(candidates[0])
    raise ClasswiseError(
        f"{file}: the label column is ambiguous; give label (--data-set label=NAME), one of: "
        f"{', '.join(integers) or 'no integer column'}"
    )


def _is_text(kind: pa.DataType | None) -> bool:
    return kind is not None and (pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _has_text(schema: pa.Schema, column: str) -> bool:
    return column in schema.names and _is_text(schema.field(column).type)


class _Cell(NamedTuple):
    """An encoded image, the path that is stored beside it (empty if there is none), and where it is."""

    where: str
    content: bytes
    path: str


def _noting(cells: Iterable[_Cell], paths: list[str]) -> Iterator[_Cell]:
    """Yield the cells, and append their paths."""
    for cell in cells:
        paths.append(cell.path)
        yield cell


def _contents(file: TableFile, column: str) -> Iterator[_Cell]:
    """Yield the encoded images, read a few rows at a time, since a small page may expand to many equal rows."""
    row = 0
    for cells in file.cells(column):
        for value in cells:  # one cell at a time: a Python list would hold all of them twice
            cell = value.as_py()
            content = cell.get("bytes") if isinstance(cell, dict) else cell
            if not content:
                raise ClasswiseError(
                    f"{file.path}, row {row}: the image is not in the file (paths of other files are not supported)"
                )
            if len(content) > limits.FREE_BYTES:
                raise ClasswiseError(
                    f"{file.path}, row {row}: image of {len(content):,} bytes; at most {limits.FREE_BYTES:,} are read"
                )
            path = text_of(cell.get("path")) if isinstance(cell, dict) else ""
            yield _Cell(f"{file.path}, row {row}", content, path)
            row += 1


def _column(tables: Sequence[pa.Table], name: str, features: Features, file: Path, classes: Classes | None) -> Column:
    if any(table.column(name).null_count for table in tables):
        raise ClasswiseError(f"{file}: column {name!r} has empty cells")
    stored = np.concatenate([table.column(name).to_numpy() for table in tables])
    where = f"{file}, column {name!r}"
    names = features.get(name, {}).get("names")
    if names and (not isinstance(names, list) or not all(isinstance(text, str) for text in names)):
        raise ClasswiseError(f"{where}: the class names in the metadata must be a list of strings")
    named = names if stored.dtype.kind in "iu" else None
    if named and classes is not None:
        classes, named = in_order(classes, named, stored, where)
    encoded, labels = encode_labels(stored, classes, where)
    values = np.asarray(encoded).astype(np.int64)
    if labels is not None:
        return Column(torch.from_numpy(values), tuple(named or labels))
    if names:
        limits.check_classes(len(names), len(values), where)
        return Column(torch.from_numpy(values), tuple(names))
    limits.check_classes(int(values.max()) + 1, len(values), where)
    return Column(torch.from_numpy(values), tuple(str(number) for number in range(int(values.max()) + 1)))


def _parents(y: Column, coarse: Column) -> list[int] | None:
    """The superclass of each class; None if a class has several superclasses or no images."""
    parents: Tensor = torch.full((len(y.names),), -1)
    parents[y.ids] = coarse.ids
    return parents.tolist() if bool((parents[y.ids] == coarse.ids).all() and (parents >= 0).all()) else None
