"""Who is mistaken for whom: confusion matrices, superclasses, symmetry."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from classwise.core.errors import ClasswiseError
from classwise.stats.counts import FloatArray, IntArray, class_labels, ratio


def confusion(labels: ArrayLike, predictions: ArrayLike, num_classes: int) -> IntArray:
    """Count images by truth (row) and prediction (column): kdd21 Figure 2, in counts.

    Args:
        labels: (N,) whole numbers in 0 .. C-1.
        predictions: (N,) the same of the predicted classes.
        num_classes: C.

    Returns:
        (C, C) int64; matrices of parts of a data set add up.

    Raises:
        ClasswiseError: if a label or a prediction is out of range, or the lengths differ.

    Example:
        >>> from classwise import metrics
        >>> metrics.confusion([0, 0, 1, 1], [0, 1, 1, 1], num_classes=2)
        array([[1, 1],
               [0, 2]])
    """
    truth, predicted = class_labels(labels, num_classes), class_labels(predictions, num_classes, "predictions")
    if len(truth) != len(predicted):
        raise ClasswiseError(
            f"{len(truth)} labels but {len(predicted)} predictions; give one prediction for each label"
        )
    flat = np.bincount(num_classes * truth + predicted, minlength=num_classes**2)
    return flat.astype(np.int64).reshape(num_classes, num_classes)


def sparse_confusion(labels: ArrayLike, predictions: ArrayLike, num_classes: int) -> sparse.csr_array:
    """`confusion` as a sparse (C, C) matrix: its size grows with the images, not with C squared.

    Raises:
        ClasswiseError: as `confusion` does.
    """
    truth, predicted = class_labels(labels, num_classes), class_labels(predictions, num_classes, "predictions")
    if len(truth) != len(predicted):
        raise ClasswiseError(
            f"{len(truth)} labels but {len(predicted)} predictions; give one prediction for each label"
        )
    ones = np.ones(len(truth), dtype=np.int64)
    return sparse.csr_array(sparse.coo_array((ones, (truth, predicted)), shape=(num_classes, num_classes)))


def confusion_rates(matrix: ArrayLike) -> FloatArray:
    """Each row of a confusion matrix as shares of its class: (C, C) fractions, the row of an absent class NaN.

    Example:
        >>> from classwise import metrics
        >>> metrics.confusion_rates([[3, 1], [0, 2]])
        array([[0.75, 0.25],
               [0.  , 1.  ]])
    """
    counts = _square(matrix)
    return ratio(counts, counts.sum(axis=1, keepdims=True))


def misclassified(matrix: ArrayLike) -> FloatArray:
    """The confusion matrix with its diagonal hidden (NaN): kdd21 Figure 4a.

    Returns:
        (C, C) float64 in the unit of ``matrix``.

    Example:
        >>> from classwise import metrics
        >>> metrics.misclassified([[3, 1], [0, 2]])
        array([[nan,  1.],
               [ 0., nan]])
    """
    errors = _square(matrix).copy()
    np.fill_diagonal(errors, np.nan)
    return errors


class Leakage(NamedTuple):
    """Where the errors go.

    Attributes:
        inside: the share of the errors that stay inside the superclass; NaN without errors.
        chance: that share if every error fell on one of the C-1 other classes alike.

    Example:
        >>> from classwise import metrics
        >>> leakage = metrics.superclass_leakage([[7, 3, 0], [1, 9, 0], [0, 0, 10]], superclasses=[0, 0, 1])
        >>> leakage.inside > leakage.chance
        True
    """

    inside: float
    chance: float


def superclass_leakage(matrix: ArrayLike | sparse.csr_array, superclasses: ArrayLike) -> Leakage:
    """The share of the errors inside the superclass, beside its chance value (kdd21 section 4.2, claim C6).

    The chance value of a class whose superclass S has |S| classes is (|S|-1)/(C-1); superclasses of unequal size are
    averaged over the errors.

    Args:
        matrix: (C, C) confusion counts, truth by prediction, dense or sparse; the diagonal is not used.
        superclasses: (C,) whole numbers, the superclass of each class.

    Raises:
        ClasswiseError: if there is not one superclass for each class.

    Example:
        >>> from classwise import metrics
        >>> metrics.superclass_leakage([[7, 3, 0], [1, 8, 1], [0, 0, 10]], superclasses=[0, 0, 1])
        Leakage(inside=0.8, chance=0.5)
    """
    cells = sparse.coo_array(matrix if sparse.issparse(matrix) else _square(matrix))
    group, classes = np.asarray(superclasses), cells.shape[0]
    if group.shape != (classes,):
        raise ClasswiseError(f"superclasses: expected one for each of the {classes} classes, got shape {group.shape}")
    wrong = cells.row != cells.col
    truth, predicted, count = cells.row[wrong], cells.col[wrong], np.nan_to_num(cells.data[wrong].astype(np.float64))
    _, kind, size = np.unique(group, return_inverse=True, return_counts=True)
    chance = ratio(size[kind] - 1, classes - 1)
    total = count.sum()
    inside = count[group[truth] == group[predicted]].sum()
    return Leakage(float(ratio(inside, total)), float(ratio((count * chance[truth]).sum(), total)))


class Symmetry(NamedTuple):
    """How alike M and its transpose are, off the diagonal.

    Attributes:
        pearson: correlation of M_ij and M_ji over i < j, in -1 .. 1; NaN if either side does not vary.
        overlap: 1 - sum |M - M^T| / sum (M + M^T), in 0 .. 1; NaN without errors.

    Example:
        >>> from classwise import metrics
        >>> round(metrics.symmetry([[7, 3, 0], [1, 8, 1], [0, 0, 10]]).overlap, 2)
        0.4
    """

    pearson: float
    overlap: float


def symmetry(matrix: ArrayLike) -> Symmetry:
    """Whether i is mistaken for j as often as j for i (kdd21 section 4.2, claim C5).

    Where classes differ in size, give rates (`confusion_rates`) rather than counts. Pairs with an absent class (NaN)
    are left out. The correlation takes the pairs with i < j, so it depends on the order of the classes.

    Args:
        matrix: (C, C) confusion counts or rates, truth by prediction; the diagonal is not used.

    Example:
        >>> from classwise import metrics
        >>> found = metrics.symmetry([[7, 3, 0], [3, 6, 1], [0, 1, 9]])
        >>> round(found.pearson, 2), round(found.overlap, 2)
        (1.0, 1.0)
    """
    square = _square(matrix)
    upper = np.triu_indices(len(square), k=1)
    above, below = square[upper], square.T[upper]
    known = np.isfinite(above) & np.isfinite(below)
    above, below = above[known], below[known]
    overlap = 1 - ratio(np.abs(above - below).sum(), (above + below).sum())
    varies = len(above) > 1 and np.ptp(above) > 0 and np.ptp(below) > 0
    return Symmetry(float(np.corrcoef(above, below)[0, 1]) if varies else float("nan"), float(overlap))


def _square(matrix: ArrayLike) -> FloatArray:
    array = np.asarray(matrix, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise ClasswiseError(f"confusion matrix: expected shape (C, C), got {array.shape}")
    return array
