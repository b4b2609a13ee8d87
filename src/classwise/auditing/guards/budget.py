"""The table of all guards by name, and their budget: which of them run, on how many images."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from classwise.auditing.evaluation.evaluation import GuardMode
from classwise.auditing.guards import gradients, interpretation, model, radius
from classwise.auditing.guards.evidence import CLEAR, SAMPLE, Evidence, Guard, NotApplicable, Probe, Undecided, percent
from classwise.auditing.guards.gradients import QUERY_SHARE
from classwise.auditing.guards.report import SHARE, AuditWarning, GuardReport, Reason

_MODULES = (model, gradients, radius, interpretation)
GUARDS: dict[str, Guard] = {
    made.name: made for module in _MODULES for made in vars(module).values() if isinstance(made, Guard)
}
"""Guards in the order of their warnings: that of the modules, and of the definitions in each."""
BY_PRIORITY = sorted(GUARDS.values(), key=lambda made: made.priority)
"""The guards in the order of their usefulness; a budget omits guards from the end."""
_ALWAYS = sum(not made.priority for made in BY_PRIORITY)
_WITH_SYMPTOM = [made for made in BY_PRIORITY if made.symptom is not None]


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
    0, and those with a symptom in the outcomes, always run. The others follow in the order of their priority, as long
    as the passes of the next one fit.

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
        results = _run([guard for guard in BY_PRIORITY if guard.name not in omitted], evidence)[1]
        return _result(results, GuardReport(mode, not_run=tuple(omitted), reason="time" if late else ""))
    budget = int(SHARE * evidence.attack_passes) if mode == "auto" else None
    images, taken, guards = len(probe), 0, BY_PRIORITY
    found: Results = {}
    if budget is not None and (shown := [guard for guard in BY_PRIORITY if guard.shows(evidence)]):
        clear = probe.first(CLEAR)
        found = _run(shown, dataclasses.replace(evidence, probe=clear))[1]
        taken, guards = clear.taken, [guard for guard in BY_PRIORITY if guard not in shown]
    left = None if budget is None else budget - taken
    probe = probe.first(images if left is None else _size(guards, evidence, probe, left))
    omitted, others = _run(guards, dataclasses.replace(evidence, probe=probe, warned=_warned(found)), left)
    found |= others
    if len(probe) < images:
        found |= {
            name: Undecided(f"{result.reason} in the sample; --guards full takes up to {images}")
            for name, result in found.items()
            if isinstance(result, Undecided) and result.for_images and GUARDS[name].reads_of(evidence) != "outcomes"
        }
    reason: Reason = "budget" if omitted else ""
    not_run = tuple(name for name in GUARDS if name in omitted)
    return _result(found, GuardReport(mode, len(probe), probe.taken + taken, budget, not_run, reason))


OF_CLEAN = ("nan-logits", "untrained", "class-order")
"""Guards whose problem explains a clean accuracy at chance."""


def early_warnings(evidence: Evidence) -> Iterator[str]:
    """Yield the warnings of the guards that need no attack, and one of a clean accuracy at chance, which has no guard.

    Args:
        evidence: outcomes with the clean rows.
    """
    found = [guard(evidence) for guard in GUARDS.values() if guard.early]
    warnings = [result for result in found if isinstance(result, AuditWarning)]
    yield from (f"{warning.name}: {warning.sentence}" for warning in warnings)
    explained = any(warning.name in OF_CLEAN for warning in warnings)
    if evidence.chance is not None and not explained:
        share, expected = map(percent, evidence.chance)
        what = f"the clean accuracy, {share}, is not significantly above chance ({expected})"
        yield f"{what}: check the normalisation (--mean, --std), the order of the classes and the weights"


def _run(guards: Sequence[Guard], evidence: Evidence, budget: int | None = None) -> tuple[list[str], Results]:
    """The guards that do not fit the budget, and the results of the others; those that presume others run last."""
    probe = evidence.probe
    if probe is not None:
        len(probe.logits)  # computes them, since these passes are shared
    omitted: list[str] = []
    found: Results = {}
    last = [guard for guard in guards if guard.presumes]
    reserved = 0 if budget is None else sum(guard.cost(evidence) for guard in last)
    for guard in guards:
        if guard in last:
            continue
        cost, taken = guard.cost(evidence), 0 if probe is None else probe.taken
        fits = budget is None or not guard.priority or (not omitted and taken + cost + reserved <= budget)
        if cost and not fits:
            omitted.append(guard.name)
        else:
            found[guard.name] = guard(evidence)
    evidence = dataclasses.replace(evidence, warned=(*evidence.warned, *_warned(found)))
    return omitted, found | {guard.name: guard(evidence) for guard in last}


def _warned(found: Results) -> tuple[str, ...]:
    """The names of the guards with a warning, in the order of the guards."""
    return tuple(name for name in GUARDS if isinstance(found.get(name), AuditWarning))


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
    shown = sum(1 + guard.most for guard in _WITH_SYMPTOM) * min(images, CLEAR)
    core = least * min(images, SIZES[-1]) + 1
    return full if mode == "full" else min(full, max(int(SHARE * attack_passes), core + shown))


def _size(guards: Sequence[Guard], evidence: Evidence, probe: Probe, budget: int) -> int:
    """The size of the sample for these guards.

    It is the largest of `SIZES` on which those guards fit that fit on `USUAL` images; else the smallest.
    """

    def fits(size: int, count: int) -> bool:
        sample = probe.first(size)
        smaller = dataclasses.replace(evidence, probe=sample)
        return len(sample) + sum(guard.cost(smaller) for guard in guards[:count]) <= budget

    count = next((count for count in range(len(guards), _ALWAYS, -1) if fits(USUAL, count)), _ALWAYS)
    return next((size for size in SIZES if fits(size, count)), SIZES[-1])
