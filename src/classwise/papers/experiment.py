"""The interface of an experiment: from a context to tables, figures and tests of claims."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from classwise.papers.claims import Test
from classwise.papers.context import Context
from classwise.papers.scales import Name, Scale
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Table


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The output of an experiment, from which the runner makes a `Result`.

    Attributes:
        tables: numbers beside the printed ones.
        figures: drawings with their captions.
        tests: of the claims, corrected together for multiple testing.
        not_tested: claims that this scale cannot test, each with the reason.
    """

    tables: Sequence[Table] = ()
    figures: Sequence[tuple[Drawing, str]] = ()
    tests: Sequence[Test] = ()
    not_tested: Mapping[str, str] = field(default_factory=dict)


class Experiment(ABC):
    """A table, figure or claim of a paper that can be run: models and audits, then analysis, then tests of claims."""

    item: ClassVar[str]
    """The id of its row in the inventory; the one under which it is registered."""
    scales: ClassVar[Mapping[Name, Scale]]
    """The available scales."""

    @abstractmethod
    def run(self, context: Context) -> Findings:
        """Request models and audits from the context, and analyse them."""
