"""The table of all guards by name."""

from __future__ import annotations

from classwise.auditing.guards import gradient_free, gradients, interpretation, model, radius
from classwise.auditing.guards.evidence import Cost, Guard

GUARDS: dict[str, Guard] = {
    **model.GUARDS,
    **gradients.GUARDS,
    **gradient_free.GUARDS,
    **radius.GUARDS,
    **interpretation.GUARDS,
}
"""Guards in the order of their warnings: model, gradients, gradient-free attacks, radius, interpretation."""

COSTS: dict[str, Cost] = {**model.COSTS, **gradients.COSTS, **gradient_free.COSTS, **radius.COSTS}
"""The costs of the guards that need the sample; all others only read the outcomes."""

CORE = ("misleading-gradients", "zero-radius", "large-radius")
"""The guards with passes that every budget includes."""
USEFULNESS = (
    *CORE,
    "nondeterministic",
    "normalised-outside",
    "single-step",
    "random-noise",
    "batch-dependence",
    "no-black-box",
    "not-falling",
)
"""The guards with passes, the most useful first; a budget omits guards from the end."""
