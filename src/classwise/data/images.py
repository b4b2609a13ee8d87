"""Images that are resident in memory: the form in which training and audits read data."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from classwise.core import limits
from classwise.core.errors import ClasswiseError

Rows = Tensor | slice
"""Which images: int64 row numbers, a bool mask, or a slice."""


class Batch(NamedTuple):
    """Some images with their labels.

    Attributes:
        index: (N,) int64, the number of each image in the data set that it came from.
        x: (N, C, H, W) float32 in [0, 1].
        y: (N,) int64 labels.
    """

    index: Tensor  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    x: Tensor
    y: Tensor


class Column(NamedTuple):
    """One more property of each image, for grouping.

    Attributes:
        ids: (N,) int64 group numbers from 0.
        names: the name of each group.
    """

    ids: Tensor
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class Images:
    """A data set in memory, uint8 where it came as uint8, on one device.

    Attributes:
        x: (N, C, H, W) uint8, or float32 in [0, 1].
        y: (N,) int64 labels in [0, num_classes).
        class_names: one name per class; the numbers where none were given.
        name: what the set is called in reports.
        split: "train", "test", ... or empty.
        superclasses: the superclass of each class, or None.
        superclass_names: one name per superclass.
        index: (N,) int64, the number of each image in the original set; `take` keeps it.
        columns: further groups of the images, by name. They stay in main memory.

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

    def __init__(
        self,
        x: Tensor | np.ndarray[Any, Any],
        y: Tensor | np.ndarray[Any, Any],
        class_names: Sequence[str] | None = None,
        name: str = "images",
        split: str = "",
        superclasses: Sequence[int] | None = None,
        superclass_names: Sequence[str] | None = None,
        index: Tensor | np.ndarray[Any, Any] | None = None,
        columns: Mapping[str, Column] | None = None,
    ) -> None:
        """Check everything once, so that nothing later has to.

        Raises:
            ClasswiseError: for wrong shapes or types, pixels outside [0, 1], NaN, or labels without a class.
        """
        x = as_pixels(as_tensor(x, name), name)
        y = as_labels(as_tensor(y, name), len(x), name).to(x.device)
        limits.check_classes(len(class_names) if class_names else int(y.max()) + 1, len(x), name)
        names = tuple(class_names) if class_names else tuple(str(number) for number in range(int(y.max()) + 1))
        check_labels(y, names, name)
        number = torch.arange(len(x)) if index is None else as_labels(as_tensor(index, name), len(x), f"{name} index")
        parents = None if superclasses is None else tuple(int(parent) for parent in superclasses)
        if parents is not None and len(parents) != len(names):
            raise ClasswiseError(f"{name}: {len(parents)} superclasses for {len(names)} classes; give one per class")
        parent_names = tuple(superclass_names or ())
        if parents is not None and not parent_names:
            parent_names = tuple(str(parent) for parent in range(max(parents) + 1))
        if parents is not None and not 0 <= min(parents) <= max(parents) < len(parent_names):
            raise ClasswiseError(
                f"{name}: superclasses run from {min(parents)} to {max(parents)}, {len(parent_names)} have names"
            )
        for key, column in (columns or {}).items():
            ids = as_labels(as_tensor(column.ids, name), len(x), f"{name}, column {key!r}")
            limits.check_classes(len(column.names), len(x), f"{name}, column {key!r}")
            check_labels(ids, column.names, f"{name}, column {key!r}")
        values = (x, y, names, name, split, parents, parent_names, number.to(x.device), dict(columns or {}))
        self._fill(dict(zip((field.name for field in dataclasses.fields(self)), values, strict=True)))

    def _fill(self, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def _with(self, **changes: Any) -> Images:
        """A copy with some fields changed to values that are known to be right."""
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
        """How many classes there are, those without an image included."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""
        channels, height, width = self.x.shape[1:]
        return channels, height, width

    @property
    def device(self) -> torch.device:
        """Where the pixels are."""
        return self.x.device

    def take(self, rows: Rows) -> Images:
        """The images of some rows, in that order; each keeps its `index`."""
        here, home = _rows_on(rows, self.device), _rows_on(rows, torch.device("cpu"))
        columns = {key: Column(column.ids[home], column.names) for key, column in self.columns.items()}
        part = self._with(x=self.x[here], y=self.y[here], index=self.index[here], columns=columns)
        if not len(part):
            raise ClasswiseError(f"{self.name}: no image is left after the choice of rows")
        return part

    def renamed(self, name: str) -> Images:
        """The same images under another name."""
        return self._with(name=name)

    def with_pixels(self, x: Tensor, name: str) -> Images:
        """Other pixels for the same images, which keep labels, `index` and columns.

        Args:
            x: (N, C, H, W) uint8, or float in [0, 1]; channels and size may differ.
            name: what the new set is called.

        Raises:
            ClasswiseError: for another number of images, or pixels that are none.
        """
        if len(x) != len(self):
            raise ClasswiseError(f"{name}: {len(x)} images in place of {len(self)}")
        return self._with(x=as_pixels(x, name), name=name)

    def with_labels(self, y: Tensor) -> Images:
        """The same images with other labels of the same classes.

        Raises:
            ClasswiseError: if the labels are not one per image, or have no class.
        """
        labels = as_labels(y, len(self), self.name)
        check_labels(labels, self.class_names, self.name)
        return self._with(y=labels.to(self.device))

    def with_column(self, key: str, ids: Tensor, names: Sequence[str]) -> Images:
        """The same images with one more `Column`.

        Raises:
            ClasswiseError: if the ids are not one per image, or have no name.
        """
        where = f"{self.name}, column {key!r}"
        column = Column(as_labels(ids.cpu(), len(self), where), tuple(names))
        check_labels(column.ids, column.names, where)
        return self._with(columns={**self.columns, key: column})

    def to(self, device: torch.device | str) -> Images:
        """The same images on another device."""
        return self._with(x=self.x.to(device), y=self.y.to(device), index=self.index.to(device))

    def pixels(self, rows: Rows | None = None) -> Tensor:
        """(N, C, H, W) float32 in [0, 1]: all images, or those of some rows. The tensor is the caller's own."""
        chosen = self.x if rows is None else self.x[_rows_on(rows, self.device)]
        return to_unit(chosen) if chosen.dtype == torch.uint8 else chosen.clone()

    def batch(self, rows: Rows) -> Batch:
        """The images of some rows, ready for a model."""
        here = _rows_on(rows, self.device)
        return Batch(self.index[here], self.pixels(here), self.y[here])

    def batches(self, size: int) -> Iterator[Batch]:
        """All images in order, ``size`` at a time; the last batch may be smaller."""
        if size < 1:
            raise ClasswiseError(f"batch size {size} should be at least 1")
        for start in range(0, len(self), size):
            yield self.batch(slice(start, start + size))

    def class_counts(self) -> Tensor:
        """(num_classes,) int64: how many images each class has."""
        return torch.bincount(self.y, minlength=self.num_classes)

    def fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of the pixels and labels, computed once."""
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.x.dtype} {tuple(self.x.shape)}".encode())
        for tensor in (self.x, self.y):
            digest.update(tensor.cpu().contiguous().numpy().data)
        return digest.hexdigest()


def to_unit(x: Tensor) -> Tensor:
    """uint8 pixels as float32 in [0, 1]: each value divided by 255."""
    return x.to(torch.float32).div_(255)


def as_tensor(values: Any, where: str) -> Tensor:
    """A tensor of a tensor, an array or a number; memory is shared where torch can.

    Raises:
        ClasswiseError: if the values are no numbers.
    """
    if isinstance(values, np.ndarray) and not (values.flags.writeable and values.flags.c_contiguous):
        values = values.copy()
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise ClasswiseError(f"{where}: values of type {kind} are not numbers that torch can hold") from error


def as_pixels(x: Tensor, where: str) -> Tensor:
    """Check (N, C, H, W) pixels; uint8 stays as it is, floating point becomes float32.

    Raises:
        ClasswiseError: for another shape or type, no images, NaN, or values outside [0, 1].
    """
    if x.ndim != 4:
        hint = "; add the channel with x[:, None]" if x.ndim == 3 else ""
        raise ClasswiseError(f"{where}: images of shape {tuple(x.shape)} should be (N, channels, height, width){hint}")
    if x.numel() == 0:
        raise ClasswiseError(f"{where}: images of shape {tuple(x.shape)} are empty; at least one image is needed")
    if x.dtype == torch.uint8:
        return x
    if not x.is_floating_point():
        raise ClasswiseError(f"{where}: pixels of type {x.dtype} should be uint8, or float in [0, 1]")
    low, high = (float(value) for value in torch.aminmax(x))
    if not (low >= 0 and high <= 1):
        if low != low or high != high:
            raise ClasswiseError(f"{where}: some pixels are NaN; pixels should be float in [0, 1]")
        hint = "divide by 255" if low >= 0 and 1 < high <= 255 else "undo the normalisation: it belongs into the model"
        raise ClasswiseError(f"{where}: pixels run from {low:.4g} to {high:.4g} and should be in [0, 1]; {hint}")
    return x.to(torch.float32)


def as_labels(y: Tensor, count: int, where: str) -> Tensor:
    """Check (N,) whole numbers and make them int64.

    Raises:
        ClasswiseError: for another shape or type.
    """
    if y.shape != (count,):
        raise ClasswiseError(f"{where}: labels of shape {tuple(y.shape)} should be ({count},), one per image")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise ClasswiseError(f"{where}: labels of type {y.dtype} should be whole numbers")
    return y.to(torch.int64)


def check_labels(y: Tensor, class_names: Sequence[str], where: str) -> None:
    """Check that every label has a class.

    Raises:
        ClasswiseError: naming the first label outside the classes and its row.
    """
    outside = (y < 0) | (y >= len(class_names))
    if bool(outside.any()):
        row = int(outside.int().argmax())
        raise ClasswiseError(
            f"{where}: label {int(y[row])} of image {row} is not in 0..{len(class_names) - 1}, the classes"
        )


def _rows_on(rows: Rows, device: torch.device) -> Rows:
    return rows if isinstance(rows, slice) else rows.to(device)
