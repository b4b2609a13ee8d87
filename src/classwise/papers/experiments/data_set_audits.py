"""Standard and adversarially trained models of several data sets, and their audits, shared by the class-wise items."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.core.rng import CounterRNG
from classwise.papers import catalogue
from classwise.papers.claims import Test, not_tested
from classwise.papers.experiment import Context, Training
from classwise.papers.experiments.protocol import AT, STANDARD, under_pgd
from classwise.papers.scales import OWN_DATA, PAPER_DATA, REDUCED, SMOKE, TIAN, Name, Scale
from classwise.papers.tables import estimate_cell, skipped_table
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import wilson
from classwise.training.folder import Run

DATA_SETS: Mapping[Name, Sequence[str]] = {
    "smoke": (SMOKE.data,),
    "reduced": (*PAPER_DATA, *OWN_DATA),
    "full": PAPER_DATA,
}
"""The data sets of each scale; unavailable ones are skipped."""
SCALES: Mapping[Name, Scale] = {
    "smoke": SMOKE,
    "reduced": dataclasses.replace(
        REDUCED, about=f"{REDUCED.about}; and the other available data sets, see their table"
    ),
    "full": dataclasses.replace(TIAN, about=f"{TIAN.about}, and its other data sets; unavailable ones are skipped"),
}
"""Scales of the class-wise analysis on all data sets."""
FAST = Training(recipe="fast-at-three-stage")
"""Adversarial training on ImageNet, kdd21 A.1."""
STANDARD_IMAGENET = dataclasses.replace(
    STANDARD, overrides={**STANDARD.overrides, "optimizer.lr": 0.4, "lr_schedule": "three-stage"}
)
"""Standard training on ImageNet with the learning rates of `FAST`."""
LEAST_IMAGES = 50
"""Test images of a class below which a data set gives intervals but no verdict."""
BEYOND_CHANCE = 2
"""Multiple of chance that the total under attack must exceed for a verdict."""
DRAWN = 20
"""Largest number of classes listed as columns of a table, or as rows of a figure."""
KINDS = ("standard", "adversarial")
ADVERSARIAL, ROBUST = "adversarial", "PGD"


def declare(
    scale: Scale, kinds: Sequence[str] = KINDS, *, data_sets: Sequence[str] | None = None, network: str = ""
) -> dict[str, Training]:
    """Declare a training of each kind on each data set, those of the scale by default, named ``kind, data``.

    Args:
        scale: scale of the experiment.
        kinds: kinds of training.
        data_sets: names of the data sets; None for those of the scale.
        network: network for all data sets; empty for that of each.
    """
    return {
        f"{kind}, {data}": dataclasses.replace(_training(kind, data, network), data=data)
        for data in data_sets or DATA_SETS[scale.name]
        for kind in kinds
    }


def _training(kind: str, data: str, network: str = "") -> Training:
    adversarial, standard = (FAST, STANDARD_IMAGENET) if data == "imagenet" else (AT, STANDARD)
    own = standard if kind == "standard" else adversarial
    return dataclasses.replace(own, overrides={**own.overrides, "model.name": network}) if network else own


@dataclass(frozen=True)
class DataSetAudits:
    """Models of one data set and their audits under PGD.

    Attributes:
        data: name of the data set.
        context: context of the data set.
        trained: trainings by kind.
        audits: audits by kind.
        superclasses: whether statements are about superclasses.
    """

    data: str
    context: Context
    trained: Mapping[str, Run]
    audits: Mapping[str, Audit]
    superclasses: bool

    @property
    def by_class(self) -> DataSetAudits:
        """The same with statements about classes."""
        return dataclasses.replace(self, superclasses=False)

    def outcomes(self, kind: str = ADVERSARIAL) -> Outcomes:
        """Outcomes of a model, by superclass where statements are about superclasses."""
        outcomes = self.audits[kind].outcomes
        return by_superclass(outcomes) if self.superclasses else outcomes

    def counts(self, kind: str = ADVERSARIAL, attack: str = ROBUST) -> ClassCounts:
        """Per-class counts of `outcomes`."""
        return self.outcomes(kind).counts(attack)

    @cached_property
    def sampled(self) -> Sequence[int] | None:
        """Labels of the 12 classes that the papers show on this data set; None for all classes."""
        outcomes = self.outcomes()
        return sampled_classes(self.data) if outcomes.num_classes == _CLASSES.get(self.data) else None

    def shown(self, kind: str = ADVERSARIAL, attack: str = ROBUST) -> tuple[ClassCounts, Sequence[str]]:
        """Per-class counts and names of the sampled classes, or of all classes with images."""
        counts, names = self.counts(kind, attack), self.outcomes(kind).class_names
        rows = np.flatnonzero(counts.present).tolist() if self.sampled is None else list(self.sampled)
        return ClassCounts(counts.count[rows], counts.correct[rows]), [names[row] for row in rows]

    @cached_property
    def fault(self) -> str:
        """The reason why the images or the model allow intervals but no verdict; empty if they allow one.

        At smoke scale, whose numbers mean nothing, the tests run regardless.
        """
        if self.context.scale.name == "smoke":
            return ""
        counts = self.counts()
        least = int(counts.count[counts.present].min())
        if least < LEAST_IMAGES:
            return f"{least} test images in a class, of at least {LEAST_IMAGES}"
        chance = BEYOND_CHANCE / int(counts.present.sum())
        low, _ = wilson(counts.correct.sum(), counts.count.sum())
        if low <= chance:
            return f"the total is not above {BEYOND_CHANCE} times chance ({100 * chance:.3g} percent)"
        return ""

    @property
    def unfit(self) -> str:
        """`fault`, or that the data set is not one of the class-wise analysis of the papers."""
        own = self.context.scale.name != "smoke" and self.data not in PAPER_DATA
        return "not a data set of the papers" if own else self.fault

    def judges(self, claim: str) -> bool:
        """Whether this data set gives a verdict on a claim: it is a part of the claim, and there is no `fault`.

        At smoke scale, its data set replaces those of the claims.
        """
        parts = {part for name, part in catalogue.claim_parts(claim) if name == claim}
        return not self.fault and (self.data in parts or self.context.scale.name == "smoke")


_CLASSES: Mapping[str, int] = {"cifar100": 100, "imagenet": 1000}
_LISTS: Mapping[str, str] = {"cifar100": "CIFAR-100", "imagenet": "ImageNet"}


def sampled_classes(data: str) -> Sequence[int] | None:
    """The 12 classes of a data set in the figures of the papers (iclr21/D1); None if the figures show all.

    One label of ImageNet is unreadable except for its first digit, 8: a seeded choice replaces it.
    """
    if data not in _LISTS:
        return None
    labels = catalogue.paper("iclr21").sampled_classes[_LISTS[data]]["classes"]
    order = CounterRNG(0, "unreadable class of iclr21 Figure 7").permutation(100).tolist()
    spare = next(label for label in (800 + place for place in order) if label not in labels)
    return [spare if label is None else int(label) for label in labels]


def by_superclass(outcomes: Outcomes) -> Outcomes:
    """Outcomes with superclasses as labels and predictions: an image is correct if its superclass is predicted."""
    parents = np.asarray(outcomes.meta.superclasses)
    rows = {attack: outcomes.rows(attack).sort_values("index") for attack in outcomes.attacks}
    predictions = {attack: parents[frame["prediction"].to_numpy(dtype=np.int64)] for attack, frame in rows.items()}
    clean = predictions.pop("clean")
    return Outcomes.from_predictions(
        parents[outcomes.labels], clean, predictions, outcomes.meta.superclass_names, threat=outcomes.meta.threat
    )


def audit_each(
    context: Context, kinds: Sequence[str] = KINDS, *, data_sets: Sequence[str] | None = None, network: str = ""
) -> tuple[list[DataSetAudits], dict[str, str]]:
    """Train and audit models of the given kinds on each available data set, of those of the scale by default.

    Args:
        context: context of the experiment.
        kinds: kinds of training.
        data_sets: names of the data sets; None for those of the scale.
        network: network for all data sets; empty for that of each.

    Returns:
        The audits, and for each unavailable data set the reason.

    Raises:
        ClasswiseError: if no data set is available.
    """
    contexts, absent = context.for_data_sets(data_sets or DATA_SETS[context.scale.name])
    audited = []
    for data, own in contexts.items():
        trained = own.train_all({kind: _training(kind, data, network) for kind in kinds})
        audits = {kind: under_pgd(own, model) for kind, model in trained.items()}
        audited.append(DataSetAudits(data, own, trained, audits, own.scale.superclasses))
    return audited, absent


def no_verdict(claim: str, audited: Sequence[DataSetAudits]) -> list[Test]:
    """The claim as not tested with the reason of each data set, if none of them gives a verdict on it; else empty."""
    reasons = (f"{data_set.data}: {data_set.fault or 'not a data set of the claim'}" for data_set in audited)
    judged = any(data_set.judges(claim) for data_set in audited)
    return [] if judged else [not_tested(claim, "; ".join(reasons))]


def data_tables(audited: Sequence[DataSetAudits], absent: Mapping[str, str]) -> list[Table]:
    """Table of the data sets with their sizes, network, radius and accuracy, and a table of the skipped ones."""
    rows = []
    for data_set in audited:
        counts, recipe = data_set.counts(), data_set.trained[ADVERSARIAL].recipe
        groups = "superclasses" if data_set.superclasses else "classes"
        cells = [
            Cell(f"{int(counts.present.sum())} {groups}"),
            Cell(f"{len(data_set.context.train_images):,}"),
            Cell(_range(counts)),
            Cell(f"{recipe.model.name}, width {recipe.model.width or 1:g}"),
            Cell(data_set.context.scale.threat),
            *(estimate_cell(metric_intervals.overall(data_set.counts(attack=attack))) for attack in ("clean", ROBUST)),
            Cell(data_set.unfit or "yes"),
        ]
        rows.append(Row(data_set.data, cells))
    heads = ("data set", "statements about", "training images", "test images a class", "network", "threat")
    note = "Small print: 95 % confidence intervals for new images. A data set without verdicts is measured only."
    table = Table("Data sets", (*heads, "clean, percent", "PGD, percent", "verdicts"), rows, note)
    return [table, *skipped_table(absent)]


def _range(counts: ClassCounts) -> str:
    present = counts.count[counts.present]
    least, most = int(present.min()), int(present.max())
    return str(least) if least == most else f"{least} to {most}"
