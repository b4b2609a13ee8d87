"""A folder of pictures, one subfolder a class."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from classwise.core import limits
from classwise.core.config import Count, configurable
from classwise.core.errors import ClasswiseError
from classwise.data.formats.base import Format, split_of_file
from classwise.data.formats.image_files import decode, stack
from classwise.data.images import Images

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_SPLITS = frozenset({"train", "test", "val", "valid", "validation"})


@configurable
class Folder(Format):
    """``folder/class/*.png``, or ``folder/split/class/*.png``; the classes are the sorted names of the subfolders.

    Attributes:
        size: if given, every picture is scaled and cut to this square.
        resize: with ``size``, what the shorter side is scaled to before the square is cut: ``resize=256, size=224``.
        per_class: if given, only so many pictures of each class, the first by name, are read.
    """

    size: Count | None = None
    resize: Count | None = None
    per_class: Count | None = None

    def accepts(self, path: Path) -> bool:
        """A folder with a picture somewhere in a subfolder."""
        if not path.is_dir():
            return False
        search = Search()
        try:
            return any(next(search.pictures(folder), None) is not None for folder in subfolders(path))
        except ClasswiseError:  # too many other files before the first picture
            return False

    def read(self, path: Path, split: str) -> Images:
        """Decode every picture. Without a subfolder of the split, the whole folder is read whatever the split.

        Raises:
            ClasswiseError: for a class without a picture, a corrupt picture, unequal sizes, or a missing split.
        """
        folder = _folder_of_split(path, split)
        classes = subfolders(folder)
        limits.check_classes(len(classes), 0, str(folder))
        files, search = [], Search()
        for one in classes:
            files.append(sorted(search.pictures(one))[: self.per_class])
            if not files[-1]:
                raise ClasswiseError(f"{one} holds no picture; remove this class or fill it")
        x = stack((str(file), decode(file, str(file), self.size, self.resize)) for found in files for file in found)
        y = torch.arange(len(classes)).repeat_interleave(torch.tensor([len(found) for found in files]))
        return Images(x, y, [one.name for one in classes], name=path.name, split=split_of_file(folder))


def _folder_of_split(path: Path, split: str) -> Path:
    if (path / split).is_dir():
        return path / split
    names = [folder.name for folder in subfolders(path)]
    if not names:
        raise ClasswiseError(f"{path} has no subfolders; it needs one for each class")
    if set(names) <= _SPLITS:
        raise ClasswiseError(f"{path} has no split {split!r}, only {', '.join(names)}")
    return path


def subfolders(path: Path) -> list[Path]:
    """The folders in a folder, hidden ones aside, in the order of their names."""
    return sorted(item for item in path.iterdir() if item.is_dir() and not item.name.startswith("."))


class Search:
    """A search for pictures that gives up where there is too much else."""

    def __init__(self) -> None:
        self._others = 0

    def pictures(self, folder: Path) -> Iterator[Path]:
        """Every picture below the folder, by suffix, in no order; links to folders are not followed.

        Raises:
            ClasswiseError: after `limits.FOLDER_ENTRIES` other files and folders in all folders that were searched.
        """
        waiting = [os.fspath(folder)]
        while waiting:
            try:
                entries = os.scandir(waiting.pop())
            except OSError:  # one that may not be read, or is gone, has no pictures
                continue
            with entries:
                for entry in entries:
                    name = entry.name
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES and entry.is_file():
                        yield Path(entry.path)
                        continue
                    self._others += 1
                    if self._others > limits.FOLDER_ENTRIES:
                        raise ClasswiseError(
                            f"{folder}: more than {limits.FOLDER_ENTRIES:,} files and folders that are no pictures; "
                            "give the folder of the images alone"
                        )


def pictures(folder: Path) -> list[Path]:
    """Every picture below the folder, by suffix, in the order of the names.

    Raises:
        ClasswiseError: as `Search.pictures` does.
    """
    return sorted(Search().pictures(folder))
