"""SVHN: house numbers."""

from __future__ import annotations

from pathlib import Path

from classwise.data.formats.mat import Mat
from classwise.data.images import Images
from classwise.data.sets.base import DataSet, Remote


class Svhn(DataSet):
    """SVHN, cropped digits (Netzer et al. 2011): 73,257 training and 26,032 test images, 3x32x32, 10 classes.

    The 531,131 easier images of ``extra_32x32.mat`` can be read by the path of that file.
    """

    name = "svhn"
    source = (
        (
            "Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, NIPS Workshop on Deep "
            "Learning and Unsupervised Feature Learning, 2011"
        ),
    )
    class_names = tuple("0123456789")
    shape = (3, 32, 32)
    mean = (0.4377, 0.4438, 0.4728)
    std = (0.1980, 0.2010, 0.1970)
    threat = "Linf:8/255"
    augment = "crop"  # house numbers are not flipped
    sizes = (73_257, 26_032)
    files = (
        "`train_32x32.mat`, `test_32x32.mat`, also in `svhn/`; the digit 0, label 10 in the files, is class 0; "
        "`svhn-SPLIT.parquet`"
    )
    folder = "svhn"
    remote = (
        Remote("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
        Remote("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"),
    )

    def read(self, root: Path, split: str) -> Images | None:
        """Read the official .mat files, else Parquet."""
        for folder in (root / "svhn", root / "SVHN", root):
            if (folder / f"{split}_32x32.mat").is_file():
                return self.named(Mat().read(folder, split), split)
        return self.from_parquet(root, split)
