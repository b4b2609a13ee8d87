"""`Images`: a data set in memory, as used by training and audits."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from classwise.core.compute.tensors import as_tensor
from classwise.core.compute.transfers import to_device
from classwise.core.errors import ClasswiseError
from classwise.core.settings import limits
from classwise.core.settings.accepted import BY_CONTENT
from classwise.core.settings.arguments import checked
from classwise.core.settings.names import checked_name, checked_names, checked_text
from classwise.data.duplicates import content_hashes, first_rows
from classwise.data.image_names import ImageNames
from classwise.data.image_names import image_names as checked_image_names
from classwise.data.layout import CHANNELS_FIRST, looks_channels_last
from classwise.stats.counts import whole_numbers

Rows = Tensor | slice
"""A selection of images: int64 row numbers, a bool mask, or a slice."""


ONE_CLASS = "each image must have one class; multi-label data are not supported, since images are counted by class"
"""Why several labels of an image are refused."""


class Batch(NamedTuple):
    """A batch of images with labels.

    Attributes:
        index: index of each image in its original data set, int64 (N,).
        x: images in [0, 1], float32 (N, C, H, W).
        y: labels, int64 (N,).
    """

    index: Tensor  # type: ignore[assignment]  # hides tuple.index
    x: Tensor
    y: Tensor


MISSING = "missing"
"""The group of the images that lack a value."""


class Column(NamedTuple):
    """A grouping of the images.

    Attributes:
        ids: group of each image, from 0, int64 (N,).
        names: the name of each group.
    """

    ids: Tensor
    names: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], key: Callable[[str], int] | None = None) -> Column:
        """The groups of equal texts, in ascending order, or in that of a key; blank texts are the group `MISSING`.

        Texts that differ only in blanks, or in the Unicode form of a letter, are equal.
        """
        values = [unicodedata.normalize("NFC", " ".join(text.split())) or MISSING for text in texts]
        names = sorted({*values}, key=key)
        numbers = {name: number for number, name in enumerate(names)}
        return cls(torch.tensor([numbers[value] for value in values]), tuple(names))


Values = Annotated[Tensor | np.ndarray[Any, Any], BY_CONTENT]
Names = Annotated[Sequence[str], BY_CONTENT]

Group = Annotated[
    str | Column | Sequence[Any] | Tensor, "the name of a grouping, or a list with a value for each image"
]
"""The name of a grouping of the data, or a value for each image."""


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class Images:
    """A data set in memory, on one device.

    Attributes:
        x: images, (N, C, H, W), uint8 or float32 in [0, 1].
        y: labels in [0, num_classes), int64 (N,).
        class_names: one name per class; by default the class numbers.
        name: name of the data set in reports.
        split: "train", "test", ... or empty.
        superclasses: the superclass of each class, or None.
        superclass_names: one name per superclass.
        index: index of each image in the original data set, int64 (N,); preserved by `take`.
        columns: groupings of the images, by name; always on the CPU.
        image_names: the name of each image, such as its path relative to the folder of the data set, (N,) texts, empty
            for an image without one; None if no image has one. They are no part of the `fingerprint`.

    Example:
        >>> import torch
        >>> import classwise as cw
        >>> pixels, labels = torch.rand(6, 3, 32, 32), torch.tensor([0, 0, 1, 1, 2, 2])
        >>> images = cw.Images(pixels, labels, class_names=["cat", "dog", "ship"], name="photos")
        >>> images
        Images(photos: 6 of 3x32x32, 3 classes, torch.float32, cpu)
        >>> images.class_counts()
        tensor([2, 2, 2])
    """

    x: Tensor
    y: Tensor
    class_names: tuple[str, ...]
    name: str
    split: str
    superclasses: tuple[int, ...] | None
    superclass_names: tuple[str, ...]
    index: Tensor
    columns: Mapping[str, Column]
    image_names: ImageNames | None

    @checked
    def __init__(
        self,
        x: Values,
        y: Values,
        class_names: Names | None = None,
        name: str = "images",
        split: str = "",
        superclasses: Annotated[Sequence[int], BY_CONTENT] | None = None,
        superclass_names: Names | None = None,
        index: Values | None = None,
        columns: Mapping[str, Column] | None = None,
        image_names: Annotated[Sequence[str | None] | ImageNames, BY_CONTENT] | None = None,
    ) -> None:
        """Validate all values.

        Raises:
            ClasswiseError: for wrong shapes or types, pixels outside [0, 1], NaN, labels outside the classes, or names
                that are not text, are blank or occur twice; names of images may be blank and occur twice.
        """
        name, split = checked_text(name, "name of the data"), checked_text(split, "name of the split")
        x = as_pixels(x, name)
        y = as_labels(y, len(x), name).to(x.device)
        given = None if class_names is None else checked_names(class_names, f"{name}, class names")
        limits.check_classes(len(given) if given else int(y.max()) + 1, len(x), name)
        names = given or tuple(str(number) for number in range(int(y.max()) + 1))
        check_labels(y, names, name)
        number = torch.arange(len(x)) if index is None else as_labels(index, len(x), f"{name} index")
        parents = None if superclasses is None else tuple(whole_numbers(superclasses, f"{name}, superclasses").tolist())
        if parents is not None and len(parents) != len(names):
            raise ClasswiseError(f"{name}: {len(parents)} superclasses for {len(names)} classes; give one per class")
        parent_names = checked_names(() if superclass_names is None else superclass_names, f"{name}, superclass names")
        if parents is not None and not parent_names:
            parent_names = tuple(str(parent) for parent in range(max(parents) + 1))
        if parents is not None and not 0 <= min(parents) <= max(parents) < len(parent_names):
            raise ClasswiseError(
                f"{name}: superclasses {min(parents)} to {max(parents)}, but {len(parent_names)} superclass names"
            )
        checked_names([*(columns or {})], f"{name}, columns")
        groups = {
            key: self._column(*column, len(x), f"{name}, column {key!r}") for key, column in (columns or {}).items()
        }
        own = None if image_names is None else checked_image_names(image_names, len(x), name)
        values = (x, y, names, name, split, parents, parent_names, number.to(x.device), groups, own)
        self._fill(dict(zip((field.name for field in dataclasses.fields(self)), values, strict=True)))

    def _fill(self, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            object.__setattr__(self, key, value)

    @staticmethod
    def _column(ids: Values, names: Iterable[str], count: int, where: str) -> Column:
        """A validated column of ``count`` images."""
        checked = checked_names(names, f"{where}, names")
        limits.check_classes(len(checked), count, where)
        labels = as_labels(ids, count, where).cpu()
        check_labels(labels, checked, where)
        return Column(labels, checked)

    def _with(self, **changes: Any) -> Images:
        """A copy with some fields replaced, without validation."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        clone = object.__new__(Images)
        clone._fill(values | changes)
        return clone

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        title = " ".join(filter(None, (self.name, self.split)))
        size = "x".join(str(side) for side in self.shape)
        return f"Images({title}: {len(self)} of {size}, {self.num_classes} classes, {self.x.dtype}, {self.device})"

    @property
    def num_classes(self) -> int:
        """Number of classes, including those without images."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""
        channels, height, width = self.x.shape[1:]
        return channels, height, width

    @property
    def device(self) -> torch.device:
        """The device of the pixels."""
        return self.x.device

    @checked
    def take(self, rows: Rows | Sequence[int] | Sequence[bool] | np.ndarray[Any, Any]) -> Images:
        """Select rows, in the given order; each image keeps its `index` and its name.

        Args:
            rows: row numbers, such as ``[0, 1]``, a mask of N bools, or a slice.

        Raises:
            ClasswiseError: if no row is selected, or there is no such row.
        """
        if not isinstance(rows, Tensor | slice):
            rows = _as_rows(rows, len(self), self.name)
        here, home = _rows_on(rows, self.device), _rows_on(rows, torch.device("cpu"))
        columns = {key: Column(column.ids[home], column.names) for key, column in self.columns.items()}
        names = self.image_names
        if names is not None:
            names = names[home if isinstance(home, slice) else home.numpy()]
        part = self._with(x=self.x[here], y=self.y[here], index=self.index[here], columns=columns, image_names=names)
        if not len(part):
            raise ClasswiseError(f"{self.name}: the selection of rows is empty")
        return part

    def unique(self) -> Images:
        """The images without duplicates: of images with equal pixels and labels the first one.

        Example:
            >>> import torch
            >>> import classwise as cw
            >>> images = cw.Images(torch.tensor([0.0, 1.0, 0.0]).reshape(3, 1, 1, 1), torch.tensor([0, 1, 0]))
            >>> images.unique().index.tolist()
            [0, 1]
        """
        rows = first_rows(content_hashes(self.x, self.y))
        return self if len(rows) == len(self) else self.take(torch.from_numpy(rows))

    @checked
    def renamed(self, name: str) -> Images:
        """The same images under another name."""
        return self._with(name=checked_text(name, "name of the data"))

    @checked
    def with_pixels(self, x: Values, name: str) -> Images:
        """Replace the pixels; labels, `index`, names and columns do not change.

        Args:
            x: images (N, C, H, W), uint8 or float in [0, 1]; channels and size may differ.
            name: name of the new data set.

        Raises:
            ClasswiseError: for another number of images, or invalid pixels.
        """
        pixels = as_pixels(x, name).to(self.device)
        if len(pixels) != len(self):
            raise ClasswiseError(f"{name}: {len(pixels)} images, expected {len(self)}")
        return self._with(x=pixels, name=name)

    @checked
    def with_labels(self, y: Values) -> Images:
        """Replace the labels; the classes do not change.

        Raises:
            ClasswiseError: if there is not one label per image, or a label is outside the classes.
        """
        labels = as_labels(y, len(self), self.name)
        check_labels(labels, self.class_names, self.name)
        return self._with(y=labels.to(self.device))

    @checked
    def with_column(self, key: str, ids: Values, names: Names) -> Images:
        """Add a `Column`.

        Raises:
            ClasswiseError: if there is not one id per image, an id has no name, or a name is blank or occurs twice.
        """
        where = f"{self.name}, column {checked_name(key, f'{self.name}, columns')!r}"
        column = self._column(ids, names, len(self), where)
        return self._with(columns={**self.columns, key: column})

    @checked
    def to(self, device: torch.device | str) -> Images:
        """Move the images to a device."""
        return self._with(x=self.x.to(device), y=self.y.to(device), index=self.index.to(device))

    @checked
    def pixels(self, rows: Rows | None = None) -> Tensor:
        """A copy of the images, or of some rows, as float32 (N, C, H, W) in [0, 1]."""
        chosen = self.x if rows is None else self.x[_rows_on(rows, self.device)]
        return to_unit(chosen) if chosen.dtype == torch.uint8 else chosen.clone()

    @checked
    def batch(self, rows: Rows, device: torch.device | None = None) -> Batch:
        """The images of some rows as a `Batch`.

        Args:
            rows: the rows.
            device: the device of the batch, to which only these rows are copied, in their stored type; None: that of
                the images.
        """
        here = _rows_on(rows, self.device)
        chosen = Batch(self.index[here], self.x[here], self.y[here])
        index, x, y = chosen if device is None else (to_device(tensor, device) for tensor in chosen)
        if x.dtype == torch.uint8:
            return Batch(index, to_unit(x), y)
        return Batch(index, x.clone() if isinstance(rows, slice) and x.device == self.device else x, y)

    @checked
    def batches(self, size: int) -> Iterator[Batch]:
        """Yield all images in order, in batches of ``size``; the last batch may be smaller."""
        if size < 1:
            raise ClasswiseError(f"batch size {size}: must be at least 1")
        for start in range(0, len(self), size):
            yield self.batch(slice(start, start + size))

    def class_counts(self) -> Tensor:
        """Number of images of each class, int64 (num_classes,)."""
        return torch.bincount(self.y, minlength=self.num_classes)

    def fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of the pixels and labels (`Digest`); cached."""
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        digest = Digest(self.x, len(self))
        digest.update(self.x, self.y)
        return digest.hexdigest()


class Digest:
    """SHA-256 of images and labels, computed in pieces.

    It is that of the ASCII text ``DTYPE (N, C, H, W)``, such as ``torch.uint8 (100, 3, 32, 32)``, the pixels in this
    order of dimensions (uint8, or float32 in little-endian order), and the labels as little-endian int64.

    Args:
        x: the first images, which have the type and the shape of all.
        images: their number in total.

    Example:
        >>> x, y = torch.zeros(2, 1, 1, 1, dtype=torch.uint8), torch.tensor([0, 1])
        >>> text = b"torch.uint8 (2, 1, 1, 1)" + bytes(2) + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
        >>> Images(x, y).fingerprint() == hashlib.sha256(text).hexdigest()
        True
    """

    def __init__(self, x: Tensor, images: int) -> None:
        self._hash = hashlib.sha256(f"{x.dtype} {(images, *x.shape[1:])}".encode())
        self._labels: list[bytes] = []

    def update(self, x: Tensor, y: Tensor) -> None:
        """Add images (n, C, H, W) and labels (n,)."""
        self._hash.update(x.cpu().contiguous().numpy().data)
        self._labels.append(y.cpu().contiguous().numpy().tobytes())

    def hexdigest(self) -> str:
        """The digest of all that were added."""
        whole = self._hash.copy()
        whole.update(b"".join(self._labels))
        return whole.hexdigest()


def to_unit(x: Tensor) -> Tensor:
    """Convert uint8 pixels to float32 in [0, 1], by division by 255: the same values on all devices."""
    return x.to(torch.float32).div_(_highest(x.device))


@functools.cache
def _highest(device: torch.device) -> Tensor:
    """The pixel value 255 on a device; with a Python number a GPU would multiply by 1/255, which is inexact."""
    return torch.full((), 255.0, device=device)


ROUNDING = 1e-6
"""Pixels that exceed [0, 1] by at most so much are clipped: arithmetic in float32 rounds by 1e-7."""
OVERSHOOT = 0.25
"""Pixels that exceed [0, 1] by at most so much are probably those of images that were interpolated."""


def as_pixels(pixels: Any, where: str) -> Tensor:
    """Convert pixels (N, C, H, W) to a plain tensor (`as_tensor`), validate them, and convert floats to float32.

    Values that exceed [0, 1] by rounding (`ROUNDING`) are clipped.

    Raises:
        ClasswiseError: for another shape or type, channels last, no images, NaN, or values outside [0, 1].
    """
    x = as_tensor(pixels, where)
    if x.ndim != 4:
        hint = "; add the channel with x[:, None]" if x.ndim == 3 else ""
        raise ClasswiseError(f"{where}: images of shape {tuple(x.shape)}, expected (N, channels, height, width){hint}")
    if looks_channels_last(x.shape):
        one = ", or x.permute(2, 0, 1) of one image" if len(x) == 1 else ""
        raise ClasswiseError(
            f"{where}: images of shape {tuple(x.shape)} look like (N, H, W, C), expected (N, channels, height, width); "
            f"give {CHANNELS_FIRST}{one}"
        )
    if x.numel() == 0:
        raise ClasswiseError(f"{where}: images of shape {tuple(x.shape)} are empty; at least one image is required")
    if x.dtype == torch.uint8:
        return x
    if not x.is_floating_point():
        raise ClasswiseError(f"{where}: pixels of type {x.dtype}, expected uint8, or float in [0, 1]")
    x = x.to(torch.float32)
    low, high = (float(value) for value in torch.aminmax(x))
    if low >= 0 and high <= 1:
        return x
    if low != low or high != high:
        raise ClasswiseError(f"{where}: some pixels are NaN, expected float in [0, 1]")
    if low >= -ROUNDING and high <= 1 + ROUNDING:
        return x.clamp(0, 1)
    if low >= -OVERSHOOT and high <= 1 + OVERSHOOT:
        hint = "interpolation can leave [0, 1]: clip with x.clamp(0, 1)"
    elif low >= 0 and high <= 255:
        hint = "divide by 255"
    else:
        hint = "move the normalisation into the model"
    raise ClasswiseError(f"{where}: pixels range from {low:.7g} to {high:.7g}, expected [0, 1]; {hint}")


def float_pixels(pixels: Any, where: str) -> Tensor:
    """As `as_pixels`, for images that must be floating-point: float32 (N, C, H, W).

    Raises:
        ClasswiseError: as `as_pixels`, or for integer images.
    """
    given = as_tensor(pixels, where)
    if not given.is_floating_point():
        raise ClasswiseError(f"{where}: pixels of type {given.dtype}, expected float in [0, 1]; divide by 255")
    return as_pixels(given, where)


def as_labels(labels: Any, count: int, where: str) -> Tensor:
    """Convert integer labels (N,) to a plain tensor (`as_tensor`) of int64, and validate them.

    Raises:
        ClasswiseError: for another shape or type.
    """
    y = as_tensor(labels, where)
    if y.ndim == 2 and len(y) == count and y.shape[1] > 1:
        raise several_labels(tuple(y.shape), where, one_hot=bool(((y != 0).sum(1) == 1).all()))
    if y.shape != (count,):
        raise ClasswiseError(f"{where}: labels of shape {tuple(y.shape)}, expected ({count},), one per image")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise ClasswiseError(f"{where}: labels of type {y.dtype}, expected integers; give y.long() of class numbers")
    return y.to(torch.int64)


def several_labels(shape: tuple[int, ...], where: str, *, one_hot: bool = False) -> ClasswiseError:
    """The error for labels (N, K), or (K,) of one image."""
    hint = "; of one-hot labels give y.argmax(1)" if one_hot else ""
    return ClasswiseError(f"{where}: labels of shape {shape}: {ONE_CLASS}{hint}")


def check_labels(y: Tensor, class_names: Sequence[object], where: str) -> None:
    """Check that every label is a class number.

    Raises:
        ClasswiseError: for the first label outside the classes.
    """
    outside = (y < 0) | (y >= len(class_names))
    if bool(outside.any()):
        row = int(outside.int().argmax())
        raise ClasswiseError(f"{where}: label {int(y[row])} of image {row} is not a class in 0..{len(class_names) - 1}")


def _as_rows(rows: Sequence[int] | np.ndarray[Any, Any], count: int, where: str) -> Tensor:
    """Convert row numbers or a mask to a tensor.

    Raises:
        ClasswiseError: unless they are integers of existing rows, or ``count`` bools.
    """
    array = np.asarray(rows) if len(rows) else np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iub" or (array.dtype.kind == "b" and len(array) != count):
        raise ClasswiseError(
            f"{where}: rows of type {array.dtype} {array.shape}, expected row numbers or {count} bools"
        )
    if array.dtype.kind != "b" and len(array) and not -count <= array.min() <= array.max() < count:
        raise ClasswiseError(f"{where}: rows {array.min()} to {array.max()}, but there are {count} images")
    return torch.from_numpy(array if array.dtype.kind == "b" else array.astype(np.int64))


def _rows_on(rows: Rows, device: torch.device) -> Rows:
    return rows if isinstance(rows, slice) else to_device(rows, device)
