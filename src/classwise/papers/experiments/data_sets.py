"""Class accuracies on several data sets: benz20/P1.1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from classwise.analysis.gap import gap
from classwise.analysis.spread import spread
from classwise.auditing.result import Audit
from classwise.papers.claims import Test
from classwise.papers.context import Context
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.protocol import under_pgd
from classwise.papers.scales import CIFAR, FULL, REDUCED, SMOKE, Name, Scale
from classwise.papers.tables import estimate_cell, skipped_table
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.interval_estimators import widest

DATA_SETS: Mapping[Name, Sequence[str]] = {
    "smoke": (SMOKE.data,),
    "reduced": ("mnist", "svhn", CIFAR, "cifar100", "tiny-imagenet"),
    "full": ("mnist", "svhn", CIFAR, "cifar100", "tiny-imagenet"),
}
DRAWN = 20
"""Largest number of classes drawn as rows of a figure."""


@dataclass(frozen=True)
class Pair:
    """Audits under PGD of a standard and an adversarially trained model on one data set."""

    standard: Audit
    adversarial: Audit

    def __iter__(self) -> Iterator[tuple[str, Audit]]:
        """Iterate over pairs of name and audit."""
        return iter((("standard", self.standard), ("adversarial", self.adversarial)))


class DataSets(Experiment):
    """benz20 plan: a standard and an adversarially trained model on each of five data sets."""

    item = "benz20/P1.1"
    scales: ClassVar[Mapping[Name, Scale]] = {
        "smoke": SMOKE,
        "reduced": replace(
            REDUCED,
            about=f"{REDUCED.about}; other data sets: 10,000 images and the four-layer CNN; unavailable data sets are "
            "skipped",
        ),
        "full": replace(FULL, about="five data sets, each with its usual radius; unavailable ones are skipped"),
    }

    def run(self, context: Context) -> Findings:
        """Tabulate averages and gaps of both models on each available data set; test claims C1 and C4."""
        pairs, absent = audit_data_sets(context)
        rows = []
        for data, pair in pairs.items():
            for kind, audit in pair:
                cells = []
                for attack in ("clean", "PGD"):
                    counts = audit.counts(attack)
                    cells += [
                        estimate_cell(of(counts))
                        for of in (metric_intervals.macro, metric_intervals.worst, metric_intervals.discrepancy)
                    ]
                cells.append(Cell(audit.outcomes.class_names[metric_intervals.worst_label(audit.counts("PGD"))]))
                rows.append(Row(f"{data}, {kind}", cells))
        heads = ["model"]
        for attack in ("clean", "PGD"):
            heads += [f"{attack}: average", "worst class", "MCD"]
        tables = [
            Table(
                "In percent and points",
                (*heads, "weakest"),
                rows,
                "Small print: 95 % confidence intervals for new images.",
            )
        ]
        tables += skipped_table(absent)
        note = f"on {', '.join(pairs)}; one training of each model"
        return Findings(
            tables=tables,
            figures=[(_drawn(pair), f"{data}: standard clean, adversarial under PGD.") for data, pair in pairs.items()],
            tests=(
                Test(
                    claim="benz20/C1",
                    estimand="MCD of clean accuracy, standard training, each data set",
                    estimators=[widest(pair.standard.counts("clean")) for pair in pairs.values()],
                    note=f"{note}; 'non-trivial' is interpreted as above zero by simultaneous intervals for all "
                    "classes",
                ),
                Test(
                    claim="benz20/C4",
                    covers=("data sets",) if len(pairs) > 1 else tuple(pairs),
                    estimand="MCD under PGD, adversarial training, each data set",
                    estimators=[widest(pair.adversarial.counts("PGD")) for pair in pairs.values()],
                    note=note,
                ),
            ),
        )


def audit_data_sets(context: Context) -> tuple[dict[str, Pair], dict[str, str]]:
    """Train and audit both models on each available data set.

    Returns:
        Audits by data set, and for each unavailable data set the reason.

    Raises:
        ClasswiseError: if no data set is available.
    """
    contexts, absent = context.for_data_sets(DATA_SETS[context.scale.name])
    pairs = {
        data: Pair(under_pgd(own, own.train("standard", {"seed": 1})), under_pgd(own, own.train("at")))
        for data, own in contexts.items()
    }
    return pairs, absent


def _drawn(pair: Pair) -> Drawing:
    """Draw the accuracy of each class; for many classes, a histogram."""
    if len(pair.standard.outcomes.class_names) <= DRAWN:
        return gap(pair.standard.outcomes, pair.adversarial.outcomes, "PGD").figure()
    return spread(pair.adversarial.outcomes, "PGD").figure()
