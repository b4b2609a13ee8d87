"""The budget of the guards: which of them run, on how many images."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import NamedTuple

from classwise.auditing.guards.evidence import SAMPLE, Evidence, GuardWarning, Probe, Result, Undecided
from classwise.auditing.guards.gradient_free import QUERY_SHARE
from classwise.auditing.guards.gradients import compares_steps
from classwise.auditing.guards.report import SHARE, GuardMode, GuardReport, Reason
from classwise.auditing.guards.table import CORE, COSTS, GUARDS, USEFULNESS
from classwise.auditing.run.result import AuditWarning

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
