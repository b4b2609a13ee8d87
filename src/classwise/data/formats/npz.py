"""NumPy's .npz archives of images and labels."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from classwise.data.formats.base import Format, split_of_file
from classwise.data.images import Images
from classwise.data.layout import channels_first
from classwise.errors import UserError
from classwise.settings import settings

_IMAGES = ("x", "images", "data")
_LABELS = ("y", "labels", "targets")


@settings
class Npz(Format):
    """An archive with images (``x``, ``images`` or ``data``) and labels (``y``, ``labels`` or ``targets``).

    With both splits in one file the keys end in the split (``x_train``, ``y_test``). Images are (N, H, W, C),
    (N, C, H, W) or (N, H, W), uint8 or float in [0, 1]. An array ``class_names`` of text is taken if there.
    """

    def accepts(self, path: Path) -> bool:
        """A file with the suffix .npz."""
        return path.suffix == ".npz" and path.is_file()

    def read(self, path: Path, split: str) -> Images:
        """Read the arrays of one split.

        Raises:
            UserError: naming the file, if it is truncated, holds pickled objects, or lacks a key.
        """
        try:
            # Opened here: numpy would leave the file of a broken archive open.
            with path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as archive:
                x = _pick(archive, _IMAGES, split, path)
                by_split = any(f"{key}_{split}" in archive for key in _IMAGES)
                y = _pick(archive, _LABELS, split, path)
                names = [str(name) for name in archive["class_names"]] if "class_names" in archive else None
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"{path} is not a whole .npz of plain arrays: {error}") from error
        return Images(
            channels_first(x, str(path)), y, names, name=path.stem, split=split if by_split else split_of_file(path)
        )


def _pick(archive: Any, keys: tuple[str, ...], split: str, path: Path) -> np.ndarray[Any, Any]:
    for key in (*(f"{key}_{split}" for key in keys), *keys):
        if key in archive:
            found: np.ndarray[Any, Any] = archive[key]
            return found
    raise UserError(
        f"{path} has none of the keys {', '.join(keys)} (or {keys[0]}_{split}); it has: {', '.join(archive)}"
    )
