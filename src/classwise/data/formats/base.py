"""What a file format is."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

from classwise.core import limits
from classwise.core.errors import ClasswiseError
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
            ClasswiseError: naming the file, if anything in it is not as it should be.
        """


def split_of_file(path: Path) -> str:
    """The split that the last part of a path speaks of; empty if it speaks of none."""
    words = re.split(r"[^a-z0-9]+", path.name.lower())
    return next((_SPLITS[word] for word in words if word in _SPLITS), "")


def begins_with(path: Path, magic: bytes) -> bool:
    """Whether the path is a regular file with these first bytes."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def read_text(path: Path) -> str:
    """The text of a small file beside data, such as a list of class names.

    Raises:
        ClasswiseError: if it is larger than `limits.TEXT_BYTES`, or not UTF-8.
    """
    try:
        with path.open("rb") as file:
            content = file.read(limits.TEXT_BYTES + 1)
    except OSError as error:
        raise ClasswiseError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > limits.TEXT_BYTES:
        raise ClasswiseError(f"{path} is larger than {limits.TEXT_BYTES >> 20} MiB; it should be a short list")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ClasswiseError(f"{path} is not UTF-8 text (byte {error.start})") from error


def read_bytes(path: Path) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The bytes of a file that fits into memory.

    Raises:
        ClasswiseError: if it does not, is no regular file, or cannot be read.
    """
    try:
        check_regular(path)
        limits.check_size(path.stat().st_size, str(path))
        return np.fromfile(path, np.uint8)
    except OSError as error:
        raise ClasswiseError(f"cannot read {path}: {error.strerror}") from error


def check_regular(path: Path) -> None:
    """Refuse devices, pipes and folders, whose bytes may never end; a missing file is left to who opens it.

    Raises:
        ClasswiseError: if there is something else than a regular file.
    """
    if path.exists() and not path.is_file():
        raise ClasswiseError(f"{path} is no regular file")
