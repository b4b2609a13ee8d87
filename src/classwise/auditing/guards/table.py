"""Every guard by its name."""

from __future__ import annotations

from classwise.auditing.guards import gradients, model, radius, reading, search
from classwise.auditing.guards.evidence import Evidence, Guard
from classwise.auditing.result import Caution

GUARDS: dict[str, Guard] = {
    **model.GUARDS,
    **gradients.GUARDS,
    **search.GUARDS,
    **radius.GUARDS,
    **reading.GUARDS,
}
"""In the order in which they report: the model, its gradients, what finds more, the ball, how the numbers are read."""


def run_guards(evidence: Evidence) -> tuple[Caution, ...]:
    """What every guard has to say."""
    found = {name: check(evidence) for name, check in GUARDS.items()}
    return tuple(Caution(name, *each) for name, each in found.items() if each is not None)
