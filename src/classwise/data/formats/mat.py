"""MATLAB files in the form of SVHN's cropped digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from classwise.data.formats.base import Format, split_of_file
from classwise.data.images import Images
from classwise.errors import UserError
from classwise.settings import settings

_ENDING = "_32x32.mat"
_SPLITS = ("train", "test", "extra")


@settings
class Mat(Format):
    """One of SVHN's files of cropped digits (``test_32x32.mat``), or the folder that holds them.

    ``X`` is (H, W, 3, N) uint8, ``y`` is (N, 1). The digit 0 has the label 10 in the files and 0 here.
    """

    def accepts(self, path: Path) -> bool:
        """A file with the suffix .mat, or a folder with a file of SVHN's names."""
        if path.is_dir():
            return any((path / f"{split}{_ENDING}").is_file() for split in _SPLITS)
        return path.suffix == ".mat" and path.is_file()

    def read(self, path: Path, split: str) -> Images:
        """Read one file.

        Raises:
            UserError: naming the file, if it is missing or truncated, or its arrays are not SVHN's.
        """
        file = path / f"{split}{_ENDING}" if path.is_dir() else path
        if not file.is_file():
            raise UserError(f"{path} has no split {split!r}: there is no {file.name}")
        arrays = _arrays(file)
        x, y = arrays.get("X"), arrays.get("y")
        if x is None or x.ndim != 4 or x.dtype != np.uint8:
            raise UserError(f"{file}: 'X' should be a uint8 array of shape (H, W, channels, N)")
        if y is None or y.size != x.shape[3] or y.dtype.kind not in "iuf":
            raise UserError(f"{file}: 'y' should hold {x.shape[3]} labels, one per image")
        labels = y.ravel().astype(np.int64)
        labels[labels == 10] = 0
        names = [str(number) for number in range(max(9, int(labels.max(initial=0))) + 1)]
        pixels = torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1)))
        return Images(pixels, labels, names, name=path.stem, split=split if path.is_dir() else split_of_file(file))


def _arrays(file: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of the file; it cannot hold code."""
    from scipy.io import loadmat

    try:
        with file.open("rb") as source:
            content = loadmat(source, variable_names=["X", "y"])  # type: ignore[arg-type]  # it reads open files
    except NotImplementedError as error:
        raise UserError(f"{file} is a MATLAB 7.3 file; save it with -v7, or get the official one") from error
    except Exception as error:  # scipy's reader has no error of its own: a cut file fails in many ways
        raise UserError(f"{file} is truncated or no MATLAB file ({type(error).__name__}); get it again") from error
    return {key: value for key, value in content.items() if isinstance(value, np.ndarray)}
