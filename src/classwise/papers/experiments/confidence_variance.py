"""CVC (class-wise variance of the confidences) and robustness: kdd21/F3a, E7, iclr21/F5a, F5e."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from classwise.analysis.sensitivity import sensitivity
from classwise.analysis.smoothness import Smoothness, smoothness
from classwise.attacks.gradient.ascent import TEMPERATURES
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.config import configurable
from classwise.papers.bootstrap import Resampled
from classwise.papers.claims import CORRELATION, Test
from classwise.papers.context import Context, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.estimates import largest_drop, strongest
from classwise.papers.experiments.protocol import (
    HYPERSPHERE,
    SCALES,
    SETUP_STEP,
    SPHERE_SCALES,
    TABLE_STEP,
    TEMPERATURE_SCALES,
    defences,
    temperature_grid,
    under_pgd,
)
from classwise.papers.interval_estimators import alike, difference, interval, minus, negative, plus
from classwise.papers.scales import CIFAR, Name, Scale, other_data
from classwise.papers.tables import elsewhere, estimate_cell
from classwise.reporting.tables import Cell, Row, Table

TRANSPORTATION, ANIMALS = (0, 1, 8, 9), (2, 3, 4, 5, 6, 7)
"""The superclasses of CIFAR-10 (kdd21 Table 2)."""
LOWEST = (4, 3)
"""The classes with the lowest CVC in the paper, lowest first."""
COVERS = ("animals and transportation", "classes 3 and 4")
"""The parts of claim C16 of kdd21."""
LITTLE = 1
"""Drop of the total in points below which a model hardly reacts."""
PLAIN, STEEP, SMOOTH = "PGD", "Madry", "HE"
"""The plain attack; the defences whose confidences the paper finds steepest and smoothest."""


@configurable
class Confidences(Experiment):
    """CVC of each class on images attacked by PGD; the papers do not specify the images.

    Attributes:
        defences: names of the defences.
    """

    defences: tuple[str, ...] = ("Madry", "TRADES", "MART", "HE")

    scales: ClassVar[Mapping[Name, Scale]] = SCALES
    step: ClassVar[float] = TABLE_STEP

    def trainings(self, scale: Scale) -> Trainings:
        """The models of the figure."""
        return {name: defences(scale)[name] for name in self.defences}

    def run(self, context: Context) -> Findings:
        """Draw a bar for each class and model, and test the claims of the figure."""
        trained = context.train_all(self.trainings(context.scale))
        tables = {name: under_pgd(context, one, step=self.step).outcomes for name, one in trained.items()}
        variances = smoothness(tables, "PGD")
        rows = [Row(name, [estimate_cell(variances.mean(name), 1000, 2)]) for name in tables]
        table = Table(
            "Mean CVC over the classes",
            ("model", "CVC, thousandths"),
            rows,
            "Small print: 95 % confidence intervals for new images.",
        )
        tests, not_tested = self.claims(variances, tables, context.scale)
        caption = "Smooth confidences have a low CVC; the lowest class of each model is highlighted."
        return Findings(tables=(table,), figures=((variances.figure(), caption),), tests=tests, not_tested=not_tested)

    def claims(
        self, variances: Smoothness, tables: Mapping[str, Outcomes], scale: Scale
    ) -> tuple[list[Test], dict[str, str]]:
        """Test C13 of iclr21: of two models, the more robust one under PGD is smoother."""
        del scale
        return [_stronger_is_smoother(variances, tables)], {}


def _below(claim: str, estimand: str, variances: Smoothness, low: str, others: list[str]) -> Test:
    """Test that the mean CVC of one model is below that of each other model."""
    parts = [interval(difference(variances.mean(other), variances.mean(low)), 1000) for other in others]
    return Test(claim=claim, estimand=estimand, estimators=parts, unit="thousandths")


def _stronger_is_smoother(variances: Smoothness, tables: Mapping[str, Outcomes]) -> Test:
    """Test that in each pair of models, the one with the larger total under PGD has the lower mean CVC."""
    parts = []
    for one, other in itertools.combinations(tables, 2):
        rows = np.stack([tables[name].correct("PGD") for name in (one, other)])
        total = Resampled(rows, tables[one].labels, tables[one].num_classes).total()
        parts.append(alike(total, interval(difference(variances.mean(other), variances.mean(one)), 1000)))
    estimand = "mean CVC of the model that is weaker under PGD minus that of the stronger one, each pair of models"
    return Test(
        claim="iclr21/C13", estimand=estimand, estimators=parts, unit="thousandths", covers=("stronger models",)
    )


class ConfidencesOfDefences(Confidences):
    """kdd21 Figure 3a: CVC of four defences."""

    def claims(
        self, variances: Smoothness, tables: Mapping[str, Outcomes], scale: Scale
    ) -> tuple[list[Test], dict[str, str]]:
        """Test C17 (HE is the smoothest) and C16 (animals are smoother than transportation)."""
        others = [name for name in tables if name != "HE"]
        tests = [_below("kdd21/C17", "mean CVC of each other defence minus that of HE", variances, "HE", others)]
        if scale.data != CIFAR:
            return tests, other_data("kdd21/C16", scale)
        parts = [
            interval(difference(variances.mean(name, TRANSPORTATION), variances.mean(name, ANIMALS)), 1000)
            for name in tables
        ]
        groups = "mean CVC of transportation minus that of animals, each defence"
        tests.append(Test(claim="kdd21/C16", estimand=groups, estimators=parts, unit="thousandths", covers=COVERS[:1]))
        order = [
            interval(difference(variances.mean(name, (above,)), variances.mean(name, (label,))), 1000)
            for name in tables
            for place, label in enumerate(LOWEST)
            for above in (*TRANSPORTATION, *ANIMALS)
            if above not in LOWEST[: place + 1]
        ]
        named = (
            "CVC of each other class minus that of class 4, and of each class but 3 and 4 minus that of class 3, "
            "each defence"
        )
        return [
            *tests,
            Test(claim="kdd21/C16", estimand=named, estimators=order, unit="thousandths", covers=COVERS[1:]),
        ], {}


class ConfidencesOnTheSphere(Confidences):
    """iclr21 Figure 5e: CVC of hypersphere embedding, its two schedules, and adversarial training."""

    scales: ClassVar[Mapping[Name, Scale]] = SPHERE_SCALES
    step: ClassVar[float] = SETUP_STEP

    def trainings(self, scale: Scale) -> Trainings:
        """The four models of appendix G."""
        del scale
        return HYPERSPHERE


class SmoothVulnerableSensitive(Experiment):
    """kdd21 section 5: are smooth classes the vulnerable ones, and the ones sensitive to the temperature?"""

    scales: ClassVar[Mapping[Name, Scale]] = TEMPERATURE_SCALES

    def trainings(self, scale: Scale) -> Trainings:
        """The four defences."""
        return defences(scale)

    def run(self, context: Context) -> Findings:
        """Compute rank correlations over the classes of each defence; test claims C29 and C15."""
        trained = context.train_all(self.trainings(context.scale))
        tables = {defence: context.audit(one, temperature_grid(context)).outcomes for defence, one in trained.items()}
        inverses = [f"{inverse:g}" for inverse in TEMPERATURES]
        best = {defence: strongest(table, inverses) for defence, table in tables.items()}
        drops = {defence: largest_drop(table, [PLAIN, *inverses]) for defence, table in tables.items()}
        sensitivities = {defence: sensitivity(table, PLAIN, best[defence]) for defence, table in tables.items()}
        means = smoothness(tables, PLAIN)
        heads = (
            "defence",
            "CVC and robustness",
            "CVC and drop",
            "mean CVC, thousandths",
            "best 1/T",
            "largest drop of the total, points",
        )
        note = "Spearman's correlation over the classes; CVC on images attacked by PGD. "
        note += "Small print: 95 % confidence intervals for new images; that of the largest drop covers every 1/T."
        others = [defence for defence in tables if defence != SMOOTH]
        order = [(STEEP, other) for other in others if other != STEEP] + [(other, SMOOTH) for other in others]
        tests = [
            Test(
                claim="kdd21/C29",
                estimand="Spearman's correlation of CVC and robustness over the classes, each defence",
                estimators=[interval(one.vulnerable) for one in sensitivities.values()],
                unit="",
                limits=CORRELATION,
            ),
            Test(
                claim="kdd21/C15",
                covers=("HE reacts most",),
                estimand=f"largest drop of the total over 1/T: {SMOOTH} minus each other defence",
                estimators=[minus(drops[SMOOTH], drops[other]) for other in others],
            ),
            Test(
                claim="kdd21/C15",
                covers=("Madry hardly reacts",),
                estimand=f"{LITTLE} point minus the largest drop of {STEEP}",
                estimators=[plus(negative(drops[STEEP]), LITTLE)],
                note=f"'hardly reacts' is interpreted as less than {LITTLE} point",
            ),
            Test(
                claim="kdd21/C15",
                covers=("order of the confidences",),
                estimand=f"mean CVC: {STEEP} minus TRADES and MART, each of the three minus {SMOOTH}",
                estimators=[interval(difference(means.mean(one), means.mean(other)), 1000) for one, other in order],
                unit="thousandths",
            ),
        ]
        rows = []
        for defence, one in sensitivities.items():
            both = [estimate_cell(link, 1, 2, tests=tests) for link in (one.vulnerable, one.sensitive)]
            cells = [
                *both,
                estimate_cell(means.mean(defence), 1000, 2),
                Cell(best[defence]),
                estimate_cell(drops[defence](0.05), 1, tests=[elsewhere("kdd21/C12", drops[defence])]),
            ]
            rows.append(Row(defence, cells))
        return Findings(
            tables=(Table("CVC, robustness and sensitivity to the temperature", heads, rows, note),),
            figures=[(one.figure(), f"{defence}; 1/T = {best[defence]}.") for defence, one in sensitivities.items()],
            tests=tests,
        )
