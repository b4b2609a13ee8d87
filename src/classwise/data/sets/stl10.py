"""STL-10."""

from __future__ import annotations

from pathlib import Path

from classwise.data.formats.stl10 import Stl10Binary
from classwise.data.images import Images
from classwise.data.sets.base import DataSet, Remote


class Stl10(DataSet):
    """STL-10 (Coates, Ng and Lee 2011): 5,000 training and 8,000 test images, 3x96x96, 10 classes.

    The 100,000 unlabelled images are not read. Superclasses: transportation and animals (KDD 2021, Table 2).
    """

    name = "stl10"
    source = ("Coates et al., An Analysis of Single-Layer Networks in Unsupervised Feature Learning, AISTATS, 2011",)
    class_names = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
    superclasses = (0, 1, 0, 1, 1, 1, 1, 1, 0, 0)
    superclass_names = ("transportation", "animals")
    shape = (3, 96, 96)
    mean = (0.4467, 0.4398, 0.4066)
    std = (0.2603, 0.2566, 0.2713)
    threat = "Linf:8/255"
    sizes = (5_000, 8_000)
    files = "`stl10_binary/`; `stl10-SPLIT.parquet`"
    remote = (
        Remote("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz", "md5:91f7769df0f17e558f3565bffb0c7dfb"),
    )

    def read(self, root: Path, split: str) -> Images | None:
        """Read the official binary files, else Parquet."""
        for folder in (root / "stl10_binary", root / "stl10" / "stl10_binary", root):
            if (folder / f"{split}_X.bin").is_file():
                return self.named(Stl10Binary().read(folder, split), split)
        return self.from_parquet(root, split)
