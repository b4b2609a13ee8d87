"""Class-wise variance of the confidences (CVC), which is low for smooth confidences.

kdd21 Definition 5.1 and Figure 3a; iclr21 Figures 5a and 5e.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from classwise.analysis.base import AnalysisResult, last_iterates
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import Level, checked
from classwise.reporting.figures.columns import Panel, column_panels
from classwise.reporting.svg import Drawing
from classwise.stats.bounded_means import mean_intervals
from classwise.stats.counts import ratio
from classwise.stats.intervals import Estimate
from classwise.stats.stratified import weighted_mean

MOST = 0.25
"""The largest variance of the confidences of an image, that of two classes."""


@dataclass(frozen=True, eq=False)
class Smoothness(AnalysisResult):
    """CVC of each class of one or several models.

    Attributes:
        attack: attack of the images, or ``clean``. The paper does not specify which.
        rows: a row for each model and class: ``model``, ``class``, ``n``, ``cvc`` (in 0 .. (C-1)/C^2), ``low`` and
            ``high`` (for new images), ``label``, ``square`` (mean of the squared variances of the confidences).
    """

    attack: str
    rows: pd.DataFrame

    def mean(self, model: str, classes: Sequence[int] | None = None) -> Estimate:
        """The unweighted mean of CVC over classes, with a 95 % interval for new images.

        Args:
            model: name of the model.
            classes: labels of the classes; None: all that have images.
        """
        rows = self.rows[self.rows["model"] == model]
        rows = rows if classes is None else rows[rows["label"].isin(classes)]
        arrays = (rows["cvc"] / MOST, rows["square"] / MOST**2, np.full(len(rows), MOST / len(rows)))
        return weighted_mean(rows["n"], *arrays)

    def figure(self) -> Drawing:
        """kdd21 Figure 3a: CVC of each class, a panel for each model."""
        names = list(dict.fromkeys(self.rows["class"]))
        panels = []
        for model, rows in self.rows.groupby("model", sort=False):
            by_class = rows.set_index("class").reindex(names)
            low, high = by_class["low"].tolist(), by_class["high"].tolist()
            panels.append(Panel(str(model), by_class["cvc"].tolist(), low, high, [int(np.nanargmin(by_class["cvc"]))]))
        return column_panels(f"Variance of the confidences (CVC) of each class, {self.attack}", names, panels)


@checked
def smoothness(audits: Mapping[str, Outcomes], attack: str, *, alpha: Level = 0.05) -> Smoothness:
    """Compute CVC, the mean variance of the confidences of each class's images (kdd21 Definition 5.1).

    Args:
        audits: outcomes by the name of the model, of audits with ``early_stop=False`` unless the attack is ``clean``.
        attack: name of the attack, or ``clean``.
        alpha: 1 minus the coverage of the intervals.

    Raises:
        ClasswiseError: if the rows are not the last iterates of the attack, or have no variance of the confidences.
    """
    frames = [_of(model, outcomes, attack, alpha) for model, outcomes in audits.items()]
    if not frames:
        raise ClasswiseError("audits: empty; pass the outcomes of at least one model")
    return Smoothness(attack, pd.concat(frames, ignore_index=True))


def _of(model: str, outcomes: Outcomes, attack: str, alpha: float) -> pd.DataFrame:
    rows = last_iterates(outcomes, attack)
    rows = rows[rows["confidence_variance"].notna()]
    if rows.empty:
        raise ClasswiseError(
            f"{model!r}: no confidences under {attack!r}; audit the model, or pass confidences= to from_predictions"
        )
    label, value = rows["label"].to_numpy(), rows["confidence_variance"].to_numpy(dtype=np.float64)
    size = outcomes.num_classes
    count, most = np.bincount(label, minlength=size), (size - 1) / size**2
    mean = ratio(np.bincount(label, weights=value, minlength=size), count)
    low, high = mean_intervals(value / most, label, size, alpha)
    frame = pd.DataFrame(
        {
            "model": model,
            "class": outcomes.class_names,
            "n": count,
            "cvc": mean,
            "low": most * low,
            "high": most * high,
            "label": np.arange(size),
            "square": ratio(np.bincount(label, weights=value**2, minlength=size), count),
        }
    )
    return frame[frame["n"] > 0]
