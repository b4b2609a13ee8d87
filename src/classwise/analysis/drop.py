"""Drop of class accuracies from a weak attack to a strong one, of vulnerable against robust classes.

kdd21 section 4.3: FGSM to PGD, transfer to N attack; iclr21 claims C8, C9. Also PGD to AutoAttack (iclr21/E6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special

from classwise.analysis.base import AnalysisResult
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError
from classwise.reporting.figures.dots import ROW_WIDTH, Value, dot_rows
from classwise.reporting.svg import Drawing
from classwise.stats.counts import PairedCounts, ratio
from classwise.stats.intervals import Estimate, two_sided_z
from classwise.stats.metrics import overall_micro, robust_classes, vulnerable_classes
from classwise.stats.paired import class_differences
from classwise.stats.resampling import halves


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

    @property
    def table(self) -> pd.DataFrame:
        """The table of the classes."""
        return self.classes

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
    equally.

    Args:
        outcomes: outcomes with both attacks.
        weak: name of the weaker attack.
        strong: name of the stronger attack.
        alpha: 1 minus the coverage of the intervals, for new images.
        seed: seed of the random halves.

    Raises:
        ClasswiseError: if a half has no vulnerable or no robust class.
    """
    first, second = outcomes.correct(weak), outcomes.correct(strong)
    labels, size = outcomes.labels, outcomes.num_classes
    pairs = PairedCounts.from_labels(labels, first, second, size)
    differences = class_differences(pairs, alpha)
    half = halves(labels, seed)
    parts = [PairedCounts.from_labels(labels[h], first[h], second[h], size) for h in (half, ~half)]
    contrasts = [_contrast(parts[0], parts[1]), _contrast(parts[1], parts[0])]
    # Given the selection on the other half, the contrast of a half is unbiased; the two use disjoint images.
    vulnerable, robust, variance = np.mean(contrasts, axis=0)
    value, deviation = vulnerable - robust, math.sqrt(variance / 2)
    half_width = two_sided_z(alpha) * deviation
    p_value = float(2 * special.ndtr(-abs(value) / deviation)) if deviation else float(value == 0)
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
    difference = Estimate(float(value), float(value - half_width), float(value + half_width))
    return Drop(weak, strong, frame[frame["n"] > 0], float(vulnerable), float(robust), difference, p_value)


def _contrast(selection: PairedCounts, evaluation: PairedCounts) -> tuple[float, float, float]:
    """Mean drop of the vulnerable and of the robust classes, and the variance of their difference."""
    accuracy, overall = selection.first.accuracy, overall_micro(selection.first)
    n, b, c = evaluation.count, evaluation.only_first, evaluation.only_second
    means, variance = list[float](), 0.0
    for kind in (vulnerable_classes(accuracy, overall), robust_classes(accuracy, overall)):
        members = kind & (n > 0)
        if not members.any():
            raise ClasswiseError("on half of the images all classes have the overall accuracy; none is vulnerable")
        spread = ratio(ratio(b + c, n) - ratio(b - c, n) ** 2, n)
        means.append(float(ratio(b - c, n)[members].mean()))
        variance += float(spread[members].sum()) / int(members.sum()) ** 2
    return means[0], means[1], variance
