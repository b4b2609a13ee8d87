"""What a data set with a name is: its facts, where its files may lie, and how they are fetched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, NamedTuple

from classwise.core.errors import ClasswiseError
from classwise.data.formats.parquet import Parquet
from classwise.data.images import Images


class Remote(NamedTuple):
    """A file on the network.

    Attributes:
        url: where it is.
        digest: its known hash, as pooch writes it: ``"md5:..."`` or ``"sha256:..."``.
    """

    url: str
    digest: str

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return self.url.rsplit("/", 1)[1]


class DataSet(ABC):
    """A data set that is known by name.

    Attributes:
        name: what users call it.
        class_names: in the official order.
        superclasses: the superclass of each class, or None.
        superclass_names: one name per superclass.
        shape: channels, height, width.
        mean: per channel, over the training pixels in [0, 1]; for a model's normalisation.
        std: per channel, likewise.
        threat: the usual threat model.
        splits: the splits that exist.
        remote: the files to fetch where none are found; empty if the set comes with a package.
        folder: the folder that fetched files go to, inside the data directory.
    """

    name: ClassVar[str]
    class_names: ClassVar[tuple[str, ...]]
    superclasses: ClassVar[tuple[int, ...] | None] = None
    superclass_names: ClassVar[tuple[str, ...]] = ()
    shape: ClassVar[tuple[int, int, int]]
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]
    threat: ClassVar[str]
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    remote: ClassVar[tuple[Remote, ...]] = ()
    folder: ClassVar[str] = ""

    @abstractmethod
    def read(self, root: Path, split: str) -> Images | None:
        """The split, if this data directory holds it in a known layout, else None.

        Raises:
            ClasswiseError: if the files are there but not as they should be.
        """

    def from_parquet(self, root: Path, split: str) -> Images | None:
        """The split from ``NAME-SPLIT.parquet`` or from Parquet files in the folder ``NAME``, if they are there."""
        file, folder = root / f"{self.name}-{split}.parquet", root / self.name
        if file.is_file():
            return self.named(Parquet().read(file, split), split)
        return self.named(Parquet().read(folder, split), split) if Parquet().accepts(folder) else None

    def named(self, images: Images, split: str) -> Images:
        """The same pixels and labels under the official names.

        Raises:
            ClasswiseError: if the files speak of other classes or another image size.
        """
        found, official = images.class_names, self.class_names
        if images.shape != self.shape:
            raise ClasswiseError(f"the files of {self.name} hold images of shape {images.shape}, not {self.shape}")
        if found != tuple(str(number) for number in range(len(found))) and found != official:
            fault = next((pair for pair in zip(found, official, strict=False) if pair[0] != pair[1]), None)
            reason = (
                f"class {fault[0]!r} where {fault[1]!r} should be"
                if fault
                else f"{len(found)} classes, not {len(official)}"
            )
            raise ClasswiseError(f"the files of {self.name} have {reason}; load them by their path instead")
        return Images(
            images.x,
            images.y,
            class_names=self.class_names,
            name=self.name,
            split=split,
            superclasses=self.superclasses,
            superclass_names=self.superclass_names,
            columns=images.columns,
        )
