"""The probability that a model with random outputs classifies an image correctly, estimated from repeated passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pandas as pd

from classwise.auditing.outcomes.files import REPEATS
from classwise.auditing.outcomes.meta import ALL
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError
from classwise.stats.bounded_means import mean_intervals
from classwise.stats.counts import FloatArray, ratio


class RepeatEstimates(ABC):
    """What `Audit` computes from the number of correct passes of each image."""

    outcomes: Outcomes
    group: str | None
    alpha: float

    @property
    @abstractmethod
    def group_names(self) -> tuple[str, ...]:
        """Names of the classes, or of the groups."""

    def probabilities(self, *, overall: bool = False) -> pd.DataFrame:
        """The mean probability of a correct prediction in one pass, for each class (or group) that has images.

        The value of an image is the fraction of its passes that are correct: on the clean image under ``clean``, and
        under an attack on the image that the attack returned, in passes that the choice of that image did not depend
        on. With early stop, images that are misclassified without attack keep their clean passes. Under ``all``, and in
        a cascade, the value is the lowest one under all attacks so far. That is a minimum of estimates, so it is too
        low rather than too high.

        The images are independent with values in [0, 1], so the intervals are for new images of the same classes and
        new passes (`classwise.stats.bounded_means.mean_intervals`).

        Args:
            overall: one row for all images, instead of a row for each class.

        Returns:
            Columns ``n`` (images), and for each attack and ``all`` ``<name>``, ``<name>_low`` and ``<name>_high``.

        Raises:
            ClasswiseError: if one pass decided about each image.
            IncompleteError: if images are not judged under every attack.
        """
        outcomes = self.outcomes
        if outcomes.meta.repeats == 1:
            raise ClasswiseError(
                "one pass decided about each image; audit with repeats (--repeats 8) for probabilities"
            )
        outcomes.require_complete()
        ids = np.zeros_like(outcomes.labels) if overall else outcomes.grouping(self.group).ids
        names = ("all images",) if overall else self.group_names
        columns: dict[str, Any] = {"n": np.bincount(ids, minlength=len(names))}
        for name in (*outcomes.attacks, ALL):
            shares = correct_shares(outcomes, name)
            mean = ratio(np.bincount(ids, weights=shares, minlength=len(names)), columns["n"])
            low, high = mean_intervals(shares, ids, len(names), self.alpha)
            columns |= {name: mean, f"{name}_low": low, f"{name}_high": high}
        frame = pd.DataFrame(columns, index=pd.Index(names, name=self.group or "class"))
        return frame[frame["n"] > 0]


def correct_shares(outcomes: Outcomes, name: str) -> FloatArray:
    """(N,) the fraction of correct passes of each image under an attack or ``all``; see `RepeatEstimates`."""
    labels = outcomes.attacks
    if name != ALL:
        labels = labels[: labels.index(name) + 1] if outcomes.meta.cascade else (name,)
    table = np.full((len(labels), len(outcomes)), np.inf)
    for row, label in zip(table, labels, strict=True):
        rows = outcomes.frame[outcomes.frame["attack"] == label]
        row[np.searchsorted(outcomes.index, rows["index"])] = rows[REPEATS].to_numpy(np.float64, na_value=np.inf)
    lowest: FloatArray = table.min(axis=0) / outcomes.meta.repeats
    return np.where(np.isinf(lowest), np.nan, lowest)
