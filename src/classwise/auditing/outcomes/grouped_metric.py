"""`GroupedMetric`: a function of labels and predictions by group, with the methods of fairlearn's `MetricFrame`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import checked
from classwise.core.settings.registry import kind_text
from classwise.core.settings.user_code import call_user_code
from classwise.stats.counts import IntArray

Method = Literal["between_groups", "to_overall"]


@dataclass(frozen=True, eq=False)
class GroupedMetric:
    """The values of a metric; `Audit.metric` computes them.

    Attributes:
        overall: the value on all images.
        by_group: the value of each class or group that has images.

    Example:
        >>> import pandas as pd
        >>> from classwise.auditing.outcomes.grouped_metric import GroupedMetric
        >>> accuracy = GroupedMetric(0.625, pd.Series({"cat": 0.75, "dog": 0.5}))
        >>> accuracy.group_min(), accuracy.group_max(), accuracy.difference(), accuracy.difference("to_overall")
        (0.5, 0.75, 0.25, 0.125)
    """

    overall: float
    by_group: pd.Series[float]

    @classmethod
    def of(
        cls, function: Callable[..., Any], labels: IntArray, predictions: IntArray, ids: IntArray, groups: pd.Index[Any]
    ) -> GroupedMetric:
        """Compute a metric of N images.

        Args:
            function: maps labels and predictions to a number.
            labels: (N,) labels.
            predictions: (N,) predictions.
            ids: (N,) the place of each image's group in ``groups``.
            groups: names of the groups.

        Raises:
            ClasswiseError: if the function returns no number.
        """
        values = {label: _value(function, labels[ids == label], predictions[ids == label]) for label in np.unique(ids)}
        by_group = pd.Series(list(values.values()), index=groups[list(values)], dtype="float64")
        return cls(_value(function, labels, predictions), by_group)

    def group_min(self) -> float:
        """The lowest value of a group."""
        return float(self.by_group.min())

    def group_max(self) -> float:
        """The highest value of a group."""
        return float(self.by_group.max())

    @checked
    def difference(self, method: Method = "between_groups") -> float:
        """The highest value minus the lowest, or the largest distance of a group to the overall value."""
        if method == "between_groups":
            return self.group_max() - self.group_min()
        return float((self.by_group - self.overall).abs().max())

    @checked
    def ratio(self, method: Method = "between_groups") -> float:
        """The lowest value divided by the highest, or the lowest ratio of a group and the overall value, at most 1."""
        if method == "between_groups":
            return float(np.divide(self.group_min(), self.group_max()))
        ratios = self.by_group / self.overall
        return float(np.minimum(ratios, 1 / ratios).min())


def _value(function: Callable[..., Any], labels: IntArray, predictions: IntArray) -> float:
    """The value of a user's function.

    Raises:
        ClasswiseError: if it is no number.
    """
    value = call_user_code(function, labels, predictions)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ClasswiseError(f"metric function returned {kind_text(value)}; return a number") from error
