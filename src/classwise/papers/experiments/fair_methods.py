"""The methods of cfa23 and their tables: average and worst class, clean and attacked, best and last epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from classwise.auditing.result import Audit
from classwise.core.config import Spec
from classwise.papers import catalogue
from classwise.papers.context import Context
from classwise.papers.scales import Name, Scale
from classwise.papers.store import Trained
from classwise.reporting import formatting
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Estimate
from classwise.training.folder import Run, Which

EMA: Mapping[str, Any] = {"name": "ema", "decay": 0.85, "start_fraction": 0.25}
_FINE_TUNING: Mapping[str, Any] = {
    "optimizer": {"name": "sgd", "lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-4},
    "lr_schedule": {"name": "step", "milestones": [0.4, 0.8], "gamma": 0.1},
}
"""FRL's own rates, at every scale: it starts from a robust model."""
BASES: Mapping[Name, Sequence[str]] = {
    "smoke": ("AT", "TRADES"),
    "laptop": ("AT", "TRADES", "FAT"),
    "full": ("AT", "TRADES", "FAT"),
}
"""The methods that CFA and the averages are added to."""
NOTE = "one training of each method: intervals speak of new images, not of training again"
ATTACKS: Mapping[Name, Mapping[str, Spec]] = {
    "smoke": {"robust": "pgd:steps=5,step_size=0.4eps"},
    "laptop": {"robust": "pgd:steps=20,step_size=0.1eps,objective=margin"},
    "full": {"apgd-ce": "apgd-ce", "apgd-t": "apgd-t", "fab-t": "fab-t", "square": "square"},
}
"""AutoAttack where the scale can pay for it, else the named substitute."""
RUNS = {"cfa23/T1": ", mean of five runs"}
"""Of how many trainings the printed numbers are the mean, where the paper says it."""
CHOSEN: Mapping[str, tuple[Which, Which]] = {"best": ("best", "best-average"), "last": ("last", "average")}


@dataclass(frozen=True)
class Method:
    """A row of the table: our recipe, what is changed in it, and the method it starts from."""

    recipe: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    averaged: bool = False
    start: str | None = None


# FAT is the friendly training of CFA's code, three steps past the boundary, in the recipe that all methods share.
# An average is kept beside the model and changes nothing in it: one run gives the plain row and the averaged one; but
# for AT and TRADES, whose runs without an average other experiments have too.
METHODS: Mapping[str, Method] = {
    "AT": Method("at"),
    "AT + EMA": Method("at", {"averaging": EMA}, averaged=True),
    "AT + CFA": Method("cfa-at", averaged=True),
    "TRADES": Method("trades"),
    "TRADES + EMA": Method("trades", {"averaging": EMA}, averaged=True),
    "TRADES + CFA": Method("cfa-trades", averaged=True),
    "FAT": Method("cfa-fat", {"schedules": [], "averaging": EMA}),
    "FAT + EMA": Method("cfa-fat", {"schedules": [], "averaging": EMA}, averaged=True),
    "FAT + CFA": Method("cfa-fat", averaged=True),
    "FRL": Method("frl", {"averaging": EMA, **_FINE_TUNING}, start="TRADES"),
    "FRL + EMA": Method("frl", {"averaging": EMA, **_FINE_TUNING}, averaged=True, start="TRADES"),
}


def at_scale(methods: Mapping[str, Method], scale: Scale) -> dict[str, Method]:
    """Those whose base the scale has; FRL always."""
    bases = (*BASES[scale.name], "FRL")
    return {name: method for name, method in methods.items() if name.partition(" + ")[0] in bases}


def audited(
    context: Context, methods: Mapping[str, Method], kinds: Sequence[str] = tuple(CHOSEN)
) -> dict[tuple[str, str], Audit]:
    """Each method's model of the best and of the last epoch, attacked."""
    trained: dict[str, Trained] = {}
    audits: dict[tuple[str, str], Audit] = {}
    for name, method in methods.items():
        start = None if method.start is None else trained[method.start]
        trained[name] = context.trained(method.recipe, method.overrides, start=start)
        for kind in kinds:
            which = CHOSEN[kind][method.averaged]
            if which not in trained[name].run.kept():  # it begins later than this training ends
                which = CHOSEN[kind][False]
            audits[name, kind] = context.audited(
                trained[name], ATTACKS[context.scale.name], which=which, early_stop=True
            )
    return audits


def pair_cell(counts: ClassCounts, least: Callable[[ClassCounts], Estimate] = metric_intervals.worst) -> Cell:
    """Average and worst class (or another measure of the weak ones) in percent, with their intervals."""
    mean, low = metric_intervals.macro(counts), least(counts)
    text = f"{formatting.bare_percent(mean.value)} / {formatting.bare_percent(low.value)}"
    return Cell(text, f"{formatting.span(mean.low, mean.high)} / {formatting.span(low.low, low.high)}")


def methods_table(
    item: str,
    methods: Mapping[str, Method],
    audits: Mapping[tuple[str, str], Audit],
    scale: Scale,
    weak: str = "worst class",
    pair: Callable[[ClassCounts], Cell] = pair_cell,
) -> Table:
    """A row for each method: clean and attacked, best and last epoch, beside the printed numbers of an item.

    Args:
        item: whose rows are printed.
        methods: by name.
        audits: of each method and kind of epoch.
        scale: whose attacks.
        weak: what the second number of a pair is.
        pair: counts to both numbers.
    """
    printed = {row["method"]: row for row in catalogue.printed_rows(item)}
    heads = ["method"]
    for kind in CHOSEN:
        heads += [f"clean, {kind}", "printed", f"attacked, {kind}", "printed"]
    rows = []
    for name in methods:
        cells = []
        for kind in CHOSEN:
            for attack, key in (("clean", f"clean_{kind}"), ("all", f"aa_{kind}")):
                theirs = " / ".join(f"{value:g}" for value in printed[name][key])
                cells += [pair(audits[name, kind].counts(attack)), Cell(theirs)]
        rows.append(Row(name, cells))
    under = ", ".join(str(spec) for spec in ATTACKS[scale.name].values())
    return Table(
        f"Average / {weak} of {len(methods)} methods, in percent",
        heads,
        rows,
        f"Attacked: an image counts if it is correctly classified, clean and under {under}; printed: AutoAttack"
        f"{RUNS.get(item, '')}. Small: 95 % intervals for new images, the one model of each method fixed.",
    )


def gate(run: Run) -> list[bool]:
    """Whether FAWA admitted each epoch that it judged; nothing for a run without FAWA."""
    return [event["admitted"] for event in run.events if event["event"] == "fawa"]


def gated(context: Context, methods: Mapping[str, Method], table: Table) -> Table:
    """The same table, with a note of how many epochs each method's fair average is made."""
    runs = {name: context.trained(one.recipe, one.overrides).run for name, one in methods.items() if one.start is None}
    admitted = [f"{sum(judged)} of {len(judged)} ({name})" for name, run in runs.items() if (judged := gate(run))]
    return replace(table, note=f"{table.note} Epochs that FAWA admitted: {', '.join(admitted)}.") if admitted else table
