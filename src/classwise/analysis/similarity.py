"""Cross-class similarity: cosines between the mean logits of the classes, and their correlation with robustness.

benz20 section 3.2: classes that are similar to another one should be the vulnerable ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from classwise.analysis.base import AnalysisResult
from classwise.auditing.outcomes.table import CLEAN
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.reporting.figures.matrix import matrix
from classwise.reporting.svg import Drawing
from classwise.stats.correlations import Correlation, half_means, random_halves, rank_correlation
from classwise.stats.counts import FloatArray, class_labels, ratio
from classwise.stats.ranks import Association, spearman

_PARTS = 10
"""Number of parts of the random splits whose class means are in memory at once."""


@dataclass(frozen=True, eq=False)
class Similarity(AnalysisResult):
    """Similarity of the classes to a model.

    Attributes:
        class_names: (C,) names.
        cosines: (C, C) cosines between the class-mean logit vectors, -1 .. 1; NaN for absent classes.
        nearest: (C,) largest cosine of each class with another one.
        link: Spearman's correlation over classes of ``nearest`` and the class accuracies, with its permutation p-value;
            None without accuracies.
        ranked: the same correlation, with intervals of that of the true values, for new images; None likewise.
    """

    class_names: tuple[str, ...]
    cosines: FloatArray
    nearest: FloatArray
    link: Association | None = None
    ranked: Correlation | None = None

    @property
    def table(self) -> pd.DataFrame:
        """The cosines."""
        return pd.DataFrame(self.cosines, index=list(self.class_names), columns=list(self.class_names))

    def figure(self) -> Drawing:
        """benz20 section 3.2: the cosines between class-mean logits."""
        return matrix("Cosine between class-mean logits", self.class_names, self.cosines, "cosine")


def similarity(audit: Audit, attack: str | None = None, **options: int) -> Similarity:
    """Compute cosines of the class-mean clean logits, and their correlation with robustness (benz20 section 3.2).

    Args:
        audit: an audit with ``save="logits"``.
        attack: attack whose class accuracies are correlated with the similarity; None: no correlation.
        **options: ``seed`` of `similarity_of`.

    Raises:
        ClasswiseError: if the audit has no saved logits.
    """
    outcomes = audit.outcomes
    index, logits = audit.artifacts.get("logits", CLEAN)
    labels = outcomes.labels[np.searchsorted(outcomes.index, index)]
    correct = None
    if attack is not None:
        correct = outcomes.correct(attack)
        if not np.array_equal(outcomes.index, index):
            raise ClasswiseError(f"the saved logits and {attack!r} are of different images; audit without a cascade")
    return similarity_of(logits, labels, outcomes.class_names, correct, **options)


def similarity_of(
    logits: ArrayLike,
    labels: ArrayLike,
    class_names: Sequence[str],
    correct: ArrayLike | None = None,
    *,
    seed: int = 0,
) -> Similarity:
    """`similarity` of an array of logits.

    Args:
        logits: (N, C) clean logits; classes whose logits are all -inf are omitted from the cosines.
        labels: (N,) integers in 0 .. C-1.
        class_names: (C,) names.
        correct: (N,) true for images that are correct under the attack; None: no correlation is computed.
        seed: seed of the splits into halves and of the permutations.

    Raises:
        ClasswiseError: if the shapes do not match.
    """
    names = tuple(class_names)
    values, index = np.asarray(logits, dtype=np.float64), class_labels(labels, len(names))
    if values.shape != (len(index), len(names)):
        raise ClasswiseError(f"logits: expected shape ({len(index)}, {len(names)}), got {values.shape}")
    values = values[:, ~np.isneginf(values).all(axis=0)]  # without the classes that are never predicted
    member = (index[:, None] == np.arange(len(names))).astype(np.float64)
    cosines = _cosines(ratio(member.T @ values, member.sum(axis=0)[:, None]))
    nearest = _nearest(cosines)
    if correct is None:
        return Similarity(names, cosines, nearest)
    right = np.asarray(correct, dtype=np.float64)
    accuracy = ratio(member.T @ right, member.sum(axis=0))
    present = np.flatnonzero(member.any(axis=0))
    rows, halves = np.vstack([values.T, right]), list[list[FloatArray]]()
    for some in np.array_split(random_halves(index, seed=seed), _PARTS):  # limits the memory
        means = half_means(rows, index, len(names), some)[..., present]
        halves += [[np.stack([_nearest(_cosines(half[:-1].T)), half[-1]]) for half in split] for split in means]
    ranked = rank_correlation(np.stack([nearest, accuracy])[:, present], np.array(halves))
    return Similarity(names, cosines, nearest, spearman(nearest, accuracy, seed=seed), ranked)


def _cosines(means: FloatArray) -> FloatArray:
    unit = ratio(means, np.sqrt((means**2).sum(axis=1, keepdims=True)))
    return unit @ unit.T


def _nearest(cosines: FloatArray) -> FloatArray:
    others = np.where(np.eye(len(cosines), dtype=np.bool_) | np.isnan(cosines), -np.inf, cosines)
    nearest = others.max(axis=1)
    return np.where(np.isfinite(nearest), nearest, np.nan)
