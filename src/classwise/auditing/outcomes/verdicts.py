"""Verdicts: whether each image is classified correctly under each attack, as far as that is known.

An image is *judged* under an attack once it has a verdict. A missing row is known to be misclassified where an earlier
success ends the evaluation of the image: after the clean pass with early stop, and after each attack of a cascade.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from classwise.auditing.outcomes.meta import CLEAN, Meta
from classwise.stats.bounds import BoundedCounts
from classwise.stats.counts import BoolArray, IntArray

UNKNOWN = -1
"""The verdict on an image that is not judged; 1 is correct, 0 misclassified."""

Verdicts = NDArray[np.int8]


class Judgement(NamedTuple):
    """Images and whether they are classified correctly; the same rows in each array.

    Attributes:
        image: (N,) the image indices, ascending.
        label: (N,) their labels.
        correct: (N,) true where the image is classified correctly.
    """

    image: IntArray
    label: IntArray
    correct: BoolArray


def verdicts_by_attack(frame: pd.DataFrame, index: IntArray, meta: Meta) -> dict[str, Verdicts]:
    """(N,) verdicts of each applicable attack on the images ``index``, from the rows of an outcomes table."""
    order = {label: place for place, label in enumerate(meta.applicable)}
    table = np.full((len(order), len(index)), UNKNOWN, dtype=np.int8)
    places = frame["attack"].map(order).to_numpy(dtype=np.int64)
    table[places, np.searchsorted(index, frame["index"])] = frame["correct"]
    final = [bool(meta.early_stop) if label == CLEAN else meta.cascade for label in order]
    done = np.zeros(len(index), dtype=np.bool_)  # images that no later attack runs on
    for row, is_final in zip(table, final, strict=True):
        row[done & (row < 0)] = 0
        done |= (row == 0) & is_final
    return dict(zip(order, table, strict=True))


def under_all(verdicts: Sequence[Verdicts]) -> Verdicts:
    """(N,) verdicts under several attacks together.

    Correct is correct under each attack. Misclassified is misclassified under one of them, whatever the others find.
    """
    lowest: Verdicts = np.min([np.where(each < 0, 2, each) for each in verdicts], 0)
    undecided = np.any([each < 0 for each in verdicts], 0) & (lowest > 0)
    return np.where(undecided, UNKNOWN, lowest).astype(np.int8)


def bounded_counts(
    verdicts: Verdicts, ids: IntArray, groups: int, sizes: IntArray | None, images: float
) -> BoundedCounts:
    """Count images, judged images and correct images of each group.

    Args:
        verdicts: (N,) verdicts on the images of the table.
        ids: (N,) the group of each image.
        groups: number of groups.
        sizes: (groups,) number of images of each group in the data; None: unknown.
        images: number of images of the data; infinity if it is unknown.
    """
    seen, judged, correct = (
        np.bincount(ids[mask], minlength=groups) for mask in (verdicts > -2, verdicts >= 0, verdicts > 0)
    )
    if sizes is None or len(sizes) != groups or sizes.sum() != images or (sizes < seen).any():
        return BoundedCounts(seen, judged, correct, images - len(ids))
    return BoundedCounts(sizes, judged, correct)


def widest(counts: Sequence[BoundedCounts]) -> BoundedCounts:
    """Counts that include every completion of each of the given counts of the same images."""
    correct = np.min([each.correct for each in counts], axis=0)
    most = np.max([each.high.correct for each in counts], axis=0)
    first = counts[0]
    return BoundedCounts(first.count, first.count - most + correct, correct, first.unplaced)
