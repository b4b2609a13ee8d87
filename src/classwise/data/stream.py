"""`Stream`: images read from a Dataset, a DataLoader, or any iterable of (x, y)."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from classwise.core.errors import ClasswiseError
from classwise.data.formats.image_files import pixels_of, stack
from classwise.data.formats.layout import channels_first
from classwise.data.images import Batch, Images, as_labels, as_pixels, as_tensor, check_labels, to_unit

logger = logging.getLogger(__name__)

Piece = tuple[Tensor, Tensor]
"""Images (N, C, H, W), uint8 or float32 in [0, 1], and labels, int64 (N,)."""


class Stream:
    """A data set read from an iterable or indexable source of (x, y), once per pass.

    Each item of the source is an image with its label, or a batch of both; further entries of an item are ignored.
    A tensor is (C, H, W) or (N, C, H, W); a numpy array may also have channels last or no channels; a Pillow image is
    read as grayscale or RGB. Pixels are uint8, or float in [0, 1]. The `index` of an image is its position in the
    source.

    Attributes:
        class_names: one name per class, or None if the number of classes is unknown.
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
    ) -> None:
        """Wrap a source without reading from it.

        Raises:
            ClasswiseError: if the source can be neither iterated nor indexed.
        """
        readable = hasattr(source, "__iter__") or (hasattr(source, "__len__") and hasattr(source, "__getitem__"))
        if not readable or isinstance(source, Mapping):
            raise ClasswiseError(f"{name}: {type(source).__name__} is not a Dataset, DataLoader or iterable of (x, y)")
        self.class_names = tuple(class_names) if class_names else None
        self.name = name
        self.split = split
        self.superclasses = tuple(superclasses) if superclasses is not None else None
        self.superclass_names = tuple(superclass_names)
        self.shape = shape
        self._source: Any = source
        self._device = torch.device("cpu")
        self._spent = False
        self._digest = ""
        if isinstance(source, DataLoader) and isinstance(source.sampler, RandomSampler):
            logger.warning("%s is shuffled: the index of an image differs between passes; use shuffle=False", name)

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None without class names."""
        return None if self.class_names is None else len(self.class_names)

    @property
    def expected(self) -> int | None:
        """Expected number of images per pass, for progress bars; None if the source has no length."""
        sized: Any = self._source.sampler if isinstance(self._source, DataLoader) else self._source
        try:
            return len(sized)
        except (TypeError, NotImplementedError):
            return None

    def to(self, device: torch.device | str) -> Stream:
        """A copy that yields batches on a device."""
        moved = copy.copy(self)
        moved._device = torch.device(device)
        return moved

    def named(self, class_names: Sequence[str]) -> Stream:
        """A copy with class names."""
        named = copy.copy(self)
        named.class_names = tuple(class_names)
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
        pixels, labels = hashlib.sha256(), hashlib.sha256()
        start = 0
        for x, y in _rebatch(self._pieces(), size):
            unit = to_unit(x) if x.dtype == torch.uint8 else x
            pixels.update(unit.contiguous().numpy().data)
            labels.update(y.numpy().data)
            index = torch.arange(start, start + len(y))
            start += len(y)
            yield Batch(*(tensor.to(self._device) for tensor in (index, x, y)))
        if start == 0:
            raise ClasswiseError(f"{self.name} has no images")
        self._digest = hashlib.sha256(pixels.digest() + labels.digest()).hexdigest()

    def fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of the float32 pixels and the labels of the last complete pass; empty before it."""
        return self._digest

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

    def _pieces(self) -> Iterator[Piece]:
        shape: torch.Size | None = None
        for position, item in enumerate(self._items()):
            where = f"{self.name}, item {position}"
            x, y = _as_piece(item, where)
            if self.class_names is not None:
                check_labels(y, self.class_names, where)
            elif int(y.min()) < 0:
                raise ClasswiseError(f"{where}: label {int(y.min())}: must not be negative")
            if shape is not None and x.shape[1:] != shape:
                raise ClasswiseError(
                    f"{where}: image of shape {tuple(x.shape[1:])}, expected {tuple(shape)} as before; resize images"
                )
            shape = x.shape[1:]
            yield x, y


def as_data(
    source: Any, class_names: Sequence[str] | None = None, name: str = "data", split: str = ""
) -> Images | Stream:
    """Convert a source of images and labels to `Images` or a `Stream`.

    Args:
        source: `Images` or a `Stream` (returned unchanged), a pair (x, y) of tensors or arrays, a Dataset, a
            DataLoader, or an iterable of (x, y).
        class_names: one name per class.
        name: name of the data set in reports.
        split: "train", "test", ... or empty.

    Raises:
        ClasswiseError: if the source is none of these, or images or labels are invalid.
    """
    if isinstance(source, (Images, Stream)):
        return source
    if isinstance(source, str):
        raise ClasswiseError(f"data {source!r} is a string; use load_data({source!r}) for a data set name or path")
    if isinstance(source, (tuple, list)) and len(source) == 2 and all(_is_array(part) for part in source):
        x, y = source
        return Images(channels_first(x, name) if isinstance(x, np.ndarray) else x, y, class_names, name, split)
    return Stream(source, class_names, name, split)


def _is_array(part: Any) -> bool:
    return isinstance(part, (Tensor, np.ndarray))


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
    if len({each.dtype for each in x}) > 1:
        x = tuple(to_unit(each) if each.dtype == torch.uint8 else each for each in x)
    return torch.cat(x), torch.cat(y)


def _as_piece(item: Any, where: str) -> Piece:
    if not isinstance(item, (tuple, list)) or len(item) < 2:
        raise ClasswiseError(f"{where}: {type(item).__name__}, expected a pair (x, y) of images and labels")
    y = as_tensor(item[1], where).cpu()
    x = _as_tensor(item[0], single=y.ndim == 0, where=where).cpu()
    x = as_pixels(x, where)
    return x, as_labels(y.reshape(-1) if y.ndim == 0 else y, len(x), where)


def _as_tensor(x: Any, single: bool, where: str) -> Tensor:
    """The images of an item as (N, C, H, W); ``single``: the item is one image."""
    if isinstance(x, Image.Image):
        return stack([(where, pixels_of(x, where))])
    if isinstance(x, np.ndarray):
        return as_tensor(channels_first(x[None] if single else x, where), where)
    if isinstance(x, Tensor):
        return x[None] if single else x
    raise ClasswiseError(f"{where}: images of type {type(x).__name__}, expected a tensor, an array or a Pillow image")
