"""The statistics behind an audit report: counts per class and attack, confusion matrices, and figures of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy import sparse

from classwise.auditing.guards.report import AuditWarning
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.outcomes.table import ALL, BEST, CLEAN, MOST_DENSE, UNION
from classwise.auditing.run.result import Audit
from classwise.reporting import formatting
from classwise.reporting.figures.bars import class_bars
from classwise.reporting.figures.heatmap import Confusion, Kind, heatmap
from classwise.reporting.figures.strip import class_strip
from classwise.reporting.svg import Drawing
from classwise.stats.counts import ClassCounts, IntArray
from classwise.stats.metrics import overall_micro
from classwise.stats.metrics.lowest import Minimum, minimum
from classwise.stats.registry import MetricInputs
from classwise.stats.worst_class import possibly_worst

SAME_IMAGES = "same-images"
"""The guard of the selection of the worst class."""
MAX_BARS = 30
"""Maximum number of classes in the bar chart of a page; the table has more, the CSV export all."""
CUMULATIVE = "cumulative"
"""Label of counts in a cascade: an image counts as correct if it survives this attack and all earlier ones."""


def shown_warnings(audit: Audit, group: str | None) -> list[AuditWarning]:
    """The warnings of an audit; by groups without the one on the selection of the worst class, which is not shown."""
    return [warning for warning in audit.warnings if group is None or warning.name != SAME_IMAGES]


def is_cumulative(meta: Meta, name: str) -> bool:
    """Whether counts under a name are cumulative: of images that survive this and all earlier attacks of a cascade."""
    return meta.cascade and name not in {CLEAN, ALL}


def heading(meta: Meta, name: str) -> str:
    """Heading of a column or row of counts, marked as cumulative for the attacks of a cascade."""
    return f"{name} ({CUMULATIVE})" if is_cumulative(meta, name) else name


def inputs_of(audit: Audit, name: str) -> MetricInputs:
    """What the metrics in the tables of pages are computed from; on clean images without clean counts beside them."""
    inputs = audit.inputs(name)
    return replace(inputs, clean=None) if name == CLEAN else inputs


@dataclass(frozen=True)
class AuditSummary:
    """Per-class statistics of an audit.

    Attributes:
        meta: settings of the evaluation.
        names: names of the C classes (or other groups), in label order.
        counts: images and correct predictions per class under ``clean``, each attack, each family's best and union,
            and ``all``, in that order.
        kind: ``"class"``, or the name of another grouping.
        confusions: confusion matrices (truth x prediction); under ``all`` an image is counted by its first incorrect
            prediction.
        alpha: significance level; intervals have coverage 1 - alpha.
        inputs: what metrics are computed from, under each of ``counts``; see `inputs_of`.
    """

    meta: Meta
    names: tuple[str, ...]
    counts: Mapping[str, ClassCounts]
    kind: str = "class"
    confusions: Mapping[str, Confusion] = field(default_factory=dict)
    alpha: float = 0.05
    inputs: Mapping[str, MetricInputs] = field(default_factory=dict)

    @staticmethod
    def of(audit: Audit) -> AuditSummary:
        """Count the outcomes of an audit by class, or by its grouping.

        Raises:
            IncompleteError: if the audit is incomplete.
        """
        audit.outcomes.require_complete()
        outcomes = audit.outcomes
        matrix_of = outcomes.confusion if outcomes.num_classes <= MOST_DENSE else outcomes.sparse_confusion
        matrices: dict[str, IntArray | sparse.csr_array] = {ALL: matrix_of(ALL)}
        if not outcomes.meta.cascade:
            matrices |= {name: matrix_of(name) for name in outcomes.attacks}
        meta = outcomes.meta
        return AuditSummary(
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
            inputs={name: inputs_of(audit, name) for name in audit.names},
        )

    @property
    def under_all(self) -> ClassCounts:
        """Counts of images that are classified correctly under every attack."""
        return self.counts[ALL]

    @property
    def plural(self) -> str:
        """Noun for several rows: ``classes``, or ``<grouping> groups``."""
        return formatting.plural(self.kind)

    @property
    def singular(self) -> str:
        """Noun for one row: ``class``, or ``<grouping> group``."""
        return formatting.singular(self.kind)

    @cached_property
    def minimum(self) -> Minimum:
        """The worst class, with estimates and the interval of the lowest accuracy, whichever class it is."""
        return minimum(self.under_all, self.alpha)

    @property
    def worst(self) -> int:
        """Label of the class with the lowest accuracy under all attacks (the first one if several are equal)."""
        return self.minimum.label

    @cached_property
    def lowest(self) -> list[int]:
        """Labels of all classes that tie for the lowest accuracy under all attacks; the first one is `worst`."""
        accuracy = self.under_all.accuracy
        return [int(label) for label in np.flatnonzero(accuracy == accuracy[self.worst])]

    @property
    def attacked(self) -> bool:
        """Whether at least one attack that is applicable to the model was run."""
        return any(name not in {CLEAN, ALL} for name in self.counts)

    def heading(self, name: str) -> str:
        """Heading of a column or row of counts, marked as cumulative for the attacks of a cascade."""
        return heading(self.meta, name)

    @cached_property
    def order(self) -> list[int]:
        """Labels of the classes that have images, worst class first."""
        order = np.argsort(self.under_all.accuracy, kind="stable")
        return [int(label) for label in order if self.under_all.present[label]]

    @cached_property
    def worst_candidates(self) -> list[int]:
        """Labels of the classes that may be the worst one at confidence 1 - alpha, lowest accuracy first."""
        candidates = possibly_worst(self.under_all, self.alpha)
        return [label for label in self.order if candidates[label]]

    @cached_property
    def strongest(self) -> str | None:
        """The single attack with the lowest overall accuracy that was evaluated on every image, or None."""
        attacks = [name for name in self.confusions if name not in {CLEAN, ALL}]
        return min(attacks, key=lambda name: overall_micro(self.counts[name]), default=None)

    @cached_property
    def main(self) -> list[str]:
        """Names of the counts in the main figure: each attack family is represented by its best member.

        In a cascade it is represented by its union.
        """
        members = {member for family in self.meta.families.values() for member in family}
        best = {f"{family}-{BEST}" for family in self.meta.families}
        extra = {f"{family}-{UNION}" for family in self.meta.families if f"{family}-{BEST}" in self.counts}
        folded = members if best & self.counts.keys() or self.meta.cascade else set()
        return [name for name in self.counts if name not in folded and name not in extra]

    @property
    def members(self) -> list[str]:
        """Names of the counts that are not in `main`."""
        return [name for name in self.counts if name not in self.main]

    def strip(self, *, width: float | None = None) -> Drawing:
        """Figure of all class accuracies on one axis."""
        under = "under every attack" if self.attacked else "on clean images"
        return class_strip(self.names, self.under_all, under, self.alpha, kind=self.kind, width=width)

    def bars(self, names: list[str], *, width: float | None = None) -> Drawing:
        """Bar chart of the class accuracies under some attacks; at most the `MAX_BARS` worst classes."""
        return class_bars(
            self.names,
            {self.heading(name): self.counts[name] for name in names},
            self.order[:MAX_BARS],
            alpha=self.alpha,
            highlight=self.worst_candidates,
            kind=self.singular,
            width=width,
            attacks=names,
        )

    def matrix(self, name: str, kind: Kind, *, width: float | None = None) -> Drawing:
        """Confusion matrix under an attack, at most the `MAX_CLASSES` classes with the most errors."""
        together = name == ALL and self.attacked
        condition = "over all attacks" if together else "on clean images" if name in {ALL, CLEAN} else f"under {name}"
        shown = self.confusions[name].condensed()[0].grouped()
        known = self.kind == "class" and shown.names != self.meta.superclass_names
        labels = {name: label for label, name in enumerate(self.names)} if known else None
        return heatmap(shown, kind, under=condition, width=width, attack=name, labels=labels)
