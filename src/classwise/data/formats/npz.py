"""NumPy .npz archives of images and labels."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from classwise.core.errors import ClasswiseError
from classwise.core.settings import limits
from classwise.core.settings.config import configurable
from classwise.data.formats.base import Format, decoded, split_of_file
from classwise.data.image_names import text_of
from classwise.data.images import Images
from classwise.data.labels import Classes, encode_labels, in_order, log_empty_classes
from classwise.data.layout import channels_first

_IMAGES = ("x", "images", "data")
_LABELS = ("y", "labels", "targets")
_IMAGE_NAMES = ("file_names", "names", "ids")
_MEMBERS = 10_000
_NAME = 256
"""Maximum length of a class name."""
_DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    SyntaxError,
    RuntimeError,  # zipfile's for encrypted members
    NotImplementedError,
    OverflowError,
    MemoryError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""Exceptions of zipfile and numpy for invalid archives and headers."""


@configurable
class Npz(Format):
    """An archive with images (``x``, ``images`` or ``data``) and labels (``y``, ``labels`` or ``targets``).

    If a file has both splits, the keys end in the split (``x_train``, ``y_test``). Images are (N, H, W, C),
    (N, C, H, W) or (N, H, W), uint8 or float in [0, 1]. Labels are integers or text. An array ``class_names`` of
    strings is optional, as are the names of the images: ``file_names``, ``names`` or ``ids``, text or integers (N,).

    Attributes:
        classes: the label of each class in the order of the model's logits, for text or integers that are not
            0, 1, 2, ...; the classes of text are by default the class names, or its distinct values in all splits, in
            ascending order.
    """

    classes: Classes | None = None

    def accepts(self, path: Path) -> bool:
        """Whether the path is a .npz file."""
        return path.suffix == ".npz" and path.is_file()

    def read(self, path: Path, split: str) -> Images:
        """Read the arrays of one split.

        Raises:
            ClasswiseError: if the file is truncated, has pickled objects, or lacks a key.
        """
        try:
            # Opened here, because numpy does not close the file of a damaged archive.
            with path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as archive:
                _check_members(archive, path)
                x = _pick(archive, _IMAGES, split, path)
                by_split = any(f"{key}_{split}" in archive for key in _IMAGES)
                y = _pick(archive, _LABELS, split, path)
                files = _image_names(archive, x.shape[:1], split, path)
                names = _class_names(archive, path) if "class_names" in archive else None
                keys = [key for key in archive if by_split and key.rpartition("_")[0] in _LABELS]
                every = y  # the labels of all splits, from which the first one is known
                if names is not None and keys and y.dtype.kind in "iu":
                    every = np.concatenate([_array(archive, key, path).ravel() for key in keys])
                if names is None and by_split and y.dtype.kind in "US" and self.classes is None:
                    names = sorted(
                        {decoded(label) for key in keys for label in np.unique(_array(archive, key, path)).tolist()}
                    )
        except ClasswiseError:
            raise
        except _DAMAGED as error:
            raise ClasswiseError(f"{path} is truncated or not a .npz file of plain arrays: {error}") from error
        is_text, classes = y.dtype.kind in "US", self.classes
        if names is not None and classes is not None:  # of text, the labels are the names
            if is_text:
                names = None
            else:
                classes, names = in_order(classes, names, every, str(path))
        elif names is not None and every.dtype.kind in "iu" and every.size and every.max() >= len(names):
            found = every.min(), every.max()
            advice = "give classes={}..{}".format(*found)
            raise ClasswiseError(f"{path}: labels {found[0]} to {found[1]}, and {len(names)} class names; {advice}")
        y, labels = encode_labels(y, classes or (names if is_text else None), f"{path}, labels")
        if labels is not None:
            log_empty_classes(labels, np.bincount(y, minlength=len(labels)).tolist(), str(path))
        return Images(
            channels_first(x, str(path)),
            y,
            names or labels,
            name=path.stem,
            split=split if by_split else split_of_file(path),
            image_names=files,
        )


def _check_members(archive: np.lib.npyio.NpzFile, path: Path) -> None:
    if archive.zip is None or len(archive.files) > _MEMBERS:
        raise ClasswiseError(f"{path} has {len(archive.files)} arrays; at most {_MEMBERS} are supported")


def _pick(archive: Any, keys: tuple[str, ...], split: str, path: Path) -> np.ndarray[Any, Any]:
    for key in (*(f"{key}_{split}" for key in keys), *keys):
        if key in archive:
            return _array(archive, key, path)
    raise ClasswiseError(
        f"{path} has none of the keys {', '.join(keys)} (or {keys[0]}_{split}); it has: {', '.join(archive)}"
    )


def _array(archive: Any, key: str, path: Path) -> np.ndarray[Any, Any]:
    """Read one array after checks of its header: plain numbers or text, and a size that matches member and memory."""
    info = archive.zip.getinfo(key if key in archive.zip.namelist() else f"{key}.npy")
    where = f"{path}, array {key!r}"
    if info.flag_bits & 1:
        raise ClasswiseError(f"{where} is encrypted; store it without a password")
    with archive.zip.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version not in ((1, 0), (2, 0)):
            raise ClasswiseError(f"{where} has .npy version {version}; 1.0 and 2.0 are supported")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
        start = member.tell()
    if dtype.hasobject:
        raise ValueError(f"array {key!r} has pickled objects, which could execute code")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size != info.file_size - start:
        raise ClasswiseError(f"{where}: {info.file_size - start} bytes do not match the header, {shape} of {dtype}")
    limits.check_size(size, where, info.compress_size)
    array: np.ndarray[Any, Any] = archive[key]
    return array


def _image_names(archive: Any, shape: tuple[int, ...], split: str, path: Path) -> list[str] | None:
    """The names of the images: the first array of such a key and this shape (N,) of text or integers."""
    for key in (*(f"{key}_{split}" for key in _IMAGE_NAMES), *_IMAGE_NAMES):
        if key not in archive:
            continue
        try:
            names = _array(archive, key, path)
        except ValueError:  # an array of pickled objects is no list of names, and is not read
            continue
        if names.shape == shape and names.dtype.kind in "USiu" and names.dtype.itemsize <= 4 * limits.IMAGE_NAME:
            return [text_of(name) for name in names.tolist()]
    return None


def _class_names(archive: Any, path: Path) -> list[str]:
    """The class names, an array of strings (N,)."""
    names = _array(archive, "class_names", path)
    if names.ndim != 1 or names.dtype.kind not in "US" or names.dtype.itemsize > 4 * _NAME:
        raise ClasswiseError(
            f"{path}: 'class_names' is {names.dtype} {names.shape}, expected strings (N,) of at most {_NAME} characters"
        )
    return [decoded(name) for name in names.tolist()]
