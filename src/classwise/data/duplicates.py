"""Duplicates: images of equal pixels and labels, found by a hash of their content."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from classwise.stats.counts import FloatArray, IntArray


def content_hashes(x: Tensor, y: Tensor) -> IntArray:
    """A hash of the pixels and the label of each image, int64 (N,), the same in every process.

    Two different images have equal hashes with a probability of 2^-64. Pixels must have the same type.

    Args:
        x: pixels (N, C, H, W), uint8 or float.
        y: labels, int64 (N,).
    """
    pixels, labels = x.detach().cpu().contiguous().numpy(), y.cpu().numpy()
    digests = (
        hashlib.blake2b(image.data, digest_size=8, key=b"%d" % label).digest()
        for image, label in zip(pixels, labels, strict=True)
    )
    return np.frombuffer(b"".join(digests), np.int64)


def first_rows(hashes: IntArray) -> NDArray[np.intp]:
    """The rows of the first image of each content, ascending."""
    return np.sort(np.unique(hashes, return_index=True)[1])


class Duplicates:
    """Counts how often each image occurs.

    Example:
        >>> import torch
        >>> from classwise.data.duplicates import Duplicates
        >>> duplicates = Duplicates()
        >>> duplicates.add(torch.zeros(4, 1, 2, 2), torch.tensor([0, 0, 1, 1]))
        >>> duplicates.add(torch.ones(2, 1, 2, 2), torch.tensor([1, 1]))
        >>> duplicates.distinct, duplicates.images.tolist(), duplicates.effective.tolist()
        (3, [2, 4], [1.0, 2.0])
    """

    def __init__(self) -> None:
        self._hashes: list[IntArray] = []
        self._labels: list[IntArray] = []

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add images (N, C, H, W) with labels (N,)."""
        self._hashes.append(content_hashes(x, y))
        self._labels.append(y.cpu().numpy())

    def count_among(self, hashes: Tensor | None) -> int:
        """Number of the images whose hashes are among those of other images, int64 (M,); None: there are none."""
        if hashes is None or not self._hashes:
            return 0
        return int(np.isin(np.concatenate(self._hashes), hashes.cpu().numpy()).sum())

    def _contents(self) -> tuple[IntArray, IntArray]:
        """The label of each content, and how often it occurs."""
        if not self._hashes:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        hashes, labels = np.concatenate(self._hashes), np.concatenate(self._labels)
        _, first, times = np.unique(hashes, return_index=True, return_counts=True)
        return labels[first], times.astype(np.int64)

    @property
    def distinct(self) -> int:
        """Number of different images."""
        return len(self._contents()[1])

    @property
    def images(self) -> IntArray:
        """Number of images of each class, duplicates included, (classes,)."""
        labels, times = self._contents()
        return _sums(labels, times).astype(np.int64)

    @property
    def effective(self) -> FloatArray:
        """Effective number of images of each class, (classes,): as many different images give as wide an interval.

        (sum of m)^2 / (sum of m^2) over its contents, each of which occurs m times (Kish, Survey Sampling, 1965).
        """
        labels, times = self._contents()
        total, squares = _sums(labels, times), _sums(labels, times**2)
        effective: FloatArray = np.divide(total**2, squares, out=np.zeros_like(total), where=squares > 0)
        return effective

    @property
    def effective_overall(self) -> float:
        """Effective number of all images."""
        times = self._contents()[1]
        return float(times.sum() ** 2 / (times**2).sum()) if len(times) else 0.0


def _sums(labels: IntArray, values: IntArray) -> NDArray[Any]:
    return np.bincount(labels, weights=values, minlength=int(labels.max(initial=-1)) + 1).astype(np.float64)
