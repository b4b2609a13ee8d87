"""Case study of class 3: beta of TRADES for class 5, and the brightness of backgrounds: kdd21/F4c, E9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from torch import Tensor

from classwise.analysis.extremes import extremes
from classwise.auditing.outcomes.table import Outcomes
from classwise.data.images import Images
from classwise.data.masks import (
    GrabCut,
    MaskQuality,
    OpenCVGrabCut,
    background_brightness,
    has_opencv,
    mask_quality,
)
from classwise.papers.bootstrap import Resampled
from classwise.papers.claims import Test
from classwise.papers.context import Context, Training, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.estimates import mean
from classwise.papers.experiments.protocol import SCALES, defences, tpgd
from classwise.papers.interval_estimators import difference, interval
from classwise.papers.scales import CIFAR, Name, Scale, other_data
from classwise.papers.tables import Key, class_table, estimate_cell
from classwise.reporting.figures.lines import OVERALL, class_lines, line_chart
from classwise.reporting.formatting import NONE, percent
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.intervals import Estimate
from classwise.stats.ranks import spearman

VICTIM, TAKER = 3, 5
"""Labels of the case study: cat and dog in CIFAR-10 (other classes on other data)."""
BETA = 6.0
"""Beta of TRADES, and of every class whose beta is not lowered."""
LOWERED: Mapping[Name, Sequence[float]] = {"smoke": (0.5,), "reduced": (0.5,), "full": (4.0, 2.0, 1.0, 0.5)}
"""Lowered betas; the paper states only the range from 6 to 0.5, the values between are ours."""
LOWEST = 0.5
ATTACK, INVERSE = "T-PGD", 5.0
"""Temperature-PGD at the paper's best 1/T for TRADES (kdd21 Table 3)."""
OPENCV, OWN = "GrabCut of OpenCV", "segmentation similar to GrabCut"
"""Names of the methods of segmentation."""
PARTS = 4
SHOWN = 4


def trades_with_beta(scale: Scale, *betas: float) -> dict[str, Training]:
    """TRADES of the tables of defences, with each of these betas for class 5 (kdd21 Eq. 5).

    The paper does not name the network; its model with beta 6 has the accuracies of TRADES in Table 3.
    """
    plain = defences(scale)["TRADES"]

    def training(beta: float) -> Training:
        schedule = {"name": "vector-beta", "beta": {str(TAKER): beta}}
        return plain if beta == BETA else replace(plain, overrides={**plain.overrides, "schedules": [schedule]})

    return {f"beta {beta:g}": training(beta) for beta in betas}


def case_study_attack(context: Context) -> dict[str, dict[str, Any]]:
    """Spec of the attack of the case study."""
    return {ATTACK: tpgd(context, INVERSE)}


@dataclass(frozen=True)
class ObjectMasks:
    """Masks of images, and their quality.

    Attributes:
        masks: (N, H, W) bool, true on the object.
        method: name of the method that computed them.
        qualities: quality of the masks of each available method; the overlap and the agreement are those with the masks
            of the other method.
    """

    masks: Tensor
    method: str
    qualities: Mapping[str, MaskQuality]

    @property
    def note(self) -> str:
        """Sentences on the masks; the paper's were made by hand and are not published."""
        quality = self.qualities[self.method]
        note = (
            f"Masks: {self.method} (manual in the paper); they cover {percent(quality.area)} of the pixels on average, "
        )
        note += f"{percent(quality.empty)} are nearly empty, {percent(quality.full)} cover the whole allowed area."
        if quality.overlap is None or quality.agreement is None:
            return f"{note} OpenCV, whose GrabCut is used if available, is not installed."
        (other,) = (name for name in self.qualities if name != self.method)
        note += f" Agreement with {other}: mean intersection over union {quality.overlap:.2f}, "
        return note + f"{percent(quality.agreement)} of the pixels."

    def table(self) -> Table:
        """Table of the quality of the masks of each available method."""
        rows = [
            Row(
                name,
                [Cell(percent(value)) for value in (one.area, one.empty, one.full)]
                + [
                    Cell(NONE if one.overlap is None else f"{one.overlap:.2f}"),
                    Cell(NONE if one.agreement is None else percent(one.agreement)),
                ],
            )
            for name, one in self.qualities.items()
        ]
        heads = ("method", "area", "nearly empty", "whole area", "overlap with the other", "equal pixels")
        return Table("Masks", heads, rows, f"Overlap: mean intersection over union. Used: {self.method}.")


def object_masks(images: Images) -> ObjectMasks:
    """Segment images with GrabCut of OpenCV if it is installed, otherwise with the library's own segmentation."""
    own = GrabCut()
    masks = own(images)
    if not has_opencv():
        return ObjectMasks(masks, OWN, {OWN: mask_quality(masks, inset=own.inset)})
    cut = OpenCVGrabCut(inset=own.inset)
    others = cut(images)
    qualities = {OPENCV: mask_quality(others, masks, cut.inset), OWN: mask_quality(masks, others, own.inset)}
    return ObjectMasks(others, OPENCV, qualities)


class BetaOfOneClass(Experiment):
    """kdd21 Figure 4c: class robustness over the beta of class 5, '66666X6666'."""

    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def trainings(self, scale: Scale) -> Trainings:
        """TRADES with each beta."""
        return trades_with_beta(scale, BETA, *LOWERED[scale.name])

    def run(self, context: Context) -> Findings:
        """Train for each beta; test claim C21 between the extreme values."""
        names = context.test_images.class_names
        models = context.train_all(self.trainings(context.scale)).values()
        tables = {
            beta: context.audit(one, case_study_attack(context)).outcomes
            for beta, one in zip((BETA, *LOWERED[context.scale.name]), models, strict=True)
        }
        counts: dict[Key, ClassCounts] = {
            (f"beta {beta:g} for {names[TAKER]}", attack): table.counts(attack)
            for attack in (ATTACK, "clean")
            for beta, table in tables.items()
        }
        tests, not_tested = [], other_data("kdd21/C21", context.scale)
        if context.scale.data == CIFAR:
            ends = _resampled(tables[LOWEST], tables[BETA])
            gain, loss = f"class {VICTIM} at beta {LOWEST:g} minus at {BETA:g}", f"class {TAKER} with the opposite sign"
            test = Test(
                claim="kdd21/C21",
                estimand=f"{gain}; {loss}",
                estimators=[
                    ends.part(lambda a: np.asarray(a[..., 0, VICTIM] - a[..., 1, VICTIM]), 100),
                    ends.part(lambda a: np.asarray(a[..., 1, TAKER] - a[..., 0, TAKER]), 100),
                ],
                note="one training at each beta: intervals cover the sampling of images only",
            )
            tests, not_tested = [test], {}
        lines = class_lines(accuracies(tables))
        drawing = line_chart(f"Class accuracy under {ATTACK}, in percent", lines, f"beta of {names[TAKER]}")
        caption = f"One line per class; every other class has beta {BETA:g}. 1/T = {INVERSE:g}."
        return Findings(
            tables=(class_table("Class accuracy, in percent", counts, names),),
            figures=((drawing, caption),),
            tests=tests,
            not_tested=not_tested,
        )


def accuracies(tables: Mapping[float, Outcomes]) -> pd.DataFrame:
    """Accuracies under the attack: a row for each beta, ascending, a column for each class, and overall last."""
    rows = {}
    for beta, table in sorted(tables.items()):
        counts = table.counts(ATTACK)
        overall = counts.correct.sum() / counts.count.sum()
        rows[beta] = dict(zip((*table.class_names, OVERALL), (*counts.accuracy, overall), strict=True))
    return pd.DataFrame.from_dict(rows, orient="index")


def _resampled(first: Outcomes, second: Outcomes) -> Resampled:
    rows = np.stack([first.correct(ATTACK), second.correct(ATTACK)])
    return Resampled(rows, first.labels, first.num_classes)


class SortedByConfidence(Experiment):
    """kdd21 section 6.2: images of class 3 sorted by their adversarial confidence in class 3."""

    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def trainings(self, scale: Scale) -> Trainings:
        """TRADES with one beta."""
        return trades_with_beta(scale, BETA)

    def run(self, context: Context) -> Findings:
        """Attack TRADES by Temperature-PGD; test claim C24 by the brightness of masked backgrounds."""
        images = context.test_images.take(context.test_images.y == VICTIM)
        (plain,) = context.train_all(self.trainings(context.scale)).values()
        audit = context.audit(plain, case_study_attack(context), images=images)
        order = extremes(audit.outcomes, ATTACK, VICTIM, count=min(SHOWN, len(images) // 2))
        found = object_masks(images)
        bright = pd.Series(background_brightness(images, found.masks).numpy(), index=images.index.tolist())
        ordered = bright[order.images["index"].tolist()].to_numpy()
        parts = np.array_split(np.arange(len(ordered)), PARTS)
        names = ("most robust", *(f"{place}." for place in range(2, PARTS)), "least robust")
        robust = order.images["correct"].to_numpy(dtype=np.bool_)
        rows = [
            Row(
                f"{name} quarter",
                [
                    Cell(str(len(part))),
                    Cell(str(int(robust[part].sum()))),
                    estimate_cell(mean(ordered[part])),
                ],
            )
            for name, part in zip(names, parts, strict=True)
        ]
        link = spearman(order.images["p_label"], ordered)
        note = (
            f"Sorted by confidence in {order.class_name} under Temperature-PGD. Spearman's correlation of "
            "confidence and "
            f"brightness over {len(ordered)} images: {link.value:.2f}. {found.note} Small print: 95 % confidence "
            "intervals for new images."
        )
        heads = ("images", "count", "robust", "brightness of the background, percent")
        tests, not_tested = [], other_data("kdd21/C24", context.scale)
        if context.scale.data == CIFAR:
            estimand = "brightness outside the mask: most robust quarter minus least robust, in percent of white"
            between = [interval(contrast(ordered[parts[0]], ordered[parts[-1]]), 100)]
            tests, not_tested = [Test(claim="kdd21/C24", estimand=estimand, estimators=between)], {}
        return Findings(
            tables=(Table(f"Images of {order.class_name} by quarter", heads, rows, note),),
            figures=(
                (order.gallery(images), "Both ends of the order, with confidence in the class and prediction."),
                (order.figure(), "All images of the class, the most robust first."),
            ),
            tests=tests,
            not_tested=not_tested,
        )


def contrast(first: FloatArray, second: FloatArray) -> Estimate:
    """Mean of one sample minus that of another, with its normal interval (Welch's variance)."""
    return difference(mean(first), mean(second))
