"""The handwritten digits of scikit-learn: 1,797 grayscale images of 8x8."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

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
    source = ("Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998",)
    class_names = tuple("0123456789")
    shape = (1, 8, 8)
    mean = (0.3047,)
    std = (0.3757,)
    threat = "Linf:0.1"
    augment = "none"
    sizes = (1_258, 539)
    files = "none; part of scikit-learn"

    def read(self, root: Path, split: str) -> Images:  # noqa: ARG002
        """Read the split from the file of the installed package, whose import would take two seconds."""
        x, y, train, test = _read()
        return Images(x, y, self.class_names, self.name, split).take(train if split == "train" else test)


@functools.cache
def _read() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All images, their labels, and the rows of the two splits."""
    rows = np.loadtxt(_file(), delimiter=",", dtype=np.int64)
    pixels = np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    y = torch.from_numpy(rows[:, -1].copy())
    return torch.from_numpy(pixels)[:, None], y, *stratified_split(y, TEST_SHARE, seed=0)


def _file() -> Path:
    """The file of the digits: 64 pixels and the label in each row."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.submodule_search_locations is not None
    return Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
