"""Confusion matrices: counts, rates, errors within superclasses, symmetry, shares of the predicted classes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import checked
from classwise.stats.counts import FloatArray, IntArray, class_labels, ratio


@checked
def confusion(labels: ArrayLike, predictions: ArrayLike, num_classes: int) -> IntArray:
    """Count images by label (row) and prediction (column): kdd21 Figure 2, in counts.

    Args:
        labels: (N,) integers in 0 .. C-1.
        predictions: (N,) predicted classes, integers in 0 .. C-1.
        num_classes: C.

    Returns:
        (C, C) int64; the matrices of parts of a data set can be added.

    Raises:
        ClasswiseError: if a label or a prediction is out of range, or the lengths differ.

    Example:
        >>> from classwise import metrics
        >>> metrics.confusion([0, 0, 1, 1], [0, 1, 1, 1], num_classes=2)
        array([[1, 1],
               [0, 2]])
    """
    truth, predicted = _pairs(labels, predictions, num_classes)
    flat = np.bincount(num_classes * truth + predicted, minlength=num_classes**2)
    return flat.astype(np.int64).reshape(num_classes, num_classes)


@checked
def sparse_confusion(labels: ArrayLike, predictions: ArrayLike, num_classes: int) -> sparse.csr_array:
    """`confusion` as a sparse (C, C) matrix, whose size grows with the number of images, not with C squared.

    Raises:
        ClasswiseError: as `confusion` does.
    """
    truth, predicted = _pairs(labels, predictions, num_classes)
    ones = np.ones(len(truth), dtype=np.int64)
    return sparse.csr_array(sparse.coo_array((ones, (truth, predicted)), shape=(num_classes, num_classes)))


@checked
def confusion_rates(matrix: ArrayLike) -> FloatArray:
    """Normalise each row of a confusion matrix to fractions of its class.

    Args:
        matrix: (C, C) confusion counts, label by prediction.

    Returns:
        (C, C) fractions; the rows of absent classes are NaN.

    Example:
        >>> from classwise import metrics
        >>> metrics.confusion_rates([[3, 1], [0, 2]])
        array([[0.75, 0.25],
               [0.  , 1.  ]])
    """
    counts = _square(matrix)
    return ratio(counts, counts.sum(axis=1, keepdims=True))


@checked
def misclassified(matrix: ArrayLike) -> FloatArray:
    """The confusion matrix with NaN on its diagonal: kdd21 Figure 4a.

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
    """Share of errors within the superclass.

    Attributes:
        inside: share of the errors whose prediction is in the superclass of the label; NaN without errors.
        chance: that share if errors were distributed uniformly over the other C-1 classes.

    Example:
        >>> from classwise import metrics
        >>> leakage = metrics.superclass_leakage([[7, 3, 0], [1, 9, 0], [0, 0, 10]], superclasses=[0, 0, 1])
        >>> leakage.inside > leakage.chance
        True
    """

    inside: float
    chance: float


@checked
def superclass_leakage(matrix: ArrayLike | sparse.csr_array, superclasses: ArrayLike) -> Leakage:
    """Compute the share of errors within the superclass, and its chance level (kdd21 section 4.2, claim C6).

    The chance level of a class whose superclass has m classes is (m - 1) / (C - 1); superclasses of unequal size are
    averaged over the errors.

    Args:
        matrix: (C, C) confusion counts, label by prediction, dense or sparse; the diagonal is not used.
        superclasses: (C,) integers, the superclass of each class.

    Raises:
        ClasswiseError: unless ``superclasses`` has one value per class.

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
    _, group_index, size = np.unique(group, return_inverse=True, return_counts=True)
    chance = ratio(size[group_index] - 1, classes - 1)
    total = count.sum()
    inside = count[group[truth] == group[predicted]].sum()
    return Leakage(float(ratio(inside, total)), float(ratio((count * chance[truth]).sum(), total)))


class Symmetry(NamedTuple):
    """Similarity of a matrix M and its transpose, off the diagonal.

    Attributes:
        pearson: correlation of M_ij and M_ji over i < j, in -1 .. 1; NaN if either side is constant.
        overlap: ``1 - sum |M - M^T| / sum (M + M^T)``, in 0 .. 1; NaN without errors.

    Example:
        >>> from classwise import metrics
        >>> round(metrics.symmetry([[7, 3, 0], [1, 8, 1], [0, 0, 10]]).overlap, 2)
        0.4
    """

    pearson: float
    overlap: float


@checked
def symmetry(matrix: ArrayLike) -> Symmetry:
    """Measure whether i is misclassified as j as often as j as i (kdd21 section 4.2, claim C5).

    For classes of different sizes, pass rates (`confusion_rates`) rather than counts. Pairs with an absent class (NaN)
    are excluded. The correlation uses the pairs with i < j, so it depends on the order of the classes.

    Args:
        matrix: (C, C) confusion counts or rates, label by prediction; the diagonal is not used.

    Example:
        >>> from classwise import metrics
        >>> symmetry = metrics.symmetry([[7, 3, 0], [3, 6, 1], [0, 1, 9]])
        >>> round(symmetry.pearson, 2), round(symmetry.overlap, 2)
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


def _pairs(labels: ArrayLike, predictions: ArrayLike, num_classes: int) -> tuple[IntArray, IntArray]:
    truth, predicted = class_labels(labels, num_classes), class_labels(predictions, num_classes, "predictions")
    if len(truth) != len(predicted):
        raise ClasswiseError(
            f"{len(truth)} labels but {len(predicted)} predictions; give one prediction for each label"
        )
    return truth, predicted


def _square(matrix: ArrayLike) -> FloatArray:
    array = np.asarray(matrix, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise ClasswiseError(f"confusion matrix: expected shape (C, C), got {array.shape}")
    return array
