"""The numbers behind a report: what an audit counted, and the figures that show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy import sparse

from classwise.auditing.meta import Meta
from classwise.auditing.outcomes import ALL, BEST, CLEAN, MOST_DENSE, UNION, Outcomes
from classwise.auditing.result import Audit
from classwise.reporting.figures.bars import class_bars
from classwise.reporting.figures.heatmap import Confusion
from classwise.reporting.figures.strip import class_strip
from classwise.reporting.svg import Drawing
from classwise.stats.confusion import confusion, sparse_confusion
from classwise.stats.counts import ClassCounts, IntArray
from classwise.stats.intervals import Estimate, class_intervals
from classwise.stats.metrics import overall_micro
from classwise.stats.worst_class import Minimum, minimum, possibly_worst

MOST_BARS = 30
"""Classes in the bars of a page; the table goes further, and the CSV export has them all."""
CUMULATIVE = "cumulative"
"""What the columns of a cascade are called: an image counts if it survives this attack and all earlier ones."""


def is_cumulative(meta: Meta, name: str) -> bool:
    """Whether the counts under a name are of images that survive this and all earlier attacks of a cascade."""
    return meta.cascade and name not in {CLEAN, ALL}


def heading(meta: Meta, name: str) -> str:
    """The name of a column or row of counts; in a cascade it says that its counts are cumulative."""
    return f"{name} ({CUMULATIVE})" if is_cumulative(meta, name) else name


@dataclass(frozen=True)
class Findings:
    """What a report says of an audit.

    Attributes:
        meta: how the outcomes came about.
        names: of the C classes (or other groups), in their order.
        counts: images and right answers of each class under ``clean``, each attack, each family's best and union, and
            ``all``, in that order.
        kind: what a row is: ``"class"``, or the name of another grouping.
        confusions: truth by prediction; under ``all`` an image counts for what it was first taken for.
        alpha: 1 minus the coverage of every interval.
    """

    meta: Meta
    names: tuple[str, ...]
    counts: Mapping[str, ClassCounts]
    kind: str = "class"
    confusions: Mapping[str, Confusion] = field(default_factory=dict)
    alpha: float = 0.05

    @staticmethod
    def of(audit: Audit) -> Findings:
        """Count the outcomes of an audit by class, or by the grouping that it asks for.

        Raises:
            IncompleteError: if the audit is incomplete.
        """
        audit.outcomes.require_complete()
        outcomes = audit.outcomes
        matrices: dict[str, IntArray | sparse.csr_array] = {ALL: first_confusion(outcomes)}
        if not outcomes.meta.cascade:
            read = outcomes.confusion if outcomes.num_classes <= MOST_DENSE else outcomes.sparse_confusion
            matrices |= {name: read(name) for name in outcomes.attacks}
        meta = outcomes.meta
        return Findings(
            meta=meta,
            names=audit.group_names,
            counts={name: audit.counts(name) for name in audit.names},
            kind=audit.group or "class",
            confusions={
                name: Confusion(
                    matrix,
                    meta.class_names,
                    meta.superclasses,
                    meta.superclass_names,
                    outcomes.counts(name).count,
                )
                for name, matrix in matrices.items()
            },
            alpha=audit.alpha,
        )

    @property
    def verdict(self) -> ClassCounts:
        """The counts that decide: right under every attack."""
        return self.counts[ALL]

    @property
    def plural(self) -> str:
        """What the rows are."""
        return "classes" if self.kind == "class" else f"groups of {self.kind}"

    @property
    def singular(self) -> str:
        """What a row is."""
        return "class" if self.kind == "class" else f"group of {self.kind}"

    @cached_property
    def minimum(self) -> Minimum:
        """The worst class and how bad it is."""
        return minimum(self.verdict, self.alpha)

    @property
    def worst(self) -> int:
        """The class that is lowest under every attack."""
        return self.minimum.label

    @cached_property
    def lowest(self) -> list[int]:
        """The classes that tie for the lowest accuracy under every attack; the first one is `worst`."""
        accuracy = self.verdict.accuracy
        return [int(label) for label in np.flatnonzero(accuracy == accuracy[self.worst])]

    @property
    def attacked(self) -> bool:
        """Whether any attack was run that is applicable to the model."""
        return any(name not in {CLEAN, ALL} for name in self.counts)

    @property
    def all_label(self) -> str:
        """What being right in `verdict` is called: robust, or clean if no attack was run."""
        return "robust" if self.attacked else "clean"

    def heading(self, name: str) -> str:
        """The name of a column or row of counts; in a cascade it says that its counts are cumulative."""
        return heading(self.meta, name)

    def cumulative(self, name: str) -> bool:
        """Whether the counts under a name are of images that survive this and all earlier attacks of a cascade."""
        return is_cumulative(self.meta, name)

    @cached_property
    def order(self) -> list[int]:
        """The classes that have images, the lowest first."""
        order = np.argsort(self.verdict.accuracy, kind="stable")
        return [int(label) for label in order if self.verdict.present[label]]

    @cached_property
    def suspects(self) -> list[int]:
        """The classes that may be the worst one, the lowest first."""
        maybe = possibly_worst(self.verdict, self.alpha)
        return [label for label in self.order if maybe[label]]

    @cached_property
    def strongest(self) -> str | None:
        """The single attack with the lowest overall accuracy, among those that judged every image; None without one."""
        attacks = [name for name in self.confusions if name not in {CLEAN, ALL}]
        return min(attacks, key=lambda name: overall_micro(self.counts[name]), default=None)

    def reading(self, label: int, name: str = ALL) -> Estimate:
        """The accuracy of a class under an attack, with its own interval."""
        low, high = class_intervals(self.counts[name], self.alpha)
        return Estimate(float(self.counts[name].accuracy[label]), float(low[label]), float(high[label]))

    @cached_property
    def main(self) -> list[str]:
        """The names of the counts with each family by its best member (in a cascade: by its union)."""
        members = {member for family in self.meta.families.values() for member in family}
        best = {f"{family}-{BEST}" for family in self.meta.families}
        extra = {f"{family}-{UNION}" for family in self.meta.families if f"{family}-{BEST}" in self.counts}
        folded = members if best & self.counts.keys() or self.meta.cascade else set()
        return [name for name in self.counts if name not in folded and name not in extra]

    @property
    def members(self) -> list[str]:
        """The names that `main` leaves out."""
        return [name for name in self.counts if name not in self.main]

    def strip(self) -> Drawing:
        """Where the classes lie between 0 and 100 %."""
        under = "under every attack" if self.attacked else "on clean images"
        return class_strip(self.names, self.verdict, under, self.alpha)

    def bars(self, names: list[str]) -> Drawing:
        """Every class under some of the attacks; of many classes the lowest."""
        counts = {self.heading(name): self.counts[name] for name in names}
        return class_bars(self.names, counts, self.order[:MOST_BARS], alpha=self.alpha, highlight=self.suspects)


def first_confusion(outcomes: Outcomes) -> IntArray | sparse.csr_array:
    """(C, C) images by truth and by what they were first taken for, in the order of the attacks (``clean`` first).

    It is sparse above `MOST_DENSE` classes.
    An image that stands against every attack is on the diagonal, so the diagonal over the row sums is the accuracy
    under ``all``. Images without any prediction (logits that are not finite) are left out.
    """
    frame, judged = outcomes.frame, outcomes.judged(ALL)
    wrong = frame[~frame["correct"] & frame["prediction"].notna()].drop_duplicates("index")
    wrong = wrong[wrong["index"].isin(judged.image)]
    correct = judged.label[judged.correct]
    labels = np.concatenate([correct, wrong["label"].to_numpy(np.int64)])
    predictions = np.concatenate([correct, wrong["prediction"].to_numpy(dtype=np.int64)])
    count = confusion if outcomes.num_classes <= MOST_DENSE else sparse_confusion
    return count(labels, predictions, outcomes.num_classes)
