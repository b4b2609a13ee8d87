"""kdd21/E9: the images of one class by what an attack leaves of it, and how bright their backgrounds are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pandas as pd

from classwise.analysis.extremes import extremes
from classwise.data.masks import GrabCut, background_brightness, mask_quality
from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.beta import ATTACK, VICTIM, tempered, trades
from classwise.papers.kdd21.steps import mean
from classwise.papers.scales import CIFAR, CLASSWISE, Name, Scale, other_data
from classwise.papers.tables import estimate_cell
from classwise.report.tables import Cell, Row, Table
from classwise.report.wording import percent
from classwise.stats.counts import FloatArray
from classwise.stats.interval_estimators import difference, interval
from classwise.stats.intervals import Estimate
from classwise.stats.ranks import spearman

PARTS = 4
SHOWN = 8


class SortedByConfidence(Experiment):
    """kdd21 section 6.2: the images of class 3 sorted by their adversarial confidence in class 3."""

    item = "kdd21/E9"
    scales: ClassVar[Mapping[Name, Scale]] = CLASSWISE

    def run(self, bench: Bench) -> Findings:
        """TRADES under Temperature-PGD; claim C24, in the brightness of masked backgrounds."""
        images = bench.test_images.take(bench.test_images.y == VICTIM)
        audit = bench.audited(trades(bench), tempered(bench), images=images)
        found = extremes(audit.outcomes, ATTACK, VICTIM, count=min(SHOWN, len(images) // 2))
        cut = GrabCut()
        masks = cut(images)
        quality = mask_quality(masks, inset=cut.inset)
        bright = pd.Series(background_brightness(images, masks).numpy(), index=images.index.tolist())
        ordered = bright[found.images["index"].tolist()].to_numpy()
        parts = np.array_split(np.arange(len(ordered)), PARTS)
        names = ("most robust", *(f"{place}." for place in range(2, PARTS)), "least robust")
        standing = found.images["correct"].to_numpy(dtype=np.bool_)
        rows = [
            Row(
                f"{name} quarter",
                [
                    Cell(str(len(part))),
                    Cell(str(int(standing[part].sum()))),
                    estimate_cell(mean(ordered[part])),
                ],
            )
            for name, part in zip(names, parts, strict=True)
        ]
        link = spearman(found.images["p_label"], ordered)
        note = (
            f"By confidence in {found.class_name} under Temperature-PGD. Spearman of confidence and brightness over "
            f"{len(ordered)} images: {link.value:.2f}. Masks: automatic, and as good as they are: they cover "
            f"{percent(quality.area)} of the pixels on average; {percent(quality.empty)} are nearly empty, "
            f"{percent(quality.full)} cover all they may. Small: 95 % intervals for new images."
        )
        heads = ("images", "how many", "stand", "brightness of the background, percent")
        tests, beyond = [], other_data("kdd21/C24", bench.scale)
        if bench.scale.data == CIFAR:
            estimand = "brightness outside the mask: most robust quarter minus least robust, in percent of white"
            between = [interval(contrast(ordered[parts[0]], ordered[parts[-1]]), 100)]
            tests, beyond = [Test(claim="kdd21/C24", estimand=estimand, parts=between)], {}
        return Findings(
            tables=(Table(f"The images of {found.class_name} by quarters", heads, rows, note),),
            figures=(
                (found.gallery(images), "The two ends, with confidence in the class and prediction."),
                (found.figure(), "All images of the class, the most robust first."),
            ),
            tests=tests,
            beyond=beyond,
        )


def contrast(first: FloatArray, second: FloatArray) -> Estimate:
    """The mean of one sample minus that of another, with its normal interval (Welch's variance)."""
    return difference(mean(first), mean(second))
