"""CIFAR-10 and CIFAR-100, and new test sets for models of CIFAR-10: CIFAR-10.1 and CIFAR-10.2."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from classwise.core.errors import ClasswiseError
from classwise.core.settings import limits
from classwise.core.settings.config import configurable
from classwise.data.formats.cifar import Cifar, CifarBinary
from classwise.data.formats.cifar_c import read_array
from classwise.data.formats.npz import Npz
from classwise.data.images import Images
from classwise.data.layout import channels_first
from classwise.data.sets.base import DataSet, Remote


class _CifarSet(DataSet):
    """Base class of the CIFAR data sets.

    Attributes:
        official: folder name of the official Python version.
        binary: folder name of the official binary version.
    """

    official: ClassVar[str]
    binary: ClassVar[str]
    source: ClassVar[tuple[str, ...]] = (
        "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, University of Toronto, 2009",
    )
    shape = (3, 32, 32)
    sizes: ClassVar[tuple[int, ...]] = (50_000, 10_000)

    def read(self, root: Path, split: str) -> Images | None:
        """Read the official pickles, else the official binary files, else Parquet."""
        for name, reader in ((self.official, Cifar()), (self.binary, CifarBinary())):
            for folder in (root / name, root / self.name / name, root):
                if folder.name == name and folder.is_dir():
                    return self.named(reader.read(folder, split), split)
        return self.from_parquet(root, split)


class Cifar10(_CifarSet):
    """CIFAR-10 (Krizhevsky 2009): 50,000 training and 10,000 test images, 3x32x32, 10 classes.

    Superclasses: transportation and animals (KDD 2021, Table 2).
    """

    name = "cifar10"
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    superclasses = (0, 0, 1, 1, 1, 1, 1, 1, 0, 0)
    superclass_names = ("transportation", "animals")
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)
    threat = "Linf:8/255"
    other_threats: ClassVar[Mapping[str, str]] = {"l2": "L2:0.5", "l1": "L1:12"}
    official, binary = "cifar-10-batches-py", "cifar-10-batches-bin"
    files = "`cifar-10-batches-py/` or `cifar-10-batches-bin/`; `cifar10-SPLIT.parquet`"
    remote: ClassVar[tuple[Remote, ...]] = (
        Remote("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a"),
    )


class Cifar100(_CifarSet):
    """CIFAR-100 (Krizhevsky 2009): 50,000 training and 10,000 test images, 3x32x32, 100 classes in 20 superclasses."""

    name = "cifar100"
    class_names = (
        "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle",
        "bicycle", "bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel",
        "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud",
        "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant",
        "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard",
        "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree",
        "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter",
        "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
        "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea",
        "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider",
        "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone", "television",
        "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
        "willow_tree", "wolf", "woman", "worm",
    )  # fmt: skip
    superclasses = (
        4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11,
        6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5,
        5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17,
        10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13,
        16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
    )  # fmt: skip
    superclass_names = (
        "aquatic_mammals", "fish", "flowers", "food_containers", "fruit_and_vegetables", "household_electrical_devices",
        "household_furniture", "insects", "large_carnivores", "large_man-made_outdoor_things",
        "large_natural_outdoor_scenes", "large_omnivores_and_herbivores", "medium_mammals",
        "non-insect_invertebrates", "people", "reptiles", "small_mammals", "trees", "vehicles_1", "vehicles_2",
    )  # fmt: skip
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
    threat = "Linf:8/255"
    official, binary = "cifar-100-python", "cifar-100-binary"
    files = "`cifar-100-python/` or `cifar-100-binary/`; `cifar100-SPLIT.parquet`"
    remote: ClassVar[tuple[Remote, ...]] = (
        Remote("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85"),
    )


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
