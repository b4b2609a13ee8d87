"""CVC, the variance of the confidences of a class's images (kdd21 Definition 5.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import checked
from classwise.stats.counts import FloatArray, class_labels, class_means


@checked
def confidence_variance(probabilities: ArrayLike) -> FloatArray:
    """The population variance over the classes of each image's confidences (the inner part of kdd21 Definition 5.1).

    The paper prints 1/N for the inner mean where 1/C is meant; the mean of the confidences is then 1/C.

    Args:
        probabilities: (N, C) softmax outputs.

    Returns:
        (N,) in 0 .. (C-1)/C^2.

    Raises:
        ClasswiseError: if the rows are not probability vectors.

    Example:
        >>> from classwise import metrics
        >>> metrics.confidence_variance([[0.5, 0.5], [1.0, 0.0]])
        array([0.  , 0.25])
    """
    confidences = np.asarray(probabilities, dtype=np.float64)
    if confidences.ndim != 2:
        raise ClasswiseError(f"probabilities: expected shape (N, C), got {confidences.shape}")
    # The sum of bfloat16 confidences deviates from 1 by less than a percent.
    if not ((confidences >= 0).all() and (np.abs(confidences.sum(axis=1) - 1) < 0.02).all()):
        raise ClasswiseError("probabilities: each row must be non-negative and sum to 1; apply a softmax to the logits")
    return np.asarray(confidences.var(axis=1))


@checked
def class_confidence_variance(labels: ArrayLike, variance: ArrayLike, num_classes: int) -> FloatArray:
    """CVC: the mean `confidence_variance` of each class (kdd21 Definition 5.1).

    Args:
        labels: (N,) integers in 0 .. C-1.
        variance: (N,) values of `confidence_variance`.
        num_classes: C.

    Returns:
        (C,) in 0 .. (C-1)/C^2; NaN for absent classes.

    Raises:
        ClasswiseError: if a label is out of range, or the lengths differ.

    Example:
        >>> from classwise import metrics
        >>> variance = metrics.confidence_variance([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
        >>> metrics.class_confidence_variance([0, 0, 1], variance, num_classes=2)
        array([0.125, 0.25 ])
    """
    index = class_labels(labels, num_classes)
    values = np.asarray(variance, dtype=np.float64)
    if values.shape != index.shape:
        raise ClasswiseError(
            f"confidence variance: expected one value for each of the {len(index)} labels, got shape {values.shape}"
        )
    return class_means(values, index, num_classes)
