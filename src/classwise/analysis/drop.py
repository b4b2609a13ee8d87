"""From a weak attack to a strong one: do vulnerable classes lose more than robust ones?

kdd21 section 4.3: FGSM to PGD, transfer to N attack; iclr21 claims C8, C9. Also PGD to AutoAttack (iclr21/E6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special

from classwise.analysis.base import AnalysisResult
from classwise.auditing.outcomes import Outcomes
from classwise.core.errors import ClasswiseError
from classwise.reporting.figures.dots import ROW_WIDTH, Value, dot_rows
from classwise.reporting.svg import Drawing
from classwise.stats.counts import BoolArray, FloatArray, PairedCounts, ratio
from classwise.stats.intervals import Estimate, two_sided_z
from classwise.stats.metrics import overall_micro, robust_classes, vulnerable_classes
from classwise.stats.paired import class_differences


@dataclass(frozen=True, eq=False)
class Drop(AnalysisResult):
    """What a stronger attack takes from each class, beyond a weaker one.

    Attributes:
        weak: the weaker attack.
        strong: the stronger attack.
        classes: a row for each class: ``n``, ``weak`` and ``strong`` (accuracies), ``drop`` (weak minus strong) with
            ``low`` and ``high`` (Tango), ``adjusted`` (exact McNemar, Holm over the classes), ``vulnerable`` (below the
            overall accuracy under the weaker attack, all images).
        vulnerable: mean drop of the vulnerable classes.
        robust: mean drop of the robust classes.
        difference: the first minus the second, with its interval.
        p_value: of the difference, two-sided.
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
        """The drop of each class, the vulnerable classes first."""
        frame = self.classes.sort_values("weak")
        values = [[Value(row["drop"], row["low"], row["high"], int(row["n"]))] for _, row in frame.iterrows()]
        names = [f"{name}{' (vulnerable)' if weak else ''}" for name, weak in frame["vulnerable"].items()]
        title = f"Accuracy under {self.weak} minus that under {self.strong}, in points"
        return dot_rows(title, names, ["drop"], values, difference=True, width=ROW_WIDTH)


def drop(outcomes: Outcomes, weak: str, strong: str, *, alpha: float = 0.05, seed: int = 0) -> Drop:
    """Compare two attacks on the same images, class by class and by kind of class (kdd21 section 4.3).

    Which classes are vulnerable is decided on one half of the images under the weaker attack, and the drops are
    measured on the other half; then the halves change places, and the two differences are averaged. A class that was
    unlucky under the weak attack would else seem to drop less than it does. Classes count alike.

    Args:
        outcomes: with both attacks.
        weak: name of the weaker attack.
        strong: name of the stronger attack.
        alpha: 1 minus the coverage of the intervals, for new images.
        seed: of the halves.

    Raises:
        ClasswiseError: if the attacks judged other images, or a half has no class of one of the kinds.
    """
    first, second = outcomes.judged(weak), outcomes.judged(strong)
    if not np.array_equal(first.image, second.image):
        raise ClasswiseError(f"{weak!r} and {strong!r} judged other images; audit without a cascade")
    labels, size = first.label, outcomes.num_classes
    pairs = PairedCounts.from_labels(labels, first.correct, second.correct, size)
    found = class_differences(pairs, alpha)
    halves = _halves(labels, seed)
    parts = [PairedCounts.from_labels(labels[h], first.correct[h], second.correct[h], size) for h in (halves, ~halves)]
    sides = [_contrast(parts[0], parts[1]), _contrast(parts[1], parts[0])]
    # Given the choice on the other half, a half's contrast is unbiased, and the two share no image that is measured.
    frail, firm, variance = np.mean(sides, axis=0)
    value, deviation = frail - firm, math.sqrt(variance / 2)
    reach = two_sided_z(alpha) * deviation
    p_value = float(2 * special.ndtr(-abs(value) / deviation)) if deviation else float(value == 0)
    overall = overall_micro(pairs.first)
    frame = pd.DataFrame(
        {
            "n": pairs.count,
            "weak": pairs.first.accuracy,
            "strong": pairs.second.accuracy,
            "drop": found.difference,
            "low": found.low,
            "high": found.high,
            "adjusted": found.adjusted,
            "vulnerable": vulnerable_classes(pairs.first.accuracy, overall),
        },
        index=pd.Index(outcomes.class_names, name="class"),
    )
    difference = Estimate(float(value), float(value - reach), float(value + reach))
    return Drop(weak, strong, frame[frame["n"] > 0], float(frail), float(firm), difference, p_value)


def _halves(labels: FloatArray | np.ndarray[tuple[int], np.dtype[np.int64]], seed: int) -> BoolArray:
    """(N,) true for one half of the images of each class, at random."""
    keys = np.random.default_rng(seed).permutation(len(labels))
    order = np.lexsort((keys, labels))
    half = np.zeros(len(labels), dtype=np.bool_)
    half[order[::2]] = True
    return half


def _contrast(chosen_on: PairedCounts, measured_on: PairedCounts) -> tuple[float, float, float]:
    """Mean drop of the vulnerable and of the robust classes, and the variance of their difference."""
    accuracy, overall = chosen_on.first.accuracy, overall_micro(chosen_on.first)
    n, b, c = measured_on.count, measured_on.only_first, measured_on.only_second
    means, variance = list[float](), 0.0
    for kind in (vulnerable_classes(accuracy, overall), robust_classes(accuracy, overall)):
        members = kind & (n > 0)
        if not members.any():
            raise ClasswiseError("every class is as robust as the whole on half of the images; there are no two kinds")
        spread = ratio(ratio(b + c, n) - ratio(b - c, n) ** 2, n)
        means.append(float(ratio(b - c, n)[members].mean()))
        variance += float(spread[members].sum()) / int(members.sum()) ** 2
    return means[0], means[1], variance
