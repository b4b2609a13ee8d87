"""MNIST and Fashion-MNIST, which have the same file format and file names."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import ClassVar

from classwise.data.formats.idx import Idx, find_pair, read_idx
from classwise.data.images import Images
from classwise.data.sets.base import DataSet, Remote


class _IdxSet(DataSet):
    """Base class of MNIST and Fashion-MNIST.

    Attributes:
        folders: folders of the files in a data directory.
        labels: SHA-256 of the values of the official label file, by split. Files in other folders are used only if
            their labels match, because the file names of both data sets are the same.
    """

    folders: ClassVar[tuple[str, ...]]
    labels: ClassVar[dict[str, str]]
    shape = (1, 28, 28)
    sizes = (60_000, 10_000)

    def read(self, root: Path, split: str) -> Images | None:
        """Read idx files, else Parquet."""
        for folder in (root / name for name in self.folders):
            if find_pair(folder, split):
                return self.named(Idx().read(folder, split), split)
        pair = find_pair(root, split)
        if pair and (root.name in self.folders or self._is_official(pair[1], split)):
            return self.named(Idx().read(root, split), split)
        return self.from_parquet(root, split)

    def _is_official(self, labels: Path, split: str) -> bool:
        return hashlib.sha256(read_idx(labels).tobytes()).hexdigest() == self.labels[split]


def _remotes(base: str, digests: dict[str, str]) -> tuple[Remote, ...]:
    return tuple(Remote(f"{base}/{name}-ubyte.gz", f"md5:{digest}") for name, digest in digests.items())


class Mnist(_IdxSet):
    """MNIST (LeCun, Bottou, Bengio and Haffner 1998): 60,000 training and 10,000 test images, 1x28x28, 10 classes."""

    name = "mnist"
    source = ("LeCun et al., Gradient-based learning applied to document recognition, Proceedings of the IEEE, 1998",)
    class_names = tuple("0123456789")
    mean = (0.1307,)
    std = (0.3081,)
    threat = "Linf:0.3"
    augment = "none"
    files = "four idx files, gzipped or not, in `mnist/` or `MNIST/raw/`; `mnist-SPLIT.parquet`"
    folder = "mnist"
    folders = ("mnist", "MNIST/raw", "mnist/raw", "MNIST")
    labels: ClassVar[dict[str, str]] = {
        "train": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        "test": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    }
    remote = _remotes(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    )


class FashionMnist(_IdxSet):
    """Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): 60,000 training and 10,000 test images, 1x28x28, 10 classes."""

    name = "fashion-mnist"
    source = (
        (
            "Xiao et al., Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms, "
            "arXiv:1708.07747, 2017"
        ),
    )
    class_names = (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    )  # fmt: skip
    mean = (0.2860,)
    std = (0.3530,)
    threat = "Linf:0.1"
    augment = "none"
    files = "four idx files, gzipped or not, in `fashion-mnist/` or `FashionMNIST/raw/`; `fashion-mnist-SPLIT.parquet`"
    folder = "fashion-mnist"
    folders = ("fashion-mnist", "FashionMNIST/raw", "fashion-mnist/raw", "fashion_mnist", "FashionMNIST")
    labels: ClassVar[dict[str, str]] = {
        "train": "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
        "test": "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
    }
    remote = _remotes(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    )
