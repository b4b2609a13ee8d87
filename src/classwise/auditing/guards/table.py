"""Every guard by its name."""

from __future__ import annotations

from classwise.auditing.guards import gradients, model, radius, reading, search
from classwise.auditing.guards.evidence import Evidence, Guard
from classwise.auditing.result import AuditWarning

GUARDS: dict[str, Guard] = {
    **model.GUARDS,
    **gradients.GUARDS,
    **search.GUARDS,
    **radius.GUARDS,
    **reading.GUARDS,
}
"""In the order in which they report: the model, its gradients, what finds more, the ball, how the numbers are read."""

PASSES, PASSES_OF_EACH = (220, 85), (25, 21)
"""Forward and backward passes of an image of the sample: so many at most by all guards, and so many more for each type
of attack that takes at most one pass a step. The search of `no-black-box` grows with the audit, to 5 % of its passes.
"""


def run_guards(evidence: Evidence) -> tuple[AuditWarning, ...]:
    """What every guard has to say."""
    found = {name: check(evidence) for name, check in GUARDS.items()}
    return tuple(AuditWarning(name, *each) for name, each in found.items() if each is not None)
