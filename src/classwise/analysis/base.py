"""The base class of every analysis result, and the checks of outcomes that several analyses share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pandas as pd

from classwise.auditing.outcomes import CLEAN, Outcomes
from classwise.core.errors import ClasswiseError
from classwise.reporting.svg import Drawing


class AnalysisResult(ABC):
    """The result of an analysis: numbers with their intervals, complete, so that table and figure compute nothing."""

    @property
    @abstractmethod
    def table(self) -> pd.DataFrame:
        """Everything that a figure of it shows, for a file or another tool; accuracies are fractions."""

    @abstractmethod
    def figure(self) -> Drawing:
        """The figure, as in the paper that the analysis comes from."""


def last_iterates(outcomes: Outcomes, attack: str) -> pd.DataFrame:
    """The rows of an attack, if they show the last iterate of every image.

    Raises:
        ClasswiseError: if the audit stopped at the first breaking image, or left images out: then predictions and
            confidences are those of images that the attack had not finished with.
    """
    rows = outcomes.rows(attack)
    if outcomes.member(attack) != CLEAN and outcomes.meta.early_stop:
        raise ClasswiseError(
            f"{attack!r} was stopped as soon as an image broke; audit with early_stop=False for this analysis"
        )
    if (rows["status"] == "skipped").any():
        raise ClasswiseError(
            f"{attack!r} skipped images that were broken before; audit without a cascade for this analysis"
        )
    return rows
