"""The results of guards: `AuditWarning`, and `GuardReport` on which guards ran, did not run, or could not decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, get_args

import pydantic

from classwise.auditing.evaluation.evaluation import GuardMode
from classwise.core.files.numbers import Number

Reason = Literal["", "budget", "time", "off"]
"""Why guards did not run; empty if all ran."""
MODES: tuple[GuardMode, ...] = get_args(GuardMode)
"""The modes, the most guards first."""
SHARE = 0.2
"""The budget of the guards in the mode ``"auto"``: this fraction of the passes of the attacks."""

Count = Annotated[int, pydantic.Field(ge=0)]


class AuditWarning(NamedTuple):
    """A warning of a guard about the evaluation.

    Attributes:
        name: of the guard.
        sentence: the problem, in one sentence.
        value: the measured number; NaN if there is none.
    """

    name: str
    sentence: str
    value: Number


@dataclass(frozen=True)
class GuardReport:
    """Which guards an audit ran.

    Attributes:
        mode: ``"full"``, ``"auto"`` or ``"off"``.
        images: number of images on which guards ran the model; 0 if they did not.
        passes: forward and backward passes of single images that the guards took.
        budget: passes that they were allowed; None for no limit.
        not_run: names of the guards that did not run.
        reason: why these did not run: ``"budget"``, ``"time"`` or ``"off"``; empty if all guards ran.
        undecided: the guards that could neither detect nor exclude their problem, and why.
        not_applicable: names of the guards whose problem cannot occur in the audit; None in audits of earlier versions.
    """

    mode: GuardMode
    images: Count = 0
    passes: Count = 0
    budget: Count | None = None
    not_run: tuple[str, ...] = ()
    reason: Reason = ""
    undecided: Mapping[str, str] = field(default_factory=dict)
    not_applicable: tuple[str, ...] | None = None

    def covers(self, mode: GuardMode) -> bool:
        """Whether at least the guards of a mode ran, so that their results can be reused on the same outcomes."""
        return self.reason != "time" and MODES.index(self.mode) <= MODES.index(mode)

    @property
    def without_result(self) -> tuple[str, ...]:
        """Names of the guards that did not run or could not decide."""
        return (*self.not_run, *self.undecided)

    @property
    def sentence(self) -> str:
        """The guards that did not run or could not decide, and why; empty if there are none."""
        undecided = (f"Guard {name} could not decide: {reason}." for name, reason in self.undecided.items())
        return " ".join(filter(None, (self._omission, *undecided)))

    @property
    def _omission(self) -> str:
        """The guards that did not run, and why; empty if all ran."""
        if not self.reason:
            return ""
        if self.reason == "off":
            return "No evaluation guard was run: the guards are off."
        names = ", ".join(self.not_run)
        if self.reason == "time":
            return f"Guards that were not run because of the time limit: {names}."
        limit = f"they exceed {100 * SHARE:g} % of the passes of the attacks"
        return f"Guards that were not run because {limit}: {names}; --guards full runs all."
