"""Two-phase sampling in an audit: AutoAttack's last attacks run on a random sample of the survivors of its first.

The design (`Sampling`) chooses the images of each attack; the runner only runs it. All that is stored are the rows of
the outcomes table, and the requested distance. The order of sampling is a function of the seed and the images, so the
estimator (`TwoPhaseEstimator`) needs the table only, and a resumed audit takes the same samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch

from classwise.attacks.suites import members
from classwise.auditing.outcomes.meta import CLEAN, Meta
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.estimators import BoundsEstimator
from classwise.auditing.run.suite import Suite, parse_attacks
from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError
from classwise.stats.counts import IntArray
from classwise.stats.two_phase import (
    UNKNOWN,
    Survivors,
    TwoPhaseEstimate,
    low_margin,
    next_sample,
    two_phase_estimate,
)

ROWS = ("index", "label", "attack", "correct", "margin")
"""The columns that decide the sample and the estimate."""


@dataclass(frozen=True)
class Sampling:
    """Which attacks of an audit run on all images, and which on samples of their survivors.

    Attributes:
        settle: requested distance of the ends of the intervals for these images from the estimates.
        first: labels of the attacks on all images: those of AutoAttack that the suite ``fast`` has. Its other member,
            PMA, does not run: what it alone misclassifies is robust to AutoAttack.
        second: labels of the attacks on samples.
        seed: seed of the order of sampling.
    """

    settle: float
    first: tuple[str, ...]
    second: tuple[str, ...]
    seed: int

    @classmethod
    def of(cls, settle: float, attacks: Iterable[str], seed: int) -> Sampling:
        """The design for the attacks with these labels, ``clean`` not included."""
        fast = {spec.partition(":")[0] for spec in members("fast")}
        labels = tuple(attacks)
        first = tuple(label for label in labels if label in fast)
        return cls(settle, first, tuple(label for label in labels if label not in fast), seed)

    @classmethod
    def of_meta(cls, meta: Meta) -> Sampling | None:
        """The design of the outcomes with these metadata; None if every attack was to run on every image."""
        if meta.settle is None:
            return None
        return cls.of(meta.settle, (label for label in meta.applicable if label != CLEAN), meta.seed or 0)

    def samples(
        self,
        images: int,
        classes: int,
        rows: Callable[[Iterable[str], IntArray | None], pd.DataFrame],
        log: Callable[[str], None],
    ) -> Iterator[IntArray]:
        """The indices of the images that the second phase is to run on next, until the intervals are narrow enough.

        The first are those that do not survive the first phase, on which nothing is left to attack. Nothing more is
        yielded after a sample that was not finished, because the deadline has passed.

        Args:
            images: number of images.
            classes: number of classes.
            rows: reads the rows of attacks, from all processes, with the columns `ROWS`; of these images, or of all.
            log: logs the size of each sample.
        """
        first = rows((CLEAN, *self.first), None)
        found = candidates(first, self.first, images, classes, self.seed)
        if found is None:
            return
        yield np.setdiff1d(first["index"].to_numpy(dtype=np.int64), found.index)
        results = np.full(len(found.index), UNKNOWN)
        while len(places := next_sample(found.survivors, results, self.settle)):
            sampled = found.index[places]
            log(f"sample: {len(sampled):,} of {len(found.index):,} survivors")
            yield sampled
            results[places] = successes(rows(self.second, sampled), sampled, self.second)
            if (results[places] == UNKNOWN).any():
                return


def check_sampling(options: Mapping[str, Any], suite: Suite, norm: str) -> None:
    """Check that a second phase is possible with the options of an audit, before any file is read.

    Args:
        options: see `classwise.auditing.evaluation.evaluation.Evaluation`.
        suite: the attacks.
        norm: the norm of the ball.

    Raises:
        ClasswiseError: for ``settle`` with other attacks than those of AutoAttack's standard version, some of them in
            each phase; with a grouping, with shards, or without a cascade.
    """
    if (settle := options.get("settle")) is None:
        return
    if dict(suite.attacks) != dict(parse_attacks("autoattack", norm).attacks):
        ran = ", ".join(suite.attacks)
        raise ClasswiseError(f"settle requires the attacks autoattack and no other, but the attacks are {ran}")
    if not Sampling.of(settle, suite.attacks, 0).second:
        raise ClasswiseError(
            f"settle: under {norm} AutoAttack has no attack beyond {', '.join(suite.attacks)}; omit it (--settle)"
        )
    if options.get("group") is not None:
        raise ClasswiseError(
            "settle (--settle) estimates class accuracies and does not support group (--group); omit one of the two"
        )
    if options.get("shard") or options.get("shards"):
        raise ClasswiseError(
            "settle samples from the survivors of all images and does not support shards; omit one of the two"
        )


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
class TwoPhaseEstimator(BoundsEstimator):
    """AutoAttack's accuracies, estimated by two-phase sampling; the tables have bounds, as those of every sample.

    Attributes:
        estimate: the overall and the worst-class accuracy, each with an interval for these images and one for new ones.
        sampling: which attacks ran on all images, and which on the sample.
        unknown: number of survivors on which the second phase has not run.
    """

    estimate: TwoPhaseEstimate
    sampling: Sampling
    unknown: int

    @classmethod
    def of(cls, outcomes: Outcomes, group: str | None, alpha: float) -> TwoPhaseEstimator | None:
        """The estimates from a table; None if it is no sample, or its first phase has not finished."""
        meta, sampling = outcomes.meta, Sampling.of_meta(outcomes.meta)
        if sampling is None:
            return None
        found = candidates(outcomes.frame, sampling.first, meta.images, meta.num_classes, sampling.seed)
        if found is None or not len(found.index):
            return None
        results = successes(outcomes.frame, found.index, sampling.second)
        estimate = two_phase_estimate(found.survivors, results, sampling.settle, alpha)
        return cls(outcomes, group, alpha, estimate, sampling, int((results == UNKNOWN).sum()))

    @property
    def finished(self) -> bool:
        """Whether the intervals are as narrow as requested."""
        return self.estimate.settled

    @property
    def worst(self) -> str:
        """Name of the class of lowest estimate."""
        return self.outcomes.class_names[self.estimate.label]

    @property
    def possibly(self) -> tuple[str, ...]:
        """Names of the classes that may be the worst of these images."""
        return tuple(self.outcomes.class_names[label] for label in self.estimate.possibly)

    @cached_property
    def estimates(self) -> pd.DataFrame:
        """A row per class with images.

        Columns: ``n``; ``clean`` and ``first``, the accuracies of all images without an attack and under the first
        phase; ``estimate``; ``low`` and ``high``, its interval for these images; ``new_low`` and ``new_high``, for new
        images; ``survivors`` of the first phase; ``sampled``, those on which the second phase ran; ``may_be_worst``, of
        these images.
        """
        estimate, clean = self.estimate, self.outcomes.counts(CLEAN)
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
                "may_be_worst": np.isin(np.arange(len(clean.count)), estimate.possibly),
            },
            index=pd.Index(self.outcomes.class_names, name="class"),
        )
        return table[table["n"] > 0]

    @cached_property
    def passes(self) -> int:
        """Forward and backward passes of single images so far."""
        return sum(passes.forward + passes.to_image for passes in self.outcomes.passes.values())

    @cached_property
    def full_audit_passes(self) -> float:
        """The passes of a full audit, estimated from the sample."""
        spent = self.outcomes.passes
        of_sample = [spent[label] for label in self.sampling.second if label in spent]
        mean = float(sum(passes.forward + passes.to_image for passes in of_sample))
        return self.passes + mean / max(int(self.estimate.drawn.sum()), 1) * self.unknown
