"""The most and the least robust images of a class.

kdd21 section 6.2 (E9): the images of class 3 sorted by the confidence in their class on the attacked image; the top
ones have a white background.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import torch

from classwise.analysis.base import AnalysisResult
from classwise.auditing.outcomes import Outcomes
from classwise.core.errors import ClasswiseError
from classwise.data.images import Images
from classwise.reporting.figures.gallery import Row, gallery
from classwise.reporting.figures.lines import Series, line_chart
from classwise.reporting.svg import Drawing
from classwise.stats.counts import IntArray

By = Literal["p_label", "margin"]
_BY = {"p_label": "confidence in its class", "margin": "margin"}


@dataclass(frozen=True, eq=False)
class Extremes(AnalysisResult):
    """The two ends of a class.

    Attributes:
        attack: the attack.
        class_name: the class.
        by: what the images are sorted by.
        images: every image of the class, the most robust first: ``index``, ``p_label``, ``margin``, ``correct`` and
            ``prediction`` (a name), on the attacked image.
        count: how many of each end are meant.
    """

    attack: str
    class_name: str
    by: By
    images: pd.DataFrame
    count: int

    @property
    def most(self) -> IntArray:
        """The numbers of the most robust images, the most robust first."""
        return self.images["index"].to_numpy(dtype=np.int64)[: self.count]

    @property
    def least(self) -> IntArray:
        """The numbers of the least robust images, the least robust first."""
        return self.images["index"].to_numpy(dtype=np.int64)[::-1][: self.count]

    @property
    def table(self) -> pd.DataFrame:
        """The images of both ends."""
        place = np.arange(len(self.images))
        return self.images[(place < self.count) | (place >= len(place) - self.count)].reset_index(drop=True)

    def figure(self) -> Drawing:
        """The images of the class in order of robustness; `gallery` shows both ends."""
        values = self.images[self.by].to_numpy(dtype=np.float64)
        correct = int(self.images["correct"].sum())
        title = f"{self.class_name} under {self.attack}: {correct} of {len(values)} images stand"
        lines = [Series(_BY[self.by], list(range(1, len(values) + 1)), values.tolist(), "stroke-main", named=False)]
        return line_chart(title, lines, f"image, sorted by {_BY[self.by]}", share=self.by == "p_label")

    def gallery(self, images: Images) -> Drawing:
        """kdd21 E9 as pictures: the most and the least robust images of a class, with what remains of their class.

        Args:
            images: the data set that was audited; images are found by their number.

        Raises:
            ClasswiseError: if an image is not in the data set.
        """
        place = {int(number): row for row, number in enumerate(images.index.tolist())}
        values = self.images.set_index("index")
        rows = []
        for title, numbers in (("most robust", self.most.tolist()), ("least robust", self.least.tolist())):
            absent = [number for number in numbers if number not in place]
            if absent:
                raise ClasswiseError(f"image {absent[0]} is not in {images.name}; give the data set that was audited")
            captions = [f"{values['p_label'][number]:.2f} {values['prediction'][number]}" for number in numbers]
            pixels = images.to("cpu").pixels(torch.tensor([place[number] for number in numbers])).numpy()
            rows.append(Row(f"{title}, by {_BY[self.by]}: confidence and prediction", pixels, captions))
        return gallery(f"{self.class_name} under {self.attack}", rows)


def extremes(outcomes: Outcomes, attack: str, label: int, *, count: int = 10, by: By = "p_label") -> Extremes:
    """Sort the images of a class by what is left of their class on the attacked image (kdd21 section 6.2).

    Ties go to the lower number. Where an audit stopped at the first breaking image, the order below 0 margin is that of
    these; ``early_stop=False`` gives the paper's.

    Args:
        outcomes: of any audit that knows confidences or margins.
        attack: the attack.
        label: the number of the class.
        count: images of each end.
        by: ``"p_label"``, the confidence in the class, or ``"margin"``, its logit minus the largest other one.

    Raises:
        ClasswiseError: for a class that is not there, or if the outcomes do not know what to sort by.
    """
    if not 0 <= label < outcomes.num_classes:
        raise ClasswiseError(
            f"class {label} is not one of the {outcomes.num_classes} classes 0 .. {outcomes.num_classes - 1}"
        )
    if count < 1:
        raise ClasswiseError(f"count = {count}: give the images of each end, 1 or more")
    rows = outcomes.rows(attack)
    rows = rows[(rows["label"] == label) & rows[by].notna()]
    name = outcomes.class_names[label]
    if rows.empty:
        raise ClasswiseError(f"no {by} is known of images of {name!r} under {attack!r}; audit the model")
    rows = rows.sort_values([by, "index"], ascending=[False, True], kind="stable")
    names = [outcomes.class_names[int(each)] for each in rows["prediction"]]
    kept = rows[["index", "p_label", "margin", "correct"]].assign(prediction=names).reset_index(drop=True)
    return Extremes(outcomes.member(attack), name, by, kept, min(count, len(kept)))
