"""Methods of cfa23 and their tables: average and worst class, clean and attacked, best and last epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from classwise.auditing.run.result import Audit
from classwise.core.config import Spec
from classwise.papers import catalogue
from classwise.papers.context import Context, Training
from classwise.papers.scales import Name, Scale
from classwise.papers.store import Trained
from classwise.reporting import formatting
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Estimate
from classwise.training.folder import Run, Which

EMA: Mapping[str, Any] = {"name": "ema", "decay": 0.85, "start_fraction": 0.25}
PAPER_GATE: Mapping[str, Any] = {"averaging.gate": "absolute"}
"""FAWA with the gate of the paper, a constant; the budget ``short`` has a relative gate, which short runs can reach."""
RELATIVE = ", relative gate"
"""End of the name of a method with the relative gate of the budget ``short``."""
_FINE_TUNING: Mapping[str, Any] = {
    "optimizer": {"name": "sgd", "lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-4},
    "lr_schedule": {"name": "step", "milestones": [0.4, 0.8], "gamma": 0.1},
}
"""Learning rates of FRL at every scale: it fine-tunes a robust model."""
FRL_SPLIT: Mapping[str, Any] = {"data.validation": 0.06}
"""Share of the training images that FRL and its start hold out at every scale: 300 per class of CIFAR-10."""
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
PGD_10: Mapping[str, Any] = {"name": "pgd", "steps": 10, "step_size": "0.25eps"}
"""PGD-10 with step 2/255 at 8/255, for training and evaluation."""
PGD_ATTACKS: Mapping[Name, Mapping[str, Spec]] = {**ATTACKS, "full": {"robust": PGD_10}}
"""PGD-10 at full scale, for the items that the paper evaluates by it."""
LEAST_ADMITTED = 2
"""Epochs that FAWA admits at least for a test of its claims: an average of one epoch is no average."""
RUNS = {"cfa23/T1": ", mean of five runs"}
"""Number of trainings that the printed numbers average, if the paper states it."""
CHOSEN: Mapping[str, tuple[Which, Which]] = {"best": ("best", "best-average"), "last": ("last", "average")}
UNSCALED = "TRADES, unscaled"
"""TRADES as its own paper writes it, CE + 6 KL; the TRADES of cfa23's public code is divided by 1 + beta."""


@dataclass(frozen=True)
class Method:
    """A row of a table.

    Attributes:
        training: name of the training.
        averaged: whether the averaged weights are used.
    """

    training: str
    averaged: bool = False


# FAT is the friendly training of CFA's code, three steps past the boundary, in the recipe that all methods share.
# Averaging does not change the model, so one run gives the plain row and the row with EMA.
TRAININGS: Mapping[str, Training] = {
    "AT": Training(recipe="at", overrides={"averaging": EMA}),
    "AT + CFA": Training(recipe="cfa-at", overrides=PAPER_GATE),
    UNSCALED: Training(recipe="trades"),
    "TRADES": Training(recipe="trades-scaled", overrides={"averaging": EMA}),
    "TRADES + CFA": Training(recipe="cfa-trades", overrides=PAPER_GATE),
    "FAT": Training(recipe="cfa-fat", overrides={"schedules": [], "averaging": EMA}),
    "FAT + CFA": Training(recipe="cfa-fat", overrides=PAPER_GATE),
    "start of FRL": Training(recipe="trades", overrides=FRL_SPLIT),
    "FRL": Training(recipe="frl", overrides={"averaging": EMA, **_FINE_TUNING, **FRL_SPLIT}, start="start of FRL"),
}
"""Trainings of the main table. FRL starts from a TRADES model that never saw FRL's validation images."""
METHODS: Mapping[str, Method] = {
    "AT": Method("AT"),
    "AT + EMA": Method("AT", averaged=True),
    "AT + CFA": Method("AT + CFA", averaged=True),
    UNSCALED: Method(UNSCALED),
    "TRADES": Method("TRADES"),
    "TRADES + EMA": Method("TRADES", averaged=True),
    "TRADES + CFA": Method("TRADES + CFA", averaged=True),
    "FAT": Method("FAT"),
    "FAT + EMA": Method("FAT", averaged=True),
    "FAT + CFA": Method("FAT + CFA", averaged=True),
    "FRL": Method("FRL"),
    "FRL + EMA": Method("FRL", averaged=True),
}
"""The rows of the main table; `UNSCALED` is ours."""


def base_of(name: str) -> str:
    """Base method of a row such as ``AT + CFA``."""
    return name.partition(" + ")[0].partition(",")[0]


def at_scale(methods: Mapping[str, Method], scale: Scale) -> dict[str, Method]:
    """Select the methods whose base the scale includes; FRL is always included."""
    bases = (*BASES[scale.name], "FRL")
    return {name: method for name, method in methods.items() if base_of(name) in bases}


def trainings_of(methods: Mapping[str, Method]) -> dict[str, Training]:
    """Trainings of the main table that the rows require, with the models that they start from."""
    required = {method.training for method in methods.values()}
    required |= {TRAININGS[name].start for name in required}
    return {name: training for name, training in TRAININGS.items() if name in required}


@dataclass(frozen=True)
class Evaluated:
    """Trained and audited methods.

    Attributes:
        runs: run of each row.
        audits: audits by row and kind of epoch.
    """

    runs: Mapping[str, Run]
    audits: Mapping[tuple[str, str], Audit]

    def gates(self, name: str) -> list[bool]:
        """Whether FAWA admitted each epoch that it evaluated in the run of a row; empty without FAWA."""
        return gate(self.runs[name])

    def closed(self, names: Sequence[str]) -> list[str]:
        """Rows with FAWA whose gate admitted fewer than `LEAST_ADMITTED` epochs."""
        return [name for name in names if self.gates(name) and sum(self.gates(name)) < LEAST_ADMITTED]


def evaluate_methods(
    context: Context,
    methods: Mapping[str, Method],
    trainings: Mapping[str, Training],
    kinds: Sequence[str] = tuple(CHOSEN),
    attacks: Mapping[Name, Mapping[str, Spec]] = ATTACKS,
) -> Evaluated:
    """Train each method, and audit its model of the best and of the last epoch.

    Args:
        context: source of models and audits.
        methods: rows.
        trainings: declared trainings, those of `trainings_of`.
        kinds: ``best``, ``last`` or both.
        attacks: attacks at each scale.
    """
    trained = context.train_all(trainings)
    runs = {name: trained[method.training].run for name, method in methods.items()}
    audits = {
        (name, kind): _audit(context, trained[method.training], method.averaged, kind, attacks[context.scale.name])
        for name, method in methods.items()
        for kind in kinds
    }
    return Evaluated(runs, audits)


def _audit(context: Context, trained: Trained, averaged: bool, kind: str, attacks: Mapping[str, Spec]) -> Audit:
    which = CHOSEN[kind][averaged]
    if which not in trained.run.saved_weights():  # averaging starts after the end of this training
        which = CHOSEN[kind][0]
    return context.audit(trained, attacks, which=which, early_stop=True)


def pair_cell(counts: ClassCounts, least: Callable[[ClassCounts], Estimate] = metric_intervals.worst) -> Cell:
    """Cell of average and worst class (or another measure of weak classes) in percent, with intervals."""
    mean, low = metric_intervals.macro(counts), least(counts)
    text = f"{formatting.bare_percent(mean.value)} / {formatting.bare_percent(low.value)}"
    return Cell(text, f"{formatting.span(mean.low, mean.high)} / {formatting.span(low.low, low.high)}")


def printed_row(item: str, name: str) -> Mapping[str, Any]:
    """Printed row of a method; empty for rows of ours. The paper prints one TRADES and one gate."""
    return {row["method"]: row for row in catalogue.printed_rows(item)}.get(name.removesuffix(RELATIVE), {})


def methods_table(
    item: str,
    methods: Mapping[str, Method],
    evaluated: Evaluated,
    scale: Scale,
    weak: str = "worst class",
    pair: Callable[[ClassCounts], Cell] = pair_cell,
) -> Table:
    """Table of clean and attacked accuracy at the best and last epoch of each method, next to the printed numbers.

    Args:
        item: item with the printed rows.
        methods: methods by name.
        evaluated: runs and audits of the methods.
        scale: scale that determines the attacks.
        weak: name of the second number of a pair.
        pair: function of counts to a cell with both numbers.
    """
    heads = ["method"]
    for kind in CHOSEN:
        heads += [f"clean, {kind}", "printed", f"attacked, {kind}", "printed"]
    rows = []
    for name in methods:
        cells, reported = [], printed_row(item, name)
        for kind in CHOSEN:
            for attack, key in (("clean", f"clean_{kind}"), ("all", f"aa_{kind}")):
                reference = " / ".join(f"{value:g}" for value in reported.get(key, ())) or formatting.NONE
                cells += [pair(evaluated.audits[name, kind].counts(attack)), Cell(reference)]
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


def with_gate_note(evaluated: Evaluated, table: Table) -> Table:
    """Add a note to a table on the number of epochs that FAWA admitted for each method."""
    gates = {name: gate(run) for name, run in evaluated.runs.items()}
    admitted = [f"{sum(found)} of {len(found)} ({name})" for name, found in gates.items() if found]
    return replace(table, note=f"{table.note} Epochs admitted by FAWA: {', '.join(admitted)}.") if admitted else table


def closed_gate(names: Sequence[str]) -> str:
    """Reason why a claim about FAWA is not tested on methods whose gate admitted fewer than `LEAST_ADMITTED` epochs."""
    return (
        f"the gate of FAWA admitted at most one epoch of {', '.join(names)}, so the average is a plain EMA or the "
        "weights of one epoch"
    )
