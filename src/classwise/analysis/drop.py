"""Drop of class accuracies from a weak attack to a strong one, of vulnerable against robust classes.

kdd21 section 4.3: FGSM to PGD, transfer to N attack; iclr21 claims C8, C9. Also PGD to AutoAttack (iclr21/E6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from classwise.analysis.base import AnalysisResult, check_alone
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError
from classwise.reporting.figures.dots import ROW_WIDTH, Value, dot_rows
from classwise.reporting.svg import Drawing
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray, PairedCounts, ratio
from classwise.stats.intervals import Estimate
from classwise.stats.metrics import overall_micro, robust_classes, vulnerable_classes
from classwise.stats.paired import class_differences
from classwise.stats.resampling import halves
from classwise.stats.stratified import p_value, sum_of_class_means


@dataclass(frozen=True, eq=False)
class Drop(AnalysisResult):
    """Drop of each class's accuracy from a weaker to a stronger attack.

    Attributes:
        weak: the weaker attack.
        strong: the stronger attack.
        classes: a row for each class: ``n``, ``weak`` and ``strong`` (accuracies), ``drop`` (weak minus strong) with
            ``low`` and ``high`` and ``adjusted`` (p-value of McNemar's test), which agree and are simultaneous over the
            classes, ``vulnerable`` (below the overall accuracy under the weaker attack on all images).
        vulnerable: mean drop of the vulnerable classes.
        robust: mean drop of the robust classes.
        difference: ``vulnerable`` minus ``robust``, with its interval.
        p_value: two-sided p-value of the difference.
    """

    weak: str
    strong: str
    classes: pd.DataFrame
    vulnerable: float
    robust: float
    difference: Estimate
    p_value: float

    def figure(self) -> Drawing:
        """The drop of each class, in ascending order of the accuracy under the weaker attack."""
        frame = self.classes.sort_values("weak")
        values = [[Value(row["drop"], row["low"], row["high"], int(row["n"]))] for _, row in frame.iterrows()]
        names = [f"{name}{' (vulnerable)' if weak else ''}" for name, weak in frame["vulnerable"].items()]
        title = f"Accuracy under {self.weak} minus that under {self.strong}, in points"
        return dot_rows(title, names, ["drop"], values, difference=True, width=ROW_WIDTH)


def drop(outcomes: Outcomes, weak: str, strong: str, *, alpha: float = 0.05, seed: int = 0) -> Drop:
    """Compare two attacks on the same images, per class and for vulnerable against robust classes (kdd21 section 4.3).

    The vulnerable classes are selected on one half of the images under the weaker attack, and the drops are measured on
    the other half; the halves are then swapped, and the two differences averaged. Without this sample splitting, a
    class with a low accuracy by chance would show too small a drop (regression to the mean). Classes are weighted
    equally. Given a selection, the interval is that of `classwise.stats.stratified.sum_of_class_means`. The images of
    each half enter both differences, so the ends of the two intervals are averaged, which is valid for any correlation.

    Args:
        outcomes: outcomes with both attacks.
        weak: name of the weaker attack.
        strong: name of the stronger attack.
        alpha: 1 minus the coverage of the intervals, for new images.
        seed: seed of the random halves.

    Raises:
        ClasswiseError: if a half has no vulnerable or no robust class, or an attack skipped images in a cascade.
    """
    for attack in (weak, strong):
        check_alone(outcomes, attack)
    first, second = outcomes.correct(weak), outcomes.correct(strong)
    labels, size = outcomes.labels, outcomes.num_classes
    pairs = PairedCounts.from_labels(labels, first, second, size)
    differences = class_differences(pairs, alpha)
    change, half = first.astype(np.int64) - second, halves(labels, seed)
    contrasts = [
        _Contrast.select(ClassCounts.from_labels(labels[seen], first[seen], size), change[~seen], labels[~seen])
        for seen in (half, ~half)
    ]

    def difference(level: float) -> Estimate:
        """Given the selection on the other half, each contrast is unbiased."""
        one, other = (contrast.interval(level) for contrast in contrasts)
        return Estimate(*(sum(ends) / 2 for ends in zip(one, other, strict=True)))

    overall = overall_micro(pairs.first)
    frame = pd.DataFrame(
        {
            "n": pairs.count,
            "weak": pairs.first.accuracy,
            "strong": pairs.second.accuracy,
            "drop": differences.difference,
            "low": differences.low,
            "high": differences.high,
            "adjusted": differences.adjusted,
            "vulnerable": vulnerable_classes(pairs.first.accuracy, overall),
        },
        index=pd.Index(outcomes.class_names, name="class"),
    )
    vulnerable, robust = (float(mean) for mean in np.mean([contrast.means() for contrast in contrasts], axis=0))
    return Drop(weak, strong, frame[frame["n"] > 0], vulnerable, robust, difference(alpha), p_value(difference))


@dataclass(frozen=True)
class _Contrast:
    """Drops of images (M,) with their labels, and the classes that are vulnerable and robust on other images."""

    change: IntArray
    labels: IntArray
    kinds: tuple[BoolArray, BoolArray]

    @classmethod
    def select(cls, selection: ClassCounts, change: IntArray, labels: IntArray) -> Self:
        accuracy, overall = selection.accuracy, overall_micro(selection)
        seen = np.bincount(labels, minlength=selection.num_classes) > 0
        kinds = vulnerable_classes(accuracy, overall) & seen, robust_classes(accuracy, overall) & seen
        if not all(kind.any() for kind in kinds):
            raise ClasswiseError("on half of the images all classes have the overall accuracy; none is vulnerable")
        return cls(change, labels, kinds)

    def means(self) -> tuple[float, float]:
        """Mean drop of the vulnerable and of the robust classes."""
        count = np.bincount(self.labels, minlength=len(self.kinds[0]))
        by_class = ratio(np.bincount(self.labels, self.change, minlength=len(count)), count)
        vulnerable, robust = (float(by_class[kind].mean()) for kind in self.kinds)
        return vulnerable, robust

    def interval(self, level: float) -> Estimate:
        """The first minus the second."""
        vulnerable, robust = (kind / np.count_nonzero(kind) for kind in self.kinds)
        weight: FloatArray = vulnerable - robust
        ends = np.abs(weight)
        return sum_of_class_means(self.change * weight[self.labels], self.labels, -ends, ends, level)
