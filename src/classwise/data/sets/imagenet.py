"""ImageNet, its test sets V2, A, R and C, and Tiny-ImageNet, whose class ids are WordNet ids."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.config import configurable
from classwise.data.encoded import EncodedImages
from classwise.data.formats.base import visible
from classwise.data.formats.folder import Folder, subfolders
from classwise.data.formats.parquet import Parquet
from classwise.data.formats.tiny_imagenet import TinyImageNetFolder, coloured
from classwise.data.images import Images
from classwise.data.sets.base import DataSet
from classwise.data.sets.corrupted import Corrupted

MOST = 100_000
"""Maximum number of ImageNet images in memory, about 15 GB."""

_HERE = Path(__file__).parent
_NAMES = dict(line.split(" ", 1) for line in (_HERE / "imagenet-classes.txt").read_text().splitlines())
_TINY = (_HERE / "tiny-imagenet-classes.txt").read_text().split()
_COUNTS = Counter(_NAMES.values())


def readable(ids: Sequence[str]) -> tuple[str, ...]:
    """The name of each class; followed by the WordNet id if two classes share a name."""
    return tuple(_NAMES[i] if _COUNTS[_NAMES[i]] == 1 else f"{_NAMES[i]} ({i})" for i in ids)


class _WordNetSet(DataSet):
    """Base class of data sets whose class names are WordNet ids, optionally followed by words.

    Attributes:
        ids: WordNet ids in the order of the labels, ascending.
    """

    ids: ClassVar[tuple[str, ...]]

    def named(self, images: Images, split: str) -> Images:
        """The images with the official classes, also if the files have only some of them.

        Raises:
            ClasswiseError: if the files have other classes or another image size.
        """
        official = self._official(images.class_names)
        if official is None:
            return super().named(images, split)
        names = self.class_names
        y, files = official[images.y.cpu()], images.image_names
        return super().named(Images(coloured(images.x), y, names, columns=images.columns, image_names=files), split)

    def _official(self, names: Sequence[str]) -> Tensor | None:
        """The official number of each class; None if no name is a WordNet id.

        Raises:
            ClasswiseError: for an id that is not a class of this data set.
        """
        ids = [name.split(" ", 1)[0] for name in names]
        if not any(name in self.ids for name in ids):
            return None
        unknown_id = next((name for name in ids if name not in self.ids), None)
        if unknown_id is not None:
            raise ClasswiseError(f"{self.name}: the files have the unknown class {unknown_id!r}; load them by path")
        return torch.tensor([self.ids.index(name) for name in ids])


class TinyImageNet(_WordNetSet):
    """Tiny-ImageNet (Stanford CS231n): 100,000 training and 10,000 test images, 3x64x64, 200 classes.

    The test split is the published ``val``; the labels of the published ``test`` are not public.
    """

    name = "tiny-imagenet"
    source = ("Le and Yang, Tiny ImageNet Visual Recognition Challenge, Stanford CS231n, 2015",)
    ids = tuple(_TINY)
    class_names = readable(_TINY)
    shape = (3, 64, 64)
    mean = (0.4802, 0.4481, 0.3975)
    std = (0.2770, 0.2691, 0.2821)
    threat = "Linf:8/255"
    sizes = (100_000, 10_000)
    files = (
        "`tiny-imagenet-200/`, `val` as published or sorted into classes; `tiny-imagenet-SPLIT.parquet`. The test "
        "split is `val`; classes are WordNet ids in ascending order"
    )

    def read(self, root: Path, split: str) -> Images | None:
        """Read the folder ``tiny-imagenet-200`` in either layout, else Parquet."""
        for folder in (root / "tiny-imagenet-200", root / self.name / "tiny-imagenet-200", root / self.name):
            if (folder / ("train" if split == "train" else "val")).is_dir():
                return self.named(TinyImageNetFolder().read(folder, split), split)
        return self.from_parquet(root, split)


class ImageNet(_WordNetSet):
    """ImageNet (Deng et al. 2009; Russakovsky et al. 2015): 1,000 classes, resized to 256 and center-cropped to 224.

    The test split is the published ``val``, with a folder per WordNet id. The training images exceed most memories;
    read some of each class with ``load_data("imagenet/train", size=224, resize=256, per_class=50)``.
    """

    name = "imagenet"
    source: ClassVar[tuple[str, ...]] = (
        "Deng et al., ImageNet: A Large-Scale Hierarchical Image Database, CVPR, 2009",
        "Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, IJCV, 2015",
    )
    ids = tuple(_NAMES)
    class_names = readable(list(_NAMES))
    shape = (3, 224, 224)
    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)
    threat = "Linf:4/255"
    sizes: ClassVar[tuple[int, ...]] = (1_281_167, 50_000)
    files = (
        "`imagenet/val/ID/*.JPEG`, shorter side resized to 256, center crop of 224; `imagenet-test.parquet`. The "
        'training images do not fit into memory: `load_data("imagenet/train", size=224, resize=256, per_class=50)`'
    )

    def read(self, root: Path, split: str) -> Images | None:
        """Read ``imagenet/val/ID/*.JPEG`` (or ``train``), else ``imagenet-test.parquet``.

        Raises:
            ClasswiseError: if ``val`` is not sorted into classes, or there are more images than `MOST`.
        """
        part = self._part(root, split)
        if part is None:
            file = root / f"{self.name}-{split}.parquet"
            parquet = Parquet(size=self.shape[1], resize=256)
            return self.named(parquet.read(file, split), split) if file.is_file() else None
        encoded = self._files(part)
        if len(encoded) > MOST:
            call = f"load_data({str(part)!r}, size=224, resize=256, per_class=50)"
            raise ClasswiseError(f"{part} has {len(encoded)} images; at most {MOST} are supported; use {call}")
        return self.named(encoded.images(), split)

    def encoded(self, root: Path, split: str) -> EncodedImages | None:
        """The files ``imagenet/val/ID/*.JPEG`` (or ``train``); None if there is no such folder.

        Raises:
            ClasswiseError: if ``val`` is not sorted into classes, or a class is unknown.
        """
        part = self._part(root, split)
        if part is None:
            return None
        files = self._files(part)
        official = self._official(files.class_names or ())
        if official is None:
            raise ClasswiseError(f"{part}: the classes are not WordNet ids; load the images by path")
        names, y = self.class_names, official[files.y]
        return dataclasses.replace(files, y=y, class_names=names, name=self.title, split=split)

    def _part(self, root: Path, split: str) -> Path | None:
        """The folder of a split."""
        folders = (root / name for name in ("imagenet", "ImageNet", "imagenet-1k", "ILSVRC2012"))
        parts = (folder / ("val" if split == "test" else split) for folder in folders)
        return next((part for part in parts if part.is_dir()), None)

    def _files(self, part: Path) -> EncodedImages:
        if not subfolders(part):
            raise ClasswiseError(f"{part} has no subfolders; sort its images into one per WordNet id")
        return Folder(size=self.shape[1], resize=256).encoded(part, "")


class _TestSet(ImageNet):
    """Base class: a folder with a subfolder per class.

    Attributes:
        folders: names of the folder in a data directory.
    """

    folders: ClassVar[tuple[str, ...]]
    splits: ClassVar[tuple[str, ...]] = ("test",)

    def _part(self, root: Path, split: str) -> Path | None:
        del split
        return next((root / name for name in self.folders if (root / name).is_dir()), None)


@configurable
class ImageNetV2(_TestSet):
    """ImageNet-V2 (Recht et al. 2019): 10,000 new test images of the 1,000 classes, in three variants.

    The folders ``0`` to ``999`` are the classes of ImageNet by number.

    Args:
        variant: how the images were selected: ``matched-frequency``, ``threshold-0.7`` or ``top-images``.
    """

    name = "imagenet-v2"
    source = ("Recht et al., Do ImageNet Classifiers Generalize to ImageNet?, ICML, 2019",)
    sizes = (10_000,)
    files = "`imagenetv2-matched-frequency-format-val/0` to `999`"
    variant: Literal["matched-frequency", "threshold-0.7", "top-images"] = "matched-frequency"

    @property
    def title(self) -> str:
        """The name, with the variant unless it is the default."""
        return self.name if self.variant == "matched-frequency" else f"{self.name}, {self.variant}"

    def _part(self, root: Path, split: str) -> Path | None:
        del split
        name = f"imagenetv2-{self.variant.replace('threshold-', 'threshold')}"
        names = (f"{name}-format-val", name)
        folders = (parent / name for parent in (root, root / self.name, root / "imagenetv2") for name in names)
        return next((folder for folder in folders if folder.is_dir()), None)

    def _files(self, part: Path) -> EncodedImages:
        names = [folder.name for folder in subfolders(part)]
        if not all(name.isdecimal() and int(name) < len(self.ids) for name in names):
            return super()._files(part)  # sorted into WordNet ids
        ordered = tuple(sorted(names, key=int))
        return Folder(size=self.shape[1], resize=256, classes=ordered).encoded(part, "")

    def _official(self, names: Sequence[str]) -> Tensor | None:
        if names and all(name.isdecimal() for name in names):
            return torch.tensor([int(name) for name in names])
        return super()._official(names)


class _Subset(_TestSet):
    """Base class of test sets with some of the classes, to whose logits the authors restrict predictions.

    The file ``NAME-classes.txt`` beside this one lists the WordNet ids of the classes.
    """

    parent_logits = len(ImageNet.ids)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.ids = tuple((Path(__file__).parent / f"{cls.name}-classes.txt").read_text(encoding="ascii").split())
        cls.class_names = readable(cls.ids)
        cls.logits = tuple(ImageNet.ids.index(class_id) for class_id in cls.ids)


class ImageNetA(_Subset):
    """ImageNet-A (Hendrycks et al. 2021, Natural Adversarial Examples): 7,500 images of 200 classes.

    Predictions of a model of the 1,000 classes are restricted to the 200 logits, as in the authors' evaluation.
    """

    name = "imagenet-a"
    source = ("Hendrycks et al., Natural Adversarial Examples, CVPR, 2021",)
    sizes = (7_500,)
    files = "`imagenet-a/ID/*.jpg`: 200 of the 1,000 classes"
    folders = ("imagenet-a", "ImageNet-A")


class ImageNetR(_Subset):
    """ImageNet-R (Hendrycks et al. 2021, The Many Faces of Robustness): 30,000 renditions of 200 classes.

    Predictions of a model of the 1,000 classes are restricted to the 200 logits, as in the authors' evaluation.
    """

    name = "imagenet-r"
    source = (
        (
            "Hendrycks et al., The Many Faces of Robustness: A Critical Analysis of Out-of-Distribution "
            "Generalization, ICCV, 2021"
        ),
    )
    sizes = (30_000,)
    files = "`imagenet-r/ID/*.jpg`: 200 of the 1,000 classes"
    folders = ("imagenet-r", "ImageNet-R")


@configurable
class ImageNetC(Corrupted, _TestSet):
    """ImageNet-C (Hendrycks and Dietterich 2019): the validation images under a corruption, center-cropped to 224.

    The folders are ``imagenet-c/CORRUPTION/SEVERITY/ID/*.JPEG``, or one level deeper, in the groups of the archives.
    """

    name = "imagenet-c"
    sizes = (50_000,)
    files = (
        "`imagenet-c/CORRUPTION/SEVERITY/ID/*.JPEG`, also in the groups of the archives; `corruption` and `severity` "
        "are required"
    )
    folders = ("imagenet-c", "ImageNet-C", "Imagenet-C")

    def _part(self, root: Path, split: str) -> Path | None:
        whole = super()._part(root, split)
        if whole is None:
            return None
        places = {
            level.parent.name: level.parent
            for level in (*visible(whole, "*/1"), *visible(whole, "*/*/1"))
            if not level.parent.name.isdecimal()
        }
        corruption = self.chosen(sorted(places))
        folder = places[corruption] / str(self.severity)
        if not folder.is_dir():
            raise unknown(
                f"severity of {corruption}",
                str(self.severity),
                [subfolder.name for subfolder in subfolders(folder.parent)],
            )
        return folder

    def _files(self, part: Path) -> EncodedImages:
        if not subfolders(part):
            raise ClasswiseError(f"{part} has no subfolders; expected one per WordNet id")
        return Folder(size=self.shape[1]).encoded(part, "")
