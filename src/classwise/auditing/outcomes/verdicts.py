"""Verdicts: whether each image is classified correctly under each attack, as far as that is known.

An image is *judged* under an attack once it has a verdict. A missing row is known to be misclassified where an earlier
success ends the evaluation of the image: after the clean pass with early stop, and after each attack of a cascade.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
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


class Coverage:
    """How many images are judged under each attack.

    Args:
        rows: number of rows of each attack.
        verdicts: see `verdicts_by_attack`.
        images: number of images of the table.
        expected: number of images of the data; None: unknown.
        settle: as in `Meta`; None unless the last attacks were to run on a sample only.
    """

    def __init__(
        self,
        rows: Mapping[str, int],
        verdicts: Mapping[str, Verdicts],
        images: int,
        expected: int | None,
        settle: float | None = None,
    ) -> None:
        self._rows, self._verdicts, self._images = rows, verdicts, images
        self.expected, self.settle = expected, settle

    @property
    def total(self) -> int:
        """Number of images of the data; if it is unknown, that of the table."""
        return max(self.expected or 0, self._images)

    @cached_property
    def missing(self) -> dict[str, int]:
        """Number of images without a row under each attack; only attacks that lack some."""
        counts = {label: self.total - self._rows.get(label, 0) for label in self._verdicts}
        return {label: count for label, count in counts.items() if count}

    @cached_property
    def unjudged(self) -> dict[str, int]:
        """Number of images that are not judged under each attack; only attacks that lack some."""
        unseen = self.total - self._images
        counts = {label: unseen + int((each < 0).sum()) for label, each in self._verdicts.items()}
        return {label: count for label, count in counts.items() if count}

    @property
    def complete(self) -> bool:
        """Whether every attack has a row for every image, and the number of images is known."""
        return not self.missing and self.expected is not None

    @property
    def unfinished(self) -> str:
        """How many images are not judged under every attack, such as ``12 of 90``."""
        if self.expected is None:
            return "an unknown number of"
        undecided = np.any([each < 0 for each in self._verdicts.values()], axis=0)
        return f"{self.total - self._images + int(undecided.sum()):,} of {self.total:,}"

    @property
    def gap(self) -> str:
        """Which images are not judged, as a sentence without its full stop; empty for a complete table."""
        if self.complete:
            return ""
        if not self.unjudged and self.expected is not None:  # the other attacks imply each missing row
            rows = ", ".join(f"{label} {count:,}" for label, count in self.missing.items())
            return f"the audit is incomplete: rows of images that need no attack are missing ({rows})"
        counts = ", ".join(f"{label} {count:,}" for label, count in self.unjudged.items())
        by_attack = f" (not judged: {counts})" if counts else ""
        if self.settle is not None:
            what = f"the audit is an estimate from a sample (settle {self.settle:g})"
            return f"{what}: {self.unfinished} images are not judged by every attack{by_attack}"
        return f"the audit is incomplete: {self.unfinished} images are not judged by every attack{by_attack}"

    @property
    def completion(self) -> str:
        """How to complete the audit, such as ``continue the audit with --resume``."""
        return f"continue the audit with --resume{'' if self.settle is None else ' and without --settle'}"


def bounded_counts(
    verdicts: Verdicts, ids: IntArray, groups: int, sizes: IntArray | None, coverage: Coverage
) -> BoundedCounts:
    """Count images, judged images and correct images of each group.

    Args:
        verdicts: (N,) verdicts on the images of the table.
        ids: (N,) the group of each image.
        groups: number of groups.
        sizes: (groups,) number of images of each group in the data; None: unknown.
        coverage: the number of images of the data.
    """
    seen, judged, correct = (
        np.bincount(ids[mask], minlength=groups) for mask in (verdicts > -2, verdicts >= 0, verdicts > 0)
    )
    if coverage.expected is None:
        return BoundedCounts(seen, judged, correct, float("inf"))
    if sizes is None or len(sizes) != groups or sizes.sum() != coverage.total or (sizes < seen).any():
        return BoundedCounts(seen, judged, correct, float(coverage.total - len(ids)))
    return BoundedCounts(sizes, judged, correct)


def widest(counts: Sequence[BoundedCounts]) -> BoundedCounts:
    """Counts that include every completion of each of the given counts of the same images."""
    correct = np.min([each.correct for each in counts], axis=0)
    most = np.max([each.high.correct for each in counts], axis=0)
    first = counts[0]
    return BoundedCounts(first.count, first.count - most + correct, correct, first.unplaced)
