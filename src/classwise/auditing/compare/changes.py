"""Thresholds on the change of a measure between two methods that fail a build (``worst(all) < -0.02``)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from classwise.auditing.compare.comparison import Comparison, Pair
from classwise.auditing.criteria.thresholds import ACCURACY, ENDS, Condition
from classwise.core.errors import ClasswiseError, unknown
from classwise.stats.bounds import accuracy_of
from classwise.stats.counts import IntArray
from classwise.stats.intervals import Estimate
from classwise.stats.registry import Metric, all_metrics

CHANGE_WITH_INTERVAL = ("overall", "worst")
"""Metrics whose change has an interval."""
ANY = "any"
"""The change of some class."""


@dataclass(frozen=True)
class ChangeThreshold(Condition):
    """A condition on a measure of a method minus that of the first method of a comparison, in [-1, 1].

    ``any(all).high < 0`` is met if it is by a class: the intervals of the classes are simultaneous, so that none that
    did not change meets it by chance, with the confidence of the comparison. The attack may be another than that of the
    comparison, such as ``clean``.
    """

    lowest: ClassVar[int] = -1
    unit: ClassVar[str] = " points"
    sign: ClassVar[str] = "+"

    @classmethod
    def measures(cls) -> list[str]:
        """The metrics, and the ends of the intervals of the changes that have one."""
        ends = (f"{name}.{end}" for name in (*CHANGE_WITH_INTERVAL, ANY) for end in ENDS)
        return [*all_metrics(), ANY, *ends]

    @property
    def metric(self) -> Metric | None:
        """The metric of a measure over all classes; None for the accuracy of one class, or of any."""
        return None if self.measure.partition(".")[0] == ANY else super().metric

    def value(self, comparison: Comparison, method: str) -> float:
        """The change of the measure: the method minus the first method.

        Raises:
            IncompleteError: if an audit is incomplete.
            ClasswiseError: for an unknown method, attack or class, or an undefined measure.
        """
        return float(self._value(comparison, method))

    def holds(self, comparison: Comparison, method: str) -> bool:
        """Whether the condition is met by a method, so that the build fails. Raises as `value`."""
        return self.met_by(self._value(comparison, method))

    def _value(self, comparison: Comparison, method: str) -> Fraction | float:
        """`value`, exact for a rational measure."""
        if method not in comparison.audits:
            raise unknown("method", method, comparison.audits)
        try:
            comparison = comparison.under(self.attack)
        except ClasswiseError as error:
            raise type(error)(f"condition {str(self)!r}: {error}") from error
        self.check_group(comparison.group_names)
        decisive = self.of_deciding_class(comparison, method)
        if decisive is not self:
            return decisive._value(comparison, method)
        _, _, end = self.measure.partition(".")
        value = (
            self._end(comparison, method, end)
            if end
            else self._mean(comparison, method) - self._mean(comparison, comparison.names[0])
        )
        if math.isnan(value):
            reason = "the change is not defined for this comparison" if self.group is None else "0 images of this class"
            raise ClasswiseError(f"condition {str(self)!r}: {reason}")
        return value

    def _mean(self, comparison: Comparison, method: str) -> Fraction | float:
        """The mean of the measure over the runs of a method; NaN if it is undefined."""
        runs = comparison.inputs[method]
        values: list[Fraction | float]
        if self.metric is None:
            label = comparison.group_names.index(str(self.group))
            values = [accuracy_of(inputs.counts, label).low for inputs in runs]
        elif len(runs) > 1 and not self.metric.mean_over_seeds:
            return math.nan
        else:
            values = [self.metric.possible(inputs).low for inputs in runs]
        return sum(values) / len(values)

    def _end(self, comparison: Comparison, method: str, end: str) -> float:
        """An end of the interval of the change; NaN for a class without images."""
        pair = comparison.pair(method, comparison.names[0])
        if self.group is not None:
            changes: dict[Any, float] = pair.classes[end].to_dict()
            return float(changes.get(self.group, math.nan))
        return float(getattr(self._over_all(pair), end))

    def _over_all(self, pair: Pair) -> Estimate:
        """The change of a measure over all classes."""
        return pair.overall if self.measure.startswith("overall") else pair.minima

    def smallest_losses(self, comparison: Comparison, method: str) -> dict[str, float]:
        """The smallest observed loss with which each class would meet the condition, on the images of a comparison.

        The interval is that of the condition, and the outcomes are those of `Comparison.after_loss`: no image is
        gained, and the images that the first method classifies correctly limit the loss. With gains, a lower end may
        meet the condition at a smaller loss, an upper end does not.

        Args:
            comparison: whose first method loses accuracy.
            method: the method that is compared with the first.

        Returns:
            Fractions by the name of the class, or of the measure over all classes; infinite where no loss meets the
            condition. Empty unless the condition is that the end of an interval is below a limit, such as
            ``any(all).high < 0``.

        Raises:
            ClasswiseError: as `value`.
        """
        measure, _, end = self.measure.partition(".")
        if not end or self.comparison not in ("<", "<="):
            return {}
        comparison = comparison.under(self.attack)
        names, by_class = comparison.group_names, self.group is not None or measure == ANY
        self.check_group(names)
        correct = np.max([counts.correct for counts in comparison.counts[comparison.names[0]]], axis=0)
        if measure == "worst":
            correct *= np.arange(len(names)) == names.index(comparison.lowest_classes[comparison.names[0]][0])
        before = np.zeros_like(correct) if by_class else np.cumsum(correct) - correct

        def after(lost: IntArray) -> pd.DataFrame:
            """The change and its interval of each class, or over all, after a loss of so many images."""
            pair = comparison.after_loss(method, np.clip(lost - before, 0, correct))
            if by_class:
                return pair.classes.rename(columns={"difference": "value"}).reindex(names)
            return pd.DataFrame([self._over_all(pair)._asdict()], [measure])

        most = correct if by_class else correct.sum(keepdims=True)
        low, high = np.full_like(most, -1), most + 1
        while (high - low > 1).any():
            middle = (low + high) // 2
            meets = after(middle)[end].map(self.met_by).to_numpy()
            low, high = np.where(meets, low, middle), np.where(meets & (middle > low), middle, high)
        changes = after(high)["value"]
        losses = (-changes).where((high <= most) | changes.isna(), math.inf).dropna()
        return {str(name): max(0.0, loss) for name, loss in losses.items() if self.group in (None, name)}

    def of_deciding_class(self, comparison: Comparison, method: str) -> Self:
        """For ``any``, the condition on the class whose change is nearest to meeting it; other conditions as they are.

        Args:
            comparison: under the attack of the condition.
            method: the method that is compared with the first.
        """
        name, _, end = self.measure.partition(".")
        if name != ANY or self.group is not None:
            return self
        changes = comparison.pair(method, comparison.names[0]).classes[end or "difference"]
        label = changes.idxmin() if self.comparison in ("<", "<=") else changes.idxmax()
        return self._of_class(str(label))

    def parts(self, comparison: Comparison) -> dict[str, Self]:
        """For ``any``, the condition on each class with images, by its name; another condition by its measure.

        Args:
            comparison: of complete audits.
        """
        name = self.measure.partition(".")[0]
        if name != ANY or self.group is not None:
            return {self.group or name: self}
        present = comparison.counts[comparison.names[0]][0].present
        return {name: self._of_class(name) for name, some in zip(comparison.group_names, present, strict=True) if some}

    def _of_class(self, name: str) -> Self:
        """The condition ``any`` on one class."""
        _, _, end = self.measure.partition(".")
        return dataclasses.replace(self, measure=f"{ACCURACY}.{end}".removesuffix("."), group=name)
