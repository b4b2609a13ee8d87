"""Intervals for the model that was selected among several on the same images.

The highest of k accuracies on one set of images is biased upwards, as the lowest class accuracy is biased downwards:
the model was selected for being high. Its own interval does not account for this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import Level, checked
from classwise.core.settings.config import Count
from classwise.stats.intervals import Estimate


class Selected(NamedTuple):
    """The model that was selected for its worst-class accuracy among several on the same images.

    Attributes:
        name: its name.
        models: number of models, itself included.
        worst: its worst-class accuracy, with the interval of `selected_interval`.
        overall: its overall accuracy, likewise.
        tied: number of other models with the same worst-class accuracy.
    """

    name: str
    models: int
    worst: Estimate
    overall: Estimate
    tied: int = 0

    def to_dict(self) -> dict[str, Any]:
        """JSON values; accuracies are fractions."""
        estimates = {"worst": self.worst._asdict(), "overall": self.overall._asdict()}
        return {"name": self.name, "models": self.models, "by": "worst", **estimates}


@checked
def selected_interval(
    interval: Callable[[int, float], tuple[float, float]],
    models: Count,
    selected: int,
    alpha: Level = 0.05,
    *,
    criterion: bool = True,
) -> tuple[float, float]:
    """Interval of a number of the model that was selected among k models on the same images.

    Let L_j(a) and U_j(a) be the ends of the interval of model j at coverage 1 - a, each of which fails with probability
    at most a/2 for a model that was chosen beforehand, and s the selected model.

    - Lower end L_s(alpha/k): it is above the truth only if that of one of the k models is, and each of these is with
      probability at most alpha/(2k) (Bonferroni; Dunn 1961). This holds for every rule of selection and every
      dependence between the models.
    - Upper end max_j U_j(alpha), which needs no correction. Let m be the model whose true number is highest. If the
      upper end is below the truth of s, then U_m(alpha) is below the truth of s, which is at most that of m; so U_m
      fails, and m does not depend on the images. For a model that was selected for the highest number, and ends that
      increase with it, this is U_s(alpha) itself. (Benjamini, Hechtlinger and Stark 2019, "Confidence intervals for
      selected parameters", arXiv:1906.00505, have asymmetric intervals of the same kind.)

    If the model was selected by another number (``criterion`` false), the maximum over all models may be far above it,
    and both ends are Bonferroni-corrected. Each end fails with probability at most alpha/2.

    Args:
        interval: the ends of the interval of a model, from its position and alpha.
        models: number of models k that the selected one was selected from.
        selected: position of the selected model, from 0.
        alpha: 1 minus the coverage.
        criterion: whether the model was selected for a high value of this number.

    Returns:
        Lower and upper end, in the unit of ``interval``.

    Raises:
        ClasswiseError: if ``selected`` is no position of a model.

    Example:
        >>> from classwise.stats.counts import ClassCounts
        >>> from classwise.stats.intervals import lowest_interval
        >>> counts = [ClassCounts([100, 100], [right, 60]) for right in (30, 35, 40)]
        >>> def interval(model, alpha):
        ...     return lowest_interval(counts[model], alpha)
        >>> low, high = interval(2, 0.05)
        >>> round(low, 3), round(high, 3)  # the third model, if it was the only one
        (0.303, 0.517)
        >>> low, high = selected_interval(interval, 3, 2)
        >>> round(low, 3), round(high, 3)
        (0.284, 0.517)
    """
    if not 0 <= selected < models:
        raise ClasswiseError(f"selected = {selected}: must be a position from 0 to {models - 1}")
    low, high = interval(selected, alpha / models)
    if criterion:
        high = max(interval(model, alpha)[1] for model in range(models))
    return low, high
