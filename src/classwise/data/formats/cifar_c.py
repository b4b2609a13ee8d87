"""CIFAR-10-C and CIFAR-100-C: corrupted test images in NumPy's .npy files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.files.reading import check_regular
from classwise.core.settings import limits
from classwise.core.settings.config import configurable
from classwise.data.corruptions.base import SEVERITIES, Severity
from classwise.data.formats.base import Format, visible
from classwise.data.images import Column, Images
from classwise.data.layout import channels_first

_LABELS = "labels.npy"


@configurable
class CifarC(Format):
    """The folder ``CIFAR-10-C`` (Hendrycks and Dietterich 2019), or the file of one corruption (``fog.npy``).

    A file contains the test images at five severities, one block per severity; ``labels.npy`` contains their labels.
    The ``index`` of an image is that in the original test set; the column ``severity`` is the severity.

    Attributes:
        corruption: name of the corruption, for a folder.
        severity: 1 to 5; by default all.
    """

    corruption: str | None = None
    severity: Severity | None = None

    def accepts(self, path: Path) -> bool:
        """Whether the path is a folder with ``labels.npy`` and other .npy files, or one of these files."""
        if path.is_dir():
            return (path / _LABELS).is_file() and bool(corruptions(path))
        return path.suffix == ".npy" and path.name != _LABELS and (path.parent / _LABELS).is_file()

    def read(self, path: Path, split: str) -> Images:
        """Read one corruption, memory-mapped, so that only the images of the severity are read.

        Raises:
            ClasswiseError: for an unknown corruption, or images and labels that do not match.
        """
        if split != "test":
            raise ClasswiseError(f"{path} has no split {split!r}; it has test only")
        file = path
        if path.is_dir():
            known = corruptions(path)
            if self.corruption is None:
                raise ClasswiseError(
                    f"{path} has {len(known)} corruptions; give corruption (--data-set corruption=NAME), one of: "
                    f"{', '.join(known)}"
                )
            if self.corruption not in known:
                raise unknown("corruption", self.corruption, known)
            file = path / f"{self.corruption}.npy"
        x, y = read_array(file), read_array(file.parent / _LABELS)
        if x.ndim != 4 or x.dtype != np.uint8 or not len(x) or len(x) % len(SEVERITIES):
            raise ClasswiseError(f"{file}: array of {x.dtype} {x.shape}, expected uint8 (5 N, H, W, channels)")
        count = len(x) // len(SEVERITIES)
        if y.ndim == 0 or len(y) not in (count, len(x)):
            raise ClasswiseError(
                f"{file.parent / _LABELS} has {y.size} labels for {len(x)} images of {file.name}; "
                "the numbers must be equal"
            )
        if y.ndim != 1 or y.dtype.kind not in "iu":
            raise ClasswiseError(f"{file.parent / _LABELS}: array of {y.dtype} {y.shape}, expected integers (N,)")
        limits.check_classes(int(y.max(initial=0)) + 1, len(x), str(file.parent / _LABELS))
        selected = count if self.severity is not None else len(x)
        limits.check_size(selected * int(np.prod(x.shape[1:])), str(file))
        y = np.tile(y, len(SEVERITIES)) if len(y) == count else y
        names = [str(number) for number in range(int(y.max()) + 1)]
        rows = slice(None) if self.severity is None else slice(count * (self.severity - 1), count * self.severity)
        severity = torch.arange(len(SEVERITIES)).repeat_interleave(count)[rows]
        return Images(
            torch.from_numpy(channels_first(np.array(x[rows]), str(file))),
            np.array(y[rows], np.int64),
            names,
            name=f"{file.parent.name}, {file.stem}" + (f" {self.severity}" if self.severity else ""),
            split="test",
            index=torch.arange(count).repeat(len(SEVERITIES))[rows],
            columns={"severity": Column(severity, tuple(map(str, SEVERITIES)))},
        )


def corruptions(folder: Path) -> list[str]:
    """Names of the corruptions in a folder."""
    return [file.stem for file in visible(folder, "*.npy") if file.name != _LABELS]


def read_array(file: Path) -> np.ndarray[Any, Any]:
    """Map an array of numbers into memory.

    Raises:
        ClasswiseError: if the file is missing, truncated or contains objects.
    """
    try:
        check_regular(file)
        array: np.ndarray[Any, Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except ClasswiseError:
        raise
    except (OSError, ValueError, EOFError, OverflowError, SyntaxError, MemoryError) as error:
        raise ClasswiseError(f"{file} is truncated or not a .npy file of numbers: {error}") from error
    return array
