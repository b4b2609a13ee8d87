"""The table of all guards by name."""

from __future__ import annotations

from classwise.auditing.guards import class_order, gradient_free, gradients, interpretation, model, radius
from classwise.auditing.guards.evidence import Cost, Evidence, Guard, Probe, Result

PIXELWISE = frozenset(
    {
        "misleading-gradients",
        "single-step",
        "random-noise",
        "black-box-stronger",
        "no-black-box",
        "not-falling",
        "large-radius",
        "huge-radius",
    }
)
"""The guards that perturb pixels, or expect gradient-based attacks to be stronger; not for spatial threats.

A grid finds more rotations and translations than gradients do (Engstrom et al., ICML 2019), so that is no warning.
"""


def _if_pixelwise(guard: Guard) -> Guard:
    """The guard, which returns None for spatial threats."""

    def run(evidence: Evidence) -> Result:
        return None if evidence.outcomes.meta.norm == "spatial" else guard(evidence)

    run.__doc__ = guard.__doc__
    return run


def _cost_if_pixelwise(cost: Cost) -> Cost:
    """The cost of such a guard."""

    def passes(evidence: Evidence, probe: Probe) -> int:
        return 0 if evidence.outcomes.meta.norm == "spatial" else cost(evidence, probe)

    return passes


_ALL: dict[str, Guard] = {
    **model.GUARDS,
    **class_order.GUARDS,
    **gradients.GUARDS,
    **gradient_free.GUARDS,
    **radius.GUARDS,
    **interpretation.GUARDS,
}
GUARDS: dict[str, Guard] = {name: _if_pixelwise(guard) if name in PIXELWISE else guard for name, guard in _ALL.items()}
"""Guards in the order of their warnings: model, gradients, gradient-free attacks, radius, interpretation."""

_ALL_COSTS: dict[str, Cost] = {**model.COSTS, **gradients.COSTS, **gradient_free.COSTS, **radius.COSTS}
COSTS: dict[str, Cost] = {
    name: _cost_if_pixelwise(cost) if name in PIXELWISE else cost for name, cost in _ALL_COSTS.items()
}
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
