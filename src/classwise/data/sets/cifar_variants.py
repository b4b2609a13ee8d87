"""New test sets for models of CIFAR-10: CIFAR-10.1 and CIFAR-10.2."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from classwise.core.errors import ClasswiseError
from classwise.core.settings import limits
from classwise.core.settings.config import configurable
from classwise.data.formats.cifar_c import read_array
from classwise.data.formats.npz import Npz
from classwise.data.images import Images
from classwise.data.layout import channels_first
from classwise.data.sets.cifar import Cifar10


@configurable
class Cifar101(Cifar10):
    """CIFAR-10.1 (Recht et al. 2018): about 2,000 new test images.

    Args:
        version: ``v6``, 2,000 images with balanced classes, which the authors recommend; or ``v4``, 2,021 images.
    """

    name = "cifar10.1"
    source = ("Recht et al., Do CIFAR-10 Classifiers Generalize to CIFAR-10?, arXiv:1806.00451, 2018",)
    splits = ("test",)
    sizes = (2_000,)
    files = "`cifar10.1_v6_data.npy` and `cifar10.1_v6_labels.npy`"
    remote = ()
    version: Literal["v4", "v6"] = "v6"

    @property
    def title(self) -> str:
        """The name, with the version unless it is the default."""
        return self.name if self.version == "v6" else f"{self.name}, {self.version}"

    def read(self, root: Path, split: str) -> Images | None:
        """Read ``cifar10.1_v6_data.npy`` and ``cifar10.1_v6_labels.npy``.

        Raises:
            ClasswiseError: for arrays of another type, or of different lengths.
        """
        folders = (root, root / self.name, root / "CIFAR-10.1", root / "CIFAR-10.1" / "datasets")
        place = next((folder for folder in folders if (folder / f"cifar10.1_{self.version}_data.npy").is_file()), None)
        if place is None:
            return None
        files = [place / f"cifar10.1_{self.version}_{what}.npy" for what in ("data", "labels")]
        x, y = (read_array(file) for file in files)
        limits.check_size(x.nbytes, str(files[0]))
        if x.dtype != np.uint8 or y.dtype.kind not in "iu":
            raise ClasswiseError(f"{files[0]}: arrays of {x.dtype} and {y.dtype}, expected uint8 images and integers")
        pixels = channels_first(np.array(x), str(files[0]))
        return self.named(Images(pixels, np.array(y, np.int64), self.class_names), split)


class Cifar102(Cifar10):
    """CIFAR-10.2 (Lu et al. 2020): 10,000 training and 2,000 test images, collected as CIFAR-10 was."""

    name = "cifar10.2"
    source = (
        (
            "Lu et al., Harder or Different? A Closer Look at Distribution Shift in Dataset Reproduction, "
            "ICML Workshop on Uncertainty and Robustness in Deep Learning, 2020"
        ),
    )
    sizes = (10_000, 2_000)
    files = "`cifar102_train.npz`, `cifar102_test.npz`"
    remote = ()

    def read(self, root: Path, split: str) -> Images | None:
        """Read ``cifar102_test.npz`` or ``cifar102_train.npz``."""
        for folder in (root, root / self.name, root / "cifar-10.2"):
            file = folder / f"cifar102_{split}.npz"
            if file.is_file():
                return self.named(Npz().read(file, split), split)
        return None
