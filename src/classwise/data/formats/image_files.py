"""Encoded pictures (JPEG, PNG, WebP, ...) to pixels."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from classwise.core import limits
from classwise.core.errors import ClasswiseError

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

_GREY = ("1", "L", "LA", "La")
_DAMAGED = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    OverflowError,
    TypeError,
    IndexError,
    KeyError,
    MemoryError,
    RuntimeError,
    NotImplementedError,
    AttributeError,
    zlib.error,
    struct.error,
    Image.DecompressionBombError,
)
"""What Pillow's readers raise for damaged pictures; each has its own."""
KINDS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The kinds of pictures that are read; Pillow knows more, some of which start programs."""


def decode(content: bytes | Path, where: str, size: int | None = None, resize: int | None = None) -> Pixels:
    """Decode one picture.

    Args:
        content: the encoded bytes, or the file that holds them.
        where: names the picture in an error.
        size: if given, the shorter side is scaled to it (bilinear) and the middle square is cut out.
        resize: if given, the shorter side is scaled to this instead; the square of ``size`` is cut out as before.

    Returns:
        uint8, (H, W) for a grey picture, else (H, W, 3). Transparency is dropped.

    Raises:
        ClasswiseError: if the bytes are not a whole picture with 8 bits a channel, or the square is larger than the
            picture.
    """
    if resize is not None and not (size and size <= resize):
        raise ClasswiseError(f"resize = {resize} needs a size of at most that, such as size = {resize}; it is {size}")
    try:
        with _opened(content) as picture:
            _check_pixels(*picture.size, where)
            picture.load()
            plain = _plain(picture, where)
            return np.asarray(plain if size is None else _square(plain, size, resize or size))
    except _DAMAGED as error:
        reason = "it is no picture" if isinstance(error, UnidentifiedImageError) else str(error)
        raise ClasswiseError(f"{where} cannot be decoded: {reason}") from error


@contextmanager
def _opened(content: bytes | Path) -> Iterator[Image.Image]:
    """The picture, its header read and no more; a size that Pillow warns of is for `_check_pixels`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        picture = Image.open(io.BytesIO(content) if isinstance(content, bytes) else content, formats=KINDS)
    with picture:
        yield picture


def _check_pixels(width: int, height: int, where: str) -> None:
    if width * height > limits.IMAGE_PIXELS:
        raise ClasswiseError(f"{where}: {width} x {height} pixels; at most {limits.IMAGE_PIXELS:,} are decoded")


def pixels_of(picture: Image.Image, where: str) -> Pixels:
    """The pixels of an open picture, as `decode` gives them.

    Raises:
        ClasswiseError: if it has not 8 bits a channel.
    """
    return np.asarray(_plain(picture, where))


def _plain(picture: Image.Image, where: str) -> Image.Image:
    """The picture as grey or RGB."""
    if picture.mode[0] in "IF":
        raise ClasswiseError(
            f"{where}: pixels of mode {picture.mode} are not read; save the picture with 8 bits a channel"
        )
    wanted = "L" if picture.mode in _GREY else "RGB"
    if picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")  # Pillow warns if asked for RGB at once
    return picture if picture.mode == wanted else picture.convert(wanted)


def _square(picture: Image.Image, size: int, shorter: int) -> Image.Image:
    width, height = picture.size
    scale = shorter / min(width, height)
    new = (max(shorter, round(width * scale)), max(shorter, round(height * scale)))
    _check_pixels(*new, f"scaled to size = {size}")
    left, top = (new[0] - size) // 2, (new[1] - size) // 2
    return picture.resize(new, Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))


def stack(pictures: Iterable[tuple[str, Pixels]]) -> Tensor:
    """Put decoded pictures into one tensor.

    Args:
        pictures: pairs of a name for errors and the pixels. Grey ones among coloured ones become grey RGB.

    Returns:
        (N, C, H, W) uint8, C = 1 if every picture is grey, else 3.

    Raises:
        ClasswiseError: if two pictures differ in size.
    """
    arrays: list[Pixels] = []
    held, checked = 0, 0
    for where, pixels in pictures:
        held += pixels.nbytes
        if held - checked > limits.FREE_BYTES:
            # What is held already is not free any more; the tensor will take as much again.
            limits.check_size(held, f"the pictures up to {where}")
            checked = held
        if arrays and pixels.shape[:2] != arrays[0].shape[:2]:
            here, first = ("x".join(str(side) for side in array.shape[1::-1]) for array in (pixels, arrays[0]))
            raise ClasswiseError(
                f"{where} is {here} and the first image {first} (width x height); "
                "resize them, or give size=64 (--data-set size=64) to cut all to that square"
            )
        arrays.append(pixels)
    coloured = any(pixels.ndim == 3 for pixels in arrays)
    height, width = arrays[0].shape[:2]
    result = np.empty((len(arrays), 3 if coloured else 1, height, width), np.uint8)
    for row, pixels in enumerate(arrays):
        result[row] = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels
    return torch.from_numpy(result)
