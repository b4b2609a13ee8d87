"""Correlation of CVC with class robustness and with the drop of accuracy under a temperature.

kdd21 section 5 (E7) claims that classes with smooth confidences are both the vulnerable ones and those whose accuracy
drops from PGD to Temperature-PGD.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from classwise.analysis.base import AnalysisResult, last_iterates
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError
from classwise.reporting.figures.points import scatter
from classwise.reporting.svg import Drawing
from classwise.stats.correlations import Correlation, half_means, random_halves, rank_correlation
from classwise.stats.counts import ratio
from classwise.stats.intervals import Estimate


@dataclass(frozen=True, eq=False)
class Sensitivity(AnalysisResult):
    """CVC, robustness and temperature drop of each class of one model.

    Attributes:
        attack: the plain attack; CVC is computed on its last iterates.
        tempered: the attack with a temperature.
        classes: a row for each class: ``n``, ``cvc`` (0 .. (C-1)/C^2), ``accuracy`` under the plain attack and ``drop``
            from it to the tempered one (fractions).
        robustness: Spearman's correlation of CVC and accuracy over the classes; NaN if a column is constant.
        reaction: Spearman's correlation of CVC and drop, likewise.
        alpha: 1 minus the coverage of `vulnerable` and `sensitive`.
    """

    attack: str
    tempered: str
    classes: pd.DataFrame
    robustness: Correlation
    reaction: Correlation
    alpha: float

    @property
    def vulnerable(self) -> Estimate:
        """`robustness`, with an interval of the correlation of the true values, for new images."""
        return self.robustness.estimate(self.alpha)

    @property
    def sensitive(self) -> Estimate:
        """`reaction`, likewise."""
        return self.reaction.estimate(self.alpha)

    def figure(self) -> Drawing:
        """kdd21 E7 as a scatter plot: the robust accuracy of each class against its CVC."""
        frame = self.classes
        links = [(self.vulnerable, "accuracy"), (self.sensitive, "drop")]
        reported = [
            f"with {what} {correlation.value:.2f}"
            + ("" if np.isnan(correlation.low) else f" ({correlation.low:.2f} to {correlation.high:.2f})")
            for correlation, what in links
            if not np.isnan(correlation.value)
        ]
        axes = ("CVC", f"accuracy under {self.attack}, percent")
        names = [str(name) for name in frame.index]
        note = f"Spearman of CVC {', '.join(reported)}" if reported else ""
        return scatter("Class accuracy and smoothness", names, frame["cvc"], frame["accuracy"], axes, note)


def sensitivity(outcomes: Outcomes, attack: str, tempered: str, *, alpha: float = 0.05, seed: int = 0) -> Sensitivity:
    """Correlate the CVC of each class with its robust accuracy and its temperature drop (kdd21 section 5).

    Args:
        outcomes: outcomes of an audit with ``early_stop=False`` and both attacks.
        attack: the plain attack.
        tempered: the same attack with a temperature.
        alpha: 1 minus the coverage of the intervals, for new images of the same classes.
        seed: seed of the splits into halves.

    Raises:
        ClasswiseError: if the rows are not last iterates or have no confidences, the attacks were run on different
            images, or fewer than three classes have images.
    """
    plain, with_temperature = last_iterates(outcomes, attack), last_iterates(outcomes, tempered)
    if not np.array_equal(plain["index"], with_temperature["index"]):
        raise ClasswiseError(f"{attack!r} and {tempered!r} were run on different images; audit without a cascade")
    if plain["confidence_variance"].isna().any():
        raise ClasswiseError(f"{attack!r}: confidences of some images are missing; audit the model to record them")
    right = [rows["correct"].to_numpy(dtype=np.float64) for rows in (plain, with_temperature)]
    values = np.stack([plain["confidence_variance"].to_numpy(dtype=np.float64), right[0], right[0] - right[1]])
    labels, size = plain["label"].to_numpy(dtype=np.int64), outcomes.num_classes
    count = np.bincount(labels, minlength=size)
    present = count > 0
    if present.sum() < 3:
        raise ClasswiseError(f"{present.sum()} classes have images; a correlation requires at least 3")
    means = np.stack([ratio(np.bincount(labels, weights=row, minlength=size), count) for row in values])
    cvc, accuracy, drop = means
    columns = {"n": count, "cvc": cvc, "accuracy": accuracy, "drop": drop}
    frame = pd.DataFrame(columns, index=pd.Index(outcomes.class_names, name="class"))
    halves = half_means(values, labels, size, random_halves(labels, seed=seed))
    robustness, reaction = (
        rank_correlation(means[[0, other]][:, present], halves[:, :, [0, other]][..., present]) for other in (1, 2)
    )
    names = (outcomes.member(attack), outcomes.member(tempered))
    return Sensitivity(*names, frame[present], robustness, reaction, alpha)
