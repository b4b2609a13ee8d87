"""A folder of image files, with one subfolder per class."""

from __future__ import annotations

import logging
import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import torch

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.files.csv_files import csv_columns
from classwise.core.files.reading import read_text
from classwise.core.settings import limits
from classwise.core.settings.config import Count, configurable
from classwise.data.encoded import EncodedImages, Location
from classwise.data.formats.base import SPLITS, EncodedFormat, is_hidden, split_of_file
from classwise.data.images import Column
from classwise.data.labels import Classes, classes_option, log_empty_classes

logger = logging.getLogger(__name__)

SUFFIXES = frozenset(
    {".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)


METADATA = "metadata.csv"
"""The file with the columns of the images, as in image folders of Hugging Face."""


@configurable
class Folder(EncodedFormat):
    """Image files ``folder/class/*.png`` or ``folder/split/class/*.png``; classes are sorted subfolder names.

    The classes are those of all splits, so that a class has one number in all of them; an empty subfolder is a class
    without images. `is_hidden` files and folders are skipped. The columns of a file ``metadata.csv`` beside the class
    folders are groupings of the images.

    Attributes:
        classes: the subfolder of each class in the order of the model's logits. A class without a subfolder has no
            images; other subfolders with images are an error. By default the sorted names of the subfolders of all
            splits: as text, like torchvision's `ImageFolder`, so that 10 precedes 2.
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
        except ClasswiseError:  # too many other files before the first image, or an unreadable folder
            return False

    def encoded(self, path: Path, split: str) -> EncodedImages:
        """The image files of the split; without split subfolders, those of the whole folder.

        Args:
            path: the folder.
            split: name of the split; empty: the folder itself, without regard to other splits beside it.

        Raises:
            ClasswiseError: for a class with other files only, no images, a missing split, an unreadable folder, or a
                ``metadata.csv`` that does not have one row for each image.
        """
        folder = _folder_of_split(path, split) if split else path
        groups = class_folders(folder)
        names = self._names(folder, groups, _beside(folder) if split else ())
        limits.check_classes(len(names), 0, str(folder))
        search, files = Search(), []
        for name in names:
            others = search.other_files
            found = sorted(file for subfolder in groups.get(name, ()) for file in search.image_files(subfolder))
            if not found and search.other_files > others:
                raise ClasswiseError(
                    f"{folder / name} has no images, only other files; if it is not a class, remove it or list the "
                    f"classes: {classes_option()}"
                )
            files.append(found)
        if not any(files):
            raise ClasswiseError(f"{folder} has no images; expected some in a subfolder per class")
        chosen = [file for found in files for file in found[: self.per_class]]
        counts = [len(found[: self.per_class]) for found in files]
        log_empty_classes(names, counts, str(folder))
        return EncodedImages(
            [Location(file) for file in chosen],
            torch.arange(len(names)).repeat_interleave(torch.tensor(counts)),
            names,
            path.name or path.absolute().name,
            split_of_file(folder),
            self.size,
            self.resize,
            _groupings(folder, [file for found in files for file in found], chosen),
            path,
        )

    def _names(self, folder: Path, groups: dict[str, list[Path]], beside: Sequence[Path]) -> list[str]:
        """The names of the classes in order; ``beside`` are the folders of the other splits.

        Raises:
            ClasswiseError: if a folder with images is not one of the chosen classes.
        """
        if self.classes is not None:
            chosen = [_normal(str(label)) for label in self.classes]
            for name, found in groups.items():
                if name not in chosen and any(next(Search().image_files(subfolder), None) for subfolder in found):
                    raise unknown(f"class folder of {folder}:", name, chosen)
            return chosen
        others = {
            name for other in beside for name, found in class_folders(other).items() if any(map(_is_class, found))
        }
        names = sorted({*groups, *others})
        ordered = sorted(names, key=int) if all(name.isdecimal() for name in names) else names
        if names != ordered:
            whole = range(int(ordered[0]), int(ordered[-1]) + 1)
            every = ordered == [str(number) for number in whole]
            option = classes_option(f"{whole[0]}..{whole[-1]}" if every else ",".join(ordered))
            logger.warning(
                "%s: the classes are in the order of text (%s, ...), as in torchvision's ImageFolder; "
                "%s gives that of numbers",
                folder, ", ".join(names[:3]), option,
            )  # fmt: skip
        return names


def _groupings(folder: Path, files: Iterable[Path], chosen: Iterable[Path]) -> dict[str, Column]:
    """The columns of ``metadata.csv`` for the chosen files; without that file, none.

    A column with another value for each image, such as a caption, and a column without a name are no groupings.

    Raises:
        ClasswiseError: if the file cannot be parsed, or does not have one row for each of all files.
    """
    path = folder / METADATA
    if not path.is_file():
        return {}
    columns = csv_columns(read_text(path), str(path))
    names = columns.pop("file_name", None)
    if names is None:
        logger.warning("%s has no column file_name, so its columns are no groupings", path)
        return {}
    rows = dict[str, int]()
    for row, name in enumerate(names):
        if rows.setdefault(_normal(str(PurePosixPath(name))), row) != row:
            raise ClasswiseError(f"{path}: file_name {name!r} occurs twice; give one row for each image")
    images = {file: _normal(file.relative_to(folder).as_posix()) for file in files}
    if others := rows.keys() - images.values():
        raise ClasswiseError(f"{path}: file_name {min(others)!r} is not an image of a class in {folder}")
    if lacking := {*images.values()} - rows.keys():
        raise ClasswiseError(f"{path} has no row for the image {min(lacking)!r}; give one row for each image")
    groupings, unique = dict[str, Column](), list[str]()
    for name, values in columns.items():
        key = int if all(map(str.isdecimal, values)) else None
        if not name.strip() or len(Column.of(values, key).names) == len(values) > 1:
            unique.append(name)
        else:
            groupings[name] = Column.of([values[rows[images[file]]] for file in chosen], key)
    if unique:
        logger.info("%s: no groupings, since each image has another value: %s", path, ", ".join(unique))
    return groupings


def _folder_of_split(path: Path, split: str) -> Path:
    """The folder of a split, or the path itself if its subfolders are classes.

    Raises:
        ClasswiseError: without subfolders, or if the subfolders are other splits.
    """
    folders = subfolders(path)
    if not folders:
        raise ClasswiseError(f"{path} has no subfolders; expected one per class")
    exact, wanted = path / split, SPLITS.get(split.lower())
    if exact.is_dir():
        if subfolders(exact):
            return exact
        if wanted is None:
            raise ClasswiseError(f"{exact} has no subfolders; expected one per class")
    named = [folder for folder in folders if folder.name.lower() in SPLITS]
    splits = [folder for folder in named if subfolders(folder)]  # without subfolders: a class with such a name
    for folder in splits:
        if SPLITS[folder.name.lower()] == wanted:
            return folder
    search = Search()
    if len(splits) > 1 or (
        named and not any(next(search.image_files(subfolder), None) for subfolder in folders if subfolder not in named)
    ):
        names = ", ".join(folder.name for folder in splits) or "images without folders of classes"
        raise ClasswiseError(f"{path} has no split {split!r} with a subfolder per class, only {names}")
    return path


def _beside(folder: Path) -> list[Path]:
    """The folders of the other splits beside the folder of a split; empty for another folder."""
    whole = folder.absolute()
    if whole.name.lower() not in SPLITS:
        return []
    try:
        return [other for other in subfolders(whole.parent) if other.name.lower() in SPLITS and other != whole]
    except ClasswiseError:  # the user may read the folder, but not list the one around it
        return []


def _normal(name: str) -> str:
    """A name in the Unicode form NFC; macOS writes names of files in NFD."""
    return unicodedata.normalize("NFC", name)


def class_folders(folder: Path) -> dict[str, list[Path]]:
    """The subfolders by class, in the order of their names; names in several Unicode forms are one class.

    Raises:
        ClasswiseError: if the folder cannot be read.
    """
    groups = dict[str, list[Path]]()
    for subfolder in subfolders(folder):
        groups.setdefault(_normal(subfolder.name), []).append(subfolder)
    return dict(sorted(groups.items()))


def _is_class(folder: Path) -> bool:
    """Whether a subfolder of another split is a class: it has an image, or no file at all."""
    search = Search()
    try:
        return next(search.image_files(folder), None) is not None or not search.other_files
    except ClasswiseError:  # an error only if this split is read
        return True


def subfolders(path: Path) -> list[Path]:
    """The subfolders of a folder, sorted by name, without hidden ones.

    Raises:
        ClasswiseError: if the folder cannot be read.
    """
    try:
        return sorted(item for item in path.iterdir() if not is_hidden(item.name) and item.is_dir())
    except OSError as error:
        raise ClasswiseError(f"cannot read the folder {path}: {error.strerror}") from error


class Search:
    """A search for image files with a limit on the number of other files.

    Attributes:
        other_files: number of files so far that are neither images nor hidden.
    """

    def __init__(self) -> None:
        self.other_files = 0
        self._others = 0

    def image_files(self, folder: Path) -> Iterator[Path]:
        """Yield all image files below the folder, by suffix, unsorted, without hidden files and folders.

        Links are followed; each folder is read once, and links to a folder above the first are skipped.

        Raises:
            ClasswiseError: for a folder that cannot be read, an image that is a link to a missing file, or after
                `limits.FOLDER_ENTRIES` other files and folders, over all searched folders.
        """
        pending = [os.fspath(folder)]
        visited = {_identity(parent) for parent in (*folder.absolute().parents, *folder.resolve().parents)}
        while pending:
            place = pending.pop()
            try:
                identity = _identity(place)
                if identity in visited:
                    continue
                visited.add(identity)
                with os.scandir(place) as entries:
                    for entry in entries:
                        if self._is_image(entry, pending):
                            yield Path(entry.path)
                            continue
                        self._others += 1
                        if self._others > limits.FOLDER_ENTRIES:
                            raise ClasswiseError(
                                f"{folder}: more than {limits.FOLDER_ENTRIES:,} files and folders that are not images; "
                                "give a folder that contains only images"
                            )
            except OSError as error:
                raise ClasswiseError(f"cannot read the folder {place}: {error.strerror}") from error

    def _is_image(self, entry: os.DirEntry[str], pending: list[str]) -> bool:
        """Whether an entry is an image file; a folder is appended to the pending ones."""
        if is_hidden(entry.name):
            return False
        if entry.is_dir():
            pending.append(entry.path)
            return False
        if Path(entry.name).suffix.lower() in SUFFIXES:
            if entry.is_file():
                return True
            if entry.is_symlink():
                target = Path(entry.path).readlink()
                raise ClasswiseError(f"{entry.path} is a link to the missing file {target}; restore it or delete it")
        self.other_files += 1
        return False


def _identity(path: str | Path) -> tuple[int, int]:
    """Device and number of a folder, equal for all links to it."""
    status = Path(path).stat()
    return status.st_dev, status.st_ino


def image_files(folder: Path) -> list[Path]:
    """All image files below the folder, by suffix, sorted.

    Raises:
        ClasswiseError: as `Search.image_files`.
    """
    return sorted(Search().image_files(folder))
