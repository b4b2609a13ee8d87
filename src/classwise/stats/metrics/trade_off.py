"""The trade-off of worst-class and average accuracy against a baseline run."""

from __future__ import annotations

import math

from classwise.core.settings.arguments import checked


@checked
def trade(
    *, worst: float, average: float, baseline_worst: float, baseline_average: float, standard_error: float
) -> float:
    """The change of the worst-class accuracy per point of change of the average accuracy, relative to a baseline run.

    Args:
        worst: worst-class accuracy of the run.
        average: average accuracy of the run.
        baseline_worst: worst-class accuracy of the baseline.
        baseline_average: average accuracy of the baseline.
        standard_error: standard error of the change of the average.

    Returns:
        (worst - baseline_worst) / (average - baseline_average); NaN if the average changed by less than
        ``standard_error``, because the quotient would be noise.

    Example:
        >>> from classwise import metrics
        >>> change = metrics.trade(
        ...     worst=0.25, average=0.48, baseline_worst=0.20, baseline_average=0.50, standard_error=0.005
        ... )
        >>> round(change, 2)
        -2.5
    """
    change = average - baseline_average
    if change == 0 or abs(change) < standard_error:
        return math.nan
    return (worst - baseline_worst) / change
