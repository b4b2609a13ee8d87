"""WebDataset: tar files in which the files of one image follow each other and share their name up to the first dot."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import torch

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.files.reading import check_regular, parse_json, read_text
from classwise.core.settings import limits
from classwise.core.settings.config import Count, configurable
from classwise.data.encoded import EncodedImages, Location
from classwise.data.formats.base import SPLITS, EncodedFormat, is_hidden, names_of_split, split_of_file, visible
from classwise.data.formats.folder import SUFFIXES
from classwise.data.images import check_labels
from classwise.data.labels import Classes, classes_option, in_order

NAMES = ("classnames.txt", "classes.txt")
"""Files beside the shards with one class name per line."""
LABEL_BYTES = 64 << 10
"""Size of the file with the label of one image."""


@configurable
class WebDataset(EncodedFormat):
    """A tar file, or a folder of tar files (shards) in the layout of WebDataset.

    Each image has a file with its label: ``0001.jpg`` and ``0001.cls``, which contains the class number, or
    ``0001.json``, an object with the key ``label`` or ``cls``. The class names are the lines of ``classnames.txt`` or
    ``classes.txt`` in the folder of the shards or the one above; without these files, names are numbers. The split is a
    subfolder, or part of the names of the shards.

    Attributes:
        label: extension of the file with the label, or key in the ``.json`` file, if not the default.
        classes: the label of each class in the order of the model's logits, for text or numbers that are not
            0, 1, 2, ...; without a file of class names, these are also the names. Its lines are in ascending order of
            the labels; ``classes`` may have them in place of the labels.
        size: resize the shorter side to this and crop the central square.
        resize: with ``size``, resize the shorter side to this before the crop.
    """

    label: str | None = None
    classes: Classes | None = None
    size: Count | None = None
    resize: Count | None = None

    def accepts(self, path: Path) -> bool:
        """Whether the path is a tar file by suffix, or a folder with such files or with subfolders of such files."""
        return path.suffix == ".tar" if path.is_file() else bool(_shards(path) or visible(path, "*/*.tar"))

    def encoded(self, path: Path, split: str) -> EncodedImages:
        """The images of the split, in the order of the shards' names; only the headers of the archives are read.

        Raises:
            ClasswiseError: for a missing split, a compressed or damaged archive, or an image without a label.
        """
        shards = [path] if path.is_file() else _shards_of_split(path, split)
        keys = (self.label,) if self.label else ("cls", "label")
        names = _class_names(shards[0].parent)
        numbers: dict[str, int] | None = None
        if self.classes is not None:
            chosen, lines = [str(label) for label in self.classes], names
            numbers = {label: number for number, label in enumerate(chosen)}
            names = in_order(self.classes, lines, np.empty(0), str(path))[1] if lines else chosen
            if lines and names == chosen:  # a label is a name, or the number of its line
                numbers |= {str(lines.index(name)): number for number, name in enumerate(chosen)}
        samples = [sample for shard in shards for sample in _samples(shard, keys, numbers)]
        if not samples:
            raise ClasswiseError(f"{path} has no images with labels; expected files such as 0001.jpg and 0001.cls")
        y = torch.tensor([sample.label for sample in samples])
        if names is not None:
            check_labels(y, names, str(path))
        name = path.stem if path.is_file() else path.name
        split = split_of_file(path) if path.is_file() else split
        locations = [sample.location for sample in samples]
        return EncodedImages(locations, y, names, name, split, self.size, self.resize, root=path)


Numbers = Mapping[str, int] | None
"""The class number of each label; None: labels are class numbers."""


class _Sample(NamedTuple):
    location: Location
    label: int


def _shards(folder: Path) -> list[Path]:
    return visible(folder, "*.tar")


def _shards_of_split(folder: Path, split: str) -> list[Path]:
    """The shards in the subfolder of the split, or whose names contain it; all shards if no name contains a split."""
    for name in names_of_split(split):
        if inner := _shards(folder / name):
            return inner
    shards = _shards(folder)
    splits = {shard: split_of_file(shard) for shard in shards}
    chosen = (
        [shard for shard in shards if splits[shard] == SPLITS.get(split.lower(), split)]
        if any(splits.values())
        else shards
    )
    if not chosen:
        known = {*filter(None, splits.values()), *(shard.parent.name for shard in visible(folder, "*/*.tar"))}
        raise ClasswiseError(f"{folder} has no shards of the split {split!r}, only of {', '.join(sorted(known))}")
    return chosen


def _samples(shard: Path, keys: Sequence[str], numbers: Numbers) -> Iterator[_Sample]:
    """The images of a shard with their labels."""
    with _opened(shard) as archive:
        try:
            for name, members in _groups(archive, shard):
                if images := [member for extension, member in members.items() if f".{extension}" in SUFFIXES]:
                    where = f"{shard}, {name}"
                    location = Location(shard, images[0].name, images[0].offset_data, images[0].size)
                    yield _Sample(location, _number(_label(archive, members, keys, where), numbers, where))
        except (OSError, tarfile.TarError, EOFError) as error:
            raise ClasswiseError(f"{shard} is damaged: {error}") from error


def _opened(shard: Path) -> tarfile.TarFile:
    check_regular(shard)
    try:
        return tarfile.open(shard, "r:")
    except (OSError, tarfile.TarError) as error:
        raise ClasswiseError(f"{shard} is not an uncompressed tar file ({error}); decompress it") from error


def _groups(archive: tarfile.TarFile, shard: Path) -> Iterator[tuple[str, dict[str, tarfile.TarInfo]]]:
    """Consecutive files with the same name up to the first dot: the name, and the files by last extension.

    Raises:
        ClasswiseError: for an image that is a link to another file, which would be left out.
    """
    name, members = "", dict[str, tarfile.TarInfo]()
    for member in archive:
        archive.members = []  # type: ignore[attr-defined]  # not annotated; else every header is kept in memory
        path = PurePosixPath(member.name)
        if any(is_hidden(part) for part in path.parts if part not in (".", "..")):
            continue
        if (member.islnk() or member.issym()) and path.suffix.lower() in SUFFIXES:
            raise ClasswiseError(
                f"{shard}: {member.name} is a link to {member.linkname}; write the shard with copies of the "
                "images: tar --dereference --hard-dereference"
            )
        if not member.isreg():
            continue
        stem = str(path.parent / path.name.partition(".")[0])
        if stem != name and members:
            yield name, members
            members = {}
        name = stem
        members[path.suffix[1:].lower()] = member
    if members:
        yield name, members


def _label(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], keys: Sequence[str], where: str) -> object:
    """The label in the file with the extension of a key, or under a key of the ``.json`` file."""
    for key in keys:
        if key in members:
            return _text(archive, members[key], where)
    if "json" in members:
        try:
            values = parse_json(_text(archive, members["json"], where))
        except ClasswiseError:
            raise
        except ValueError as error:
            raise ClasswiseError(f"{where}.json is not JSON; write the shard again") from error
        for key in keys:
            if isinstance(values, dict) and key in values:
                return values[key]
    expected = " or ".join(f".{key}" for key in keys)
    raise ClasswiseError(
        f"{where} has no label: expected a file {expected}, or .json with such a key; give another key as label "
        "(--data-set label=KEY)"
    )


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo, where: str) -> str:
    if member.size > LABEL_BYTES:
        raise ClasswiseError(f"{where}: the file with the label has {member.size} bytes, at most {LABEL_BYTES}")
    file = archive.extractfile(member)
    return "" if file is None else file.read().decode("utf-8", errors="replace")


def _number(label: object, numbers: Numbers, where: str) -> int:
    """The class number of a label: the label itself, or its place among the chosen classes."""
    text = str(label).strip()
    if numbers is not None:
        if isinstance(label, bool | float | list | dict) or text not in numbers:
            raise unknown(f"label in {where}:", text[:40], numbers)
        return numbers[text]
    if isinstance(label, bool | float) or not text.isascii() or not text.isdecimal() or int(text[:20]) > limits.COUNT:
        raise ClasswiseError(
            f"{where}: the label {text[:40]!r} is not a class number; for other labels give those of all classes in "
            f"order: {classes_option()}"
        )
    return int(text)


def _class_names(folder: Path) -> list[str] | None:
    for file in (place / name for place in (folder, folder.parent) for name in NAMES):
        if file.is_file():
            return read_text(file).splitlines()
    return None
