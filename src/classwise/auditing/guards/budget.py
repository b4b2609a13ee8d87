"""The table of all guards by name, and their budget: which of them run, on how many images."""

from __future__ import annotations

import dataclasses

from classwise.auditing.evaluation.evaluation import GuardMode
from classwise.auditing.guards import gradients, interpretation, model, radius
from classwise.auditing.guards.evidence import SAMPLE, Evidence, Guard, NotApplicable, Probe, Undecided
from classwise.auditing.guards.gradients import QUERY_SHARE
from classwise.auditing.guards.report import SHARE, AuditWarning, GuardReport, Reason

_MODULES = (model, gradients, radius, interpretation)
GUARDS: dict[str, Guard] = {
    made.name: made for module in _MODULES for made in vars(module).values() if isinstance(made, Guard)
}
"""Guards in the order of their warnings: that of the modules, and of the definitions in each."""
BY_PRIORITY = sorted(GUARDS.values(), key=lambda made: made.priority)
"""The guards in the order in which they run; a budget omits guards from the end."""
_ALWAYS = sum(not made.priority for made in BY_PRIORITY)


Results = dict[str, AuditWarning | Undecided | NotApplicable | None]
"""The results of guards, by name."""
SIZES = (SAMPLE, 64, 32, 16)
"""Sizes of the sample under a budget."""
USUAL = 32
"""The sample is larger only if as many guards fit as on this number of images."""


def run_guards(
    evidence: Evidence, mode: GuardMode = "full", *, late: bool = False
) -> tuple[tuple[AuditWarning, ...], GuardReport]:
    """Run the guards.

    In the mode ``"auto"`` their passes are at most `SHARE` of those of the attacks, except that those of priority
    0 always run. The others follow in the order of their priority, as long as the passes of the next one fit.

    Args:
        evidence: the outcomes, and the sample if there is a model.
        mode: how many guards to run.
        late: whether the sample is missing because of the time limit.

    Returns:
        The warnings, in the order of the guards, and which guards ran.
    """
    if mode == "off":
        return (), GuardReport(mode, not_run=tuple(GUARDS), reason="off")
    probe = evidence.probe
    if probe is None:
        omitted = [name for name, guard in GUARDS.items() if late and guard.reads_of(evidence) != "outcomes"]
        found = {name: guard(evidence) for name, guard in GUARDS.items() if name not in omitted}
        return _result(found, GuardReport(mode, not_run=tuple(omitted), reason="time" if late else ""))
    budget = int(SHARE * evidence.attack_passes) if mode == "auto" else None
    images = len(probe)
    probe = probe.first(images if budget is None else _size(evidence, probe, budget))
    omitted, found = _run(dataclasses.replace(evidence, probe=probe), probe, budget)
    if len(probe) < images:
        found |= {
            name: Undecided(f"{result.reason} in the sample; --guards full takes up to {SAMPLE}")
            for name, result in found.items()
            if isinstance(result, Undecided) and GUARDS[name].reads_of(evidence) != "outcomes"
        }
    reason: Reason = "budget" if omitted else ""
    not_run = tuple(name for name in GUARDS if name in omitted)
    return _result(found, GuardReport(mode, len(probe), probe.taken, budget, not_run, reason))


def _run(evidence: Evidence, probe: Probe, budget: int | None) -> tuple[list[str], Results]:
    """The guards that do not fit the budget, and the results of the others."""
    len(probe.logits)  # computes them, since these passes are shared
    omitted: list[str] = []
    found: Results = {}
    for guard in BY_PRIORITY:
        cost = guard.cost(evidence)
        fits = budget is None or not guard.priority or (not omitted and probe.taken + cost <= budget)
        if cost and not fits:
            omitted.append(guard.name)
        else:
            found[guard.name] = guard(evidence)
    return omitted, found


def _result(found: Results, report: GuardReport) -> tuple[tuple[AuditWarning, ...], GuardReport]:
    results = {name: found[name] for name in GUARDS if name in found}
    undecided = {name: result.reason for name, result in results.items() if isinstance(result, Undecided)}
    warnings = tuple(result for result in results.values() if isinstance(result, AuditWarning))
    absent = tuple(name for name, result in results.items() if isinstance(result, NotApplicable))
    return warnings, dataclasses.replace(report, undecided=undecided, not_applicable=absent)


def most_passes(mode: GuardMode, images: int, attack_passes: int) -> int:
    """An upper bound on the passes of the guards, before the attacks have run.

    Args:
        mode: the mode of the guards.
        images: number of images of the audit.
        attack_passes: an upper bound on the passes of its attacks.
    """
    if mode == "off":
        return 0
    # One pass of each image gives its logits, and one pass of the grey image is shared.
    most, least = (1 + sum(guard.most for guard in guards) for guards in (BY_PRIORITY, BY_PRIORITY[:_ALWAYS]))
    full = most * min(images, SAMPLE) + 1 + int(QUERY_SHARE * attack_passes)
    return full if mode == "full" else min(full, max(int(SHARE * attack_passes), least * min(images, SIZES[-1]) + 1))


def _size(evidence: Evidence, probe: Probe, budget: int) -> int:
    """The size of the sample.

    It is the largest of `SIZES` on which those guards fit that fit on `USUAL` images; else the smallest.
    """

    def fits(size: int, count: int) -> bool:
        sample = probe.first(size)
        smaller = dataclasses.replace(evidence, probe=sample)
        return len(sample) + sum(guard.cost(smaller) for guard in BY_PRIORITY[:count]) <= budget

    count = next((count for count in range(len(BY_PRIORITY), _ALWAYS, -1) if fits(USUAL, count)), _ALWAYS)
    return next((size for size in SIZES if fits(size, count)), SIZES[-1])
