"""Base class of the analysis results, and checks of outcomes that several analyses share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pandas as pd

from classwise.auditing.outcomes.table import CLEAN, Outcomes
from classwise.core.errors import ClasswiseError
from classwise.reporting.svg import Drawing


class AnalysisResult(ABC):
    """The result of an analysis: all numbers with their intervals; the table and the figure only present them."""

    @property
    def table(self) -> pd.DataFrame:
        """The data of the figure, by default the first table among the fields; accuracies are fractions."""
        return next(value for value in vars(self).values() if isinstance(value, pd.DataFrame))

    @abstractmethod
    def figure(self) -> Drawing:
        """The figure, as in the paper of the analysis."""


def check_alone(outcomes: Outcomes, attack: str) -> None:
    """Check that the verdicts under an attack are those of this attack alone; also passed by ``all`` and ``clean``.

    Raises:
        ClasswiseError: if the attack skipped images that an earlier one of a cascade misclassified.
    """
    if attack in outcomes.attacks and (outcomes.rows(attack)["status"] == "skipped").any():
        raise ClasswiseError(
            f"{attack!r} skipped images that an earlier attack misclassified, which count as misclassified; this "
            "analysis requires an audit without a cascade, such as one of the attacks by name"
        )


def last_iterates(outcomes: Outcomes, attack: str) -> pd.DataFrame:
    """The rows of an attack, checked to contain the last iterate of every image.

    Raises:
        ClasswiseError: if the attack stopped at the first success or skipped images: then predictions and confidences
            are not those of the last iterates.
    """
    rows = outcomes.rows(attack)
    if outcomes.member(attack) != CLEAN and outcomes.meta.early_stop:
        raise ClasswiseError(
            f"{attack!r} stopped at the first success; this analysis requires an audit with early_stop=False "
            "(--no-early-stop)"
        )
    if (rows["status"] == "skipped").any():
        raise ClasswiseError(
            f"{attack!r} skipped images that an earlier attack misclassified; this analysis requires an audit "
            "without a cascade"
        )
    return rows
