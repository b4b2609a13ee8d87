"""Base class of named data sets: metadata, file layouts, and files to download."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

from classwise.core.errors import ClasswiseError
from classwise.data.encoded import EncodedImages
from classwise.data.formats.parquet import Parquet
from classwise.data.images import Images


class Remote(NamedTuple):
    """A file to download.

    Attributes:
        url: address of the file.
        digest: hash of the file in pooch's notation: ``"md5:..."`` or ``"sha256:..."``.
    """

    url: str
    digest: str

    @property
    def file_name(self) -> str:
        """The last component of the address."""
        return self.url.rsplit("/", 1)[1]


class DataSet(ABC):
    """Base class of named data sets; all properties of a data set are in its class.

    The fields of a subclass with `configurable` are its options in `load_data`.

    Attributes:
        name: registered name.
        source: the publications, one line of text each.
        class_names: class names in the official order.
        superclasses: the superclass of each class, or None.
        superclass_names: one name per superclass.
        shape: channels, height, width.
        mean: mean of each channel over the training images in [0, 1], for normalisation.
        std: standard deviation of each channel, likewise.
        threat: the usual threat model; its name as a threat is that of the data set.
        other_threats: further ones; the threat ``l2`` of ``cifar10`` has the name ``cifar10-l2``.
        augment: recommended augmentation of training images, a spec of `classwise.data.AUGMENTATIONS`.
        splits: names of the splits.
        sizes: published number of images of each split, with the default options.
        files: the files in a data directory, as a sentence in Markdown.
        remote: files to download; empty if the data set is not downloadable.
        folder: folder in the data directory for downloaded files.
        parent_logits: number of classes of the data set of which these classes are a part; 0: they are no part.
        logits: the number of each class in that data set. Predictions of a model of ``parent_logits`` classes are
            restricted to these logits.
    """

    name: ClassVar[str]
    source: ClassVar[tuple[str, ...]]
    class_names: ClassVar[tuple[str, ...]]
    superclasses: ClassVar[tuple[int, ...] | None] = None
    superclass_names: ClassVar[tuple[str, ...]] = ()
    shape: ClassVar[tuple[int, int, int]]
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]
    threat: ClassVar[str]
    other_threats: ClassVar[Mapping[str, str]] = {}
    augment: ClassVar[str] = "crop-flip"
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    sizes: ClassVar[tuple[int, ...]]
    files: ClassVar[str]
    remote: ClassVar[tuple[Remote, ...]] = ()
    folder: ClassVar[str] = ""
    parent_logits: ClassVar[int] = 0
    logits: ClassVar[tuple[int, ...]] = ()

    @property
    def title(self) -> str:
        """Name of the images in reports: the registered name; a subclass may add its options."""
        return self.name

    @abstractmethod
    def read(self, root: Path, split: str) -> Images | None:
        """Read the split from a data directory; None if it is not there in a supported layout.

        Raises:
            ClasswiseError: if the files are invalid.
        """

    def encoded(self, root: Path, split: str) -> EncodedImages | None:
        """The encoded images of the split with the official classes; None if they are not files in a data directory.

        Raises:
            ClasswiseError: if the files are invalid.
        """
        del root, split
        return None

    def from_parquet(self, root: Path, split: str) -> Images | None:
        """Read ``NAME-SPLIT.parquet`` or the Parquet files in the folder ``NAME``; None if there are none."""
        file, folder = root / f"{self.name}-{split}.parquet", root / self.name
        if file.is_file():
            return self.named(Parquet().read(file, split), split)
        return self.named(Parquet().read(folder, split), split) if Parquet().accepts(folder) else None

    def named(self, images: Images, split: str) -> Images:
        """The images with the official class names and metadata.

        Raises:
            ClasswiseError: if the files have other classes or another image size.
        """
        names, official = images.class_names, self.class_names
        if images.shape != self.shape:
            raise ClasswiseError(f"{self.name}: the files have images of shape {images.shape}, expected {self.shape}")
        if names != tuple(str(number) for number in range(len(names))) and names != official:
            fault = next((pair for pair in zip(names, official, strict=False) if pair[0] != pair[1]), None)
            reason = (
                f"class {fault[0]!r}, expected {fault[1]!r}"
                if fault
                else f"{len(names)} classes, expected {len(official)}"
            )
            raise ClasswiseError(f"{self.name}: the files have {reason}; load them by path")
        return Images(
            images.x,
            images.y,
            class_names=self.class_names,
            name=self.title,
            split=split,
            superclasses=self.superclasses,
            superclass_names=self.superclass_names,
            index=images.index,
            columns=images.columns,
            image_names=images.image_names,
        )
