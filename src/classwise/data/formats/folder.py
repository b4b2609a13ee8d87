"""A folder of image files, with one subfolder per class."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from classwise.core import limits
from classwise.core.config import Count, configurable
from classwise.core.errors import ClasswiseError, unknown
from classwise.data.encoded import EncodedImages, Location
from classwise.data.formats.base import EncodedFormat, split_of_file
from classwise.data.labels import Classes

logger = logging.getLogger(__name__)

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_SPLITS = frozenset({"train", "test", "val", "valid", "validation"})


@configurable
class Folder(EncodedFormat):
    """Image files ``folder/class/*.png`` or ``folder/split/class/*.png``; classes are sorted subfolder names.

    Attributes:
        classes: the subfolder of each class in the order of the model's logits; others are an error. By default the
            sorted names: as text, like torchvision's `ImageFolder`, so that 10 precedes 2.
        size: resize the shorter side to this and crop the central square.
        resize: with ``size``, resize the shorter side to this before the crop: ``resize=256, size=224``.
        per_class: read only this many images of each class, the first by name.
    """

    classes: Classes | None = None
    size: Count | None = None
    resize: Count | None = None
    per_class: Count | None = None

    def accepts(self, path: Path) -> bool:
        """Whether the path is a folder with an image file below a subfolder."""
        if not path.is_dir():
            return False
        search = Search()
        try:
            return any(next(search.image_files(folder), None) is not None for folder in subfolders(path))
        except ClasswiseError:  # too many other files before the first image
            return False

    def encoded(self, path: Path, split: str) -> EncodedImages:
        """The image files of the split; without split subfolders, those of the whole folder.

        Raises:
            ClasswiseError: for a class without images, or a missing split.
        """
        folder = _folder_of_split(path, split)
        classes = self._ordered(subfolders(folder), folder)
        limits.check_classes(len(classes), 0, str(folder))
        files, search = [], Search()
        for one in classes:
            files.append(sorted(search.image_files(one))[: self.per_class])
            if not files[-1]:
                raise ClasswiseError(f"{one} has no images; add images or remove this class")
        return EncodedImages(
            [Location(file) for group in files for file in group],
            torch.arange(len(classes)).repeat_interleave(torch.tensor([len(group) for group in files])),
            [one.name for one in classes],
            path.name,
            split_of_file(folder),
            self.size,
            self.resize,
        )

    def _ordered(self, folders: list[Path], parent: Path) -> list[Path]:
        """The subfolders in the order of the classes.

        Raises:
            ClasswiseError: if they are not the chosen classes.
        """
        names = [folder.name for folder in folders]
        if self.classes is None:
            if all(name.isdecimal() for name in names) and names != sorted(names, key=int):
                last = max(int(name) for name in names)
                logger.warning(
                    "%s: the classes are in the order of text (%s, ...), as in torchvision's ImageFolder; "
                    "classes=%s..%d gives that of numbers",
                    parent, ", ".join(names[:3]), min(names, key=int), last,
                )  # fmt: skip
            return folders
        chosen = [str(each) for each in self.classes]
        for name in names:
            if name not in chosen:
                raise unknown(f"class folder of {parent}:", name, chosen)
        missing = next((name for name in chosen if name not in names), None)
        if missing is not None:
            raise unknown(f"class of {parent}:", missing, names)
        return [parent / name for name in chosen]


def _folder_of_split(path: Path, split: str) -> Path:
    if (path / split).is_dir():
        return path / split
    names = [folder.name for folder in subfolders(path)]
    if not names:
        raise ClasswiseError(f"{path} has no subfolders; expected one per class")
    if set(names) <= _SPLITS:
        raise ClasswiseError(f"{path} has no split {split!r}, only {', '.join(names)}")
    return path


def subfolders(path: Path) -> list[Path]:
    """The subfolders of a folder, sorted by name, without hidden ones."""
    return sorted(item for item in path.iterdir() if item.is_dir() and not item.name.startswith("."))


class Search:
    """A search for image files with a limit on the number of other files."""

    def __init__(self) -> None:
        self._others = 0

    def image_files(self, folder: Path) -> Iterator[Path]:
        """Yield all image files below the folder, by suffix, unsorted; links to folders are not followed.

        Raises:
            ClasswiseError: after `limits.FOLDER_ENTRIES` other files and folders, over all searched folders.
        """
        pending = [os.fspath(folder)]
        while pending:
            try:
                entries = os.scandir(pending.pop())
            except OSError:  # unreadable or removed
                continue
            with entries:
                for entry in entries:
                    name = entry.name
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES and entry.is_file():
                        yield Path(entry.path)
                        continue
                    self._others += 1
                    if self._others > limits.FOLDER_ENTRIES:
                        raise ClasswiseError(
                            f"{folder}: more than {limits.FOLDER_ENTRIES:,} files and folders that are not images; "
                            "give a folder that contains only images"
                        )


def image_files(folder: Path) -> list[Path]:
    """All image files below the folder, by suffix, sorted.

    Raises:
        ClasswiseError: as `Search.image_files`.
    """
    return sorted(Search().image_files(folder))
