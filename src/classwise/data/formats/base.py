"""Base class of file formats, and safe reading of small files."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

from classwise.core.errors import ClasswiseError
from classwise.core.files.reading import check_regular, read_text
from classwise.core.settings import limits
from classwise.data.encoded import EncodedImages
from classwise.data.images import Images

SPLITS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "t10k": "test",
    "val": "valid",
    "valid": "valid",
    "validation": "valid",
}
"""Usual names of splits in file and folder names, in lower case."""
_SYSTEM = frozenset(
    {"#recycle", "$recycle.bin", "@eadir", "@recycle", "@tmp", "__macosx", "__pycache__", "desktop.ini", "lost+found",
     "system volume information", "thumbs.db"}
)  # fmt: skip
"""Names of files and folders that operating systems, storage systems and Python create, in lower case."""


class Format(ABC):
    """Base class of file formats; its fields are the user's options."""

    @abstractmethod
    def accepts(self, path: Path) -> bool:
        """Whether the file or folder appears to have this format; never raises."""

    @abstractmethod
    def read(self, path: Path, split: str) -> Images:
        """Read one split of a folder, or a file, whose split is given by its name (`split_of_file`).

        Raises:
            ClasswiseError: if the file is invalid.
        """


class EncodedFormat(Format):
    """Base class of formats of encoded images, which can be decoded while they are used."""

    @abstractmethod
    def encoded(self, path: Path, split: str) -> EncodedImages:
        """The locations and labels of the images of one split.

        Raises:
            ClasswiseError: if the file or folder is invalid.
        """

    def read(self, path: Path, split: str) -> Images:
        """Decode all images of the split.

        Raises:
            ClasswiseError: as `encoded`, or for a damaged image, or images of different sizes.
        """
        return self.encoded(path, split).images()


def names_of_split(split: str) -> tuple[str, ...]:
    """The names of a split in files and folders, its own first: val, valid and validation are one split."""
    usual = SPLITS.get(split.lower())
    return (split, *(name for name, known in SPLITS.items() if known == usual and name != split))


def split_of_file(path: Path) -> str:
    """The split in a file name, such as "train" in ``train-00000.parquet``; empty if there is none."""
    words = re.split(r"[^a-z0-9]+", path.name.lower())
    return next((SPLITS[word] for word in words if word in SPLITS), "")


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is skipped: the name begins with a dot, or a system creates such files."""
    return name.startswith(".") or name.lower() in _SYSTEM


def visible(folder: Path, pattern: str) -> list[Path]:
    """The files and folders below a folder that match a pattern, sorted, without hidden ones."""
    found = (path for path in folder.glob(pattern) if not any(map(is_hidden, path.relative_to(folder).parts)))
    return sorted(found)


def decoded(value: object) -> str:
    """A text, or bytes in UTF-8 as text, whose invalid ones are replaced."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def words_of(file: Path) -> list[str] | None:
    """The words of a small text file, such as class names; None if there is no such file."""
    return read_text(file).split() if file.is_file() else None


def begins_with(path: Path, magic: bytes) -> bool:
    """Whether the path is a regular file with these first bytes."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def read_bytes(path: Path) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Read the bytes of a file.

    Raises:
        ClasswiseError: if the file exceeds the memory, is not a regular file, or cannot be read.
    """
    try:
        check_regular(path)
        limits.check_size(path.stat().st_size, str(path))
        return np.fromfile(path, np.uint8)
    except OSError as error:
        raise ClasswiseError(f"cannot read {path}: {error.strerror}") from error
