"""The idx format of MNIST and similar data sets, optionally gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import torch

from classwise.core.errors import ClasswiseError
from classwise.core.files.reading import check_regular
from classwise.core.settings import limits
from classwise.core.settings.config import configurable
from classwise.data.formats.base import Format, begins_with, split_of_file
from classwise.data.images import Images

_UINT8 = 0x08
_PREFIX = {"train": "train", "test": "t10k"}
_SUFFIXES = tuple(f"{dot}idx{{rank}}-ubyte{zipped}" for dot in ("-", ".") for zipped in ("", ".gz"))


def read_idx(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Read an idx file of unsigned bytes.

    Layout: two zero bytes, the type (8: unsigned byte), the number of dimensions, each dimension as a big-endian
    uint32, the values.

    Raises:
        ClasswiseError: if the file is missing, truncated, or of another type.
    """
    try:
        with _opened(path) as file:
            shape = _shape(file, path)
            expected = math.prod(shape)
            stored = path.stat().st_size
            zipped = isinstance(file, gzip.GzipFile)
            if zipped:
                limits.check_size(expected, str(path), stored)
            content = file.read(expected if zipped else min(expected, stored))
            extra = len(file.read(1 << 20)) if len(content) == expected else 0
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ClasswiseError(f"{path} is truncated or damaged: {error}; download the file again") from error
    except OSError as error:
        raise ClasswiseError(f"cannot read {path}: {error.strerror}") from error
    if len(content) != expected or extra:
        fault = "too long" if extra else "truncated"
        raise ClasswiseError(
            f"{path} is {fault}: {len(content) + extra} values, expected {expected} for the shape {shape}; "
            "download the file again"
        )
    return np.frombuffer(bytearray(content), np.uint8).reshape(shape)


def _opened(path: Path) -> gzip.GzipFile | BufferedReader:
    """Open the file; gzip is decompressed while reading."""
    check_regular(path)
    return gzip.open(path) if begins_with(path, b"\x1f\x8b") else path.open("rb")


def _shape(file: gzip.GzipFile | BufferedReader, path: Path) -> tuple[int, ...]:
    """The dimensions in the header."""
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0":
        raise ClasswiseError(f"{path} is not an idx file: it must begin with two zero bytes")
    kind, rank = head[2], head[3]
    if kind != _UINT8:
        raise ClasswiseError(f"{path}: idx type 0x{kind:02x} is not supported, only unsigned bytes (0x08)")
    if rank > 3:
        raise ClasswiseError(f"{path}: {rank} dimensions, expected 3 for images or 1 for labels")
    sides = file.read(4 * rank)
    if len(sides) < 4 * rank:
        raise ClasswiseError(f"{path} is truncated in its header; download the file again")
    return struct.unpack(f">{rank}I", sides)


def find_pair(folder: Path, split: str) -> tuple[Path, Path] | None:
    """The image and label files of a split, by MNIST's file names; None if one is missing."""
    prefix = _PREFIX.get(split, split)
    images, labels = (
        next(
            (path for suffix in _SUFFIXES if (path := folder / f"{prefix}-{what}{suffix.format(rank=rank)}").is_file()),
            None,
        )
        for what, rank in (("images", 3), ("labels", 1))
    )
    return None if images is None or labels is None else (images, labels)


@configurable
class Idx(Format):
    """A folder with the four files of MNIST, or the image file of one split with its label file beside it."""

    def accepts(self, path: Path) -> bool:
        """Whether the path is a folder with the files of a split, or an image file by its name or first bytes."""
        if path.is_dir():
            return any(find_pair(path, split) for split in _PREFIX)
        return "idx3-ubyte" in path.name or begins_with(path, b"\0\0\x08\x03")

    def read(self, path: Path, split: str) -> Images:
        """Read images and labels.

        Raises:
            ClasswiseError: if a file is missing or invalid.
        """
        if path.is_dir():
            pair = find_pair(path, split)
            if pair is None:
                name = f"{_PREFIX.get(split, split)}-images-idx3-ubyte"
                raise ClasswiseError(
                    f"{path} has no idx files of the split {split!r}; expected {name} and its label file"
                )
        else:
            pair = path, path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
            if pair[0] == pair[1] or not pair[1].is_file():
                raise ClasswiseError(
                    f"{path}: missing label file {pair[1].name.replace('idx3', 'idx1')} in the same folder"
                )
        pixels, labels = (read_idx(file) for file in pair)
        if pixels.ndim != 3 or labels.ndim != 1 or len(pixels) != len(labels):
            raise ClasswiseError(
                f"{pair[0]} and {pair[1].name}: shapes {pixels.shape} and {labels.shape}, expected (N, H, W) and (N,)"
            )
        return Images(
            torch.from_numpy(pixels)[:, None],
            torch.from_numpy(labels),
            name=path.name.split(".")[0],
            split=split if path.is_dir() else split_of_file(path),
        )
