"""Decoding of image files (JPEG, PNG, WebP, ...)."""

from __future__ import annotations

import io
import logging
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from classwise.core.errors import ClasswiseError
from classwise.core.settings import limits
from classwise.core.settings.thread_warnings import warnings_filtered

logger = logging.getLogger(__name__)

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Source = bytes | Path | Image.Image
"""Encoded bytes, a file, or a Pillow image."""

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
_METHODS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What displays an image of each EXIF orientation but 1 (CIPA DC-008, tag 274)."""


class Decoder:
    """A function that decodes the images of one data set, rotated as a viewer displays them.

    An EXIF orientation (tag 274, or in XMP) is applied, as in Hugging Face `datasets`; one that is invalid is ignored.
    The first image with an orientation other than 1 is logged.
    """

    def __init__(self, size: int | None = None, resize: int | None = None) -> None:
        """Set the size.

        Args:
            size: resize the shorter side to this (bilinear) and crop the central square.
            resize: with ``size``, resize the shorter side to this before the crop.

        Raises:
            ClasswiseError: if ``resize`` is smaller than ``size``.
        """
        if resize is not None and not (size and size <= resize):
            raise ClasswiseError(f"resize = {resize} with size = {size}: give a size of at most {resize}")
        self._size, self._resize = size, resize
        self._logged = False
        self._lock = threading.Lock()

    def __call__(self, source: Source, where: str) -> Pixels:
        """Decode an image.

        Args:
            source: the encoded bytes, a file, or a Pillow image, which keeps its pixels.
            where: description of the image for error messages.

        Returns:
            Pixels, uint8, (H, W) for a grayscale image, else (H, W, 3). Transparency is discarded.

        Raises:
            ClasswiseError: if the image is damaged, has not 8 bits per channel, or is too large.
        """
        with _opened(source, where) as image:
            displayed, orientation = _displayed(image, where)
            if orientation != 1:
                self._log(where, orientation)
            plain = _plain(displayed, where)
            return np.asarray(plain if self._size is None else _square(plain, self._size, self._resize or self._size))

    def _log(self, where: str, orientation: int) -> None:
        with self._lock:
            first, self._logged = not self._logged, True
        if first:
            logger.warning(
                "%s has EXIF orientation %d; orientations are applied, as in Hugging Face datasets", where, orientation
            )


def size_of(source: Source, where: str) -> tuple[int, int]:
    """Width and height of an image as displayed, from all of its content: the orientation may follow the pixels.

    Raises:
        ClasswiseError: as `Decoder`.
    """
    with _opened(source, where) as image:
        return _displayed(image, where)[0].size


def is_coloured(source: Source, where: str) -> bool:
    """Whether a `Decoder` returns three channels for an image, from its header.

    Raises:
        ClasswiseError: if it is not an image.
    """
    with _opened(source, where) as image:
        return image.mode not in _GREY


@contextmanager
def _opened(source: Source, where: str) -> Iterator[Image.Image]:
    """Open an image and read its header; errors of Pillow become `ClasswiseError`."""
    try:
        if isinstance(source, Image.Image):
            yield source
            return
        with _without_warnings():
            image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=KINDS)
        with image:
            yield image
    except ClasswiseError:
        raise
    except _DAMAGED as error:
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else str(error)
        raise ClasswiseError(f"{where} cannot be decoded: {reason}") from error


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings of sizes, which `_check_pixels` replaces, and of damaged EXIF data."""
    with (
        warnings_filtered("ignore", category=Image.DecompressionBombWarning),
        warnings_filtered("ignore", category=UserWarning),
    ):
        yield


def _displayed(image: Image.Image, where: str) -> tuple[Image.Image, int]:
    """The image as displayed, and the orientation that was applied."""
    _check_pixels(*image.size, where)
    if image.format == "TIFF":
        orientation = _orientation(image)
        with _without_warnings():
            image.load()  # Pillow applies the orientation and removes it
        return image, orientation
    image.load()
    orientation = _orientation(image)
    method = _METHODS.get(orientation)
    return image if method is None else image.transpose(method), orientation


def _orientation(image: Image.Image) -> int:
    """The orientation in the EXIF or XMP data, 1 to 8; 1 without one, or if it is invalid."""
    if image.format != "TIFF" and not any(kind in str(key).lower() for key in image.info for kind in ("exif", "xmp")):
        return 1
    try:
        with _without_warnings():
            value = image.getexif().get(ExifTags.Base.Orientation, 1)
            return int(value) if value in _METHODS else 1
    except _DAMAGED:
        return 1


def _check_pixels(width: int, height: int, where: str) -> None:
    if width * height > limits.IMAGE_PIXELS:
        raise ClasswiseError(f"{where}: {width} x {height} pixels; at most {limits.IMAGE_PIXELS:,} are supported")


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
