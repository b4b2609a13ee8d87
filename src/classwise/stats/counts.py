"""How many images of each class there are, and how many are right: sums that add up over batches and processes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from classwise.core.errors import ClasswiseError

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def whole_numbers(values: ArrayLike, what: str) -> IntArray:
    """``values`` as a one-dimensional int64 array.

    Raises:
        ClasswiseError: if the values are not whole numbers in one dimension.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ClasswiseError(f"{what}: expected whole numbers of shape (N,), got {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)


def class_labels(labels: ArrayLike, num_classes: int, what: str = "labels") -> IntArray:
    """``labels`` as an (N,) int64 array, each in 0 .. ``num_classes`` - 1.

    Raises:
        ClasswiseError: if they are no whole numbers or out of range.
    """
    array = whole_numbers(labels, what)
    bad = array[(array < 0) | (array >= num_classes)]
    if bad.size:
        raise ClasswiseError(f"{what}: {bad[0]} is not one of the {num_classes} classes 0 .. {num_classes - 1}")
    return array


def outcomes(correct: ArrayLike, images: int) -> BoolArray:
    """``correct`` as an array of booleans whose last axis has a value per image.

    Raises:
        ClasswiseError: if a value is neither true nor false (nor 1 nor 0), or if there is not one per image.
    """
    array = np.asarray(correct)
    if array.shape[-1:] != (images,):
        raise ClasswiseError(f"correct: expected a value for each of the {images} labels, got shape {array.shape}")
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise ClasswiseError(
            "correct: expected true or false for each image; compare the predictions with the labels first"
        )
    return array.astype(np.bool_)


def ratio(part: ArrayLike, whole: ArrayLike) -> FloatArray:
    """``part / whole``, NaN where ``whole`` is 0."""
    top, bottom = np.broadcast_arrays(np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64))
    quotient: FloatArray = np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom != 0)
    return quotient


@dataclass(frozen=True, eq=False)
class _Sums:
    """Whole numbers per class that add up: every field is a read-only (C,) int64 array."""

    __hash__ = None  # type: ignore[assignment]  # arrays are compared, not hashed

    def __post_init__(self) -> None:
        names = [field.name for field in dataclasses.fields(self)]
        arrays = {name: whole_numbers(getattr(self, name), name) for name in names}
        shapes = {array.shape for array in arrays.values()}
        if len(shapes) != 1:
            raise ClasswiseError(
                f"{', '.join(arrays)}: expected one length, got {sorted(shape[0] for shape in shapes)}"
            )
        for name, array in arrays.items():
            if (array < 0).any():
                raise ClasswiseError(f"{name}: {array.min()} is negative; counts start at 0")
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    def _arrays(self) -> tuple[IntArray, ...]:
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    @property
    def num_classes(self) -> int:
        """C, absent classes included."""
        return len(self._arrays()[0])

    def __add__(self, other: Self) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        if other.num_classes != self.num_classes:
            raise ClasswiseError(f"cannot add counts of {self.num_classes} and of {other.num_classes} classes")
        return type(self)(*(mine + theirs for mine, theirs in zip(self._arrays(), other._arrays(), strict=True)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Sums) or type(other) is not type(self):
            return NotImplemented
        return all(np.array_equal(mine, theirs) for mine, theirs in zip(self._arrays(), other._arrays(), strict=True))


@dataclass(frozen=True, eq=False)
class ClassCounts(_Sums):
    """Images and right answers of each class.

    Counts of parts of a data set (batches, shards, processes) add up to those of the whole.

    Attributes:
        count: (C,) int64, the images of each class.
        correct: (C,) int64, those that are classified correctly.

    Raises:
        ClasswiseError: if the arrays differ in length, are no whole numbers, or a class has more right answers than
            images.
    """

    count: IntArray
    correct: IntArray

    def __post_init__(self) -> None:
        super().__post_init__()
        for label in np.flatnonzero(self.correct > self.count)[:1]:
            images = self.count[label]
            raise ClasswiseError(f"class {label}: {self.correct[label]} of {images} images right; count comes first")

    @classmethod
    def zeros(cls, num_classes: int) -> Self:
        """Nothing counted yet: the start of a sum."""
        return cls(np.zeros(num_classes, np.int64), np.zeros(num_classes, np.int64))

    @classmethod
    def from_labels(cls, labels: ArrayLike, correct: ArrayLike, num_classes: int) -> Self:
        """Count images by their label.

        Args:
            labels: (N,) whole numbers in 0 .. C-1.
            correct: (N,) true where the prediction is right.
            num_classes: C; classes that no label names are absent.

        Raises:
            ClasswiseError: if a label is out of range, or the lengths differ.
        """
        index = class_labels(labels, num_classes)
        right = outcomes(correct, len(index))
        if right.ndim != 1:
            raise ClasswiseError(f"correct: expected shape ({len(index)},), got {right.shape}")
        return cls(np.bincount(index, minlength=num_classes), np.bincount(index[right], minlength=num_classes))

    @property
    def wrong(self) -> IntArray:
        """(C,) int64, the images of each class that are misclassified."""
        return self.count - self.correct

    @property
    def present(self) -> BoolArray:
        """(C,) true for the classes that have images."""
        return self.count > 0

    @property
    def accuracy(self) -> FloatArray:
        """(C,) fractions; NaN for absent classes."""
        return ratio(self.correct, self.count)


@dataclass(frozen=True, eq=False)
class PairedCounts(_Sums):
    """The same images judged twice (two models, or two attacks): the four cells of each class.

    Attributes:
        both: (C,) int64, images that are right both times.
        only_first: (C,) int64, right the first time only.
        only_second: (C,) int64, right the second time only.
        neither: (C,) int64, wrong both times.

    Raises:
        ClasswiseError: if the arrays differ in length or are no whole numbers.
    """

    both: IntArray
    only_first: IntArray
    only_second: IntArray
    neither: IntArray

    @classmethod
    def from_labels(cls, labels: ArrayLike, first: ArrayLike, second: ArrayLike, num_classes: int) -> Self:
        """Count images by their label.

        Args:
            labels: (N,) whole numbers in 0 .. C-1.
            first: (N,) true where the first prediction is right.
            second: (N,) the same of the second prediction, image by image.
            num_classes: C.

        Raises:
            ClasswiseError: if a label is out of range, or the lengths differ.
        """
        index = class_labels(labels, num_classes)
        cell = 2 * (1 - outcomes(first, len(index)).astype(np.int64)) + (1 - outcomes(second, len(index)))
        if cell.ndim != 1:
            raise ClasswiseError(f"first, second: expected shape ({len(index)},), got {cell.shape}")
        table = np.bincount(4 * index + cell, minlength=4 * num_classes).reshape(num_classes, 4)
        return cls(*table.T)

    @property
    def count(self) -> IntArray:
        """(C,) int64, the images of each class."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def first(self) -> ClassCounts:
        """The counts of the first judgement alone."""
        return ClassCounts(self.count, self.both + self.only_first)

    @property
    def second(self) -> ClassCounts:
        """The counts of the second judgement alone."""
        return ClassCounts(self.count, self.both + self.only_second)

    @property
    def difference(self) -> FloatArray:
        """(C,) accuracy of the first minus that of the second, in -1 .. 1; NaN for absent classes."""
        return ratio(self.only_first - self.only_second, self.count)
