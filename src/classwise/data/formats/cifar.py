"""CIFAR-10 and CIFAR-100: pickles, read without executing code from them, and the binary version."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from classwise.core.errors import ClasswiseError
from classwise.core.files.reading import check_regular
from classwise.core.settings import limits
from classwise.core.settings.config import configurable
from classwise.data.formats.base import Format, begins_with, decoded, read_bytes, split_of_file, words_of
from classwise.data.image_names import text_of
from classwise.data.images import Column, Images


def _bytes_of_text(text: str, encoding: str) -> bytes:
    """Safe replacement of ``_codecs.encode``, which old pickle protocols use for bytes; only latin1."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"codec {encoding!r} is not allowed")
    return text.encode("latin1")


def _array_of_buffer(values: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: str) -> np.ndarray[Any, Any]:
    """Safe replacement of numpy's ``_frombuffer``, which pickle protocol 5 uses for arrays."""
    return np.frombuffer(values, dtype).reshape(shape, order="F" if order == "F" else "C")


def _empty_array(kind: object, shape: tuple[int, ...], typecode: bytes) -> np.ndarray[Any, Any]:
    """Safe replacement of numpy's ``_reconstruct``: an empty array, whose state is set later."""
    if kind is not _NDARRAY or shape != (0,):
        raise pickle.UnpicklingError("the initial array must be empty")
    del typecode
    return np.empty(0, np.int8)


def _number_type(code: str | bytes, *more: object) -> np.dtype[Any]:
    """A boolean, integer or floating-point data type."""
    del more
    dtype = np.dtype(code.decode("ascii") if isinstance(code, bytes) else code)
    if dtype.kind not in "biuf":
        raise pickle.UnpicklingError(f"arrays of type {dtype} are not allowed")
    return dtype


_NDARRAY = object()
"""Placeholder for the class ``numpy.ndarray``, accepted only by `_empty_array`."""
_ALLOWED: Mapping[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _number_type,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.numeric", "_frombuffer"): _array_of_buffer,
    ("numpy._core.numeric", "_frombuffer"): _array_of_buffer,
    ("_codecs", "encode"): _bytes_of_text,
}


class _DataOnly(pickle.Unpickler):
    """An unpickler restricted to numbers, strings, lists, dictionaries and numpy arrays."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise ClasswiseError(
                f"{self._path} would execute {module}.{name}, but CIFAR files contain only data; do not trust this file"
            )
        return _ALLOWED[module, name]


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of plain data; the keys are converted to strings.

    Raises:
        ClasswiseError: if the file is missing, truncated, not a dictionary, or requires code execution.
    """
    try:
        check_regular(path)
        limits.check_size(path.stat().st_size, str(path))
        with path.open("rb") as file:
            content = _DataOnly(file, path).load()
    except OSError as error:
        raise ClasswiseError(f"cannot read {path}: {error.strerror}") from error
    except ClasswiseError:
        raise
    except Exception as error:
        raise ClasswiseError(
            f"{path} is truncated or not a CIFAR pickle ({type(error).__name__}: {error}); download it again"
        ) from error
    if not isinstance(content, dict):
        raise ClasswiseError(f"{path} contains {type(content).__name__}, expected a dictionary")
    return {decoded(key): value for key, value in content.items() if isinstance(key, bytes | str)}


@configurable
class Cifar(Format):
    """The folder ``cifar-10-batches-py`` or ``cifar-100-python``, or one of its batch files."""

    def accepts(self, path: Path) -> bool:
        """Whether the path is a folder with the official files, or a pickle."""
        if path.is_dir():
            return (path / "data_batch_1").is_file() or ((path / "meta").is_file() and (path / "train").is_file())
        return path.suffix in ("", ".pkl", ".pickle") and begins_with(path, b"\x80")

    def read(self, path: Path, split: str) -> Images:
        """Read the batches of the split.

        Raises:
            ClasswiseError: if a file is missing or invalid.
        """
        files = _files_of_split(path, split) if path.is_dir() else [path]
        folder = path if path.is_dir() else path.parent
        batches = [_read_batch(file) for file in files]
        pixels = np.concatenate([batch["data"] for batch in batches])
        fine = "fine_labels" in batches[0]
        y = np.concatenate([batch["fine_labels" if fine else "labels"] for batch in batches])
        names = _names(folder, "fine_label_names" if fine else "label_names")
        x = torch.from_numpy(pixels).reshape(-1, 3, 32, 32)
        columns: dict[str, Column] = {}
        if fine and all("coarse_labels" in batch for batch in batches):
            coarse = np.concatenate([batch["coarse_labels"] for batch in batches])
            limits.check_classes(int(coarse.max(initial=0)) + 1, len(coarse), str(folder))
            coarse_names = _names(folder, "coarse_label_names") or tuple(
                str(number) for number in range(int(coarse.max()) + 1)
            )
            columns["coarse_label"] = Column(torch.from_numpy(coarse), coarse_names)
        return Images(
            x,
            torch.from_numpy(y),
            names,
            name=path.name,
            split=split if path.is_dir() else split_of_file(path),
            columns=columns,
            image_names=np.concatenate([batch["filenames"] for batch in batches]),
        )


def _files_of_split(folder: Path, split: str) -> list[Path]:
    ten = (folder / "data_batch_1").is_file()
    files = {
        "train": [folder / f"data_batch_{number}" for number in range(1, 6)] if ten else [folder / "train"],
        "test": [folder / ("test_batch" if ten else "test")],
    }
    if split not in files:
        raise ClasswiseError(f"{folder} has no split {split!r}; it has train and test")
    return files[split]


def _read_batch(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The pixels (N, 3072), the labels (N,) and the names (N,) of the images of one file."""
    content = read_pickle(path)
    data = content.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * 32 * 32:
        raise ClasswiseError(f"{path}: 'data' must be a uint8 array of shape (N, 3072)")
    files = content.get("filenames")
    names = (
        [text_of(file) for file in files] if isinstance(files, list) and len(files) == len(data) else [""] * len(data)
    )
    batch: dict[str, np.ndarray[Any, Any]] = {"data": data, "filenames": np.array(names, dtype=object)}
    for key in ("labels", "fine_labels", "coarse_labels"):
        if key in content:
            labels = content[key]
            if isinstance(labels, np.ndarray):
                labels = labels.tolist() if labels.ndim == 1 and len(labels) == len(data) else [None]
            if not isinstance(labels, list) or not all(type(label) is int and abs(label) < 2**62 for label in labels):
                raise ClasswiseError(f"{path}: {key!r} must be a list of integers")
            batch[key] = np.asarray(labels, np.int64)
            if batch[key].shape != (len(data),):
                raise ClasswiseError(f"{path}: {batch[key].size} values in {key!r} for {len(data)} images")
    if "labels" not in batch and "fine_labels" not in batch:
        raise ClasswiseError(f"{path} has neither 'labels' nor 'fine_labels'; one of them is required")
    return batch


def _names(folder: Path, key: str) -> tuple[str, ...] | None:
    for name in ("batches.meta", "meta"):
        if (folder / name).is_file():
            names = read_pickle(folder / name).get(key)
            if isinstance(names, list) and all(isinstance(value, bytes | str) for value in names):
                return tuple(decoded(value) for value in names)
    return None


_PIXELS = 3 * 32 * 32
_TEN = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
_HUNDRED = {"train": ["train.bin"], "test": ["test.bin"]}


@configurable
class CifarBinary(Format):
    """The folder ``cifar-10-batches-bin`` or ``cifar-100-binary``, or one of their image files.

    A record of CIFAR-10 is a label and 3,072 pixels; in CIFAR-100 the superclass precedes the label.
    """

    def accepts(self, path: Path) -> bool:
        """Whether the path is a folder with the official files, or a file whose length is that of complete records."""
        if path.is_dir():
            return bool(_layout(path))
        return path.suffix == ".bin" and path.is_file() and _label_bytes(path) > 0

    def read(self, path: Path, split: str) -> Images:
        """Read the records of the split.

        Raises:
            ClasswiseError: if a file is missing or truncated.
        """
        files = [path]
        if path.is_dir():
            layout = _layout(path) or _TEN
            if split not in layout:
                raise ClasswiseError(f"{path} has no split {split!r}; it has train and test")
            files = [path / name for name in layout[split]]
        folder = files[0].parent
        records = [_records(file) for file in files]
        if len({part.shape[1] for part in records}) > 1:
            raise ClasswiseError(f"{path} has files of CIFAR-10 and of CIFAR-100; use one folder per data set")
        values = np.concatenate(records)
        labels = values[:, :-_PIXELS].astype(np.int64)
        hundred = labels.shape[1] == 2
        columns = {}
        if hundred:
            names = words_of(folder / "coarse_label_names.txt")
            numbers = tuple(str(number) for number in range(int(labels[:, 0].max()) + 1))
            columns["coarse_label"] = Column(torch.from_numpy(labels[:, 0].copy()), tuple(names or numbers))
        return Images(
            torch.from_numpy(values[:, -_PIXELS:].reshape(-1, 3, 32, 32).copy()),
            torch.from_numpy(labels[:, -1].copy()),
            words_of(folder / ("fine_label_names.txt" if hundred else "batches.meta.txt")),
            name=path.stem,
            split=split if path.is_dir() else split_of_file(path),
            columns=columns,
        )


def _layout(folder: Path) -> dict[str, list[str]] | None:
    return next((known for known in (_TEN, _HUNDRED) if any((folder / n[0]).is_file() for n in known.values())), None)


def _label_bytes(file: Path) -> int:
    """Number of label bytes per record, 1 or 2; 0 if the file does not consist of complete records."""
    size = file.stat().st_size
    return next((count for count in (1, 2) if size and size % (count + _PIXELS) == 0), 0)


def _records(file: Path) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """The records of a file, (N, label bytes + 3072)."""
    values = read_bytes(file)
    count = _label_bytes(file)
    if not count:
        raise ClasswiseError(
            f"{file} has {values.size} bytes, not complete records of CIFAR-10 or CIFAR-100; download it again"
        )
    return values.reshape(-1, count + _PIXELS)
