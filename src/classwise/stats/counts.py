"""Per-class counts of images and of correct predictions, which can be added over batches and processes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import checked

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

NUMBERS = "; replace class names by their numbers, as class_names.index(name) does"
"""The end of errors on text in place of integers."""


def whole_numbers(values: ArrayLike, what: str) -> IntArray:
    """Convert ``values`` to a one-dimensional int64 array.

    Args:
        values: (N,) integers; a masked array may have no masked value, and an array of objects only integers.
        what: name of the values for the error message.

    Raises:
        ClasswiseError: if the values are not integers in one dimension, or a value is missing.
    """
    if np.ma.is_masked(values):
        raise ClasswiseError(f"{what}: some values are masked or missing; give an integer for each image")
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O" and array.ndim == 1 and all(map(is_integer, array)):
            array = array.astype(np.int64)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise ClasswiseError(
            f"{what}: expected integers of shape (N,), got {type(values).__name__} ({error})"
        ) from error
    if array.dtype.kind == "O" and array.ndim == 1:
        value = next(value for value in array if not is_integer(value))
        advice = NUMBERS if isinstance(value, str) else ""
        raise ClasswiseError(f"{what}: {value!r} is not an integer{advice}")
    if array.dtype.kind not in "iu" or array.ndim != 1:
        advice = NUMBERS if array.dtype.kind == "U" else ""
        found = f"{array.dtype} of shape {array.shape}"
        raise ClasswiseError(f"{what}: expected integers of shape (N,), got {found}{advice}")
    if array.dtype == np.uint64 and (array > np.iinfo(np.int64).max).any():
        raise ClasswiseError(f"{what}: {array.max()} is larger than 2^63 - 1")
    return array.astype(np.int64)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer of Python or NumPy, and no boolean."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def class_labels(labels: ArrayLike, num_classes: int, what: str = "labels") -> IntArray:
    """Convert ``labels`` to an (N,) int64 array and check that each is in 0 .. ``num_classes`` - 1.

    Raises:
        ClasswiseError: if a label is not an integer or out of range.
    """
    array = whole_numbers(labels, what)
    bad = array[(array < 0) | (array >= num_classes)]
    if bad.size:
        raise ClasswiseError(f"{what}: {bad[0]} is not one of the {num_classes} classes 0 .. {num_classes - 1}")
    return array


def outcomes(correct: ArrayLike, images: int) -> BoolArray:
    """Convert ``correct`` to a boolean array whose last axis has one value per image.

    Raises:
        ClasswiseError: if a value is not a boolean (or 0 or 1), or the length of the last axis differs from ``images``.
    """
    array = np.asarray(correct)
    if array.shape[-1:] != (images,):
        raise ClasswiseError(f"correct: expected one value for each of the {images} labels, got shape {array.shape}")
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise ClasswiseError(
            "correct: expected a boolean for each image; compare the predictions with the labels first"
        )
    return array.astype(np.bool_)


def ratio(part: ArrayLike, whole: ArrayLike) -> FloatArray:
    """Compute ``part / whole``; NaN where ``whole`` is 0."""
    top, bottom = np.broadcast_arrays(np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64))
    quotient: FloatArray = np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom != 0)
    return quotient


def present_accuracies(accuracy: ArrayLike) -> FloatArray:
    """The accuracies of the classes with images, of (C,) accuracies that are NaN for the others.

    Raises:
        ClasswiseError: for another shape, or if no class has an image.
    """
    values = np.asarray(accuracy, dtype=np.float64)
    if values.ndim != 1:
        raise ClasswiseError(f"class accuracies: expected shape (C,), got {values.shape}")
    present = values[~np.isnan(values)]
    if not present.size:
        raise ClasswiseError("class accuracies: no class has an image; at least one value must not be NaN")
    return present


def class_means(values: ArrayLike, index: IntArray, num_classes: int) -> FloatArray:
    """(C,) means of (N,) values over the images of each class; NaN for absent classes."""
    return ratio(np.bincount(index, values, minlength=num_classes), np.bincount(index, minlength=num_classes))


def place_in_class(index: IntArray) -> IntArray:
    """(N,) number of earlier images of the same class."""
    order, count = np.argsort(index, kind="stable"), np.bincount(index)
    place = np.empty_like(index)
    place[order] = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count)
    return place


@checked
def frequency_thirds(training: ArrayLike) -> IntArray:
    """Divide the classes into head, middle and tail by their numbers of training images, as studies of long tails do.

    The floor(C/3) classes with the most training images are the head, the floor(C/3) with the fewest the tail, and the
    others the middle: 3, 4 and 3 of 10 classes. Of classes with equally many images, the lower label is first.

    Args:
        training: (C,) numbers of training images, at least 0.

    Returns:
        (C,) 0: head; 1: middle; 2: tail.

    Raises:
        ClasswiseError: if there are fewer than three classes, all have equally many images, or a number is negative.

    Example:
        >>> from classwise import metrics
        >>> metrics.frequency_thirds([100, 5, 60, 40, 10])
        array([0, 2, 1, 1, 1])
    """
    counts = whole_numbers(training, "training images")
    if len(counts) < 3:
        raise ClasswiseError(f"training images: head, middle and tail need at least 3 classes, got {len(counts)}")
    if counts.min() < 0:
        raise ClasswiseError(f"training images: {counts.min()} is negative")
    if counts.min() == counts.max():
        raise ClasswiseError(
            f"training images: each class has {counts[0]:,}; head and tail need classes of different sizes"
        )
    order, size = np.argsort(-counts, kind="stable"), len(counts) // 3
    third = np.ones_like(counts)
    third[order[:size]], third[order[-size:]] = 0, 2
    return third


@dataclass(frozen=True, eq=False)
class _Sums:
    """Per-class counts that can be added: every field is a read-only (C,) int64 array."""

    __hash__ = None  # type: ignore[assignment]  # arrays are compared, not hashed

    def __post_init__(self) -> None:
        names = [field.name for field in dataclasses.fields(self)]
        arrays = {name: whole_numbers(getattr(self, name), name) for name in names}
        shapes = {array.shape for array in arrays.values()}
        if len(shapes) != 1:
            raise ClasswiseError(
                f"{', '.join(arrays)}: expected equal lengths, got {sorted(shape[0] for shape in shapes)}"
            )
        for name, array in arrays.items():
            if (array < 0).any():
                raise ClasswiseError(f"{name}: {array.min()} is negative; counts must be at least 0")
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    def _arrays(self) -> tuple[IntArray, ...]:
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    @property
    def num_classes(self) -> int:
        """C, including absent classes."""
        return len(self._arrays()[0])

    def __add__(self, other: Self) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        if other.num_classes != self.num_classes:
            raise ClasswiseError(f"cannot add counts of {self.num_classes} and of {other.num_classes} classes")
        return type(self)(*(first + second for first, second in zip(self._arrays(), other._arrays(), strict=True)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Sums) or type(other) is not type(self):
            return NotImplemented
        return all(np.array_equal(*pair) for pair in zip(self._arrays(), other._arrays(), strict=True))


@dataclass(frozen=True, eq=False)
class ClassCounts(_Sums):
    """Number of images and of correctly classified images of each class.

    The counts of parts of a data set (batches, shards, processes) add up to those of the whole.

    Attributes:
        count: (C,) int64, images of each class.
        correct: (C,) int64, correctly classified images of each class.

    Raises:
        ClasswiseError: if the arrays differ in length, are not integers, or ``correct`` exceeds ``count`` in a class.
    """

    count: IntArray
    correct: IntArray

    def __post_init__(self) -> None:
        super().__post_init__()
        for label in np.flatnonzero(self.correct > self.count)[:1]:
            images = self.count[label]
            raise ClasswiseError(
                f"class {label}: {self.correct[label]} of {images} images correct; the arguments are (count, correct)"
            )

    @classmethod
    def zeros(cls, num_classes: int) -> Self:
        """Zero counts, the start of a sum."""
        return cls(np.zeros(num_classes, np.int64), np.zeros(num_classes, np.int64))

    @classmethod
    @checked
    def from_labels(cls, labels: ArrayLike, correct: ArrayLike, num_classes: int) -> Self:
        """Count images by label.

        Args:
            labels: (N,) integers in 0 .. C-1.
            correct: (N,) true where the prediction is correct.
            num_classes: C; classes without labels are absent.

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
        """(C,) int64, misclassified images of each class."""
        return self.count - self.correct

    @property
    def present(self) -> BoolArray:
        """(C,) true for classes that have images."""
        return self.count > 0

    @property
    def accuracy(self) -> FloatArray:
        """(C,) fractions; NaN for absent classes."""
        return ratio(self.correct, self.count)


@dataclass(frozen=True, eq=False)
class PairedCounts(_Sums):
    """Paired outcomes of the same images under two models or attacks: the 2x2 table of each class.

    Attributes:
        both: (C,) int64, images that both predictions classify correctly.
        only_first: (C,) int64, images that only the first classifies correctly.
        only_second: (C,) int64, images that only the second classifies correctly.
        neither: (C,) int64, images that both misclassify.

    Raises:
        ClasswiseError: if the arrays differ in length or are not integers.
    """

    both: IntArray
    only_first: IntArray
    only_second: IntArray
    neither: IntArray

    @classmethod
    @checked
    def from_labels(cls, labels: ArrayLike, first: ArrayLike, second: ArrayLike, num_classes: int) -> Self:
        """Count images by label.

        Args:
            labels: (N,) integers in 0 .. C-1.
            first: (N,) true where the first prediction is correct.
            second: (N,) true where the second prediction of the same image is correct.
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
        """(C,) int64, images of each class."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def first(self) -> ClassCounts:
        """The counts of the first predictions."""
        return ClassCounts(self.count, self.both + self.only_first)

    @property
    def second(self) -> ClassCounts:
        """The counts of the second predictions."""
        return ClassCounts(self.count, self.both + self.only_second)

    @property
    def difference(self) -> FloatArray:
        """(C,) accuracy of the first predictions minus that of the second, in -1 .. 1; NaN for absent classes."""
        return ratio(self.only_first - self.only_second, self.count)
