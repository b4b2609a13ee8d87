"""The binary files of STL-10, which have no header."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import configurable
from classwise.data.formats.base import Format, read_bytes, words_of
from classwise.data.images import Images

SIDE = 96
_BYTES = 3 * SIDE * SIDE


@configurable
class Stl10Binary(Format):
    """The folder ``stl10_binary``, or an image file (``test_X.bin``) with its label file (``test_y.bin``) beside it.

    The files store each image by channels and each channel by columns. Labels begin at 1 in the files and at 0 here.
    """

    def accepts(self, path: Path) -> bool:
        """Whether the path is a folder with an image file, or an image file."""
        if path.is_dir():
            return any((path / f"{split}_X.bin").is_file() for split in ("train", "test"))
        return path.name.endswith("_X.bin") and path.is_file()

    def read(self, path: Path, split: str) -> Images:
        """Read the images and labels of a split.

        Raises:
            ClasswiseError: if a file is missing or has the wrong length, or the numbers of images and labels differ.
        """
        folder, part = (path, split) if path.is_dir() else (path.parent, path.name.removesuffix("_X.bin"))
        images = folder / f"{part}_X.bin"
        if not images.is_file():
            raise ClasswiseError(f"{folder} has no split {part!r}: there is no {images.name}")
        pixels = read_bytes(images)
        if pixels.size == 0 or pixels.size % _BYTES:
            raise ClasswiseError(
                f"{images} is truncated: {pixels.size} bytes, expected a multiple of {_BYTES}; download it again"
            )
        labels = read_bytes(folder / f"{part}_y.bin").astype(np.int64) - 1
        count = pixels.size // _BYTES
        if labels.size != count:
            raise ClasswiseError(
                f"{folder / f'{part}_y.bin'} has {labels.size} labels for {count} images; download both again"
            )
        x = torch.from_numpy(pixels.reshape(count, 3, SIDE, SIDE)).transpose(2, 3).contiguous()
        return Images(x, labels, words_of(folder / "class_names.txt"), name=path.stem, split=part)
