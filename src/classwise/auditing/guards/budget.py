"""The table of all guards by name, and their budget: which of them run, on how many images."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import NamedTuple

from classwise.auditing.guards import gradient_free, gradients, interpretation, model, radius
from classwise.auditing.guards.evidence import SAMPLE, Cost, Evidence, Guard, GuardWarning, Probe, Result, Undecided
from classwise.auditing.guards.gradient_free import QUERY_SHARE
from classwise.auditing.guards.gradients import compares_steps
from classwise.auditing.guards.report import SHARE, GuardMode, GuardReport, Reason
from classwise.auditing.run.result import AuditWarning

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


SIZES = (SAMPLE, 64, 32, 16)
"""Sizes of the sample under a budget."""
USUAL = 32
"""The sample is larger only if as many guards fit as on this number of images."""
EACH, CORE_EACH, SEARCH_EACH = 111, 28, 102
"""Maximal passes per image of the sample: of all guards but `no-black-box`, of the logits and the guards of `CORE`, and
of `no-black-box` besides its share of the audit.
"""


class GuardRun(NamedTuple):
    """The result of all guards of an audit.

    Attributes:
        warnings: the warnings, in the order of the guards.
        report: which guards ran.
    """

    warnings: tuple[AuditWarning, ...]
    report: GuardReport


def run_guards(evidence: Evidence, mode: GuardMode = "full", *, late: bool = False) -> GuardRun:
    """Run the guards.

    In the mode ``"auto"`` their passes are at most `SHARE` of those of the attacks, except that the guards of `CORE`
    always run. The others follow in the order of `USEFULNESS`, as long as the declared passes of the next one fit.

    Args:
        evidence: the outcomes, and the sample if there is a model.
        mode: how many guards to run.
        late: whether the sample is missing because of the time limit.
    """
    if mode == "off":
        return GuardRun((), GuardReport(mode, not_run=tuple(GUARDS), reason="off"))
    probe = evidence.probe
    if probe is None:
        unanswered = [name for name in COSTS if name != "single-step" or not compares_steps(evidence)]
        omitted = unanswered if late else []
        found = {name: guard(evidence) for name, guard in GUARDS.items() if name not in omitted}
        return _result(found, GuardReport(mode, not_run=_ordered(omitted), reason="time" if late else ""))
    budget = int(SHARE * evidence.attack_passes) if mode == "auto" else None
    images = len(probe)
    probe = probe.first(images if budget is None else _size(evidence, probe, budget))
    omitted, found = _run(dataclasses.replace(evidence, probe=probe), probe, budget)
    if len(probe) < images:
        found |= {
            name: Undecided(f"{result.reason} in the sample; guards=full takes up to {SAMPLE}")
            for name, result in found.items()
            if name in COSTS and isinstance(result, Undecided)
        }
    reason: Reason = "budget" if omitted else ""
    return _result(found, GuardReport(mode, len(probe), probe.taken.total, budget, _ordered(omitted), reason))


def _run(evidence: Evidence, probe: Probe, budget: int | None) -> tuple[list[str], dict[str, Result]]:
    """The guards that do not fit the budget, and the results of the others."""
    assert len(probe.logits)  # these passes are shared
    omitted: list[str] = []
    found: dict[str, Result] = {}
    for name in USEFULNESS:
        cost = COSTS[name](evidence, probe)
        fits = budget is None or name in CORE or (not omitted and probe.taken.total + cost <= budget)
        if cost and not fits:
            omitted.append(name)
        else:
            found[name] = GUARDS[name](evidence)
    return omitted, found | {name: guard(evidence) for name, guard in GUARDS.items() if name not in USEFULNESS}


def _result(found: dict[str, Result], report: GuardReport) -> GuardRun:
    results = [(name, found.get(name)) for name in GUARDS]
    undecided = {name: result.reason for name, result in results if isinstance(result, Undecided)}
    warnings = tuple(AuditWarning(name, *result) for name, result in results if isinstance(result, GuardWarning))
    return GuardRun(warnings, dataclasses.replace(report, undecided=undecided))


def _ordered(names: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in GUARDS if name in names)


def declared_passes(evidence: Evidence, probe: Probe, omitted: Collection[str] = ()) -> int:
    """The declared passes of the guards: those of the logits of the sample, and of each guard."""
    return len(probe) + sum(cost(evidence, probe) for name, cost in COSTS.items() if name not in omitted)


def most_passes(mode: GuardMode, images: int, attack_passes: int) -> int:
    """An upper bound on the passes of the guards, before the attacks have run.

    Args:
        mode: the mode of the guards.
        images: number of images of the audit.
        attack_passes: an upper bound on the passes of its attacks.
    """
    if mode == "off":
        return 0
    sample, least = min(images, SAMPLE), CORE_EACH * min(images, SIZES[-1]) + 1
    full = (EACH + SEARCH_EACH) * sample + 1 + int(QUERY_SHARE * attack_passes)
    return full if mode == "full" else min(full, max(int(SHARE * attack_passes), least))


def _size(evidence: Evidence, probe: Probe, budget: int) -> int:
    """The size of the sample.

    It is the largest of `SIZES` on which those guards fit that fit on `USUAL` images; else the smallest.
    """

    def fits(size: int, count: int) -> bool:
        smaller = probe.first(size)
        used = declared_passes(dataclasses.replace(evidence, probe=smaller), smaller, USEFULNESS[count:])
        return used <= budget

    count = next((count for count in range(len(USEFULNESS), len(CORE), -1) if fits(USUAL, count)), len(CORE))
    return next((size for size in SIZES if fits(size, count)), SIZES[-1])
