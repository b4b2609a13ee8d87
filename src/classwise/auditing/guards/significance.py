"""Statistical tests of the guards: gradients can be masked in one class only, which the average over classes hides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from classwise.auditing.outcomes.table import Outcomes
from classwise.stats.counts import BoolArray, IntArray, PairedCounts
from classwise.stats.paired import class_differences

LEVEL = 0.05
"""The family-wise error over classes: the probability that one test names any class of a sound model."""


def significant_class(hits: IntArray, images: IntArray, rate: float) -> int | None:
    """The class whose share of hits is most significantly above a rate; None if no class is significant.

    The test is binomial and one-sided, at `LEVEL` divided by the number of classes with images (Bonferroni).

    Args:
        hits: the number of hits in each class, (C,).
        images: the number of images of each class, (C,).
        rate: the share of hits in a class under the null hypothesis.
    """
    # I_p(k, n - k + 1) is the probability of k or more; no hit at all has probability 1.
    tail = np.where(hits > 0, special.betainc(np.maximum(hits, 1), images - hits + 1, rate), 1.0)
    least = int(tail.argmin())
    return least if tail[least] < LEVEL / max(int((images > 0).sum()), 1) else None


class Excess(NamedTuple):
    """The difference between two sets of verdicts on the same images.

    Attributes:
        extra: images misclassified the second time only, minus those misclassified the first time only.
        images: images with both verdicts.
        label: the class with the largest significant share, or None.
        share: ``extra`` of that class divided by its images; 0 without such a class.
        correct: images correct the first time, all of which could be misclassified the second time.
    """

    extra: int
    images: int
    label: int | None
    share: float
    correct: int


def paired_excess(pairs: PairedCounts) -> Excess:
    """Compare two sets of verdicts: images correct the first time only, minus those correct the second time only.

    A class is significant if McNemar's test, adjusted for the number of classes, has a p-value below `LEVEL`.
    """
    more = pairs.only_first - pairs.only_second
    beyond = (more > 0) & (np.nan_to_num(class_differences(pairs).adjusted, nan=1.0) < LEVEL)
    shares = more / np.maximum(pairs.count, 1)
    label = int(np.where(beyond, shares, -1.0).argmax()) if beyond.any() else None
    share, correct = 0.0 if label is None else float(shares[label]), int((pairs.both + pairs.only_first).sum())
    return Excess(int(more.sum()), int(pairs.count.sum()), label, share, correct)


def attack_excess(outcomes: Outcomes, attacks: tuple[str, ...], baseline: tuple[str, ...]) -> Excess:
    """Compare what two sets of attacks achieve, on the images with verdicts of both.

    In a cascade, an image on which an earlier attack succeeded counts as misclassified under the later ones, too, which
    did not run on it.

    Args:
        outcomes: the rows of the attacks.
        attacks: the attacks whose additional successes are counted.
        baseline: the attacks to compare with.
    """
    first, second = _robust(outcomes, baseline), _robust(outcomes, attacks)
    both = first[0] & second[0]
    return paired_excess(
        PairedCounts.from_labels(outcomes.labels[both], first[1][both], second[1][both], outcomes.num_classes)
    )


def _robust(outcomes: Outcomes, attacks: tuple[str, ...]) -> tuple[BoolArray, BoolArray]:
    """(N,), (N,): which images have verdicts of all the attacks, and which of these are robust to all of them."""
    rows = outcomes.frame[outcomes.frame["attack"].isin(attacks)]
    table = rows.groupby("index")["correct"].agg(["size", "all"]).reindex(outcomes.index)
    complete = table["size"].fillna(0).to_numpy() == len(attacks)
    robust: BoolArray = table["all"].eq(True).to_numpy(dtype=np.bool_)
    return complete, robust & complete
