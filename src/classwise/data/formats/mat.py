"""The MATLAB files of SVHN (cropped digits)."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from classwise.core.errors import ClasswiseError
from classwise.core.settings import limits
from classwise.core.settings.config import configurable
from classwise.data.formats.base import Format, split_of_file
from classwise.data.images import Images

_ENDING = "_32x32.mat"
_SPLITS = ("train", "test", "extra")


@configurable
class Mat(Format):
    """A file of SVHN's cropped digits (``test_32x32.mat``), or their folder.

    ``X`` is (H, W, 3, N) uint8, ``y`` is (N, 1). The digit 0 has the label 10 in the files and 0 here.
    """

    def accepts(self, path: Path) -> bool:
        """Whether the path is a .mat file, or a folder with a file of SVHN."""
        if path.is_dir():
            return any((path / f"{split}{_ENDING}").is_file() for split in _SPLITS)
        return path.suffix == ".mat" and path.is_file()

    def read(self, path: Path, split: str) -> Images:
        """Read one file.

        Raises:
            ClasswiseError: if the file is missing, truncated, or has other arrays.
        """
        file = path / f"{split}{_ENDING}" if path.is_dir() else path
        if not file.is_file():
            raise ClasswiseError(f"{path} has no split {split!r}: there is no {file.name}")
        arrays = _arrays(file)
        x, y = arrays.get("X"), arrays.get("y")
        if x is None or x.ndim != 4 or x.dtype != np.uint8:
            raise ClasswiseError(f"{file}: 'X' must be a uint8 array of shape (H, W, channels, N)")
        if y is None or y.size != x.shape[3] or y.dtype.kind not in "iuf":
            raise ClasswiseError(f"{file}: 'y' must contain {x.shape[3]} labels, one per image")
        if not (np.isfinite(y).all() and (np.abs(y) < 2**31).all() and (y == np.round(y)).all()):
            raise ClasswiseError(f"{file}: 'y' must contain integers")
        labels = y.ravel().astype(np.int64)
        labels[labels == 10] = 0
        classes = max(9, int(labels.max(initial=0))) + 1
        limits.check_classes(classes, len(labels), str(file))
        names = [str(number) for number in range(classes)]
        pixels = torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1)))
        return Images(pixels, labels, names, name=path.stem, split=split if path.is_dir() else split_of_file(file))


def _arrays(file: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of the file, which cannot contain code."""
    from scipy.io import loadmat

    try:
        with file.open("rb") as source:
            _check_headers(source, file)
            source.seek(0)
            content = loadmat(source, variable_names=["X", "y"])  # type: ignore[arg-type]  # it reads open files
    except ClasswiseError:
        raise
    except NotImplementedError as error:
        raise ClasswiseError(f"{file} is a MATLAB 7.3 file; save it with -v7, or use the official one") from error
    except Exception as error:  # scipy raises many types of exceptions for truncated files
        raise ClasswiseError(
            f"{file} is truncated or not a MATLAB file ({type(error).__name__}); download it again"
        ) from error
    return {key: value for key, value in content.items() if isinstance(value, np.ndarray)}


_COMPRESSED, _MATRIX = 15, 14
_HEAD = 4096
"""Number of bytes that contain the type, shape and name of an array and the length of its values."""


def _check_headers(source: IO[bytes], file: Path) -> None:
    """Check the arrays of a version 5 file before scipy allocates memory: numeric, and not larger than the memory.

    The file is a sequence of elements, each with 8 bytes of type and length; a compressed element contains another.

    Raises:
        ClasswiseError: if an array is not numeric, or too large.
        NotImplementedError: for version 7.3.
        ValueError: if the file is truncated, or its version is unknown.
    """
    head = source.read(128)
    if head[124:128] not in (b"\0\1IM", b"\1\0MI", b"\0\2IM", b"\2\0MI"):
        raise ValueError
    order = "<" if head[126:] == b"IM" else ">"
    if head[124:126] in (b"\0\2", b"\2\0"):
        raise NotImplementedError
    size = file.stat().st_size
    while len(tag := source.read(8)) == 8:
        kind, length = struct.unpack(f"{order}II", tag)
        start = source.tell()
        if length > size - start:
            raise ValueError
        content = source.read(min(length, _HEAD))
        if kind == _COMPRESSED:
            content = zlib.decompressobj().decompress(content, _HEAD)
            kind = struct.unpack_from(f"{order}I", content)[0]
            content = content[8:]
        if kind == _MATRIX:
            limits.check_size(_array_bytes(content, order, file), str(file), length)
        source.seek(start + length)


def _array_bytes(content: bytes, order: str, file: Path) -> int:
    """Size of an array's values in bytes, from the beginning of its element: flags, shape, name, values."""
    flags = struct.unpack_from(f"{order}I", content, 8)[0]
    if flags & 0xFF not in (4, *range(6, 16)) or flags & 0x800:  # char and numeric; bit 11: complex
        raise ClasswiseError(
            f"{file} has an array that is not of real numbers or text; the files of SVHN have only 'X' and 'y'"
        )
    at = 16
    lengths: list[int] = []
    for _ in range(3):  # shape, name, values: each has a tag, which includes short values
        word, length = struct.unpack_from(f"{order}II", content, at)
        if word >> 16:
            length, at = word >> 16, at + 8
        else:
            at += 8 + length + -length % 8
        lengths.append(length)
    return lengths[2]
