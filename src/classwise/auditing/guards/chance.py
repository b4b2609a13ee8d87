"""What is beyond chance in one class: a class can be masked alone, and the average over the classes hides it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from classwise.auditing.outcomes import Outcomes
from classwise.stats.counts import BoolArray, IntArray, PairedCounts
from classwise.stats.paired import class_differences

LEVEL = 0.05
"""The probability that any class of an honest model is named by one test."""


def excessive(hits: IntArray, images: IntArray, rate: float) -> int | None:
    """The class whose share of hits is farthest above a rate, if that is beyond chance; else None.

    Args:
        hits: images of each class that were hit, (C,).
        images: all images of each class, (C,).
        rate: the share of hits that an honest model may have in a class. A class counts if so many hits have a
            probability below `LEVEL` over the number of classes that have images (binomial, one-sided).
    """
    # I_p(k, n - k + 1) is the probability of k or more; no hit at all has probability 1.
    tail = np.where(hits > 0, special.betainc(np.maximum(hits, 1), images - hits + 1, rate), 1.0)
    least = int(tail.argmin())
    return least if tail[least] < LEVEL / max(int((images > 0).sum()), 1) else None


class Excess(NamedTuple):
    """By how much more images are broken one way than another.

    Attributes:
        extra: images broken in excess, over all classes.
        images: all images that were judged both ways.
        label: the class in which the excess is largest and beyond chance, or None.
        share: of that class's images, the excess.
    """

    extra: int
    images: int
    label: int | None
    share: float


def excess(pairs: PairedCounts) -> Excess:
    """How many more images are right the first time only than the second time only.

    A class is named where McNemar's test, after Holm over the classes, has a p-value below `LEVEL`.
    """
    more = pairs.only_first - pairs.only_second
    beyond = (more > 0) & (np.nan_to_num(class_differences(pairs).adjusted, nan=1.0) < LEVEL)
    shares = more / np.maximum(pairs.count, 1)
    label = int(np.where(beyond, shares, -1.0).argmax()) if beyond.any() else None
    return Excess(int(more.sum()), int(pairs.count.sum()), label, 0.0 if label is None else float(shares[label]))


def stronger(outcomes: Outcomes, these: tuple[str, ...], those: tuple[str, ...]) -> Excess:
    """What these attacks break in excess of those, each set as a whole, of the images that both have judged.

    In a cascade, an image that an earlier attack broke counts as broken by the later ones too: they were never asked.
    """
    first, second = _robust(outcomes, those), _robust(outcomes, these)
    both = first[0] & second[0]
    return excess(
        PairedCounts.from_labels(outcomes.labels[both], first[1][both], second[1][both], outcomes.num_classes)
    )


def _robust(outcomes: Outcomes, attacks: tuple[str, ...]) -> tuple[BoolArray, BoolArray]:
    """(N,), (N,): which images all of the attacks have judged, and which stood against all of them."""
    rows = outcomes.frame[outcomes.frame["attack"].isin(attacks)]
    table = rows.groupby("index")["correct"].agg(["size", "all"]).reindex(outcomes.index)
    judged = table["size"].fillna(0).to_numpy() == len(attacks)
    stood: BoolArray = table["all"].eq(True).to_numpy(dtype=np.bool_)
    return judged, stood & judged
