"""The handwritten digits of scikit-learn: 1,797 grayscale images of 8x8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from classwise.data.images import Images
from classwise.data.sets.base import DataSet
from classwise.data.splits import stratified_split

TEST_SHARE = 0.3
"""Fraction of each class in the test split; the original data set has no splits."""


class Digits(DataSet):
    """Digits of scikit-learn (Alpaydin and Kaynak 1998): 1,258 training and 539 test images, 1x8x8, without download.

    The original pixels v in 0..16 are stored as round(255 v / 16), uint8. The test split is `TEST_SHARE` of each class,
    stratified with seed 0.
    """

    name = "digits"
    class_names = tuple("0123456789")
    shape = (1, 8, 8)
    mean = (0.3047,)
    std = (0.3757,)
    threat = "Linf:0.1"

    def read(self, root: Path, split: str) -> Images:  # noqa: ARG002
        """Read the split from the installed package."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
        y = torch.from_numpy(bunch.target.astype(np.int64))
        train, test = stratified_split(y, TEST_SHARE, seed=0)
        return Images(torch.from_numpy(pixels)[:, None], y, self.class_names, self.name, split).take(
            train if split == "train" else test
        )
