"""The table of all guards by name."""

from __future__ import annotations

from classwise.auditing.guards import gradient_free, gradients, interpretation, model, radius
from classwise.auditing.guards.evidence import Evidence, Guard
from classwise.auditing.result import AuditWarning

GUARDS: dict[str, Guard] = {
    **model.GUARDS,
    **gradients.GUARDS,
    **gradient_free.GUARDS,
    **radius.GUARDS,
    **interpretation.GUARDS,
}
"""Guards in the order of their warnings: model, gradients, gradient-free attacks, radius, interpretation."""

PASSES, PASSES_OF_EACH = (220, 85), (25, 21)
"""Maximal forward and backward passes per image of the sample: of all guards, and in addition for each type of attack
with at most one pass per step. The search of `no-black-box` scales with the audit, up to 5 % of its passes.
"""


def run_guards(evidence: Evidence) -> tuple[AuditWarning, ...]:
    """Run every guard and return the warnings."""
    warnings = {name: guard(evidence) for name, guard in GUARDS.items()}
    return tuple(AuditWarning(name, *each) for name, each in warnings.items() if each is not None)
