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
from classwise.stats.counts import ratio
from classwise.stats.intervals import Estimate
from classwise.stats.ranks import ranks, row_correlations
from classwise.stats.resampling import RESAMPLES, percentiles, resampled_means


@dataclass(frozen=True, eq=False)
class Sensitivity(AnalysisResult):
    """CVC, robustness and temperature drop of each class of one model.

    Attributes:
        attack: the plain attack; CVC is computed on its last iterates.
        tempered: the attack with a temperature.
        classes: a row for each class: ``n``, ``cvc`` (0 .. (C-1)/C^2), ``accuracy`` under the plain attack and ``drop``
            from it to the tempered one (fractions).
        vulnerable: Spearman's correlation of CVC and accuracy over the classes, with its interval.
        sensitive: Spearman's correlation of CVC and drop. Rank correlations of noisy values are biased towards 0, and
            resampling adds to the bias of both intervals. NaN if a column is constant.
    """

    attack: str
    tempered: str
    classes: pd.DataFrame
    vulnerable: Estimate
    sensitive: Estimate

    @property
    def table(self) -> pd.DataFrame:
        """The table of the classes."""
        return self.classes

    def figure(self) -> Drawing:
        """kdd21 E7 as a scatter plot: the robust accuracy of each class against its CVC."""
        frame = self.classes
        links = [(self.vulnerable, "accuracy"), (self.sensitive, "drop")]
        reported = [
            f"with {what} {correlation.value:.2f} ({correlation.low:.2f} to {correlation.high:.2f})"
            for correlation, what in links
            if not np.isnan(correlation.value)
        ]
        axes = ("CVC", f"accuracy under {self.attack}, percent")
        names = [str(name) for name in frame.index]
        note = f"Spearman of CVC {', '.join(reported)}" if reported else ""
        return scatter("Class accuracy and smoothness", names, frame["cvc"], frame["accuracy"], axes, note)


def sensitivity(
    outcomes: Outcomes, attack: str, tempered: str, *, alpha: float = 0.05, resamples: int = RESAMPLES, seed: int = 0
) -> Sensitivity:
    """Correlate the CVC of each class with its robust accuracy and its temperature drop (kdd21 section 5).

    Args:
        outcomes: outcomes of an audit with ``early_stop=False`` and both attacks.
        attack: the plain attack.
        tempered: the same attack with a temperature.
        alpha: 1 minus the coverage of the intervals, for new images of the same classes.
        resamples: number of resamples of the images within each class.
        seed: seed of the resampling.

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
    resampled = resampled_means(values, labels, size, resamples=resamples, seed=seed)[:, :, present]
    cvc, accuracy, drop = means
    columns = {"n": count, "cvc": cvc, "accuracy": accuracy, "drop": drop}
    frame = pd.DataFrame(columns, index=pd.Index(outcomes.class_names, name="class"))
    joined = np.concatenate([means[None, :, present], resampled])
    smoothness, *others = (ranks(joined[:, row]) for row in range(3))
    correlations = [row_correlations(smoothness, other) for other in others]
    vulnerable, sensitive = (percentiles(float(correlation[0]), correlation[1:], alpha) for correlation in correlations)
    return Sensitivity(outcomes.member(attack), outcomes.member(tempered), frame[present], vulnerable, sensitive)
