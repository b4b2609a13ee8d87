"""Predictions of outcomes: confusion matrices, and fairlearn's `MetricFrame`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from classwise.auditing.outcomes.meta import ALL, CLEAN, Meta
from classwise.core.arguments import checked
from classwise.core.errors import ClasswiseError
from classwise.core.extras import require
from classwise.stats.confusion import confusion, sparse_confusion
from classwise.stats.counts import IntArray

if TYPE_CHECKING:
    from classwise.auditing.outcomes.construction import Grouping
    from classwise.auditing.outcomes.verdicts import Judgement

MOST_DENSE = 2_000
"""The largest number of classes of a dense confusion matrix, which then takes 32 MB."""
NO_PREDICTION = -1
"""In place of a predicted class: the logits were NaN or +inf, or all -inf."""


@checked
class PredictionTables(ABC):
    """What `Outcomes` computes from the predictions of its rows."""

    frame: pd.DataFrame
    meta: Meta

    @abstractmethod
    def rows(self, attack: str) -> pd.DataFrame:
        """The rows of one attack, by image."""

    @abstractmethod
    def judged(self, name: str) -> Judgement:
        """Which images are classified correctly under any of `names`."""

    @abstractmethod
    def grouping(self, group: str | None = None) -> Grouping:
        """The images by class (None), or by a grouping."""

    @abstractmethod
    def _members(self, name: str) -> tuple[str, ...]:
        """The attacks whose verdicts decide that of a name."""

    def confusion(self, name: str = ALL) -> IntArray:
        """(C, C) confusion matrix under any of `names`: rows are true classes, columns predicted ones.

        Under several attacks together, such as ``all``, an image counts by its first incorrect prediction, in the order
        of the attacks; the diagonal counts images that are correctly classified under each of them.

        Rows of the table without a prediction (images that a cascade skipped, logits of NaN or +inf) do not count.

        Raises:
            IncompleteError: if images are not judged under the attack.
            ClasswiseError: for a name that is not in `names`, or for more than `MOST_DENSE` classes.
        """
        classes = self.meta.num_classes
        if classes > MOST_DENSE:
            size = f"{classes:,} x {classes:,}"
            raise ClasswiseError(f"a confusion matrix of {size} is too large; use sparse_confusion({name!r})")
        return confusion(*self._predictions(name), classes)

    def sparse_confusion(self, name: str = ALL) -> sparse.csr_array:
        """`confusion` as a sparse (C, C) matrix, for any number of classes.

        Raises:
            ClasswiseError: see `confusion`.
        """
        return sparse_confusion(*self._predictions(name), self.meta.num_classes)

    def to_metricframe(
        self,
        name: str = ALL,
        *,
        group: str | None = None,
        metrics: Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None,
    ) -> Any:
        """Convert to fairlearn's `MetricFrame`: metrics of the predictions by class, or by group.

        ``y_true`` are the labels, ``y_pred`` the predictions under the attack: the label of an image that is correctly
        classified, otherwise the first incorrect prediction, or -1 where the logits give no prediction.

        Args:
            name: one of `names`.
            group: a grouping; None: the class.
            metrics: functions ``(y_true, y_pred)`` by name, or one of them; None: ``accuracy`` and ``count``.

        Raises:
            IncompleteError: if images are not judged under the attack.
            ClasswiseError: without fairlearn (the extra ``fairlearn``), or for an unknown attack or group.
        """
        fairlearn = require("fairlearn.metrics", "fairlearn")
        names, ids = self.grouping(group)
        judged, predicted = self._predicted(name)
        return fairlearn.MetricFrame(
            metrics=metrics or {"accuracy": _accuracy, "count": fairlearn.count},
            y_true=judged.label,
            y_pred=predicted,
            sensitive_features=pd.Series(np.asarray(names, dtype=object)[ids], name=group or "class"),
        )

    def predicted(self, name: str = ALL, group: str | None = None) -> pd.DataFrame:
        """A row for each image: its prediction under any of `names`, in the order of the images' indices.

        Columns: ``index``; ``label``; ``group``, its number in a grouping (None: the class); ``prediction``, as in
        `to_metricframe`; ``correct``; and with a clean pass ``clean``, whether it is correct without an attack.

        Raises:
            IncompleteError: if images are not judged under the attack.
            ClasswiseError: for an unknown attack or grouping.
        """
        judged, predicted = self._predicted(name)
        columns: dict[str, Any] = {"index": judged.image, "label": judged.label, "group": self.grouping(group).ids}
        columns |= {"prediction": predicted, "correct": judged.correct}
        return pd.DataFrame(columns | ({"clean": self.judged(CLEAN).correct} if CLEAN in self.meta.applicable else {}))

    def _predictions(self, name: str) -> tuple[IntArray, IntArray]:
        """Labels and predictions of the images that have a prediction."""
        members = self._members(name)
        if len(members) == 1:
            rows = self.rows(members[0])
            rows = rows[rows["prediction"].notna()]
            return rows["label"].to_numpy(), rows["prediction"].to_numpy(dtype=np.int64)
        judged, predicted = self._predicted(name)
        known = predicted != NO_PREDICTION
        return judged.label[known], predicted[known]

    def _predicted(self, name: str) -> tuple[Judgement, IntArray]:
        """The verdicts under any of `names`, and the prediction on each image: its label if it is correct.

        An image that a cascade did not attack, since an earlier attack succeeded, has the prediction under that one.
        """
        judged, members = self.judged(name), self._members(name)
        applicable = self.meta.applicable
        if self.meta.cascade:
            members = applicable[: 1 + max(map(applicable.index, members))]
        wrong = self._first_wrong(members).reindex(judged.image, fill_value=NO_PREDICTION).to_numpy(np.int64)
        return judged, np.where(judged.correct, judged.label, wrong)

    def _first_wrong(self, members: tuple[str, ...]) -> pd.Series[float]:
        """The first incorrect prediction of images by their index, in the order of some attacks."""
        frame = self.frame[self.frame["attack"].isin(members)]
        frame = frame[~frame["correct"] & frame["prediction"].notna()].drop_duplicates("index")
        return frame.set_index("index")["prediction"].astype("float64")


def _accuracy(y_true: IntArray, y_pred: IntArray) -> float:
    return float(np.mean(y_true == y_pred))
