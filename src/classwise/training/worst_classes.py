"""The worst class, or with many classes the mean of the worst fifth of them, of the gates of FAWA and the selection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, TypeVar

from torch import Tensor

from classwise.stats.metrics.lowest import classes_of_share
from classwise.stats.rational import as_rational

Number = TypeVar("Number", Fraction, float)

Worst = Literal["auto", "class", "fifth"]
"""The worst class, the mean of the worst fifth of the classes, or a choice between them by the number of classes."""

MANY_CLASSES = 20
"""Of more classes than this, ``"auto"`` is the mean of the worst fifth."""


def resolve_worst(worst: Worst, classes: int) -> Literal["class", "fifth"]:
    """Return ``worst``, with ``"auto"`` replaced by the choice for a number of classes."""
    if worst == "auto":
        return "fifth" if classes > MANY_CLASSES else "class"
    return worst


def exact_accuracies(values: Tensor) -> list[Fraction]:
    """Return the accuracies of the classes with images as exact fractions, so that rounding decides no comparison.

    Args:
        values: correctly rounded quotients of counts, (C,), float32 or float64; NaN for a class without images.
    """
    return [as_rational(value) for value in values[~values.isnan()].cpu().numpy()]


def worst_accuracy(values: Sequence[Number], worst: Worst) -> Number | float:
    """Return the accuracy of the worst class, or the mean of the lowest ceil(C / 5) of C classes.

    The minimum over many classes of few images is nearly always 0. CFA (Wei et al., CVPR 2023, appendix C.1) therefore
    uses the worst 20 % of the 200 classes of Tiny-ImageNet.

    Args:
        values: a number in [0, 1] per class; NaN for a class without images, which does not count.
        worst: which classes; ``"auto"`` by the number of classes with images.

    Returns:
        The number; NaN if no class has images.
    """
    known = sorted(value for value in values if not math.isnan(value))
    if not known:
        return math.nan
    lowest = known[: 1 if resolve_worst(worst, len(known)) == "class" else classes_of_share(len(known), 0.2)]
    return sum(lowest) / len(lowest)
