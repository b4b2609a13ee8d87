"""CIFAR-10-C and CIFAR-100-C: corrupted test images in NumPy's .npy files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from classwise.core import limits
from classwise.core.config import Count, configurable
from classwise.core.errors import ClasswiseError, unknown
from classwise.data.formats.base import Format, check_regular
from classwise.data.formats.layout import channels_first
from classwise.data.images import Column, Images

SEVERITIES = 5
_LABELS = "labels.npy"


@configurable
class CifarC(Format):
    """The folder ``CIFAR-10-C`` (Hendrycks and Dietterich 2019), or one corruption's file of it (``fog.npy``).

    A file holds the same test images at five severities, one block after the other; ``labels.npy`` beside it their
    labels. The ``index`` of an image is its number in the original test set; column ``severity`` says how strong.

    Attributes:
        corruption: which file of the folder.
        severity: only this one, 1 to 5; all where none is given.
    """

    corruption: str | None = None
    severity: Count | None = None

    def accepts(self, path: Path) -> bool:
        """A folder with ``labels.npy`` and others, or a .npy file beside ``labels.npy``."""
        if path.is_dir():
            return (path / _LABELS).is_file() and bool(corruptions(path))
        return path.suffix == ".npy" and path.name != _LABELS and (path.parent / _LABELS).is_file()

    def read(self, path: Path, split: str) -> Images:
        """Read one corruption, by memory map, so that a single severity costs no more than its own images.

        Raises:
            ClasswiseError: for an unknown corruption or severity, or files that do not fit each other.
        """
        if split != "test":
            raise ClasswiseError(f"{path} has no split {split!r}; it has test only")
        file = path
        if path.is_dir():
            known = corruptions(path)
            if self.corruption is None:
                raise ClasswiseError(
                    f"{path} holds {len(known)} corruptions; give corruption=, one of: {', '.join(known)}"
                )
            if self.corruption not in known:
                raise unknown("corruption", self.corruption, known)
            file = path / f"{self.corruption}.npy"
        if self.severity is not None and self.severity > SEVERITIES:
            raise ClasswiseError(f"severity = {self.severity} should be 1 to {SEVERITIES}")
        x, y = _array(file), _array(file.parent / _LABELS)
        if x.ndim != 4 or x.dtype != np.uint8 or not len(x) or len(x) % SEVERITIES:
            raise ClasswiseError(f"{file} should be a uint8 array (5 N, H, W, channels); it is {x.dtype} {x.shape}")
        count = len(x) // SEVERITIES
        if y.ndim == 0 or len(y) not in (count, len(x)):
            raise ClasswiseError(f"{file.parent / _LABELS} has {y.size} labels for {len(x)} images of {file.name}")
        if y.ndim != 1 or y.dtype.kind not in "iu":
            raise ClasswiseError(f"{file.parent / _LABELS} should hold whole numbers (N,); it is {y.dtype} {y.shape}")
        limits.check_classes(int(y.max(initial=0)) + 1, len(x), str(file.parent / _LABELS))
        kept = count if self.severity is not None else len(x)
        limits.check_size(kept * int(np.prod(x.shape[1:])), str(file))
        y = np.tile(y, SEVERITIES) if len(y) == count else y
        names = [str(number) for number in range(int(y.max()) + 1)]
        rows = slice(None) if self.severity is None else slice(count * (self.severity - 1), count * self.severity)
        severity = torch.arange(SEVERITIES).repeat_interleave(count)[rows]
        return Images(
            torch.from_numpy(channels_first(np.array(x[rows]), str(file))),
            np.array(y[rows], np.int64),
            names,
            name=f"{file.parent.name}/{file.stem}",
            split="test",
            index=torch.arange(count).repeat(SEVERITIES)[rows],
            columns={"severity": Column(severity, tuple(str(level + 1) for level in range(SEVERITIES)))},
        )


def corruptions(folder: Path) -> list[str]:
    """The corruptions that a folder has files of."""
    return sorted(file.stem for file in folder.glob("*.npy") if file.name != _LABELS)


def _array(file: Path) -> np.ndarray[Any, Any]:
    try:
        check_regular(file)
        found: np.ndarray[Any, Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except ClasswiseError:
        raise
    except (OSError, ValueError, EOFError, OverflowError, SyntaxError, MemoryError) as error:
        raise ClasswiseError(f"{file} is not a whole .npy file of plain numbers: {error}") from error
    return found
