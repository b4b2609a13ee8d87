"""The most and the least robust images of a class.

kdd21 section 6.2 (E9): the images of class 3 sorted by the confidence in their class on the attacked image; the most
robust ones have a white background.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import torch

from classwise.analysis.base import AnalysisResult
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError
from classwise.data.images import Images
from classwise.reporting.figures.gallery import GalleryRow, gallery
from classwise.reporting.figures.lines import Series, line_chart
from classwise.reporting.svg import Drawing
from classwise.stats.counts import IntArray

By = Literal["p_label", "margin"]
_BY = {"p_label": "confidence in its class", "margin": "margin"}


@dataclass(frozen=True, eq=False)
class Extremes(AnalysisResult):
    """The images of a class sorted by robustness.

    Attributes:
        attack: the attack.
        class_name: the class.
        by: the sort key.
        images: a row for each image of the class, the most robust first: ``index``, ``p_label``, ``margin``,
            ``correct`` and ``prediction`` (a name), on the attacked image.
        count: number of images in `most` and in `least`.
    """

    attack: str
    class_name: str
    by: By
    images: pd.DataFrame
    count: int

    @property
    def most(self) -> IntArray:
        """Indices of the most robust images, the most robust first."""
        return self.images["index"].to_numpy(dtype=np.int64)[: self.count]

    @property
    def least(self) -> IntArray:
        """Indices of the least robust images, the least robust first."""
        return self.images["index"].to_numpy(dtype=np.int64)[::-1][: self.count]

    @property
    def table(self) -> pd.DataFrame:
        """The rows of the most and the least robust images."""
        rank = np.arange(len(self.images))
        return self.images[(rank < self.count) | (rank >= len(rank) - self.count)].reset_index(drop=True)

    def figure(self) -> Drawing:
        """The sort key over the images in order of robustness; `gallery` shows the images."""
        values = self.images[self.by].to_numpy(dtype=np.float64)
        correct = int(self.images["correct"].sum())
        title = f"{self.class_name} under {self.attack}: {correct} of {len(values)} images correct"
        lines = [Series(_BY[self.by], list(range(1, len(values) + 1)), values.tolist(), "stroke-main", named=False)]
        return line_chart(title, lines, f"image, sorted by {_BY[self.by]}", share=self.by == "p_label")

    def gallery(self, images: Images) -> Drawing:
        """kdd21 E9: the most and the least robust images of a class, with confidence and prediction.

        Args:
            images: the audited data set; images are identified by ``index``.

        Raises:
            ClasswiseError: if an image is not in the data set.
        """
        row_of = {int(index): row for row, index in enumerate(images.index.tolist())}
        values = self.images.set_index("index")
        rows = []
        for title, indices in (("most robust", self.most.tolist()), ("least robust", self.least.tolist())):
            missing = [index for index in indices if index not in row_of]
            if missing:
                raise ClasswiseError(f"image {missing[0]} is not in {images.name}; pass the audited data set")
            captions = [f"{values['p_label'][index]:.2f} {values['prediction'][index]}" for index in indices]
            pixels = images.to("cpu").pixels(torch.tensor([row_of[index] for index in indices])).numpy()
            rows.append(GalleryRow(f"{title}, by {_BY[self.by]}: confidence and prediction", pixels, captions))
        return gallery(f"{self.class_name} under {self.attack}", rows)


def extremes(outcomes: Outcomes, attack: str, label: int, *, count: int = 10, by: By = "p_label") -> Extremes:
    """Sort the images of a class by the confidence in it, or its margin, on the attacked image (kdd21 section 6.2).

    Ties are sorted by ``index``. After an audit with early stopping, misclassified images are sorted by their first
    adversarial example; use ``early_stop=False`` for the order of the paper.

    Args:
        outcomes: outcomes with confidences or margins.
        attack: the attack.
        label: label of the class.
        count: number of images in `Extremes.most` and `Extremes.least`.
        by: ``"p_label"``, the confidence in the class, or ``"margin"``, its logit minus the largest other one.

    Raises:
        ClasswiseError: for an unknown class, or if the outcomes do not contain the sort key.
    """
    if not 0 <= label < outcomes.num_classes:
        raise ClasswiseError(
            f"class {label} is not one of the {outcomes.num_classes} classes 0 .. {outcomes.num_classes - 1}; "
            "use one of them"
        )
    if count < 1:
        raise ClasswiseError(f"count = {count}: must be at least 1")
    rows = outcomes.rows(attack)
    rows = rows[(rows["label"] == label) & rows[by].notna()]
    name = outcomes.class_names[label]
    if rows.empty:
        raise ClasswiseError(f"the outcomes of {name!r} under {attack!r} have no {by}; audit the model to record it")
    rows = rows.sort_values([by, "index"], ascending=[False, True], kind="stable")
    names = [outcomes.class_names[int(label)] for label in rows["prediction"]]
    images = rows[["index", "p_label", "margin", "correct"]].assign(prediction=names).reset_index(drop=True)
    return Extremes(outcomes.member(attack), name, by, images, min(count, len(images)))
