"""The folder of Tiny-ImageNet, as published or with the validation images sorted by class."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError
from classwise.core.files.reading import read_text
from classwise.core.settings.config import configurable
from classwise.data.formats.base import Format, words_of
from classwise.data.formats.folder import image_files, subfolders
from classwise.data.image_files import Decoder, stack
from classwise.data.image_names import relative_names
from classwise.data.images import Images

_ANNOTATIONS = "val_annotations.txt"


@configurable
class TinyImageNetFolder(Format):
    """The folder ``tiny-imagenet-200``: ``train/ID/images/*.JPEG`` and either layout of ``val``.

    As published, ``val/images`` has all images and ``val/val_annotations.txt`` their classes; rearranged, ``val`` has a
    folder per class. The split "test" is ``val``, since the labels of ``test`` are not public. Classes are the WordNet
    ids in ascending order, with the first name in ``words.txt`` if the file exists. Grayscale images are converted to
    RGB.
    """

    def accepts(self, path: Path) -> bool:
        """Whether the path is a folder with ``wnids.txt`` and ``train``, or with ``val/val_annotations.txt``."""
        published = (path / "val" / _ANNOTATIONS).is_file()
        return path.is_dir() and (published or ((path / "wnids.txt").is_file() and (path / "train").is_dir()))

    def read(self, path: Path, split: str) -> Images:
        """Decode all images of the split.

        Raises:
            ClasswiseError: for a missing split, a damaged image, or an invalid annotation.
        """
        if split not in ("train", "test", "val", "valid"):
            raise ClasswiseError(f"{path} has no split {split!r}; it has train and test (the folder val)")
        folder = path / ("train" if split == "train" else "val")
        if not folder.is_dir():
            raise ClasswiseError(f"{path} has no folder {folder.name}")
        if (folder / _ANNOTATIONS).is_file() and (folder / "images").is_dir():
            labelled = _annotated(folder)
        else:
            labelled = [(file, subfolder.name) for subfolder in subfolders(folder) for file in image_files(subfolder)]
        if not labelled:
            raise ClasswiseError(f"{folder} has no images")
        ids = sorted({identity for _, identity in labelled} | set(words_of(path / "wnids.txt") or ()))
        numbers = {identity: number for number, identity in enumerate(ids)}
        decode = Decoder()
        x = stack((str(file), decode(file, str(file))) for file, _ in labelled)
        y = torch.tensor([numbers[identity] for _, identity in labelled])
        words = _words(path / "words.txt")
        names = [f"{identity} {words[identity]}" if identity in words else identity for identity in ids]
        files = relative_names((file for file, _ in labelled), path)
        return Images(coloured(x), y, names, name=path.name, split=split, image_names=files)


def coloured(x: Tensor) -> Tensor:
    """Convert images (N, 1 or 3, H, W) to (N, 3, H, W)."""
    return x.expand(-1, 3, -1, -1).contiguous() if x.shape[1] == 1 else x


def _annotated(folder: Path) -> list[tuple[Path, str]]:
    """The image files in the annotation file and their classes, in its order."""
    rows = [line.split("\t") for line in read_text(folder / _ANNOTATIONS).splitlines() if line.strip()]
    for number, row in enumerate(rows, 1):
        if len(row) < 2:
            raise ClasswiseError(f"{folder / _ANNOTATIONS}, line {number}: expected a file name, a tab and a class")
        if not row[0].isprintable() or Path(row[0]).name != row[0]:
            raise ClasswiseError(
                f"{folder / _ANNOTATIONS}, line {number}: {row[0]!r} is not the name of a file in the folder images"
            )
    return [(folder / "images" / row[0], row[1]) for row in rows]


def _words(file: Path) -> dict[str, str]:
    if not file.is_file():
        return {}
    rows = (line.split("\t", 1) for line in read_text(file).splitlines())
    return {row[0]: row[1].split(",")[0].strip() for row in rows if len(row) == 2}
