"""Decoding of image files (JPEG, PNG, WebP, ...)."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

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
"""Exceptions of Pillow's readers for damaged images."""
KINDS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Supported image formats; other formats of Pillow may start external programs."""


def decode(content: bytes | Path, where: str, size: int | None = None, resize: int | None = None) -> Pixels:
    """Decode an image.

    Args:
        content: the encoded bytes, or a file.
        where: description of the image for error messages.
        size: resize the shorter side to this (bilinear) and crop the central square.
        resize: with ``size``, resize the shorter side to this before the crop.

    Returns:
        Pixels, uint8, (H, W) for a grayscale image, else (H, W, 3). Transparency is discarded.

    Raises:
        ClasswiseError: if the image is damaged, has not 8 bits per channel, or is too large.
    """
    try:
        with _opened(content) as image:
            _check_pixels(*image.size, where)
            image.load()
            return pixels_of(image, where, size, resize)
    except ClasswiseError:
        raise
    except _DAMAGED as error:
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else str(error)
        raise ClasswiseError(f"{where} cannot be decoded: {reason}") from error


class Header(NamedTuple):
    """What the header of an encoded image states.

    Attributes:
        width: in pixels.
        height: in pixels.
        coloured: whether `decode` returns three channels.
    """

    width: int
    height: int
    coloured: bool


def header_of(content: bytes | Path, where: str) -> Header:
    """Read the header of an encoded image.

    Args:
        content: the encoded bytes, or a file.
        where: description of the image for error messages.

    Raises:
        ClasswiseError: if it is not an image.
    """
    try:
        with _opened(content) as image:
            return Header(*image.size, image.mode not in _GREY)
    except _DAMAGED as error:
        raise ClasswiseError(f"{where} cannot be decoded: not an image") from error


@contextmanager
def _opened(content: bytes | Path) -> Iterator[Image.Image]:
    """Open an image and read its header; `_check_pixels` replaces Pillow's warning about its size."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        image = Image.open(io.BytesIO(content) if isinstance(content, bytes) else content, formats=KINDS)
    with image:
        yield image


def _check_pixels(width: int, height: int, where: str) -> None:
    if width * height > limits.IMAGE_PIXELS:
        raise ClasswiseError(f"{where}: {width} x {height} pixels; at most {limits.IMAGE_PIXELS:,} are supported")


def pixels_of(image: Image.Image, where: str, size: int | None = None, resize: int | None = None) -> Pixels:
    """The pixels of an open image, as returned by `decode`, which has the same arguments.

    Raises:
        ClasswiseError: if the image has not 8 bits per channel, or ``resize`` is smaller than ``size``.
    """
    if resize is not None and not (size and size <= resize):
        raise ClasswiseError(f"resize = {resize} with size = {size}: give a size of at most {resize}")
    plain = _plain(image, where)
    return np.asarray(plain if size is None else _square(plain, size, resize or size))


def _plain(image: Image.Image, where: str) -> Image.Image:
    """The image converted to grayscale or RGB."""
    if image.mode[0] in "IF":
        raise ClasswiseError(
            f"{where}: pixels of mode {image.mode} are not supported; save the image with 8 bits per channel"
        )
    mode = "L" if image.mode in _GREY else "RGB"
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns about a direct conversion to RGB
    return image if image.mode == mode else image.convert(mode)


def _square(image: Image.Image, size: int, shorter: int) -> Image.Image:
    width, height = image.size
    scale = shorter / min(width, height)
    new = (max(shorter, round(width * scale)), max(shorter, round(height * scale)))
    _check_pixels(*new, f"scaled to size = {size}")
    left, top = (new[0] - size) // 2, (new[1] - size) // 2
    return image.resize(new, Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))


def stack(images: Iterable[tuple[str, Pixels]]) -> Tensor:
    """Stack decoded images into one tensor.

    Args:
        images: pairs of a description for error messages and the pixels. Grayscale images are converted to RGB if
            any image has colours.

    Returns:
        Images (N, C, H, W), uint8, with C = 1 if all images are grayscale, else 3.

    Raises:
        ClasswiseError: if the sizes differ, or the images exceed the memory.
    """
    arrays: list[Pixels] = []
    total, checked = 0, 0
    for where, pixels in images:
        total += pixels.nbytes
        if total - checked > limits.FREE_BYTES:
            # The arrays are in memory already; the tensor needs the same amount again.
            limits.check_size(total, f"the images up to {where}")
            checked = total
        if arrays and pixels.shape[:2] != arrays[0].shape[:2]:
            raise size_differs(where, pixels.shape, arrays[0].shape)
        arrays.append(pixels)
    coloured = any(pixels.ndim == 3 for pixels in arrays)
    height, width = arrays[0].shape[:2]
    result = np.empty((len(arrays), 3 if coloured else 1, height, width), np.uint8)
    for row, pixels in enumerate(arrays):
        result[row] = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels
    return torch.from_numpy(result)


def size_differs(where: str, shape: Sequence[int], first: Sequence[int]) -> ClasswiseError:
    """The error for an image whose shape (H, W, ...) differs from that of the first image."""
    return ClasswiseError(
        f"{where} is {shape[1]}x{shape[0]} and the first image {first[1]}x{first[0]} (width x height); "
        "resize the images, or use size=64 (--data-set size=64) to resize and crop all of them"
    )
