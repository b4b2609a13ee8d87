"""Two-phase sampling in an audit: AutoAttack's last attacks run on a random sample of the survivors of its first.

The rows of an outcomes table are all that is stored. The order of sampling is a function of the seed and the images, so
the estimate is computed from the table, and a resumed audit takes the same samples.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from classwise.auditing.outcomes.meta import CLEAN
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.suite import in_first_phase
from classwise.core.rng import CounterRNG
from classwise.stats.counts import IntArray
from classwise.stats.two_phase import UNKNOWN, Survivors, TwoPhaseEstimate, low_margin, two_phase_estimate

ROWS = ("index", "label", "attack", "correct", "margin")
"""The columns that decide the sample and the estimate."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """The survivors of the first phase in the random order of sampling.

    Attributes:
        index: (S,) image indices.
        survivors: their classes and strata.
    """

    index: IntArray
    survivors: Survivors


def candidates(
    rows: pd.DataFrame, first: Collection[str], images: int | None, classes: int, seed: int
) -> Candidates | None:
    """The survivors of the first phase; None if it has not finished.

    Args:
        rows: the rows of the clean pass and of the first phase, with the columns `ROWS`.
        first: labels of the attacks of the first phase.
        images: number of images of the data.
        classes: number of classes C.
        seed: seed of the order.
    """
    label = rows.groupby("index")["label"].first()
    phase = rows[rows["attack"].isin([CLEAN, *first])]
    found = phase.groupby("index").agg(rows=("correct", "size"), robust=("correct", "all"), margin=("margin", "min"))
    finished = (found["rows"] == len(first) + 1) | ~found["robust"]
    if not len(found) or len(found) != images or not finished.all():
        return None
    survives = found[found["robust"]]
    index = survives.index.to_numpy(dtype=np.int64, copy=True)
    keys = CounterRNG(seed, "two-phase").integers(torch.from_numpy(index), (), 1 << 62).numpy()
    order = np.argsort(keys, kind="stable")
    truth = label[survives.index].to_numpy(dtype=np.int64)
    low = low_margin(truth, survives["margin"].to_numpy(dtype=np.float64))
    count = np.bincount(label.to_numpy(dtype=np.int64), minlength=classes)
    return Candidates(index[order], Survivors(count, truth[order], low[order]))


def successes(rows: pd.DataFrame, index: IntArray, second: Collection[str]) -> IntArray:
    """(S,) results of the second phase on some images: 1, 0, or `UNKNOWN` until it has finished on an image.

    Args:
        rows: rows of the attacks of the second phase, with the columns `ROWS`.
        index: (S,) image indices.
        second: labels of these attacks.
    """
    rows = rows[rows["attack"].isin(list(second))]
    found = rows.groupby("index")["correct"].agg(["size", "all"]).reindex(index)
    robust = (found["size"] == len(second)) & found["all"].eq(True)
    return np.select([found["all"].eq(False).to_numpy(), robust.to_numpy()], [1, 0], UNKNOWN).astype(np.int64)


@dataclass(frozen=True, eq=False)
class TwoPhase:
    """AutoAttack's accuracies, estimated by two-phase sampling.

    Attributes:
        estimate: the overall and the worst-class accuracy, each with an interval for these images and one for new ones.
        by_class: a row per class with images: ``n``; ``clean`` and ``first``, the accuracies of all images without an
            attack and under the first phase; ``estimate``; ``low`` and ``high``, its interval for these images;
            ``new_low`` and ``new_high``, for new images; ``survivors`` of the first phase; ``sampled``, those on which
            the second phase ran; ``may_be_worst``, of these images.
        worst: name of the class of lowest estimate.
        possibly: names of the classes that may be the worst of these images.
        settle: requested distance of the ends of the intervals for these images from the estimates.
        first: labels of the attacks of the first phase.
        second: labels of the attacks of the second phase.
        passes: forward and backward passes of single images so far.
        full_audit_passes: those of a full audit, estimated from the sample.
    """

    estimate: TwoPhaseEstimate
    by_class: pd.DataFrame
    worst: str
    possibly: tuple[str, ...]
    settle: float
    first: tuple[str, ...]
    second: tuple[str, ...]
    passes: int
    full_audit_passes: float

    @staticmethod
    def of(outcomes: Outcomes, alpha: float) -> TwoPhase | None:
        """The estimate from an outcomes table; None if it is of another kind, or its first phase has not finished."""
        meta = outcomes.meta
        if meta.settle is None:
            return None
        attacks = [label for label in meta.applicable if label != CLEAN]
        first = tuple(label for label in attacks if in_first_phase(label))
        second = tuple(label for label in attacks if label not in first)
        found = candidates(outcomes.frame, first, meta.images, meta.num_classes, meta.seed or 0)
        if found is None or not len(found.index):
            return None
        results = successes(outcomes.frame, found.index, second)
        estimate = two_phase_estimate(found.survivors, results, meta.settle, alpha)
        clean = outcomes.counts(CLEAN)
        size = np.where(clean.count > 0, clean.count, np.nan)
        table = pd.DataFrame(
            {
                "n": clean.count,
                "clean": clean.correct / size,
                "first": estimate.survivors / size,
                "estimate": estimate.classes.value,
                **{name: getattr(estimate.classes, name) for name in ("low", "high", "new_low", "new_high")},
                "survivors": estimate.survivors,
                "sampled": estimate.drawn,
                "may_be_worst": np.isin(np.arange(meta.num_classes), estimate.possibly),
            },
            index=pd.Index(meta.class_names, name="class"),
        )
        cost = outcomes.frame.groupby("attack", observed=True)[["forwards", "backwards"]].sum().sum(axis=1)
        spent = int(cost.sum())
        mean = float(cost.reindex(list(second)).sum()) / max(int(estimate.drawn.sum()), 1)
        return TwoPhase(
            estimate=estimate,
            by_class=table[table["n"] > 0],
            worst=meta.class_names[estimate.label],
            possibly=tuple(meta.class_names[label] for label in estimate.possibly),
            settle=meta.settle,
            first=first,
            second=second,
            passes=spent,
            full_audit_passes=spent + mean * int((results == UNKNOWN).sum()),
        )
