"""Cross-class similarity: the cosines between the mean logits of the classes, and what they say of weak classes.

benz20 section 3.2: classes that are like another one should be the vulnerable ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from classwise.analysis.base import AnalysisResult
from classwise.auditing.outcomes import CLEAN
from classwise.auditing.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.reporting.figures.matrix import matrix
from classwise.reporting.svg import Drawing
from classwise.stats.counts import FloatArray, class_labels, ratio
from classwise.stats.intervals import Estimate
from classwise.stats.ranks import Association, spearman, spearman_matrix
from classwise.stats.resampling import percentiles

_DRAWN = 400


@dataclass(frozen=True, eq=False)
class Similarity(AnalysisResult):
    """How alike the classes are to a model.

    Attributes:
        class_names: one for each class.
        cosines: (C, C) between the class-mean logit vectors, -1 .. 1; NaN for absent classes.
        nearest: (C,) each class's greatest cosine with another one.
        link: Spearman's correlation over classes of ``nearest`` and the class accuracies, with its permutation p-value;
            None where no accuracies were given.
        interval: of that correlation, for new images.
    """

    class_names: tuple[str, ...]
    cosines: FloatArray
    nearest: FloatArray
    link: Association | None = None
    interval: Estimate | None = None

    @property
    def table(self) -> pd.DataFrame:
        """The cosines."""
        return pd.DataFrame(self.cosines, index=list(self.class_names), columns=list(self.class_names))

    def figure(self) -> Drawing:
        """benz20 section 3.2: the cosines between class-mean logits."""
        return matrix("Cosine between class-mean logits", self.class_names, self.cosines, "cosine")


def similarity(audit: Audit, attack: str | None = None, **options: float) -> Similarity:
    """The cosines of the class-mean clean logits, and their link with robustness under an attack (benz20 section 3.2).

    Args:
        audit: with ``save="logits"``.
        attack: whose class accuracies the similarity is held against; None for none.
        **options: ``alpha`` and ``seed`` of `similarity_of`.

    Raises:
        ClasswiseError: if no logits were kept.
    """
    outcomes = audit.outcomes
    index, logits = audit.artifacts.get("logits", CLEAN)
    labels = outcomes.labels[np.searchsorted(outcomes.index, index)]
    correct = None
    if attack is not None:
        judged = outcomes.judged(attack)
        if not np.array_equal(judged.image, index):
            raise ClasswiseError(f"logits were kept of other images than {attack!r} judged; audit without a cascade")
        correct = judged.correct
    return similarity_of(logits, labels, outcomes.class_names, correct, **options)  # type: ignore[arg-type]


def similarity_of(
    logits: ArrayLike,
    labels: ArrayLike,
    class_names: Sequence[str],
    correct: ArrayLike | None = None,
    *,
    alpha: float = 0.05,
    seed: int = 0,
) -> Similarity:
    """The same of logits.

    Args:
        logits: (N, C).
        labels: (N,) whole numbers in 0 .. C-1.
        class_names: one for each class.
        correct: (N,) which images stand under the attack that matters; None: no link is computed.
        alpha: 1 minus the coverage of the interval.
        seed: of resampling and permutations.

    Raises:
        ClasswiseError: if the shapes do not fit.
    """
    names = tuple(class_names)
    values, index = np.asarray(logits, dtype=np.float64), class_labels(labels, len(names))
    if values.shape != (len(index), len(names)):
        raise ClasswiseError(f"logits: expected shape ({len(index)}, {len(names)}), got {values.shape}")
    member = (index[:, None] == np.arange(len(names))).astype(np.float64)
    cosines = _cosines(ratio(member.T @ values, member.sum(axis=0)[:, None]))
    nearest = _nearest(cosines)
    if correct is None:
        return Similarity(names, cosines, nearest)
    right = np.asarray(correct, dtype=np.float64)
    link = spearman(nearest, ratio(member.T @ right, member.sum(axis=0)), seed=seed)
    generator = np.random.default_rng(seed)
    present = np.flatnonzero(member.any(axis=0))
    means, shares = np.zeros((_DRAWN, len(present), len(names))), np.zeros((_DRAWN, len(present)))
    for place, label in enumerate(present):
        rows = np.flatnonzero(index == label)
        drawn = generator.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=_DRAWN) / len(rows)
        means[:, place], shares[:, place] = drawn @ values[rows], drawn @ right[rows]
    again = [spearman_matrix([_nearest(_cosines(m)), s])[0, 1] for m, s in zip(means, shares, strict=True)]
    return Similarity(names, cosines, nearest, link, percentiles(link.value, again, alpha))


def _cosines(means: FloatArray) -> FloatArray:
    unit = ratio(means, np.sqrt((means**2).sum(axis=1, keepdims=True)))
    return unit @ unit.T


def _nearest(cosines: FloatArray) -> FloatArray:
    others = np.where(np.eye(len(cosines), dtype=np.bool_) | np.isnan(cosines), -np.inf, cosines)
    nearest = others.max(axis=1)
    return np.where(np.isfinite(nearest), nearest, np.nan)
