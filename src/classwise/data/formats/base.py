"""What a file format is."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from pathlib import Path

from classwise.data.images import Images

_SPLITS = {"train": "train", "test": "test", "t10k": "test", "val": "valid", "valid": "valid", "validation": "valid"}


class Format(ABC):
    """A way in which images and labels are stored; its fields are the options that a user can give."""

    @abstractmethod
    def accepts(self, path: Path) -> bool:
        """Whether the file or folder looks like this format; never raises."""

    @abstractmethod
    def read(self, path: Path, split: str) -> Images:
        """Read one split of a folder, or a file. The images of a file get the split that its name speaks of.

        Raises:
            UserError: naming the file, if anything in it is not as it should be.
        """


def split_of_file(path: Path) -> str:
    """The split that the last part of a path speaks of; empty if it speaks of none."""
    words = re.split(r"[^a-z0-9]+", path.name.lower())
    return next((_SPLITS[word] for word in words if word in _SPLITS), "")


def begins_with(path: Path, magic: bytes) -> bool:
    """Whether the path is a file with these first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False
