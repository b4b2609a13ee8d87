"""Parquet files in the layout of Hugging Face: a column of encoded images, and integer label columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from classwise.core.errors import ClasswiseError
from classwise.core.files.reading import check_regular
from classwise.core.settings import limits
from classwise.core.settings.config import configurable
from classwise.data.formats.base import SPLITS, begins_with, names_of_split, split_of_file, visible
from classwise.data.formats.tables import ROWS, TableFile, TableFormat
from classwise.data.images import Images


@configurable
class Parquet(TableFormat):
    """A Parquet file, or a folder of Parquet files with the split in their names (``train-00000-of-00002.parquet``)."""

    def accepts(self, path: Path) -> bool:
        """Whether the path is a Parquet file, by suffix or content, or a folder of such files."""
        if path.is_dir():
            return bool(_shards(path))
        return path.suffix == ".parquet" or begins_with(path, b"PAR1")

    def read(self, path: Path, split: str) -> Images:
        """Decode all images of the split.

        Raises:
            ClasswiseError: for a missing split, or as `TableFormat.images`.
        """
        files = _files_of_split(path, split) if path.is_dir() else [path]
        split = split if path.is_dir() else split_of_file(path)
        others = [ParquetTable(file) for file in _other_splits(files)]
        return self.images([ParquetTable(file) for file in files], path.stem, split, others)


class ParquetTable(TableFile):
    """A Parquet file."""

    def schema(self) -> pa.Schema:
        """The schema, after checks that the file has rows and does not exceed the memory."""
        with self._opened() as opened:
            metadata = opened.metadata
            if metadata.num_rows == 0:
                raise ClasswiseError(f"{self.path} has no rows")
            schema = opened.schema_arrow
            if len(set(schema.names)) < len(schema.names):
                raise ClasswiseError(f"{self.path} has two columns of the same name; rename one of them")
            for group in range(metadata.num_row_groups):
                for number in range(metadata.num_columns):
                    chunk = metadata.row_group(group).column(number)
                    where = f"{self.path}, column {chunk.path_in_schema!r}"
                    limits.check_size(max(chunk.total_uncompressed_size, 0), where, max(chunk.total_compressed_size, 1))
            return schema

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Some columns, without images."""
        with self._opened() as opened:
            rows = opened.metadata.num_rows
            limits.check_size(rows * 16 * len(columns), f"{self.path}, {rows} rows")
            return opened.read(columns=list(columns))

    def cells(self, column: str) -> Iterator[pa.Array]:
        """The cells of a column, a few rows at a time."""
        with self._opened() as opened:
            for batch in opened.iter_batches(batch_size=ROWS, columns=[column]):
                yield batch.column(0)

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        """Open the file and read its footer; errors of pyarrow become `ClasswiseError`."""
        file = self.path
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


def _shards(folder: Path) -> list[Path]:
    return visible(folder, "*.parquet") or visible(folder / "data", "*.parquet")


def _prefixes(files: Sequence[Path], split: str) -> dict[Path, str | None]:
    """The prefix of each file named ``[prefix-]split[-00000[-of-00002[-hash]]].parquet``; ``split`` is a pattern."""
    pattern = re.compile(rf"(?:(.+)[-_.])?(?:{split})(?:-\d+(?:-of-\d+(?:-\w+)?)?)?")
    return {file: match.group(1) for file in files if (match := pattern.fullmatch(file.stem))}


def _files_of_split(folder: Path, split: str) -> list[Path]:
    """The files of a split, which must have the same prefix."""
    files = _shards(folder)
    found = (_prefixes(files, re.escape(name)) for name in names_of_split(split))
    prefixes: dict[Path, str | None] = next(filter(None, found), {})
    if len(set(prefixes.values())) != 1:
        names = ", ".join(file.name for file in list(prefixes or files)[:4])
        count = "several data sets" if prefixes else "no file"
        raise ClasswiseError(f"{folder} has {count} for the split {split!r} ({names}); give the path of the file")
    return list(prefixes)


def _other_splits(files: Sequence[Path]) -> list[Path]:
    """The files of other splits beside those of one split, by their prefix."""
    prefixes = _prefixes(visible(files[0].parent, "*.parquet"), "|".join(SPLITS))
    own = prefixes.get(files[0], files[0].stem)
    return [file for file, prefix in prefixes.items() if prefix == own and file not in files]
