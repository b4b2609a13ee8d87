"""The interface of an experiment: from a context to tables, figures and tests of claims."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from classwise.core.config import Spec, configurable
from classwise.papers.claims import Test
from classwise.papers.context import Context, Trainings
from classwise.papers.measurements import Measurement
from classwise.papers.scales import Name, Scale
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Table


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The output of an experiment; the runner builds a `Result` from it.

    Attributes:
        tables: measured numbers next to the printed ones.
        figures: pairs of a drawing and its caption.
        tests: tests of the claims, corrected jointly for multiple testing.
        not_tested: claim id to the reason why this scale cannot test it.
        measurements: measured quantities for open questions, without verdicts.
    """

    tables: Sequence[Table] = ()
    figures: Sequence[tuple[Drawing, str]] = ()
    tests: Sequence[Test] = ()
    not_tested: Mapping[str, str] = field(default_factory=dict)
    measurements: Sequence[Measurement] = ()


@configurable
class Experiment(ABC):
    """Abstract base class of an experiment: it trains and audits models, analyses them, and tests claims of a paper.

    A subclass with parameters declares them as fields under `classwise.core.config.configurable`; the entry of an
    item in ``PAPER.yaml`` gives their values.

    Attributes:
        item: id of the item that the experiment reproduces, such as ``kdd21/T1``.
    """

    item: str
    scales: ClassVar[Mapping[Name, Scale]]
    """The available scales by name."""
    attacks: ClassVar[Mapping[Name, Mapping[str, Spec]]] = {}
    """The attacks of the evaluation by scale; empty for PGD with the settings of the paper (`Context.pgd`)."""
    declared: ClassVar[Trainings] = {}
    """The trainings of every scale, by the name of the model; empty for an experiment without trainings."""
    takes_models: ClassVar[bool] = False
    """Whether the user names the models and images of the experiment (`UserInputs`)."""

    def trainings(self, scale: Scale) -> Trainings:
        """Declare the trainings of the experiment at a scale, by the name of the model.

        `run` requests exactly these, so the settings of an item can be compared with those of its paper without
        training anything. By default those of `declared`, at every scale.

        Args:
            scale: data, network and budget.
        """
        del scale
        return self.declared

    @abstractmethod
    def run(self, context: Context) -> Findings:
        """Run the experiment.

        Args:
            context: source of trained models, audits and images at one scale.

        Returns:
            Tables, figures and tests of claims.
        """
