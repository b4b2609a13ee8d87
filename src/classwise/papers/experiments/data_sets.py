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
from classwise.papers.scales import CIFAR, FULL, LAPTOP, SMOKE, Name, Scale
from classwise.papers.tables import estimate_cell, left_out
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.interval_estimators import widest

DATA_SETS: Mapping[Name, Sequence[str]] = {
    "smoke": (SMOKE.data,),
    "laptop": ("mnist", "svhn", CIFAR, "cifar100", "tiny-imagenet"),
    "full": ("mnist", "svhn", CIFAR, "cifar100", "tiny-imagenet"),
}
DRAWN = 20
"""Up to so many classes each have a row of their own in a figure."""


@dataclass(frozen=True)
class Pair:
    """A standard and an adversarially trained model of one data set, both under PGD."""

    standard: Audit
    adversarial: Audit

    def __iter__(self) -> Iterator[tuple[str, Audit]]:
        """Both, with what they are called."""
        return iter((("standard", self.standard), ("adversarial", self.adversarial)))


class DataSets(Experiment):
    """benz20 plan: a standard and an adversarial model on each of five data sets."""

    item = "benz20/P1.1"
    scales: ClassVar[Mapping[Name, Scale]] = {
        "smoke": SMOKE,
        "laptop": replace(
            LAPTOP,
            about=f"{LAPTOP.about}; of the other data sets 10,000 images and the four-layer CNN; a data set that is "
            "not there is left out",
        ),
        "full": replace(FULL, about="five data sets, each with its usual radius; one that is not there is left out"),
    }

    def run(self, context: Context) -> Findings:
        """Averages and gaps of both models on each available data set; claims C1 and C4."""
        found, absent = audited(context)
        rows = []
        for data, pair in found.items():
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
        tables = [Table("In percent and points", (*heads, "weakest"), rows, "Small: 95 % intervals for new images.")]
        tables += left_out(absent)
        note = f"on {', '.join(found)}; one training of each model"
        return Findings(
            tables=tables,
            figures=[(_drawn(pair), f"{data}: standard clean, adversarial under PGD.") for data, pair in found.items()],
            tests=(
                Test(
                    claim="benz20/C1",
                    estimand="MCD of clean accuracy, standard training, each data set",
                    estimators=[widest(pair.standard.counts("clean")) for pair in found.values()],
                    note=f"{note}; 'non-trivial' is read as: above zero by intervals that hold for all classes at once",
                ),
                Test(
                    claim="benz20/C4",
                    covers=("data sets",) if len(found) > 1 else tuple(found),
                    estimand="MCD under PGD, adversarial training, each data set",
                    estimators=[widest(pair.adversarial.counts("PGD")) for pair in found.values()],
                    note=note,
                ),
            ),
        )


def audited(context: Context) -> tuple[dict[str, Pair], dict[str, str]]:
    """Both models of each available data set, and why the others are missing.

    Raises:
        ClasswiseError: if none is.
    """
    contexts, absent = context.on_all(DATA_SETS[context.scale.name])
    found = {
        data: Pair(under_pgd(own, own.trained("standard", {"seed": 1})), under_pgd(own, own.trained("at")))
        for data, own in contexts.items()
    }
    return found, absent


def _drawn(pair: Pair) -> Drawing:
    """The accuracy of each class; for many classes, their histogram."""
    if len(pair.standard.outcomes.class_names) <= DRAWN:
        return gap(pair.standard.outcomes, pair.adversarial.outcomes, "PGD").figure()
    return spread(pair.adversarial.outcomes, "PGD").figure()
