"""Images of one class on a white background: kdd21/T4, F6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch

from classwise.analysis.extremes import extremes
from classwise.auditing.outcomes.table import CLEAN, Outcomes
from classwise.data.derived import random_regions, white_background
from classwise.data.images import Images
from classwise.papers import catalogue
from classwise.papers.bootstrap import Resampled
from classwise.papers.claims import Test
from classwise.papers.context import Context, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.case_study import (
    ATTACK,
    BETA,
    LOWEST,
    TAKER,
    VICTIM,
    ObjectMasks,
    case_study_attack,
    object_masks,
    trades_with_beta,
)
from classwise.papers.experiments.estimates import proportion
from classwise.papers.experiments.protocol import SCALES
from classwise.papers.official import choose_image
from classwise.papers.scales import CIFAR, Name, Scale, other_data
from classwise.papers.store import Trained
from classwise.papers.tables import estimate_cell
from classwise.reporting.figures.gallery import GalleryRow, gallery
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import BoolArray, FloatArray, IntArray

ORIGINAL, WHITE, ELSEWHERE, ADJUSTED = "original", "white background", "white elsewhere", "white, beta lowered"
KINDS: Mapping[str, str] = {CLEAN: "natural", ATTACK: "adversarial"}
PRINTED: Mapping[tuple[str, str], int] = {
    (ORIGINAL, CLEAN): 1,
    (WHITE, CLEAN): 2,
    (ADJUSTED, CLEAN): 3,
    (ORIGINAL, ATTACK): 4,
    (WHITE, ATTACK): 5,
    (ADJUSTED, ATTACK): 6,
}
"""Line of the printed table for each kind of image and attack."""
MAINLY = 0.5
"""Share of a gain interpreted as 'mainly'."""


@dataclass(frozen=True)
class PaintedImages:
    """Test images of class 3: original, on a white background, and with as many white pixels in other places."""

    images: Images
    white: Images
    elsewhere: Images
    found: ObjectMasks


def painted_images(context: Context) -> PaintedImages:
    """Paint the backgrounds of the images of the case study."""
    images = context.test_images.take(context.test_images.y == VICTIM)
    found = object_masks(images)
    elsewhere = white_background(images, random_regions(found.masks)).renamed(f"{images.name} white elsewhere")
    return PaintedImages(images, white_background(images, found.masks), elsewhere, found)


class WhiteBackground(Experiment):
    """kdd21 Table 4: predictions on class-3 images: original, white background, and white with beta lowered."""

    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def trainings(self, scale: Scale) -> Trainings:
        """TRADES with beta 6 and with the lowered beta."""
        return trades_with_beta(scale, BETA, LOWEST)

    def run(self, context: Context) -> Findings:
        """Tabulate six lines as printed and a control; test claims C26, C27 and C28."""
        data = painted_images(context)
        plain, lowered = context.train_all(self.trainings(context.scale)).values()
        models: Mapping[str, tuple[Trained, Images]] = {
            ORIGINAL: (plain, data.images),
            WHITE: (plain, data.white),
            ADJUSTED: (lowered, data.white),
            ELSEWHERE: (plain, data.elsewhere),
        }
        outcomes = {
            name: context.audit(trained, case_study_attack(context), images=images).outcomes
            for name, (trained, images) in models.items()
        }
        predicted = {(name, kind): predictions(table, kind) for name, table in outcomes.items() for kind in KINDS}
        not_tested: dict[str, str] = {}
        for claim in ("kdd21/C26", "kdd21/C27", "kdd21/C28") if context.scale.data != CIFAR else ():
            not_tested |= other_data(claim, context.scale)
        names = data.images.class_names
        note = f"{len(data.images)} images of {names[VICTIM]}; the paper has 1,000. 'White elsewhere' is a control: as "
        note += f"many pixels are white, in other places. {data.found.note}"
        share_rows = [
            Row(name, [estimate_cell(proportion(predicted[name, kind] == VICTIM)) for kind in KINDS])
            for name in outcomes
        ]
        return Findings(
            tables=(
                Table(
                    "Predicted as each class",
                    ("images", *names),
                    count_rows(predicted, len(names), printed=context.scale.data == CIFAR),
                    note,
                ),
                Table(
                    f"Predicted as {names[VICTIM]}, in percent",
                    ("images", *KINDS.values()),
                    share_rows,
                    "Small print: 95 % confidence intervals for new images.",
                ),
                data.found.table(),
            ),
            tests=[] if not_tested else claims(predicted),
            not_tested=not_tested,
        )


class SingleImages(Experiment):
    """kdd21 Figure 6: the most robust image, and one that becomes robust on a white background."""

    scales: ClassVar[Mapping[Name, Scale]] = SCALES
    robust: ClassVar[int] = 2261
    repaired: ClassVar[int] = 3634

    def trainings(self, scale: Scale) -> Trainings:
        """TRADES with beta 6."""
        return trades_with_beta(scale, BETA)

    def run(self, context: Context) -> Findings:
        """Tabulate the two most likely classes of both images before and after painting; test claim C25 as a share."""
        data, (plain,) = painted_images(context), context.train_all(self.trainings(context.scale)).values()
        before, after, control = (
            context.audit(plain, case_study_attack(context), images=images).outcomes
            for images in (data.images, data.white, data.elsewhere)
        )
        order = extremes(before, ATTACK, VICTIM, count=len(data.images))
        misclassified = predictions(before, ATTACK) != VICTIM
        became_robust = repaired(before, after)
        first, of_first = choose_image(context.test_images, self.robust, order.most, int(order.most[0]))
        candidates = before.index[became_robust]
        second, of_second = choose_image(context.test_images, self.repaired, candidates, int(order.least[0]))
        numbers = list(dict.fromkeys([first, second]))
        rows, pictures = [], []
        for title, images in ((ORIGINAL, data.images), (WHITE, data.white)):
            two = images.take(torch.isin(images.index, torch.tensor(numbers)))
            artifacts = context.audit(plain, case_study_attack(context), images=two, save=["logits"]).artifacts
            ranked = {kind: dict(zip(*artifacts.get("logits", kind), strict=True)) for kind in KINDS}
            place = {int(number): row for row, number in enumerate(two.index.tolist())}
            pixels = two.pixels(torch.tensor([place[number] for number in numbers])).numpy()
            pictures.append(GalleryRow(title, pixels, [f"image {number}" for number in numbers]))
            for number in numbers:
                cells = [cell for kind in KINDS for cell in _first_two(ranked[kind][number], images.class_names)]
                rows.append(Row(f"image {number}, {title}", cells))
        heads = ("image", *(f"{kind}, {rank}" for kind in KINDS.values() for rank in ("first", "second")))
        provenance = f"Most robust: {of_first} Repaired: {of_second}"
        not_tested = other_data("kdd21/C25", context.scale)
        tests = []
        if context.scale.data == CIFAR and misclassified.any():
            estimand = "share of non-robust images that a white background makes robust (clean prediction correct), "
            estimand += "minus the share for as much white elsewhere"
            either = np.stack([became_robust, repaired(before, control)])[:, misclassified]
            victims = Resampled(either, np.zeros(either.shape[1], dtype=np.int64), 1)
            parts = [victims.part(lambda a: a[..., 0, 0] - a[..., 1, 0], 100)]
            not_tested, tests = {}, [Test(claim="kdd21/C25", estimand=estimand, estimators=parts)]
        elif context.scale.data == CIFAR:
            not_tested = {"kdd21/C25": "every image is robust"}
        counts = f"{int(became_robust.sum())} of {int(misclassified.sum())}"
        caption = f"{provenance} {counts} non-robust images become robust."
        return Findings(
            tables=(Table("Two most likely classes with confidence", heads, rows, data.found.note),),
            figures=((gallery("Before and after painting the background white", pictures), caption),),
            tests=tests,
            not_tested=not_tested,
        )


def predictions(table: Outcomes, attack: str) -> IntArray:
    """Predicted classes (N,) under an attack, in the order of the image indices; -1 for none."""
    return table.rows(attack)["prediction"].fillna(-1).to_numpy(dtype=np.int64)


def repaired(before: Outcomes, after: Outcomes) -> BoolArray:
    """Whether images (N,) become robust under the attack while correctly classified without it both times."""
    natural = before.correct(CLEAN) & after.correct(CLEAN)
    return np.asarray(natural & ~before.correct(ATTACK) & after.correct(ATTACK))


def count_rows(predicted: Mapping[tuple[str, str], IntArray], classes: int, *, printed: bool) -> list[Row]:
    """Rows of counts of images predicted as each class, each followed by the printed row."""
    printed_counts = {row["line"]: row["predicted_as_class"] for row in catalogue.printed_rows("kdd21/T4")}
    rows = []
    for kind, word in KINDS.items():
        for name in dict.fromkeys(name for name, _ in predicted):
            counts = np.bincount(predicted[name, kind][predicted[name, kind] >= 0], minlength=classes)
            rows.append(Row(f"{name}, {word}", [Cell(str(count)) for count in counts]))
            if printed and (name, kind) in PRINTED:
                line = printed_counts[PRINTED[name, kind]]
                rows.append(Row(f"{name}, {word}, printed", [Cell(str(count)) for count in line]))
    return rows


def claims(predicted: Mapping[tuple[str, str], IntArray]) -> list[Test]:
    """Tests of C26 (white helps), C27 (a lowered beta helps more) and C28 (the gain comes from class 5)."""
    keys = list(predicted)
    rows = np.stack([predicted[key] == label for label in (VICTIM, TAKER) for key in keys])
    images = Resampled(rows, np.zeros(rows.shape[1], dtype=np.int64), 1)

    def gain(accuracy: FloatArray, kind: str, one: str, other: str, offset: int = 0) -> FloatArray:
        first, second = (offset + keys.index((name, kind)) for name in (one, other))
        return np.asarray(accuracy[..., first, 0] - accuracy[..., second, 0])

    def from_taker(accuracy: FloatArray, name: str) -> FloatArray:
        loss = gain(accuracy, ATTACK, ORIGINAL, name, len(keys))
        return np.asarray(loss - MAINLY * gain(accuracy, ATTACK, name, ORIGINAL))

    return [
        Test(
            claim="kdd21/C26",
            estimand="share predicted as class 3: white minus original; adversarial, natural",
            estimators=[images.part(lambda a, k=kind: gain(a, k, WHITE, ORIGINAL), 100) for kind in (ATTACK, CLEAN)],  # type: ignore[misc]
        ),
        Test(
            claim="kdd21/C27",
            estimand="share predicted as class 3: white with beta lowered minus white; adversarial, natural",
            estimators=[images.part(lambda a, k=kind: gain(a, k, ADJUSTED, WHITE), 100) for kind in (ATTACK, CLEAN)],  # type: ignore[misc]
            note="one training of each: intervals cover the sampling of images only",
        ),
        Test(
            claim="kdd21/C28",
            estimand="adversarial: gain of class 3; fall of class 5 minus half of that gain; white, and beta lowered",
            estimators=[
                part
                for name in (WHITE, ADJUSTED)
                for part in (
                    images.part(lambda a, n=name: gain(a, ATTACK, n, ORIGINAL), 100),  # type: ignore[misc]
                    images.part(lambda a, n=name: from_taker(a, n), 100),  # type: ignore[misc]
                )
            ],
            note="'mainly' is interpreted as at least half",
        ),
    ]


def _first_two(logits: FloatArray, names: Sequence[str]) -> list[Cell]:
    """Cells of the two most likely classes with their softmax confidences."""
    shifted = np.exp(np.asarray(logits, dtype=np.float64) - np.max(logits))
    confidence = pd.Series(shifted / shifted.sum(), index=list(names)).sort_values(ascending=False, kind="stable")
    return [Cell(f"{name} {value:.2f}") for name, value in confidence.head(2).items()]
