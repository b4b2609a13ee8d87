"""Test sets for models of ImageNet: V2, A, R and C."""

from __future__ import annotations

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
from classwise.data.sets.corrupted import Corrupted
from classwise.data.sets.imagenet import ImageNet, readable


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
