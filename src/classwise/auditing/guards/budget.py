"""The budget of the guards: which of them run, on how many images."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from classwise.auditing.guard_report import SHARE, GuardMode, GuardReport, Reason
from classwise.auditing.guards.evidence import SAMPLE, Evidence
from classwise.auditing.guards.gradient_free import QUERY_SHARE
from classwise.auditing.guards.gradients import compares_steps
from classwise.auditing.guards.table import CORE, COSTS, GUARDS, USEFULNESS
from classwise.auditing.result import AuditWarning

SIZES = (SAMPLE, 64, 32, 16)
"""Sizes of the sample under a budget."""
USUAL = 32
"""Guards are omitted if they do not fit the budget on this number of images."""
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

    In the mode ``"auto"`` their passes are at most `SHARE` of those of the attacks. The least useful guards are omitted
    until the others fit on `USUAL` images; then the sample is the largest of `SIZES` that fits. The guards of `CORE`
    run in any case, on the smallest sample if they exceed the budget.

    Args:
        evidence: the outcomes, and the sample if there is a model.
        mode: how many guards to run.
        late: whether the sample is missing because of the time limit.
    """
    budget: int | None = None
    reason: Reason = ""
    omitted: tuple[str, ...] = ()
    if mode == "off":
        omitted, reason = tuple(GUARDS), "off"
    elif late:
        omitted, reason = tuple(name for name in COSTS if name != "single-step" or not compares_steps(evidence)), "time"
    elif mode == "auto" and evidence.probe is not None:
        budget = int(SHARE * evidence.attack_passes)
        evidence, omitted = _within(evidence, budget)
        reason = "budget" if omitted else ""
    found = {name: guard(evidence) for name, guard in GUARDS.items() if name not in omitted}
    used = 0 if reason in ("off", "time") else passes(evidence, omitted)
    return GuardRun(
        tuple(AuditWarning(name, *each) for name, each in found.items() if each is not None),
        GuardReport(
            mode,
            images=len(evidence.probe) if used and evidence.probe is not None else 0,
            passes=used,
            budget=budget,
            not_run=tuple(name for name in GUARDS if name in omitted),
            reason=reason,
        ),
    )


def passes(evidence: Evidence, omitted: Collection[str] = ()) -> int:
    """The declared passes of the guards: those of the logits of the sample, and of each guard."""
    probe = evidence.probe
    if probe is None:
        return 0
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


def _within(evidence: Evidence, budget: int) -> tuple[Evidence, tuple[str, ...]]:
    """The evidence with the sample that fits a budget, and the guards that are omitted."""
    by_size = {size: evidence.first(size) for size in SIZES}
    probe = evidence.probe
    omitted: tuple[str, ...] = ()
    assert probe is not None
    removable = [name for name in USEFULNESS[len(CORE) :] if COSTS[name](evidence, probe)]
    for count in range(len(removable), -1, -1):
        omitted = tuple(removable[count:])
        if passes(by_size[USUAL], omitted) <= budget:
            break
    fitting = (size for size in SIZES if passes(by_size[size], omitted) <= budget)
    return by_size[next(fitting, SIZES[-1])], omitted
