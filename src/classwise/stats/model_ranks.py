"""Ranks of models by their worst-class accuracy, with confidence sets: only significant differences count.

Population P: new images, the models fixed. The results do not cover the variance of retraining.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from classwise.core.settings.arguments import Level, checked
from classwise.stats.counts import BoolArray, ClassCounts, IntArray, PairedCounts
from classwise.stats.intervals import lowest_interval
from classwise.stats.paired import difference_of_minima


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Verdicts of one model: counts of each class, and which images are correct where that is known.

    Attributes:
        counts: number of images and of correct images of each of C classes.
        correct: (N,) whether each image is classified correctly, in the same order for all models; None if unknown.
    """

    counts: ClassCounts
    correct: BoolArray | None = None


class Ranks(NamedTuple):
    """Ranks of k models, 1 is the best.

    Attributes:
        low: (k,) 1 + the number of models that are significantly better. Models may share it.
        high: (k,) k - the number of models that are significantly worse.
        better: (k, k) whether the model of the row is significantly better than that of the column.
    """

    low: IntArray
    high: IntArray
    better: BoolArray


@checked
def worst_class_ranks(models: Sequence[Verdicts], labels: IntArray | None = None, alpha: Level = 0.05) -> Ranks:
    """Rank models of the same images by their worst-class accuracy.

    The confidence set of a rank is that of Mogstad, Romano, Shaikh and Wilhelm, "Inference for Ranks with Applications
    to Mobility across Neighbourhoods and Academic Achievement across Countries" (Review of Economic Studies 91, 2024):
    it counts the models that simultaneous confidence intervals of all pairwise differences show to be better or worse.

    - The intervals have the joint coverage 1 - alpha by Bonferroni's correction over the k(k-1)/2 pairs. A pair whose
      images are known is compared by `difference_of_minima`, which is paired; another one by the distance of its two
      intervals of `lowest_interval`, which is valid without the pairing, and wider.
    - A model is significantly better than another if their interval excludes 0, or if a third one is between them in
      this sense. If all intervals cover their differences, these conclusions are true too, since "better" is
      transitive: the closure has the same confidence, and a model that is significantly better has a lower rank.

    That two models share a rank is no evidence that they are equally good.

    Args:
        models: k models with equal numbers of images in each class.
        labels: (N,) the classes of the images, if any model has `Verdicts.correct`.
        alpha: 1 minus the probability that all confidence sets contain their true ranks.

    Example:
        >>> from classwise.stats.counts import ClassCounts
        >>> models = [Verdicts(ClassCounts([500, 500], [worst, 400])) for worst in (100, 115, 300)]
        >>> ranks = worst_class_ranks(models)
        >>> ranks.low.tolist(), ranks.high.tolist()
        ([2, 2, 1], [3, 3, 1])
    """
    number = len(models)
    level = alpha / max(number * (number - 1) // 2, 1)
    better = np.zeros((number, number), dtype=np.bool_)
    single = [lowest_interval(model.counts, level / 2) for model in models] if number > 1 else []
    for i, j in combinations(range(number), 2):
        first, second = models[i].correct, models[j].correct
        if first is None or second is None or labels is None:
            low, high = single[i][0] - single[j][1], single[i][1] - single[j][0]
        else:
            classes = models[i].counts.num_classes
            _, low, high = difference_of_minima(PairedCounts.from_labels(labels, first, second, classes), level)
        better[i, j], better[j, i] = low > 0, high < 0
    for between in range(number):
        better |= np.outer(better[:, between], better[between])
    return Ranks(1 + better.sum(axis=0), number - better.sum(axis=1), better)
