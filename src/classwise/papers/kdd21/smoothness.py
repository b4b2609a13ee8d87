"""kdd21/F3a, iclr21/F5a and F5e: the variance of the confidences of each class."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from classwise.analysis.smoothness import Smoothness, smoothness
from classwise.auditing.outcomes import Outcomes
from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.iclr21.hypersphere import on_the_sphere
from classwise.papers.kdd21.attacks import DEFENCES, under_pgd
from classwise.papers.scales import CIFAR, MANY_TRAININGS, USUAL, Name, Scale, other_data
from classwise.papers.store import Trained
from classwise.papers.tables import estimate_cell
from classwise.report.tables import Row, Table
from classwise.stats.bootstrap import Resampled
from classwise.stats.interval_estimators import alike, difference, interval

TRANSPORTATION, ANIMALS = (0, 1, 8, 9), (2, 3, 4, 5, 6, 7)
"""The superclasses of CIFAR-10 (kdd21 Table 2)."""
LOWEST = (4, 3)
"""The classes of the least CVC in the paper, the least first."""

COVERS = ("animals and transportation", "classes 3 and 4")
"""The parts of claim C16 of kdd21."""


class _Confidences(Experiment):
    """CVC of each class of some models, on images attacked by PGD; the papers do not say on which images."""

    recipes: ClassVar[Mapping[str, str]]
    scales: ClassVar[Mapping[Name, Scale]] = USUAL

    def models(self, bench: Bench) -> dict[str, Trained]:
        """The models, trained."""
        return {name: bench.trained(recipe) for name, recipe in self.recipes.items()}

    def run(self, bench: Bench) -> Findings:
        """A bar for each class and model."""
        tables = {name: under_pgd(bench, one).outcomes for name, one in self.models(bench).items()}
        found = smoothness(tables, "PGD")
        rows = [Row(name, [estimate_cell(found.mean(name), 1000, 2)]) for name in tables]
        table = Table(
            "Mean CVC over the classes", ("model", "CVC, thousandths"), rows, "Small: 95 % intervals for new images."
        )
        tests, beyond = self.claims(found, tables, bench.scale)
        caption = "Smooth confidences have a low CVC; the lowest class of each model stands out."
        return Findings(tables=(table,), figures=((found.figure(), caption),), tests=tests, beyond=beyond)

    @abstractmethod
    def claims(
        self, found: Smoothness, tables: Mapping[str, Outcomes], scale: Scale
    ) -> tuple[list[Test], dict[str, str]]:
        """The tests of the figure, and what this scale cannot speak about."""


def _below(claim: str, estimand: str, found: Smoothness, low: str, others: list[str]) -> Test:
    """That one model's mean CVC is below that of each other."""
    parts = [interval(difference(found.mean(other), found.mean(low)), 1000) for other in others]
    return Test(claim=claim, estimand=estimand, parts=parts, unit="thousandths")


def _stronger_is_smoother(found: Smoothness, tables: Mapping[str, Outcomes]) -> Test:
    """That of each two models the one with the larger total under PGD has the lower mean CVC."""
    parts = []
    for one, other in itertools.combinations(tables, 2):
        rows = np.stack([tables[name].correct("PGD") for name in (one, other)])
        total = Resampled(rows, tables[one].labels, tables[one].num_classes).total()
        parts.append(alike(total, interval(difference(found.mean(other), found.mean(one)), 1000)))
    estimand = "mean CVC of the model that is weaker under PGD minus that of the stronger one, each two models"
    return Test(claim="iclr21/C13", estimand=estimand, parts=parts, unit="thousandths", covers=("stronger models",))


class ConfidencesOfDefences(_Confidences):
    """kdd21 Figure 3a: CVC of four defences."""

    item = "kdd21/F3a"
    recipes = DEFENCES

    def claims(
        self, found: Smoothness, tables: Mapping[str, Outcomes], scale: Scale
    ) -> tuple[list[Test], dict[str, str]]:
        """C17: HE is the smoothest; C16: animals are smoother than transportation."""
        del tables
        others = [name for name in DEFENCES if name != "HE"]
        tests = [_below("kdd21/C17", "mean CVC of each other defence minus that of HE", found, "HE", others)]
        if scale.data != CIFAR:
            return tests, other_data("kdd21/C16", scale)
        parts = [
            interval(difference(found.mean(name, TRANSPORTATION), found.mean(name, ANIMALS)), 1000) for name in DEFENCES
        ]
        groups = "mean CVC of transportation minus that of animals, each defence"
        tests.append(Test(claim="kdd21/C16", estimand=groups, parts=parts, unit="thousandths", covers=COVERS[:1]))
        order = [
            interval(difference(found.mean(name, (above,)), found.mean(name, (label,))), 1000)
            for name in DEFENCES
            for place, label in enumerate(LOWEST)
            for above in (*TRANSPORTATION, *ANIMALS)
            if above not in LOWEST[: place + 1]
        ]
        named = "CVC of each class minus that of class 4, and of each but these two minus that of class 3, each defence"
        return [*tests, Test(claim="kdd21/C16", estimand=named, parts=order, unit="thousandths", covers=COVERS[1:])], {}


class ConfidencesOfVariants(_Confidences):
    """iclr21 Figure 5a: CVC of adversarial training and two variants."""

    item = "iclr21/F5a"
    recipes: ClassVar[Mapping[str, str]] = {"Madry": "at", "TRADES": "trades", "MART": "mart"}

    def claims(
        self, found: Smoothness, tables: Mapping[str, Outcomes], scale: Scale
    ) -> tuple[list[Test], dict[str, str]]:
        """C13: of two models the one that resists PGD better is smoother."""
        del scale
        return [_stronger_is_smoother(found, tables)], {}


class ConfidencesOnTheSphere(_Confidences):
    """iclr21 Figure 5e: CVC of hypersphere embedding and its two schedules, beside adversarial training."""

    item = "iclr21/F5e"
    scales = MANY_TRAININGS

    def models(self, bench: Bench) -> dict[str, Trained]:
        """Those of iclr21/T5."""
        return on_the_sphere(bench)

    def claims(
        self, found: Smoothness, tables: Mapping[str, Outcomes], scale: Scale
    ) -> tuple[list[Test], dict[str, str]]:
        """C13: the same of all three beside adversarial training."""
        del scale
        return [_stronger_is_smoother(found, tables)], {}
