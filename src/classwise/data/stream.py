"""`Stream`: images read from a Dataset, a DataLoader, or any iterable of (x, y)."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from classwise.core.compute.tensors import as_tensor
from classwise.core.errors import ClasswiseError
from classwise.core.settings import limits
from classwise.core.settings.config import build
from classwise.core.settings.names import checked_names, checked_text
from classwise.data.duplicates import content_hashes, first_rows
from classwise.data.image_names import ImageNames, image_names
from classwise.data.images import Batch, Digest, Images, as_labels, check_labels, to_unit
from classwise.data.labels import classes_option, encode_labels
from classwise.data.layout import channels_first
from classwise.data.maite import MaiteItems, is_dataset
from classwise.data.rows import Rows, class_names_of, label_array, label_column, names_of_source

logger = logging.getLogger(__name__)

Piece = tuple[Tensor, Tensor]
"""Images (N, C, H, W), uint8 or float32 in [0, 1], and labels, int64 (N,)."""


class Stream:
    """A data set read from an iterable or indexable source of (x, y), once per pass.

    Each item of the source is an image with its label, or a batch of both, as a pair or a dict; further entries of an
    item are ignored. A tensor is (C, H, W) or (N, C, H, W); a numpy array may also have channels last or no channels; a
    Pillow image or encoded bytes are read as grayscale or RGB. Pixels are uint8, or float in [0, 1]. The `index` of an
    image is its position in the source.

    Attributes:
        class_names: one name per class, by default those of the source; None if the number of classes is unknown.
        name: name of the data set in reports.
        split: "train", "test", ... or empty.
        superclasses: the superclass of each class, or None.
        superclass_names: one name per superclass.
        shape: channels, height and width of each image, or None if they are unknown.
    """

    def __init__(
        self,
        source: Any,
        class_names: Sequence[str] | None = None,
        name: str = "stream",
        split: str = "",
        superclasses: Sequence[int] | None = None,
        superclass_names: Sequence[str] = (),
        shape: tuple[int, int, int] | None = None,
        rows: Rows | None = None,
        image_names: ImageNames | None = None,
        images: int | None = None,
    ) -> None:
        """Wrap a source without reading from it.

        Args:
            source: the source.
            class_names: see the attributes, as for the following ones.
            name: the name.
            split: the split.
            superclasses: the superclasses.
            superclass_names: their names.
            shape: the shape.
            rows: options to read the items.
            image_names: the name of each image, in the order of the source. None: those of its files if it is a data
                set of torchvision (`names_of_source`), else those in items that are dicts.
            images: the exact number of images. None: not known, as for an iterable, whose items may be batches.

        Raises:
            ClasswiseError: if the source can be neither iterated nor indexed.
        """
        readable = hasattr(source, "__iter__") or (hasattr(source, "__len__") and hasattr(source, "__getitem__"))
        if not readable or isinstance(source, Mapping):
            raise ClasswiseError(f"{name}: {type(source).__name__} is not a Dataset, DataLoader or iterable of (x, y)")
        rows = Rows() if rows is None else rows
        self._rows = dataclasses.replace(rows, label=label_column(source, rows.label))
        own = class_names_of(source, self._rows.label) or tuple(map(str, self._rows.classes or ()))
        self.class_names = checked_names(own if class_names is None else class_names, f"{name}, class names") or None
        self.name = checked_text(name, "name of the data")
        self.split = checked_text(split, "name of the split")
        self.superclasses = tuple(superclasses) if superclasses is not None else None
        self.superclass_names = checked_names(superclass_names, f"{name}, superclass names")
        self.shape = shape
        self._source: Any = source
        self._device = torch.device("cpu")
        self._spent = False
        self._unique = False
        self._digest = ""
        self._images = images
        self._counts: Tensor | None = None
        self._files = names_of_source(source) if image_names is None else image_names
        self._read: list[str] = []
        if isinstance(source, DataLoader) and isinstance(source.sampler, RandomSampler):
            logger.warning("%s is shuffled: the index of an image differs between passes; use shuffle=False", name)

    def names_of(self, index: Tensor) -> ImageNames | None:
        """The names of images that have been read, by their index (N,); None if none of them has a name."""
        if self._files is not None:
            names: ImageNames = self._files[index.cpu().numpy()]
            return names
        return image_names([self._read[place] for place in index.tolist()], len(index), self.name)

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None without class names."""
        return None if self.class_names is None else len(self.class_names)

    @property
    def expected(self) -> int | None:
        """Expected number of images per pass, with duplicates, for progress bars; None if the source has no length."""
        sized: Any = self._source.sampler if isinstance(self._source, DataLoader) else self._source
        try:
            return len(sized)
        except (TypeError, NotImplementedError):  # how a source says that it has no length
            return None

    def to(self, device: torch.device | str) -> Stream:
        """A copy that yields batches on a device."""
        moved = copy.copy(self)
        moved._device = torch.device(device)
        return moved

    def unique(self) -> Stream:
        """A copy without duplicates: of images with equal pixels and labels the first one; batches may be smaller."""
        unique = copy.copy(self)
        unique._unique = True
        return unique

    def named(self, class_names: Sequence[str]) -> Stream:
        """A copy with class names."""
        named = copy.copy(self)
        named.class_names = checked_names(class_names, f"{self.name}, class names")
        return named

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield all images in the order of the source, in batches of ``size``; the last batch may be smaller.

        Raises:
            ClasswiseError: for an item that is not (x, y), pixels outside [0, 1], a label outside the classes, images
                of different sizes, no images, or a second pass over an iterator.
        """
        for index, x, y in self.blocks(size):
            yield Batch(index, to_unit(x) if x.dtype == torch.uint8 else x, y)

    def blocks(self, size: int) -> Iterator[Batch]:
        """As `batches`, but the pixels have their stored type, uint8 or float32.

        Raises:
            ClasswiseError: as `batches`.
        """
        if size < 1:
            raise ClasswiseError(f"batch size {size}: must be at least 1")
        digest: Digest | None = None
        pixels, labels = hashlib.sha256(), hashlib.sha256()
        start, counts, known = 0, torch.zeros(self.num_classes or 0, dtype=torch.int64), set[int]()
        for x, y in _rebatch(self._pieces(), size):
            index = torch.arange(start, start + len(y))
            start += len(y)
            if self._unique:
                hashes = content_hashes(x, y)
                rows = torch.tensor([row for row in first_rows(hashes).tolist() if int(hashes[row]) not in known])
                known.update(hashes.tolist())
                if not len(rows):
                    continue
                index, x, y = index[rows], x[rows], y[rows]  # noqa: PLW2901  # without duplicates
            if self._images is not None and not self._unique:
                digest = digest or Digest(x, self._images)
                digest.update(x, y)
            else:
                unit = to_unit(x) if x.dtype == torch.uint8 else x
                pixels.update(unit.contiguous().numpy().data)
                labels.update(y.numpy().data)
            more = torch.bincount(y, minlength=len(counts))
            more[: len(counts)] += counts
            counts = more
            yield Batch(*(tensor.to(self._device) for tensor in (index, x, y)))
        if start == 0:
            raise ClasswiseError(f"{self.name} has no images")
        whole = hashlib.sha256(pixels.digest() + labels.digest())
        self._digest = whole.hexdigest() if digest is None else digest.hexdigest()
        self._counts = counts

    def fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of the last complete pass; empty before it.

        That of `Images` (`classwise.data.images.Digest`), if the source states its number of images; else, and without
        duplicates, the SHA-256 of two digests: of the pixels as float32, and of the labels.
        """
        return self._digest

    def class_counts(self) -> Tensor:
        """Number of images of each class in the last complete pass, int64 (C,).

        Without class names, C is the largest label plus 1.

        Raises:
            ClasswiseError: before the end of the first pass.
        """
        if self._counts is None:
            raise ClasswiseError(f"{self.name}: the class counts are known after the images have been read once")
        return self._counts

    def load(self) -> Images:
        """Read all images into memory. Labels that are text without class names become classes in ascending order.

        Raises:
            ClasswiseError: as `batches`, or if the images exceed the memory.
        """
        xs, ys, total, checked = [], [], 0, 0
        for x, y, where in self._raw():
            xs.append(x)
            ys.append(np.asarray(y))
            total += x.nbytes
            if total - checked > limits.FREE_BYTES:
                limits.check_size(total, f"the images up to {where}")  # the joined tensor needs as much again
                checked = total
        if not xs:
            raise ClasswiseError(f"{self.name} has no images")
        y, names = encode_labels(np.concatenate(ys), self._classes(ys[0]), self.name)
        x = torch.cat(_alike(xs))
        return Images(
            x,
            y,
            self.class_names or names,
            self.name,
            self.split,
            self.superclasses,
            self.superclass_names,
            image_names=self.names_of(torch.arange(len(y))),
        ).to(self._device)

    def _classes(self, y: Any) -> Sequence[int | str] | None:
        """The label of each class: as given, or the class names if labels are text."""
        is_text = isinstance(y, np.ndarray) and y.dtype.kind == "U"
        return self._rows.classes or (self.class_names if is_text else None)

    def _items(self) -> Iterator[Any]:
        source = self._source
        indexed = hasattr(source, "__len__") and hasattr(source, "__getitem__")
        if indexed and not isinstance(source, (DataLoader, IterableDataset)):
            return (source[number] for number in range(len(source)))
        items: Iterator[Any] = iter(source)
        if items is source:
            if self._spent:
                raise ClasswiseError(
                    f"{self.name} is an iterator and has been read already; give a Dataset, DataLoader or list"
                )
            self._spent = True
        return items

    def _raw(self) -> Iterator[tuple[Tensor, Any, str]]:
        """Yield images, stored labels, and the position of each item for error messages."""
        shape: torch.Size | None = None
        self._read = read = list[str]()
        for position, item in enumerate(self._items()):
            where = f"{self.name}, item {position}"
            x, y = self._rows.read(item, where)
            if shape is not None and x.shape[1:] != shape:
                raise ClasswiseError(
                    f"{where}: image of shape {tuple(x.shape[1:])}, expected {tuple(shape)} as before; resize images"
                )
            shape = x.shape[1:]
            if self._files is None:
                read += self._rows.names(item, len(x), where)
            yield x, y, where

    def _pieces(self) -> Iterator[Piece]:
        for x, y, where in self._raw():
            classes = self._classes(y)
            if classes is None and isinstance(y, np.ndarray):
                raise ClasswiseError(
                    f"{where}: the label {str(y.flat[0])!r} is text; give the label of each class in the order "
                    f"of the model's logits, {classes_option()}, or read all images with load_data"
                )
            labels = as_labels(encode_labels(y, classes, where)[0], len(x), where)
            if self.class_names is not None:
                check_labels(labels, self.class_names, where)
            elif int(labels.min()) < 0:
                raise ClasswiseError(f"{where}: label {int(labels.min())}: must not be negative")
            yield x, labels


def as_data(
    source: Any, class_names: Sequence[str] | None = None, name: str | None = None, split: str = "", **options: Any
) -> Images | Stream:
    """Convert a source of images and labels to `Images` or a `Stream`.

    Args:
        source: `Images` or a `Stream` (returned unchanged), a pair (x, y) of tensors or arrays or a dict of them, a
            Dataset, a DataLoader, or an iterable of pairs or dicts; or a data set in the protocol of MAITE, which is
            read into memory (`classwise.data.maite`).
        class_names: one name per class; by default those of the source (`class_names_of`).
        name: name of the data set in reports; by default that of a Hugging Face or MAITE data set, or ``data``.
        split: "train", "test", ... or empty.
        **options: fields of `classwise.data.rows.Rows`, such as ``image="img"`` and ``label="fine_label"``.

    Raises:
        ClasswiseError: if the source is none of these, images or labels are invalid, or an option is unknown.
    """
    rows = build(Rows, options, "data")
    if is_dataset(source):
        if options:
            raise ClasswiseError(f"{source.metadata['id']}: a data set of MAITE has no option {next(iter(options))!r}")
        items = MaiteItems(source)
        whole = Stream(items, class_names or items.class_names, name or items.name, split or items.split)
        return items.completed(whole.load())
    name = name or getattr(getattr(source, "info", None), "dataset_name", None) or "data"
    if isinstance(source, (Images, Stream)):
        if options:
            raise ClasswiseError(
                f"{type(source).__name__} has no option {next(iter(options))!r}, since it is read already; omit it"
            )
        return source
    if isinstance(source, str):
        raise ClasswiseError(f"data {source!r} is a string; use load_data({source!r}) for a data set name or path")
    files = list[str]()
    if isinstance(source, Mapping):
        pair = _pair_of(source, rows, name)
        files = rows.names(source, len(pair[0]) if _is_array(pair[0], 1) else 0, name)
        source = pair
    if isinstance(source, (tuple, list)) and len(source) == 2 and _is_array(source[0], 1) and _is_array(source[1], 0):
        x, y = source
        where = f"{name}, labels"
        y, names = encode_labels(label_array(y, where), rows.classes, where)
        x = channels_first(as_tensor(x, name).numpy(), name) if isinstance(x, np.ndarray) else x
        return Images(x, y, names if class_names is None else class_names, name, split, image_names=files or None)
    return Stream(source, class_names, name, split, rows=rows)


def _pair_of(source: Mapping[Any, Any], rows: Rows, name: str) -> tuple[Any, Any]:
    """The images and labels in a dict of arrays.

    Raises:
        ClasswiseError: for another dict, such as a `DatasetDict` of splits.
    """
    if not any(_is_array(value, 0) for value in source.values()):
        splits = " or ".join(f"data[{key!r}]" for key in source)
        raise ClasswiseError(f"{name} is a dict of splits; give one of them: {splits or 'it is empty'}")
    return rows.pair(source, name)


def _is_array(part: Any, ndim: int) -> bool:
    """Whether a value is an array of at least this many dimensions; a list or a column of pandas if of labels."""
    if isinstance(part, (Tensor, np.ndarray)):
        return part.ndim >= ndim
    return ndim == 0 and (isinstance(part, list) or hasattr(part, "to_numpy"))


def _rebatch(pieces: Iterator[Piece], size: int) -> Iterator[Piece]:
    """Regroup pieces of any size into pieces of one size; the last may be smaller."""
    pending: list[Piece] = []
    count = 0
    for piece in pieces:
        pending.append(piece)
        count += len(piece[1])
        if count >= size:
            x, y = _joined(pending)
            whole = count - count % size
            yield from ((x[at : at + size], y[at : at + size]) for at in range(0, whole, size))
            pending, count = [(x[whole:], y[whole:])], count - whole
    if count:
        yield _joined(pending)


def _joined(pieces: Sequence[Piece]) -> Piece:
    """All images and labels; in float32 if some images are not uint8."""
    x, y = zip(*pieces, strict=True)
    return torch.cat(_alike(x)), torch.cat(y)


def _alike(images: Sequence[Tensor]) -> list[Tensor]:
    """The images, converted to float32 if some are not uint8."""
    if len({image.dtype for image in images}) == 1:
        return list(images)
    return [to_unit(image) if image.dtype == torch.uint8 else image for image in images]
