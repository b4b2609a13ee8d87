"""Methods of cfa23 and their tables: average and worst class, clean and attacked, best and last epoch."""

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
"""Learning rates of FRL at every scale: it fine-tunes a robust model."""
BASES: Mapping[Name, Sequence[str]] = {
    "smoke": ("AT", "TRADES"),
    "reduced": ("AT", "TRADES", "FAT"),
    "full": ("AT", "TRADES", "FAT"),
}
"""Base methods of CFA and of weight averaging."""
NOTE = "one training run of each method: intervals cover the sampling of images, not the variation between trainings"
ATTACKS: Mapping[Name, Mapping[str, Spec]] = {
    "smoke": {"robust": "pgd:steps=5,step_size=0.4eps"},
    "reduced": {"robust": "pgd:steps=20,step_size=0.1eps,objective=margin"},
    "full": {"apgd-ce": "apgd-ce", "apgd-t": "apgd-t", "fab-t": "fab-t", "square": "square"},
}
"""AutoAttack at full scale, a PGD as its substitute at smaller scales."""
RUNS = {"cfa23/T1": ", mean of five runs"}
"""Number of trainings that the printed numbers average, if the paper states it."""
CHOSEN: Mapping[str, tuple[Which, Which]] = {"best": ("best", "best-average"), "last": ("last", "average")}


@dataclass(frozen=True)
class Method:
    """A row of the table: recipe, its overrides, whether averaged weights are used, and the method it starts from."""

    recipe: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    averaged: bool = False
    start: str | None = None


# FAT is the friendly training of CFA's code, three steps past the boundary, in the recipe that all methods share.
# Averaging does not change the model, so one run gives the plain row and the averaged row. The exceptions are AT and
# TRADES, whose runs without an average are shared with other experiments.
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
    """Select the methods whose base the scale includes; FRL is always included."""
    bases = (*BASES[scale.name], "FRL")
    return {name: method for name, method in methods.items() if name.partition(" + ")[0] in bases}


def audit_methods(
    context: Context, methods: Mapping[str, Method], kinds: Sequence[str] = tuple(CHOSEN)
) -> dict[tuple[str, str], Audit]:
    """Train each method, and audit its model of the best and of the last epoch.

    Returns:
        Audits by method and kind of epoch.
    """
    trained: dict[str, Trained] = {}
    audits: dict[tuple[str, str], Audit] = {}
    for name, method in methods.items():
        start = None if method.start is None else trained[method.start]
        trained[name] = context.train(method.recipe, method.overrides, start=start)
        for kind in kinds:
            which = CHOSEN[kind][method.averaged]
            if which not in trained[name].run.saved_weights():  # averaging starts after the end of this training
                which = CHOSEN[kind][False]
            audits[name, kind] = context.audit(trained[name], ATTACKS[context.scale.name], which=which, early_stop=True)
    return audits


def pair_cell(counts: ClassCounts, least: Callable[[ClassCounts], Estimate] = metric_intervals.worst) -> Cell:
    """Cell of average and worst class (or another measure of weak classes) in percent, with intervals."""
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
    """Table of clean and attacked accuracy at the best and last epoch of each method, next to the printed numbers.

    Args:
        item: item with the printed rows.
        methods: methods by name.
        audits: audits by method and kind of epoch.
        scale: scale that determines the attacks.
        weak: name of the second number of a pair.
        pair: function of counts to a cell with both numbers.
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
                reference = " / ".join(f"{value:g}" for value in printed[name][key])
                cells += [pair(audits[name, kind].counts(attack)), Cell(reference)]
        rows.append(Row(name, cells))
    under = ", ".join(str(spec) for spec in ATTACKS[scale.name].values())
    return Table(
        f"Average / {weak} of {len(methods)} methods, in percent",
        heads,
        rows,
        f"Attacked: correctly classified both clean and under {under}; printed: AutoAttack{RUNS.get(item, '')}. "
        "Small print: 95 % confidence intervals for new images with the one model of each method fixed.",
    )


def gate(run: Run) -> list[bool]:
    """Whether FAWA admitted each epoch that it evaluated; empty for a run without FAWA."""
    return [event["admitted"] for event in run.events if event["event"] == "fawa"]


def with_gate_note(context: Context, methods: Mapping[str, Method], table: Table) -> Table:
    """Add a note to a table on the number of epochs that FAWA admitted for each method."""
    runs = {name: context.train(one.recipe, one.overrides).run for name, one in methods.items() if one.start is None}
    admitted = [f"{sum(gates)} of {len(gates)} ({name})" for name, run in runs.items() if (gates := gate(run))]
    return replace(table, note=f"{table.note} Epochs admitted by FAWA: {', '.join(admitted)}.") if admitted else table
