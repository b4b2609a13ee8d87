"""A folder of pictures, one subfolder a class."""

from __future__ import annotations

from pathlib import Path

import torch

from classwise.data.formats.base import Format, split_of_file
from classwise.data.formats.pictures import decode, stack
from classwise.data.images import Images
from classwise.errors import UserError
from classwise.settings import Count, settings

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_SPLITS = frozenset({"train", "test", "val", "valid", "validation"})


@settings
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
        return path.is_dir() and any(pictures(folder) for folder in subfolders(path))

    def read(self, path: Path, split: str) -> Images:
        """Decode every picture. Without a subfolder of the split, the whole folder is read whatever the split.

        Raises:
            UserError: for a class without a picture, a corrupt picture, unequal sizes, or a missing split.
        """
        folder = _folder_of_split(path, split)
        classes = subfolders(folder)
        files = [pictures(one)[: self.per_class] for one in classes]
        for one, found in zip(classes, files, strict=True):
            if not found:
                raise UserError(f"{one} holds no picture; remove this class or fill it")
        x = stack((str(file), decode(file, str(file), self.size, self.resize)) for found in files for file in found)
        y = torch.arange(len(classes)).repeat_interleave(torch.tensor([len(found) for found in files]))
        return Images(x, y, [one.name for one in classes], name=path.name, split=split_of_file(folder))


def _folder_of_split(path: Path, split: str) -> Path:
    if (path / split).is_dir():
        return path / split
    names = [folder.name for folder in subfolders(path)]
    if not names:
        raise UserError(f"{path} has no subfolders; it needs one for each class")
    if set(names) <= _SPLITS:
        raise UserError(f"{path} has no split {split!r}, only {', '.join(names)}")
    return path


def subfolders(path: Path) -> list[Path]:
    """The folders in a folder, hidden ones aside, in the order of their names."""
    return sorted(item for item in path.iterdir() if item.is_dir() and not item.name.startswith("."))


def pictures(folder: Path) -> list[Path]:
    """Every picture below the folder, by suffix, in the order of the names."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
    )
