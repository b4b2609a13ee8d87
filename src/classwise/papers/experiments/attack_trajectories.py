"""Confidences of one image along an attack: kdd21/F3b-d, iclr21/F5b-d, F5f-h."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from classwise.analysis.steps import Steps, steps_of
from classwise.core.precision import EXACT
from classwise.papers.bootstrap import Resampled
from classwise.papers.claims import Test
from classwise.papers.context import Context, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.estimates import mean, proportion
from classwise.papers.experiments.protocol import (
    DEFENCES,
    HYPERSPHERE,
    SPHERE_SCALES,
    TEMPERATURE_SCALES,
    defences,
    temperature_grid,
)
from classwise.papers.interval_estimators import alike, interval
from classwise.papers.official import choose_image
from classwise.papers.scales import Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.reporting.formatting import NONE
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import BoolArray, FloatArray

PLAIN = "PGD"
"""Name of the attack with 1/T = 1."""


class TrajectoryLine(NamedTuple):
    """A row of panels: a defence and an attack of the grid of temperatures."""

    defence: str
    inverse: float = 1

    @property
    def attack(self) -> str:
        """Name of the attack in the audit of the grid."""
        return PLAIN if self.inverse == 1 else f"{self.inverse:g}"

    @property
    def title(self) -> str:
        """Title of the row in the figure."""
        return f"{self.defence}, 1/T = {self.inverse:g}"


class _AlongAttack(Experiment):
    """Two traces of one image, and the frequency of the same pattern among the test images."""

    scales: ClassVar[Mapping[Name, Scale]] = TEMPERATURE_SCALES
    lines: ClassVar[tuple[TrajectoryLine, TrajectoryLine]]
    number: ClassVar[int]
    situation: ClassVar[str]

    def trainings(self, scale: Scale) -> Trainings:
        """The defences of the lines, from the tables of defences."""
        return {line.defence: defences(scale)[line.defence] for line in self.lines}

    def run(self, context: Context) -> Findings:
        """Audit the grid of temperatures, then trace the attacks on a single image."""
        attacks = temperature_grid(context)
        trained = context.train_all(self.trainings(context.scale))
        audits = {defence: context.audit(one, attacks).outcomes for defence, one in trained.items()}
        rows = [audits[line.defence].rows(line.attack) for line in self.lines]
        right = np.stack([one["correct"].to_numpy(dtype=np.bool_) for one in rows])
        arises, converse = self.arises(right), self.arises(right[::-1])
        index = rows[0]["index"].to_numpy(dtype=np.int64)
        number, provenance = choose_image(context.test_images, self.number, index[arises])
        place = context.test_images.take(context.test_images.index == number)
        parts = []
        for line in self.lines:
            attack = {line.attack: attacks[line.attack]}
            audit = context.audit(trained[line.defence], attack, images=place, trace=[number], precision=EXACT)
            parts.append(steps_of(audit, number, steps=shown(int(attacks[line.attack]["steps"]))))
        traces = _beside(parts, [line.title for line in self.lines])
        table = Table(
            "Frequency of the pattern among test images",
            (
                "images",
                "of the test set",
                "percent",
                f"variance, thousandths, {self.lines[0].title}",
            ),
            [_share_row(words, where, rows[0]) for words, where in self.shares(arises, converse)],
            "Small print: 95 % confidence intervals for new images. The variance is that of the confidences on "
            "attacked "
            "images, 0 to "
            f"{1000 * (traces.confidences.shape[2] - 1) / traces.confidences.shape[2] ** 2:.0f} thousandths.",
        )
        caption = (
            f"{provenance} Its class is highlighted; one row each for "
            f"{' and '.join(line.title for line in self.lines)}."
        )
        return Findings(tables=(table,), figures=((traces.figure(), caption),), tests=self.claims(right, rows, context))

    @abstractmethod
    def arises(self, right: BoolArray) -> BoolArray:
        """Whether images (N,) show the pattern, from the robust images (2, N) of both lines."""

    @abstractmethod
    def claims(self, right: BoolArray, rows: Sequence[pd.DataFrame], context: Context) -> list[Test]:
        """Tests of the claims, from the robust images (2, N) and the rows of both audits."""

    def shares(self, arises: BoolArray, converse: BoolArray) -> list[tuple[str, BoolArray]]:
        """Rows of the table: description and selected images (N,)."""
        return [(self.situation, arises), ("the converse", converse), ("all", np.ones_like(arises))]


class _Tempered(_AlongAttack):
    """An image that is robust against PGD and misclassified under Temperature-PGD, for one model."""

    def arises(self, right: BoolArray) -> BoolArray:
        """Whether images are robust in the first line and misclassified in the second."""
        return np.asarray(right[0] & ~right[1])


class MartAndTemperature(_Tempered):
    """kdd21 Figures 3b-d: MART, PGD against Temperature-PGD with 1/T = 5."""

    lines = (TrajectoryLine("MART"), TrajectoryLine("MART", 5))
    number = 127
    situation = "robust against PGD, misclassified at 1/T = 5"

    def claims(self, right: BoolArray, rows: Sequence[pd.DataFrame], context: Context) -> list[Test]:
        """Test C18: there are such images, and more than of the converse."""
        images = Resampled(right, rows[0]["label"], context.test_images.num_classes)
        return [
            Test(
                claim="kdd21/C18",
                estimand="share of images robust against PGD and misclassified at 1/T = 5, minus that of the converse",
                estimators=[images.total()],
                note="any second attack finds some other adversarial examples; the excess is due to the temperature",
            )
        ]


class HypersphereAndTemperature(_Tempered):
    """iclr21 Figures 5f-h: hypersphere embedding, 1/T = 1 and 10 in the attack."""

    scales: ClassVar[Mapping[Name, Scale]] = {**TEMPERATURE_SCALES, "full": SPHERE_SCALES["full"]}
    lines = (TrajectoryLine("HE"), TrajectoryLine("HE", 10))
    number = 46
    situation = "robust against PGD, misclassified at 1/T = 10"

    def trainings(self, scale: Scale) -> Trainings:
        """The ResNet-18 of appendix G at full scale; otherwise the model of the tables of defences."""
        return {"HE": (HYPERSPHERE if scale.name == "full" else DEFENCES)["HE"]}

    def claims(self, right: BoolArray, rows: Sequence[pd.DataFrame], context: Context) -> list[Test]:
        """Test C17: more images are misclassified at 1/T = 10 alone than at 1/T = 1 alone."""
        images = Resampled(right, rows[0]["label"], context.test_images.num_classes)
        return [
            Test(
                claim="iclr21/C17",
                estimand="total of HE at 1/T = 1 minus that at 1/T = 10",
                estimators=[images.total()],
            )
        ]


class MadryAndMart(_AlongAttack):
    """iclr21 Figures 5b-d: outputs of Madry's model and of MART under PGD."""

    lines = (TrajectoryLine("Madry"), TrajectoryLine("MART"))
    number = 127
    situation = "robust for both models"

    def arises(self, right: BoolArray) -> BoolArray:
        """Whether PGD fails for both models, so that the outputs are comparable."""
        return np.asarray(right.all(axis=0))

    def shares(self, arises: BoolArray, converse: BoolArray) -> list[tuple[str, BoolArray]]:
        """Rows of the table, without a converse."""
        del converse
        return [(self.situation, arises), ("all", np.ones_like(arises))]

    def claims(self, right: BoolArray, rows: Sequence[pd.DataFrame], context: Context) -> list[Test]:
        """Test C13 on images robust for both models: the outputs of the weaker model are sharper."""
        where = self.arises(right)
        values = [one["confidence_variance"].to_numpy(dtype=np.float64)[where] for one in rows]
        stronger = Resampled(right[::-1], rows[0]["label"], context.test_images.num_classes).total()
        return [
            Test(
                claim="iclr21/C13",
                covers=("stronger models",),
                estimand="variance of the confidences, images robust for both: the weaker model minus the stronger",
                estimators=[alike(stronger, interval(mean(values[0] - values[1]), 1000))],
                unit="thousandths",
            )
        ]


def shown(steps: int) -> tuple[int, ...]:
    """Indices of the first, the middle and the last step: 1, 10 and 20 of 20."""
    return tuple(sorted({1, max(1, steps // 2), steps}))


def _beside(parts: Sequence[Steps], titles: Sequence[str]) -> Steps:
    """Combine several traces of one image."""
    confidences: FloatArray = np.concatenate([part.confidences for part in parts])
    return dataclasses.replace(parts[0], attacks=tuple(titles), confidences=confidences)


def _share_row(words: str, where: BoolArray, rows: pd.DataFrame) -> Row:
    values: Any = rows["confidence_variance"].to_numpy(dtype=np.float64)[where]
    sharp = estimate_cell(mean(values), 1000, 2) if len(values) > 1 else Cell(NONE)
    return Row(words, [Cell(f"{int(where.sum())} of {len(where)}"), estimate_cell(proportion(where)), sharp])
