"""Fair training (cfa23): CFA, EMA and FRL, the ablation of CFA, and the saved epochs of a training."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from classwise.analysis.epochs import images_of, inside, measured
from classwise.analysis.fluctuation import Fluctuation as FluctuationOfRuns
from classwise.analysis.fluctuation import fluctuation
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.core.settings.config import Spec
from classwise.core.threat.ball import Threat
from classwise.papers import catalogue
from classwise.papers.claims import Measurement, Test, not_tested
from classwise.papers.experiment import (
    Context,
    Evaluation,
    Experiment,
    Findings,
    Training,
    Trainings,
    recipe_at,
)
from classwise.papers.experiments.protocol import paired_models, pgd_name
from classwise.papers.interval_estimators import ALPHA, IntervalEstimator, Resampled, exactly, plus
from classwise.papers.scales import DEFAULT_SCALES, MANY_TRAININGS, Name, Scale
from classwise.papers.tables import PRINTED, Key, class_table, estimate_cell
from classwise.reporting import formatting
from classwise.reporting.figures.bars import class_bars
from classwise.reporting.figures.lines import OVERALL, Series, class_lines, line_chart
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray
from classwise.stats.intervals import Estimate
from classwise.stats.metrics.lowest import worst20_estimate, worst_estimate
from classwise.stats.stratified import class_mean
from classwise.training.folder import Run, Which, epoch_weights
from classwise.training.selection import Rule, overall, overall_plus_worst

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
    "smoke": {"robust": "pgd:steps=2,step_size=1eps"},
    "reduced": {"robust": "pgd:steps=20,step_size=0.1eps,objective=margin"},
    "full": {"apgd-ce": "apgd-ce", "apgd-t": "apgd-t", "fab-t": "fab-t", "square": "square"},
}
"""Attacks of the tables: AutoAttack at full scale, a PGD as its substitute at smaller scales.

An image is robust if no step of them succeeds (``early_stop``), as in AutoAttack.
"""
PGD_10: Mapping[str, Any] = {"name": "pgd", "steps": 10, "step_size": "0.25eps"}
"""PGD-10 with step 2/255 at 8/255, for training and evaluation."""
PGD_ATTACKS: Mapping[Name, Mapping[str, Spec]] = {**ATTACKS, "full": {"robust": PGD_10}}
"""Attacks of the figures: PGD-10 at full scale. An image is robust if the last iterate is correctly classified."""
LAST_ITERATE = "An image is robust if the last iterate of the attack is correctly classified."
LEAST_ADMITTED = 2
"""Epochs that FAWA admits at least for a test of its claims: an average of one epoch is no average."""
RUNS = {"cfa23/T1": ", mean of five runs"}
"""Number of trainings that the printed numbers average, if the paper states it."""
CHOSEN: Mapping[str, tuple[Which, Which]] = {"best": ("best", "best-average"), "last": ("last", "average")}
BOTH_METRICS = (Resampled.total, Resampled.worst)
"""Differences of the average and of the worst class of two models."""
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
    bases = (*scale.entry(BASES), "FRL")
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

    def closed(self, names: Sequence[str]) -> list[str]:
        """Rows with FAWA whose gate admitted fewer than `LEAST_ADMITTED` epochs."""
        gates = {name: gate(self.runs[name]) for name in names}
        return [name for name, admitted in gates.items() if admitted and sum(admitted) < LEAST_ADMITTED]


def evaluate_methods(
    context: Context,
    methods: Mapping[str, Method],
    trainings: Mapping[str, Training],
    kinds: Sequence[str] = tuple(CHOSEN),
    attacks: Mapping[Name, Mapping[str, Spec]] = ATTACKS,
    *,
    early_stop: bool = True,
) -> Evaluated:
    """Train each method, and audit its model of the best and of the last epoch.

    Args:
        context: source of models and audits.
        methods: rows.
        trainings: declared trainings, those of `trainings_of`.
        kinds: ``best``, ``last`` or both.
        attacks: attacks at each scale.
        early_stop: whether an attack succeeds at any step; otherwise its last iterate counts.
    """
    trained = context.train_all(trainings)
    runs = {name: trained[method.training] for name, method in methods.items()}
    own, weights = context.scale.entry(attacks), {kind: kind for kind in kinds}
    if context.last_weights and len(kinds) == 1:
        weights = dict.fromkeys(kinds, "last")
    audits = {
        (name, kind): context.audit(runs[name], own, which=_weights(runs[name], method, which), early_stop=early_stop)
        for name, method in methods.items()
        for kind, which in weights.items()
    }
    return Evaluated(runs, audits)


def _weights(trained: Run, method: Method, kind: str) -> Which:
    """The weights of a method; the online ones if averaging starts after the end of its training."""
    which = CHOSEN[kind][method.averaged]
    return which if which in trained.saved_weights() else CHOSEN[kind][0]


def pair_cell(counts: ClassCounts, least: Callable[[ClassCounts], Estimate] = worst_estimate) -> Cell:
    """Cell of average and worst class (or another measure of weak classes) in percent, with intervals."""
    mean, low = class_mean(counts), least(counts)
    text = f"{formatting.bare_percent(mean.value)} / {formatting.bare_percent(low.value)}"
    return Cell(text, f"{formatting.span(mean.low, mean.high)} / {formatting.span(low.low, low.high)}")


def printed_row(item: str, name: str) -> Mapping[str, Any]:
    """Printed row of a method; empty for rows of ours. The paper prints one TRADES and one gate."""
    return {row["method"]: row for row in catalogue.printed_rows(item)}.get(name.removesuffix(RELATIVE), {})


def printed_pair(row: Mapping[str, Any], key: str) -> Cell:
    """Cell of a printed pair such as average and worst class, with the printed standard deviations in small print."""
    pairs = (" / ".join(f"{value:g}" for value in row.get(name, ())) for name in (key, f"{key}_std"))
    value, deviation = pairs
    return Cell(value or formatting.NONE, f"std {deviation}" if deviation else "")


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
        heads += [f"clean, {kind}", f"{PRINTED}, clean", f"attacked, {kind}", PRINTED]
    rows = []
    for name in methods:
        cells, reported = [], printed_row(item, name)
        for kind in CHOSEN:
            for attack, key in (("clean", f"clean_{kind}"), ("all", f"aa_{kind}")):
                cells += [pair(evaluated.audits[name, kind].counts(attack)), printed_pair(reported, key)]
        rows.append(Row(name, cells))
    under = ", ".join(str(spec) for spec in scale.entry(ATTACKS).values())
    return Table(
        f"Average / {weak} of {len(methods)} methods, in percent",
        heads,
        rows,
        f"Attacked: correctly classified both clean and under {under}; printed: AutoAttack{RUNS.get(item, '')}. "
        "95 % confidence intervals for new images with the one model of each method fixed.",
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


LIFTED, LOWERED = (2, 3, 4, 6), (7, 8)
"""Classes of CIFAR-10 that are better, and slightly worse, with CFA in the paper."""


class _Methods(Experiment, attacks=ATTACKS):
    """Rows of the main table of cfa23."""

    methods: ClassVar[Mapping[str, Method]] = METHODS

    def trainings(self, scale: Scale) -> Trainings:
        """The trainings of the rows."""
        return trainings_of(at_scale(self.methods, scale))

    def evaluations(self, scale: Scale, name: str, training: Training) -> Sequence[Evaluation]:
        """The best and the last epoch of each row of the training."""
        del training
        return _audits_of_rows(scale.entry(self.attacks), at_scale(self.methods, scale), name, len(CHOSEN))


def _audits_of_rows(
    attacks: Mapping[str, Spec], methods: Mapping[str, Method], training: str, kinds: int = 1
) -> list[Evaluation]:
    """The audits of the rows of a training: of its online model, of its average, or of both."""
    rows = sum(method.training == training for method in methods.values())
    return [Evaluation(attacks=attacks, weights=kinds * rows)] if rows else []


class MainTable(_Methods):
    """cfa23 Table 1: average and worst class of eleven methods, and of TRADES without its division by 1 + beta."""

    def run(self, context: Context) -> Findings:
        """Tabulate clean and attacked accuracy at the best and last epoch of each method; test claims C11 to C15."""
        methods = at_scale(self.methods, context.scale)
        evaluated = evaluate_methods(context, methods, self.trainings(context.scale))
        table = with_gate_note(evaluated, methods_table("cfa23/T1", methods, evaluated, context.scale))
        return Findings(tables=(table,), tests=_main_tests(evaluated, context.scale.entry(BASES)))


def _main_tests(evaluated: Evaluated, bases: Sequence[str]) -> list[Test]:
    def paired(one: str, other: str, kind: str, attack: str = "all") -> Resampled:
        return paired_models(evaluated.audits[one, kind], evaluated.audits[other, kind], attack)

    tests = frl_tests(evaluated)
    closed = evaluated.closed([f"{base} + CFA" for base in bases])
    averaged = [base for base in bases if f"{base} + CFA" not in closed]
    if averaged:
        tests += [
            Test(
                claim="cfa23/C11",
                estimand="CFA minus plain and minus EMA: average and worst class, best and last, each base",
                estimators=[
                    metric(paired(f"{base} + CFA", other, kind))
                    for base in averaged
                    for other in (base, f"{base} + EMA")
                    for kind in CHOSEN
                    for metric in BOTH_METRICS
                ],
                note=NOTE,
                covers=tuple(averaged),
            ),
            Test(
                claim="cfa23/C12",
                estimand="clean average of the plain method minus that of CFA, best epoch, each base",
                estimators=[paired(base, f"{base} + CFA", "best", "clean").total() for base in averaged],
                note=NOTE,
                covers=tuple(averaged),
            ),
        ]
    if closed:
        tests += [not_tested(claim, closed_gate(closed)) for claim in ("cfa23/C11", "cfa23/C12")]
    if "FAT" not in bases:
        return [*tests, not_tested("cfa23/C13", "this scale does not include FAT")]
    falls = [paired(other, "FAT", "best").worst() for other in ("AT", "TRADES")]
    estimand = "worst class of AT and of TRADES minus that of FAT, best epoch"
    return [*tests, Test(claim="cfa23/C13", estimand=estimand, estimators=falls, note=NOTE)]


def frl_tests(evaluated: Evaluated) -> list[Test]:
    """Tests of C14 (FRL against TRADES + EMA) and C15 (TRADES + CFA against FRL), and the claims not tested."""

    def paired(one: str, other: str, kind: str = "best") -> Resampled:
        return paired_models(evaluated.audits[one, kind], evaluated.audits[other, kind])

    pairs = (("FRL", "TRADES + EMA"), ("FRL + EMA", "TRADES + EMA"))
    tests = [
        Test(
            claim="cfa23/C14",
            estimand="FRL and FRL + EMA minus TRADES + EMA, best epoch: worst class, and average with the "
            "opposite sign",
            estimators=[
                part
                for method, baseline in pairs
                for part in (paired(method, baseline).worst(), paired(baseline, method).total())
            ],
            covers=("direction of gain and loss",),
            note=f"{NOTE}; the claimed bound of 2 points on the gain is not tested for lack of power",
        )
    ]
    if closed := evaluated.closed(["TRADES + CFA"]):
        return [*tests, not_tested("cfa23/C15", closed_gate(closed))]
    over_frl = paired("TRADES + CFA", "FRL + EMA")
    return [
        *tests,
        Test(
            claim="cfa23/C15",
            estimand="TRADES + CFA minus FRL + EMA: average and worst class, best epoch; the reverse: worst "
            "class, last epoch",
            estimators=[over_frl.total(), over_frl.worst(), paired("FRL + EMA", "TRADES + CFA", "last").worst()],
            note=NOTE,
        ),
    ]


class ClassesOfAverages(_Methods):
    """cfa23 Figure 6: class-wise robustness of CFA and of EMA; the paper does not name their base method."""

    methods: ClassVar[Mapping[str, Method]] = {
        name: METHODS[name] for base in ("AT", "TRADES") for name in (f"{base} + EMA", f"{base} + CFA")
    }

    def run(self, context: Context) -> Findings:
        """Use the audits of T1, best epoch, for adversarial training and TRADES; test claim C22."""
        bases = ("AT", "TRADES")
        evaluated = evaluate_methods(context, self.methods, self.trainings(context.scale), ("best",))
        audits = evaluated.audits
        names = context.test_images.class_names
        counts: dict[str, ClassCounts] = {name: audits[name, "best"].counts("all") for name in self.methods}
        keyed: dict[Key, ClassCounts] = {(name,): class_counts for name, class_counts in counts.items()}
        pairs = {
            base: paired_models(audits[f"{base} + CFA", "best"], audits[f"{base} + EMA", "best"]) for base in bases
        }
        rows = []
        for base, pair in pairs.items():
            estimate = pair.estimate(_narrowed)
            cells = [
                Cell(f"{float(class_counts.accuracy.std()):.3f}")
                for class_counts in (counts[f"{base} + {a}"] for a in ("EMA", "CFA"))
            ]
            rows.append(
                Row(base, [*cells, Cell(f"{estimate.value:.3f}", f"{estimate.low:.3f} to {estimate.high:.3f}")])
            )
        printed = catalogue.printed("cfa23/F6")["numbers_in_text"]["printed_variance"]
        rows.append(Row("printed", [Cell(f"{printed['EMA']:g}"), Cell(f"{printed['CFA']:g}"), Cell("")]))
        tests = [
            Test(
                claim="cfa23/C22",
                estimand=f"standard deviation over classes (fractions) of EMA minus that of CFA, {base}, best epoch",
                estimators=[pair.part(_narrowed)],
                unit="",
                note=NOTE,
                covers=(f"spread of {base}",),
            )
            for base, pair in pairs.items()
        ]
        single = Test(
            claim="cfa23/C22",
            covers=("single classes",),
            estimand="CFA minus EMA for classes 2, 3, 4, 6 and EMA minus CFA for 7 and 8, AT and TRADES, best epoch",
            estimators=[
                pair.part(lambda a, c=c, sign=sign: sign * (a[..., 0, c] - a[..., 1, c]), 100)  # type: ignore[misc]
                for pair in pairs.values()
                for classes, sign in ((LIFTED, 1), (LOWERED, -1))
                for c in classes
            ],
            note=NOTE,
            cifar10=True,
        )
        closed = evaluated.closed([f"{base} + CFA" for base in bases])
        spread = Table(
            "Standard deviation of the class accuracies (fractions)", ("method", "EMA", "CFA", "EMA minus CFA"), rows
        )
        return Findings(
            tables=(spread, class_table("Class accuracy, best epoch, attacked, in percent", keyed, names)),
            figures=((class_bars(names, counts, range(len(names))), "Best epoch, attacked as in cfa23/T1."),),
            tests=[not_tested("cfa23/C22", closed_gate(closed))] if closed else [*tests, single],
        )


class FairnessOfFRL(_Methods):
    """cfa23 section 5.2: FRL compared with TRADES + EMA and TRADES + CFA, best and last epoch."""

    methods: ClassVar[Mapping[str, Method]] = {
        name: method for name, method in METHODS.items() if name.startswith(("TRADES", "FRL"))
    }

    def run(self, context: Context) -> Findings:
        """Tabulate the rows of T1 about TRADES and FRL, and the cost of FRL's start; test claims C14 and C15."""
        evaluated = evaluate_methods(context, self.methods, self.trainings(context.scale))
        table = methods_table("cfa23/T1", self.methods, evaluated, context.scale)
        cost, measurement = cost_of_start(context.scale)
        return Findings(
            tables=(with_gate_note(evaluated, table), cost),
            tests=frl_tests(evaluated),
            measurements=(measurement,),
        )


def cost_of_start(scale: Scale) -> tuple[Table, Measurement]:
    """Passes of FRL with the training of the robust model that it starts from, and of TRADES + CFA (section 4.4)."""
    start, tuning, one = "start of FRL", "FRL", "TRADES + CFA"
    recipes = {name: recipe_at(scale, TRAININGS[name]) for name in (start, tuning, one)}
    passes = {
        name: recipe.epochs * recipe.parts.passes.equivalents * (1 - float(recipe.data.validation))
        for name, recipe in recipes.items()
    }
    together = passes[start] + passes[tuning]
    epochs = [str(recipe.epochs) for recipe in recipes.values()]
    counted = {f"{tuning} and its start": (together, f"{epochs[0]} + {epochs[1]}"), one: (passes[one], epochs[2])}
    table = Table(
        "Cost of a robust start, in forward passes of a training image",
        ("method", "epochs", "passes"),
        [Row(name, [Cell(of), Cell(f"{value:,.0f}")]) for name, (value, of) in counted.items()],
        "A gradient of the activations counts as one forward pass, that of the weights as another. The evaluation of "
        "held-out images after each epoch is not counted.",
    )
    quantity = f"passes of {tuning} with its start, divided by those of {one}, from their recipes"
    return table, Measurement(
        question="cfa23/C15", quantity=quantity, value=together / passes[one], unit="times", population=""
    )


class TinyImageNet(_Methods):
    """cfa23 Table 4: nine methods on Tiny-ImageNet, average and worst fifth of the classes.

    There is no reduced scale: 200 classes need more images and epochs than two cores can process.
    """

    methods: ClassVar[Mapping[str, Method]] = {
        name: method for name, method in METHODS.items() if name != UNSCALED and not name.startswith("FRL")
    }
    scales: ClassVar[Mapping[Name, Scale]] = {
        "smoke": DEFAULT_SCALES["smoke"],
        "full": replace(
            DEFAULT_SCALES["full"],
            about="ResNet-18 on Tiny-ImageNet; 200 classes, of which the validation split has few images each",
            data="tiny-imagenet",
            overrides={"model.name": "resnet18"},
        ),
    }

    def run(self, context: Context) -> Findings:
        """Tabulate as in T1 with another measure of the weak classes; test claim C21."""
        methods = at_scale(self.methods, context.scale)
        evaluated = evaluate_methods(context, methods, self.trainings(context.scale))
        audits = evaluated.audits
        test = Test(
            claim="cfa23/C21",
            covers=(context.scale.data,),
            estimand="CFA minus EMA: average and worst fifth of the classes, best epoch, each base",
            estimators=[
                part
                for base in context.scale.entry(BASES)
                for pair in [paired_models(audits[f"{base} + CFA", "best"], audits[f"{base} + EMA", "best"])]
                for part in (pair.total(), pair.part(worst_fifth, 100))
            ],
            note=NOTE if context.scale.data == "tiny-imagenet" else f"{NOTE}; on {context.scale.data}",
        )
        table = methods_table(
            self.item,
            methods,
            evaluated,
            context.scale,
            "worst fifth",
            lambda counts: pair_cell(counts, worst20_estimate),
        )
        return Findings(tables=(with_gate_note(evaluated, table),), tests=(test,))


def worst_fifth(accuracy: FloatArray) -> FloatArray:
    """Mean over the lowest fifth of the classes: first row minus second row, (..., 2, C) to (...)."""
    size = math.ceil(0.2 * accuracy.shape[-1] - 1e-9)
    low = np.sort(accuracy, axis=-1)[..., :size].mean(axis=-1)
    return np.asarray(low[..., 0] - low[..., 1])


def _narrowed(accuracy: FloatArray) -> FloatArray:
    """Standard deviation over the classes: second row minus first row, (..., 2, C) to (...)."""
    return np.asarray(accuracy[..., 1, :].std(axis=-1) - accuracy[..., 0, :].std(axis=-1))


BOTH = "TRADES + CCM + CCR"
AVERAGING_COST = 0.3
"""Points of the average that FAWA may lose."""
LAMBDAS: Mapping[Name, Sequence[float]] = {
    "smoke": (0.5,),
    "reduced": (0.3, 0.5, 0.7),
    "full": (0.3, 0.4, 0.5, 0.6, 0.7),
}
DRAWN = 0.5
"""Lambda at which the radius or beta of each class is drawn over the epochs."""
INSENSITIVE = 2
"""Change in points below which a method is insensitive."""
SMALL_RADIUS = (2, 3, 4, 5)
"""The classes of CIFAR-10 with a radius below the default in the paper."""


def ccm(lambda1: float) -> dict[str, Any]:
    """Schedule of class-wise radii (CCM)."""
    return {"name": "ccm", "lambda1": lambda1}


def ccr(lambda2: float) -> dict[str, Any]:
    """Schedule of class-wise betas (CCR)."""
    return {"name": "ccr", "lambda2": lambda2}


class _Ablation(Experiment, scales=MANY_TRAININGS, attacks=ATTACKS):
    """Average and worst class of several methods at their best epoch, attacked."""

    @abstractmethod
    def methods(self, scale: Scale) -> Mapping[str, Method]:
        """Rows of the table."""

    def evaluations(self, scale: Scale, name: str, training: Training) -> Sequence[Evaluation]:
        """The best epoch of each row of the training."""
        del training
        return _audits_of_rows(scale.entry(self.attacks), self.methods(scale), name)

    def run(self, context: Context) -> Findings:
        """Audit each method once, and test the claims."""
        methods = self.methods(context.scale)
        evaluated = evaluate_methods(context, methods, self.trainings(context.scale), ("best",))
        rows = []
        for name in methods:
            printed = printed_row(self.item, name)
            reference = f"{printed['avg']:g} / {printed['worst']:g}" if printed else formatting.NONE
            rows.append(Row(name, [pair_cell(evaluated.audits[name, "best"].counts("all")), Cell(reference)]))
        note = (
            "95 % confidence intervals for new images. The attack is that of cfa23/T1 at this scale; "
            "printed: AutoAttack."
        )
        table = Table(
            "Average / worst class, best epoch, attacked, in percent", ("method", "this run", "printed"), rows, note
        )
        return Findings(tables=(with_gate_note(evaluated, table),), tests=self.claims(evaluated))

    @abstractmethod
    def claims(self, evaluated: Evaluated) -> list[Test]:
        """Tests of the claims of the table."""


def _paired(evaluated: Evaluated, one: str, other: str) -> Resampled:
    """Best epochs of two methods on the same images."""
    return paired_models(evaluated.audits[one, "best"], evaluated.audits[other, "best"])


def _gains(evaluated: Evaluated, pairs: Sequence[tuple[str, str]]) -> list[IntervalEstimator]:
    return [metric(_paired(evaluated, method, baseline)) for method, baseline in pairs for metric in BOTH_METRICS]


class CalibrationOnly(_Ablation):
    """cfa23 Table 2: CCM and CCR without weight averaging; TRADES also without its division by 1 + beta."""

    def trainings(self, scale: Scale) -> Trainings:
        """The base methods, and their calibrated variants."""
        everything = {
            "AT": TRAININGS["AT"],
            "AT + CCM": Training(recipe="at", overrides={"schedules": [ccm(0.5)]}),
            UNSCALED: TRAININGS[UNSCALED],
            "TRADES": TRAININGS["TRADES"],
            "TRADES + CCM": Training(recipe="trades-scaled", overrides={"schedules": [ccm(0.3)]}),
            "TRADES + CCR": Training(recipe="trades", overrides={"schedules": [ccr(0.5)]}),
            BOTH: Training(recipe="trades", overrides={"schedules": [ccm(0.3), ccr(0.5)]}),
            "FAT": TRAININGS["FAT"],
            "FAT + CCM": Training(recipe="cfa-fat", overrides={"schedules": [ccm(0.7)], "averaging": "none"}),
        }
        return {name: training for name, training in everything.items() if base_of(name) in scale.entry(BASES)}

    def methods(self, scale: Scale) -> Mapping[str, Method]:
        """A row for each training."""
        return {name: Method(name) for name in self.trainings(scale)}

    def claims(self, evaluated: Evaluated) -> list[Test]:
        """Test C16: each part improves average and worst class, and both together most."""
        names = list(evaluated.runs)
        pairs_of_base = [(name, base_of(name)) for name in names if "+" in name]
        together = [(BOTH, name) for name in ("TRADES + CCM", "TRADES + CCR") if BOTH in names]
        bases = tuple(dict.fromkeys(base for _, base in pairs_of_base))
        comparisons = {
            "each method with CCM, CCR or both minus the plain one: average and worst class": (pairs_of_base, bases),
            "TRADES with both minus TRADES with one of them: average and worst class": (together, ("both together",)),
        }
        return [
            Test(claim="cfa23/C16", estimand=estimand, estimators=_gains(evaluated, pairs), note=NOTE, covers=covers)
            for estimand, (pairs, covers) in comparisons.items()
            if pairs
        ]


class AveragingOnly(_Ablation):
    """cfa23 Table 3: EMA against FAWA, without CCM and CCR; at reduced scale also FAWA with a relative gate."""

    def trainings(self, scale: Scale) -> Trainings:
        """The base methods with EMA, and with FAWA."""
        declared: dict[str, Training] = {}
        for base in scale.entry(BASES):
            declared[f"{base} + EMA"] = TRAININGS[base]
            plain: dict[str, Any] = {"schedules": []} | ({"objective.scaled": True} if base == "TRADES" else {})
            recipe = f"cfa-{base.lower()}"
            declared[f"{base} + FAWA"] = Training(recipe=recipe, overrides={**plain, **PAPER_GATE})
            if scale.name == "reduced":
                declared[f"{base} + FAWA{RELATIVE}"] = Training(recipe=recipe, overrides=plain)
        return declared

    def methods(self, scale: Scale) -> Mapping[str, Method]:
        """A row for each training: its averaged weights."""
        return {name: Method(name, averaged=True) for name in self.trainings(scale)}

    def claims(self, evaluated: Evaluated) -> list[Test]:
        """Test C19: the worst class gains and the average loses little (up to 0.3 points in the paper)."""
        names = [name for name in evaluated.runs if name.endswith("FAWA")]
        closed = evaluated.closed(names)
        bases = [base_of(name) for name in names if name not in closed]
        pairs = [_paired(evaluated, f"{base} + FAWA", f"{base} + EMA") for base in bases]
        parts = [*(pair.worst() for pair in pairs), *(plus(pair.total(), AVERAGING_COST) for pair in pairs)]
        estimand = f"FAWA minus EMA: worst class, and average plus {AVERAGING_COST} points"
        tests = [Test(claim="cfa23/C19", estimand=estimand, estimators=parts, note=NOTE, covers=bases)] if bases else []
        return [*tests, *([not_tested("cfa23/C19", closed_gate(closed))] if closed else [])]


def class_quantity(run: Run, quantity: str) -> tuple[Drawing, Mapping[str, float]]:
    """Draw a quantity of each class over the epochs of a run; also return its values in the last epoch."""
    rows = run.epochs
    table = rows[rows["split"] == "train"].pivot_table(index="epoch", columns="class", values=quantity, sort=False)
    lines = class_lines(table.astype(float))
    last: Mapping[str, float] = {str(name): float(value) for name, value in table.iloc[-1].items()}
    return line_chart(f"{quantity.capitalize()} of each class", lines, "epoch (from 0)", share=False), last


class _Sweep(Experiment, scales=MANY_TRAININGS, attacks=PGD_ATTACKS):
    """A method over one of its hyper-parameters, compared with its base method."""

    plain: ClassVar[str]
    recipe: ClassVar[str]
    claim: ClassVar[str]
    quantity: ClassVar[str]
    metrics: ClassVar[Sequence[Any]]
    full_range: ClassVar[str]

    def covers(self, values: Sequence[float]) -> Sequence[str]:
        """Parts of the claim that the tested values cover: the whole range of the paper, or single values."""
        reached = min(values) <= min(LAMBDAS["full"]) and max(values) >= max(LAMBDAS["full"])
        return (self.full_range,) if reached else tuple(f"{self.full_range}: {value:g} only" for value in values)

    @abstractmethod
    def overrides(self, value: float) -> Mapping[str, Any]:
        """Recipe overrides for a value of the hyper-parameter."""

    def trainings(self, scale: Scale) -> Trainings:
        """The base method, and one training for each value."""
        plain = {name: training for name, training in TRAININGS.items() if name.partition(",")[0] == self.plain}
        values = {
            f"{value:g}": Training(recipe=self.recipe, overrides=self.overrides(value))
            for value in scale.entry(LAMBDAS)
        }
        return {**plain, **values}

    def run(self, context: Context) -> Findings:
        """Evaluate average and worst class over the hyper-parameter, and the resulting class-wise quantity."""
        values = context.scale.entry(LAMBDAS)
        declared = self.trainings(context.scale)
        rows = {name: Method(name) for name in declared}
        evaluated = evaluate_methods(context, rows, declared, ("best",), self.attacks, early_stop=False)
        audits = {name: evaluated.audits[name, "best"] for name in declared}
        counts = {name: audit.counts("all").accuracy for name, audit in audits.items()}
        lines = []
        for what, style in ((np.mean, "stroke-main"), (np.min, "line-weak")):
            name = "average" if what is np.mean else "worst"
            lines.append(Series(name, values, [float(what(counts[f"{value:g}"])) for value in values], style))
            level = [float(what(counts[self.plain]))] * len(values)
            lines.append(
                Series(
                    f"{self.plain}, {name}", values, level, style.replace("stroke", "guide").replace("line", "guide")
                )
            )
        own = evaluated.runs[f"{DRAWN:g}"]
        drawing, last = class_quantity(own, self.quantity)
        tests = [
            Test(
                claim=self.claim,
                estimand=f"each value minus {self.plain}, best epoch, attacked",
                estimators=[
                    metric(paired_models(audits[f"{value:g}"], audits[self.plain]))
                    for value in values
                    for metric in self.metrics
                ],
                note=NOTE,
                covers=self.covers(values),
            )
        ]
        return Findings(
            tables=(
                Table(
                    "Best epoch, attacked, in percent",
                    ("method or lambda", "average / worst class"),
                    [Row(name, [pair_cell(audit.counts("all"))]) for name, audit in audits.items()],
                    f"{LAST_ITERATE} 95 % confidence intervals for new images.",
                ),
            ),
            figures=(
                (line_chart("Average and worst class, in percent", lines, "lambda"), "Dashed: the base method."),
                (drawing, f"At lambda {DRAWN:g}."),
            ),
            tests=[*tests, *self.further_tests(audits, last, own)],
        )

    @abstractmethod
    def further_tests(self, audits: Mapping[str, Audit], last: Mapping[str, float], run: Run) -> list[Test]:
        """Further tests, on the audits by value and on the class-wise quantity at the end of a run."""


class MarginBase(_Sweep):
    """cfa23 Figure 5: AT + CCM over lambda_1, and the radius of each class over the epochs."""

    plain = "AT"
    recipe = "at"
    claim = "cfa23/C17"
    full_range = "all better than AT"
    quantity = "epsilon"
    metrics = BOTH_METRICS

    def overrides(self, value: float) -> Mapping[str, Any]:
        """Use CCM alone."""
        return {"schedules": [ccm(value)]}

    def further_tests(self, audits: Mapping[str, Audit], last: Mapping[str, float], run: Run) -> list[Test]:
        """Test C17 (0.5 is best, the value matters little) and C18 (hard classes have a radius below the default)."""
        others = [audit for name, audit in audits.items() if name not in (self.plain, "0.5")]
        ways = [
            pair
            for other in others
            for pair in (paired_models(audits["0.5"], other), paired_models(other, audits["0.5"]))
        ]
        flat = (
            f"{INSENSITIVE} points minus the change of average and worst class from 0.5 to each other value, in "
            "either direction"
        )
        tests = [
            Test(claim=self.claim, estimand=estimand, estimators=parts, note=NOTE, covers=(covered,))
            for covered, estimand, parts in (
                (
                    "0.5 best",
                    "average and worst class at 0.5 minus those at each other value",
                    [metric(paired_models(audits["0.5"], other)) for other in others for metric in self.metrics],
                ),
                ("insensitive", flat, [plus(metric(pair), INSENSITIVE) for pair in ways for metric in self.metrics]),
            )
            if parts
        ]
        default = Threat.parse(str(run.recipe.threat)).epsilon
        assert isinstance(default, float)
        sides = [(default - e if c in SMALL_RADIUS else e - default) * 255 for c, e in enumerate(last.values())]
        test = Test(
            claim="cfa23/C18",
            estimand="radius at the end: default minus that of classes 2 to 5; that of the others minus default",
            estimators=[exactly(side) for side in sides],
            unit="/255",
            exact=True,
            note="one training",
            cifar10=True,
        )
        return [*tests, test]


class RegularisationBase(_Sweep):
    """cfa23 Figure 7: TRADES + CCM + CCR over lambda_2, and the beta of each class over the epochs."""

    plain = "TRADES"
    recipe = "trades"
    claim = "cfa23/C23"
    full_range = "worst class over lambda_2"
    quantity = "beta"
    metrics = (Resampled.worst,)

    def overrides(self, value: float) -> Mapping[str, Any]:
        """Use CCM at 0.3, and CCR."""
        return {"schedules": [ccm(0.3), ccr(value)]}

    def further_tests(self, audits: Mapping[str, Audit], last: Mapping[str, float], run: Run) -> list[Test]:
        """Test the second half of C23: hard classes have a smaller beta at the end."""
        del run
        beta = np.array(list(last.values()))

        def easier(accuracy: FloatArray) -> FloatArray:
            """Mean beta of the classes above the median of TRADES minus that of the others."""
            upper = accuracy[..., 0, :] > np.median(accuracy[..., 0, :], axis=-1, keepdims=True)
            share = np.where(upper, 1 / upper.sum(-1, keepdims=True).clip(1), -1 / (~upper).sum(-1, keepdims=True))
            return np.asarray((share * beta).sum(axis=-1))

        plain = paired_models(audits[self.plain], audits[self.plain])
        test = Test(
            claim=self.claim,
            covers=("beta of hard classes",),
            estimand="mean beta at the end: classes above the median of TRADES minus the others",
            estimators=[plain.part(easier)],
            unit="",
            note="one training; follows almost directly from the definition of CCR",
        )
        return [test]


ATTACK = "PGD"


def epochs_within(scale: Scale, training: Training, window: tuple[float, float]) -> tuple[int, ...]:
    """Epochs (from 1) of a training in a window (start, end] of fractions of its epochs."""
    epochs = recipe_at(scale, training).epochs
    return tuple(epoch for epoch in range(1, epochs + 1) if inside(epoch, epochs, window))


def with_checkpoints(training: Training, epochs: Sequence[int]) -> Training:
    """Copy of a training that also saves the weights after the given epochs."""
    return replace(training, overrides={**training.overrides, "checkpoint_epochs": sorted(set(epochs))})


@dataclass(frozen=True)
class SavedEpochs:
    """Evaluations of one training at some of its epochs.

    Attributes:
        outcomes: outcomes by epoch (from 1), all on the same test images.
    """

    outcomes: Mapping[int, Outcomes]

    def correct(self, attack: str, epochs: Sequence[int]) -> BoolArray:
        """(E, N) true where the model of an epoch is correct on a test image."""
        return np.stack([self.outcomes[epoch].correct(attack) for epoch in epochs])

    @property
    def attack(self) -> str:
        """The attack of the audits."""
        return pgd_name(next(iter(self.outcomes.values())), ATTACK)

    def overall(self, attack: str) -> pd.Series[float]:
        """Accuracy of all images by epoch."""
        return pd.Series({epoch: float(table.correct(attack).mean()) for epoch, table in self.outcomes.items()})


def audit_epochs(context: Context, trained: Run, epochs: Sequence[int], which: Which = "last") -> SavedEpochs:
    """Audit saved epochs of the online model (``last``) or of the average (``average``) on the test images.

    Before averaging starts, the average is the online model.
    """
    attack, saved = {ATTACK: context.pgd(PGD_10)}, trained.saved_weights()

    def outcomes(epoch: int) -> Outcomes:
        name = epoch_weights(which, epoch)
        return context.audit(trained, attack, which=name if name in saved else epoch_weights("last", epoch)).outcomes

    return SavedEpochs({epoch: outcomes(epoch) for epoch in epochs})


def best_by_other_half(table: BoolArray, labels: IntArray) -> BoolArray:
    """Correctness of the epoch with the highest accuracy, where each half of the images selects for the other half.

    An epoch that is evaluated on the images that selected it has an accuracy that is biased upwards; here no image
    selects the epoch that it is evaluated at. Every second image of a class is in the first half.

    Args:
        table: (E, N) true where the model of an epoch is correct on an image.
        labels: (N,) labels.

    Returns:
        (N,) correctness at the epoch selected by the other half.
    """
    place = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        place[labels == label] = np.arange((labels == label).sum())
    first = place % 2 == 0
    if first.all():
        return np.asarray(table[int(table.mean(axis=1).argmax())])
    chosen = [int(table[:, half].mean(axis=1).argmax()) for half in (~first, first)]
    return np.asarray(np.where(first, table[chosen[0]], table[chosen[1]]), dtype=np.bool_)


class WindowMeans:
    """Class accuracies of several trainings, each averaged over a window of epochs, on the same images.

    Args:
        context: source of the test images.
        rows: by value of the hyper-parameter: (E, N) true where the model of an epoch is correct on an image.
        epochs: E.
    """

    def __init__(self, context: Context, rows: Mapping[float, BoolArray], epochs: int) -> None:
        images = context.test_images
        self.names, self.values, self.epochs = images.class_names, list(rows), epochs
        self.images = Resampled(np.concatenate(list(rows.values())), images.y.numpy(), len(self.names))
        accuracy = self.means(self.images.accuracy)
        self.table = pd.DataFrame(accuracy, index=self.values, columns=list(self.names))
        count = self.images.count
        self.table[OVERALL] = (accuracy * count).sum(axis=1) / count.sum()

    def means(self, accuracy: FloatArray) -> FloatArray:
        """Means over the window: (..., values * E, C) to (..., values, C)."""
        shape = (*accuracy.shape[:-2], len(self.values), self.epochs, accuracy.shape[-1])
        return np.asarray(accuracy.reshape(shape).mean(axis=-2))

    def change(self, first: float, second: float, statistic: Callable[[FloatArray], FloatArray]) -> IntervalEstimator:
        """A statistic of the changes (..., C) of the class accuracies from one value to another, in points."""
        start, end = self.values.index(first), self.values.index(second)

        def change(accuracy: FloatArray) -> FloatArray:
            means = self.means(accuracy)
            return statistic(means[..., end, :] - means[..., start, :])

        return self.images.part(change, 100)


def epochs_text(epochs: Sequence[int]) -> str:
    """Text of a window of epochs."""
    return f"epochs {epochs[0]} to {epochs[-1]}" if len(epochs) > 1 else f"epoch {epochs[0]}"


def as_share(one: Estimate) -> Estimate:
    """Clip the interval of an accuracy to 0 and 1."""
    return Estimate(one.value, max(one.low, 0.0), min(one.high, 1.0))


RADII: Mapping[Name, Sequence[float]] = {
    "smoke": (1.0, 2.0),
    "reduced": (0.5, 1.0, 1.5),
    "full": tuple(factor / 4 for factor in range(1, 9)),
}
"""Training radii as multiples of the evaluation radius: 2/255 .. 16/255 at 8/255 in the paper."""
BETAS: Mapping[Name, Sequence[float]] = {"smoke": (6, 8), "reduced": (1, 6, 8), "full": tuple(range(1, 9))}
Window = tuple[float, float]
AFTER_DROP: Mapping[Name, Window] = {
    "smoke": (0.5, 1.0),
    "reduced": (0.5, 0.75),
    "medium": (0.5, 0.75),
    "full": (0.5, 0.6),
}
"""Epochs 101 to 120 of 200, as fractions; a short training has too few epochs for so narrow a window."""
AT_END: Mapping[Name, Window] = {"smoke": (0.5, 1.0), "reduced": (0.75, 1.0), "medium": (0.75, 1.0), "full": (0.9, 1.0)}
"""Epochs 181 to 200 of 200."""
LATE: Mapping[Name, Window] = {"smoke": (0.5, 1.0), "reduced": (0.75, 1.0), "medium": (0.75, 1.0), "full": (0.75, 0.85)}
"""Epochs 151 to 170 of 200."""
RADIUS = "training radius, in test radii"
TOLERANCE = 1
"""Rise in points below which the best epoch is not considered to be raised."""
HARD = (2, 3, 4)
"""The classes of CIFAR-10 that the paper calls hard."""
SWEEP_NOTE = "one training at each value: intervals cover the sampling of images only"


def radius_trainings(scale: Scale) -> dict[str, Training]:
    """Adversarial training at each radius, by the radius in test radii; each saves every epoch (9 GB at full scale)."""
    threat = Threat.parse(scale.threat)
    assert isinstance(threat.epsilon, float)
    declared = {}
    for factor in scale.entry(RADII):
        own = {} if factor == 1 else {"threat": f"{threat.norm}:{factor * threat.epsilon!r}"}
        training = Training(recipe="at", overrides=own)
        declared[f"{factor:g}"] = with_checkpoints(training, every_epoch(scale, training))
    return declared


def every_epoch(scale: Scale, training: Training) -> Sequence[int]:
    """Epochs of the curve of cfa23 Figure 2a, among them both windows of Figures 2b and 2c."""
    return epochs_within(scale, training, (0.0, 1.0))


def evaluate_radii(context: Context) -> dict[float, SavedEpochs]:
    """Train at each radius, and audit every epoch at the radius of the scale."""
    declared = radius_trainings(context.scale)
    return {
        float(name): audit_epochs(context, trained, every_epoch(context.scale, declared[name]))
        for name, trained in context.train_all(declared).items()
    }


class RadiusSweep(Experiment, trainings=radius_trainings):
    """cfa23 Figure 2a: overall robustness over the epochs, a line for each training radius."""

    def run(self, context: Context) -> Findings:
        """Test claim C5: a training radius above the evaluation radius helps the last epoch, not the best."""
        sweep = evaluate_radii(context)
        attack, first = sweep[1.0].attack, next(iter(sweep[1.0].outcomes.values()))
        labels, classes = first.labels, first.num_classes
        lines = []
        for factor, saved in sweep.items():
            overall = saved.overall(ATTACK)
            lines.append(Series(f"{factor:g}", [float(epoch) for epoch in overall.index], overall.tolist()))
        drawing = line_chart(f"Robust accuracy of all test images, {attack}, in percent", lines, "epoch")
        tables = {factor: saved.correct(ATTACK, list(saved.outcomes)) for factor, saved in sweep.items()}
        best = {factor: best_by_other_half(table, labels) for factor, table in tables.items()}
        last = {factor: table[-1] for factor, table in tables.items()}
        rows = []
        for factor in sweep:
            pair = Resampled(np.stack([best[factor], last[factor]]), labels, classes)
            estimates = [pair.estimate(lambda a, row=row: a[..., row, :].mean(-1)) for row in (0, 1)]  # type: ignore[misc]
            cells = [estimate_cell(as_share(estimate)) for estimate in estimates]
            rows.append(Row(f"{factor:g} of the test radius", cells))
        larger = [factor for factor in sweep if factor > 1]
        gains = {
            kind: [Resampled(np.stack([right[factor], right[1.0]]), labels, classes) for factor in larger]
            for kind, right in (("last", last), ("best", best))
        }
        return Findings(
            tables=(
                Table(
                    f"Robust accuracy of all test images under {attack}, in percent",
                    ("training radius", "best epoch", "last epoch"),
                    rows,
                    "The best epoch of one half of the images is evaluated on the other half, so its accuracy is not "
                    "biased upwards. 95 % confidence intervals.",
                ),
            ),
            figures=(
                (drawing, "A line for each training radius, in test radii; all are evaluated at the test radius."),
            ),
            tests=(
                Test(
                    claim="cfa23/C5",
                    covers=("last epoch",),
                    estimand="overall accuracy at each larger training radius minus at the test radius, last epoch",
                    estimators=[pair.total() for pair in gains["last"]],
                    note=SWEEP_NOTE,
                ),
                Test(
                    claim="cfa23/C5",
                    covers=("best epoch",),
                    estimand="overall accuracy at the test radius minus at each larger training radius, best epoch, "
                    "plus 1 point",
                    estimators=[plus(pair.total(1, 0), TOLERANCE) for pair in gains["best"]],
                    note=f"'do not raise' is interpreted as a rise of less than {TOLERANCE} point; {SWEEP_NOTE}",
                ),
            ),
        )


class RadiusSweepByClass(Experiment, trainings=radius_trainings):
    """cfa23 Figures 2b and 2c: robustness of each class over the training radius, averaged over windows of epochs."""

    def run(self, context: Context) -> Findings:
        """Test claims C6 and C7: after the drop hard classes lose beyond the test radius, at the end all gain."""
        sweep = evaluate_radii(context)
        base = radius_trainings(context.scale)["1"]
        windows = {
            name: epochs_within(context.scale, base, context.scale.entry(window))
            for name, window in (("after the first drop", AFTER_DROP), ("at the end", AT_END))
        }
        figures, ends = [], {}
        for name, epochs in windows.items():
            rows = {factor: saved.correct(ATTACK, epochs) for factor, saved in sweep.items()}
            averaged = WindowMeans(context, rows, len(epochs))
            drawing = line_chart(f"{sweep[1.0].attack}, {name}, in percent", class_lines(averaged.table), RADIUS)
            figures.append((drawing, f"One line per class, mean over {epochs_text(epochs)}."))
            ends[name] = averaged
        middle, end = ends.values()
        easy = [c for c in range(len(end.names)) if c not in HARD]
        tests = [
            Test(
                claim="cfa23/C7",
                estimand="class accuracy at the largest training radius minus at the test radius, mean over the last "
                "window of epochs, each class",
                estimators=[
                    end.change(1.0, max(sweep), lambda change, c=c: change[..., c])  # type: ignore[misc]
                    for c in range(len(end.names))
                ],
                note=SWEEP_NOTE,
            ),
            Test(
                claim="cfa23/C6",
                estimand="change beyond the test radius after the first drop: hard classes fall, the others rise",
                estimators=[
                    middle.change(1.0, max(sweep), lambda change: -_mean_of(change, HARD)),
                    middle.change(1.0, max(sweep), lambda change: _mean_of(change, easy)),
                ],
                note=SWEEP_NOTE,
                cifar10=True,
            ),
        ]
        return Findings(figures=figures, tests=tests)


class BetaSweep(Experiment):
    """cfa23 Figure 3: robust and clean accuracy of each class over the beta of TRADES, averaged over 20 epochs.

    The loss is divided by 1 + beta, as in the public code, so that all betas have the same learning rate.
    """

    def trainings(self, scale: Scale) -> Trainings:
        """One training for each beta."""
        declared = {}
        for beta in scale.entry(BETAS):
            training = Training(recipe="trades-scaled", overrides={"objective.beta": beta})
            epochs = epochs_within(scale, training, scale.entry(LATE))
            declared[f"{beta:g}"] = with_checkpoints(training, epochs)
        return declared

    def run(self, context: Context) -> Findings:
        """Test claim C8: a large beta favours the easy classes at the expense of the hard ones."""
        declared = self.trainings(context.scale)
        epochs = epochs_within(context.scale, next(iter(declared.values())), context.scale.entry(LATE))
        sweep = {
            float(name): audit_epochs(context, trained, epochs) for name, trained in context.train_all(declared).items()
        }
        figures, rows, averaged = [], [], {}
        robust = f"Robust accuracy, {next(iter(sweep.values())).attack}"
        for title, attack in ((robust, ATTACK), ("Clean accuracy", "clean")):
            rows_of = {beta: saved.correct(attack, epochs) for beta, saved in sweep.items()}
            averaged[attack] = means = WindowMeans(context, rows_of, len(epochs))
            drawing = line_chart(f"{title}, in percent", class_lines(means.table), "beta of TRADES")
            figures.append((drawing, f"One line per class, mean over {epochs_text(epochs)}."))
            for place, beta in enumerate(sweep):
                estimates = [
                    means.images.estimate(lambda a, c=c, p=place, m=means: m.means(a)[..., p, c])  # type: ignore[misc]
                    for c in range(len(means.names))
                ]
                rows.append(
                    Row(f"beta {beta:g}, {attack}", [estimate_cell(as_share(estimate)) for estimate in estimates])
                )
        table = Table(
            f"Class accuracy, mean over {epochs_text(epochs)}, in percent",
            ("training", *averaged[ATTACK].names),
            rows,
            "95 % confidence intervals for new images.",
        )
        easy = [c for c in range(len(table.heads) - 1) if c not in HARD]
        ends = (min(sweep), max(sweep))
        test = Test(
            claim="cfa23/C8",
            estimand="from the smallest to the largest beta: clean loss of hard classes minus that of "
            "the others; robust gain of the others minus that of hard classes",
            estimators=[
                averaged[attack].change(*ends, lambda change: _mean_of(change, easy) - _mean_of(change, HARD))
                for attack in ("clean", ATTACK)
            ],
            note=SWEEP_NOTE,
            cifar10=True,
        )
        return Findings(tables=(table,), figures=figures, tests=[test])


def _mean_of(change: FloatArray, classes: Sequence[int]) -> FloatArray:
    return np.asarray(change[..., list(classes)].mean(axis=-1))


WINDOW: Mapping[Name, tuple[float, float]] = {
    "smoke": (0.5, 1.0),
    "reduced": (0.5, 1.0),
    "medium": (0.5, 1.0),
    "full": (0.5, 0.6),
}
"""Range of epochs as fractions; the paper uses 101 to 120 of 200, which are too few in a short training."""
RULES: Mapping[str, tuple[Rule, str]] = {
    "overall": (overall, "epoch_108"),
    "overall + worst": (overall_plus_worst, "epoch_110"),
}
"""Selection rules, each with the epoch that the paper selects by it."""


class EpochByEpoch(Experiment, scales=MANY_TRAININGS):
    """Overall accuracy and worst class of several methods after every epoch, on the test images under PGD."""

    @abstractmethod
    def methods(self, scale: Scale) -> Mapping[str, Method]:
        """Rows of the table; all trainings have equally many epochs."""

    @abstractmethod
    def declared(self, scale: Scale) -> Trainings:
        """The trainings of the rows."""

    def trainings(self, scale: Scale) -> Trainings:
        """The trainings of the rows, which save every epoch."""
        return {
            name: with_checkpoints(training, every_epoch(scale, training))
            for name, training in self.declared(scale).items()
        }

    def evaluations(self, scale: Scale, name: str, training: Training) -> Sequence[Evaluation]:
        """The online model and the average of each epoch of the window."""
        return [replace(one, weights=2 * one.weights) for one in super().evaluations(scale, name, training)]

    def run(self, context: Context) -> Findings:
        """Audit every epoch, draw the whole training, and compare the epochs of the window."""
        declared = self.trainings(context.scale)
        trained = context.train_all(declared)
        first = next(iter(declared.values()))
        window = epochs_within(context.scale, first, context.scale.entry(WINDOW))
        methods = self.methods(context.scale)
        saved = {
            name: audit_epochs(
                context,
                trained[method.training],
                every_epoch(context.scale, first),
                "average" if method.averaged else "last",
            )
            for name, method in methods.items()
        }
        attack = next(iter(saved.values())).attack
        correct = {name: epochs.correct(ATTACK, window) for name, epochs in saved.items()}
        labels = context.test_images.y.numpy()
        classes = len(context.test_images.class_names)
        changes = fluctuation(correct, labels, classes)
        images = {name: Resampled(table, labels, classes) for name, table in correct.items()}
        rows = [
            Row(
                name,
                [
                    estimate_cell(resampled.estimate(_overall_change)),
                    estimate_cell(_worst_change(changes, name)),
                    estimate_cell(resampled.estimate(lambda a: a.mean(axis=(-1, -2)))),
                    estimate_cell(resampled.estimate(lambda a: a.min(axis=-1).mean(axis=-1))),
                ],
            )
            for name, resampled in images.items()
        ]
        gates = {name: gate(trained[method.training]) for name, method in methods.items() if method.averaged}
        admitted = "; ".join(f"{name} admitted {sum(found)} of {len(found)} epochs" for name, found in gates.items())
        note = (
            f"Test images under {attack}, {epochs_text(window)}. {admitted}. Before the first admitted epoch, FAWA "
            "equals the plain average. 95 % confidence intervals."
        )
        heads = ("model", "change, overall", "change, worst class", "mean, overall", "mean, worst class")
        caption = f"Test images under {attack}, whole training; change: of the worst class from the epoch before"
        averaged = ". Before averaging starts, the model is that of the training."
        findings = Findings(
            tables=(Table("Adjacent epochs: mean absolute change in points, and mean accuracy", heads, rows, note),),
            figures=[
                (
                    line_chart(f"{name}: robust accuracy, in percent", _curves(epochs), "epoch"),
                    caption + (averaged if methods[name].averaged else "."),
                )
                for name, epochs in saved.items()
            ],
        )
        return self.compared(findings, context, images, trained)

    @abstractmethod
    def compared(
        self, findings: Findings, context: Context, images: Mapping[str, Resampled], trained: Mapping[str, Run]
    ) -> Findings:
        """Add tests or measurements.

        Args:
            findings: table and figures.
            context: source of the test images.
            images: by row: the epochs of the window on the test images.
            trained: runs by the name of the training.
        """


class Fluctuation(EpochByEpoch):
    """cfa23 Figure 4: change of the worst class from epoch to epoch on the test set, with and without FAWA."""

    def declared(self, scale: Scale) -> Trainings:
        """AT with FAWA, which also gives the plain model; at reduced scale also with a relative gate."""
        declared = {"AT + FAWA": Training(recipe="cfa-at", overrides={"schedules": [], **PAPER_GATE})}
        if scale.name == "reduced":
            declared[f"AT + FAWA{RELATIVE}"] = Training(recipe="cfa-at", overrides={"schedules": []})
        return declared

    def methods(self, scale: Scale) -> Mapping[str, Method]:
        """The plain model, and the average of each training."""
        averages = {name: Method(name, averaged=True) for name in self.declared(scale)}
        return {"AT": Method("AT + FAWA"), **averages}

    def compared(
        self, findings: Findings, context: Context, images: Mapping[str, Resampled], trained: Mapping[str, Run]
    ) -> Findings:
        """Test claims C9, C20 and C24."""
        del context
        run = trained["AT + FAWA"]
        return replace(findings, tests=self.claims(images["AT"], images["AT + FAWA"], sum(gate(run)), run))

    def claims(self, plain: Resampled, fawa: Resampled, admitted: int, run: Run) -> list[Test]:
        """Tests of C9, C20 and C24."""
        noise = _sampling_change(int(plain.count.min()), float(plain.accuracy.min(axis=-1).mean()))
        caveat = f"over the epochs of one training; sampling of images alone can cause {noise:.1f} points of change"
        excess = plain.part(lambda a: _change_of(a.min(axis=-1)) - _overall_change(a), 100)
        tests = [
            Test(
                claim="cfa23/C9",
                estimand="mean change of the worst class, minus the sampling change, minus that of the "
                "overall accuracy, AT",
                estimators=[plus(excess, -noise)],
                note=caveat,
            ),
            Test(
                claim="cfa23/C24",
                estimand="passes saved in training minus passes to evaluate FAWA, for each held-out image and epoch",
                estimators=[exactly(_saved_passes(run))],
                unit="forward passes",
                exact=True,
                basis="computation",
                note="a gradient of activations or weights counts as one pass; this library also evaluates "
                "the online model",
            ),
        ]
        if admitted < LEAST_ADMITTED:
            return [*tests, not_tested("cfa23/C20", closed_gate(["AT + FAWA"]))]
        calm = fawa.part(lambda a: 0.01 - _change_of(a.min(axis=-1)), 100)
        pair, half = jointly(fawa, plain), len(plain.right)
        return [
            *tests,
            Test(
                claim="cfa23/C20",
                covers=("adjacent epochs",),
                estimand="1 point minus the mean change of the worst class with FAWA",
                estimators=[lambda level: calm(level)._replace(high=calm(level).high + noise)],
                note=caveat,
            ),
            Test(
                claim="cfa23/C20",
                covers=("overall",),
                estimand="overall accuracy of AT + FAWA minus that of AT, mean over the epochs of the window",
                estimators=[pair.part(lambda a: (a[..., :half, :] - a[..., half:, :]).mean(axis=(-1, -2)), 100)],
                note=NOTE,
            ),
        ]


def _change_of(accuracy: FloatArray) -> FloatArray:
    """Mean absolute change between adjacent epochs: (..., E) to (...)."""
    return np.asarray(np.abs(np.diff(accuracy, axis=-1)).mean(axis=-1))


def _overall_change(accuracy: FloatArray) -> FloatArray:
    """`_change_of` the mean over the classes: (..., E, C) to (...)."""
    return _change_of(accuracy.mean(axis=-1))


def _worst_change(changes: FluctuationOfRuns, name: str) -> Estimate:
    row = changes.runs.loc[[name]].iloc[0].to_dict()
    return Estimate(*(float(row[f"change{end}"]) for end in ("", "_low", "_high")))


def _curves(saved: SavedEpochs) -> list[Series]:
    """Overall accuracy, worst class, and absolute change of the worst class, by epoch (cfa23 Figure 4)."""
    epochs = [float(epoch) for epoch in saved.outcomes]
    worst = [float(table.counts(ATTACK).accuracy.min()) for table in saved.outcomes.values()]
    return [
        Series("overall", epochs, saved.overall(ATTACK).tolist(), "line-overall"),
        Series("worst class", epochs, worst, "line-weak"),
        Series("change, worst", epochs[1:], np.abs(np.diff(worst)).tolist(), "stroke-main"),
    ]


class FluctuationOfFAT(EpochByEpoch):
    """cfa23 section 4.4: does the worst class fluctuate more with instance-wise radii (FAT) than with those of CFA?"""

    def declared(self, scale: Scale) -> Trainings:
        """FAT, and CFA on AT, which without its average is AT + CCM; the gate is relative at reduced scale."""
        gated = {} if scale.name == "reduced" else PAPER_GATE
        return {"FAT": TRAININGS["FAT"], "AT + CFA": Training(recipe="cfa-at", overrides=gated)}

    def methods(self, scale: Scale) -> Mapping[str, Method]:
        """FAT and AT + CCM, which do not average, and AT + CFA."""
        gated = RELATIVE if scale.name == "reduced" else ""
        averaged = Method("AT + CFA", averaged=True)
        return {"FAT": Method("FAT"), "AT + CCM": Method("AT + CFA"), f"AT + CFA{gated}": averaged}

    def compared(
        self, findings: Findings, context: Context, images: Mapping[str, Resampled], trained: Mapping[str, Run]
    ) -> Findings:
        """Measure the differences; the paper states no number, so there is no verdict."""
        del context, trained
        fat, *others = images
        return replace(
            findings,
            measurements=[
                Measurement.of(
                    "cfa23/C9",
                    f"mean change of the worst class between adjacent epochs, {fat} minus {other}",
                    _calmer(images[fat], images[other])(ALPHA),
                )
                for other in others
            ],
        )


def jointly(one: Resampled, other: Resampled) -> Resampled:
    """Resample the rows of both on their common images jointly."""
    return Resampled(np.concatenate([one.right, other.right]), one.labels, len(one.count))


def _calmer(one: Resampled, other: Resampled) -> IntervalEstimator:
    """Mean change of the worst class between the epochs of one model minus that of another, in points."""
    pair, half = jointly(one, other), len(one.right)
    return pair.part(
        lambda a: _change_of(a[..., :half, :].min(axis=-1)) - _change_of(a[..., half:, :].min(axis=-1)), 100
    )


def _sampling_change(images: int, worst: float) -> float:
    """Upper bound in points of the mean change of a class accuracy between epochs caused by sampling alone.

    The difference of two independent accuracies on n images has standard deviation sqrt(2 p (1 - p) / n), and its mean
    absolute value is sqrt(2 / pi) times that. Epochs share their images, so the actual change is smaller.
    """
    return 100 * math.sqrt(2 / math.pi) * math.sqrt(2 * worst * (1 - worst) / images)


def _saved_passes(run: Run) -> float:
    """Passes for a held-out image: inner attack and update (three passes), minus one evaluation of the average."""
    parts = run.recipe.parts
    trained = 2 * parts.attack.length + 3
    evaluated = 1 + 2 * parts.validation_attack.length + 1
    return float(trained - evaluated)


def selected_epoch(rule: Rule, robust: pd.DataFrame, images: pd.Series[int]) -> int:
    """Epoch (an index of the table) that a rule selects; the last at a tie.

    Args:
        rule: function of class accuracies and counts to a score.
        robust: accuracies, epochs (rows) by classes (columns), fractions; NaN for absent classes.
        images: number of images of each class.
    """
    count = torch.tensor(images.reindex(robust.columns).fillna(0).to_numpy(dtype=np.float32))
    scores = [rule(torch.tensor(row, dtype=torch.float32), count) for row in robust.to_numpy(dtype=np.float32)]
    return int(robust.index[len(scores) - 1 - int(np.argmax(scores[::-1]))])


def counts_at(epoch: int, robust: pd.DataFrame, images: pd.Series[int]) -> ClassCounts:
    """Per-class counts of robust validation images at an epoch."""
    count: IntArray = np.asarray(images.reindex(robust.columns), dtype=np.int64)
    right: IntArray = (robust.loc[epoch].to_numpy(dtype=np.float64) * count).round().astype(np.int64)
    return ClassCounts(count, right)


class UnfairChoice(Experiment, attacks=PGD_ATTACKS):
    """cfa23 section 3.3: selection of the epoch by overall robustness, or by its sum with the worst class."""

    def trainings(self, scale: Scale) -> Trainings:
        """AT, whose second half is saved epoch by epoch."""
        training = Training(recipe="at")
        return {"AT": with_checkpoints(training, epochs_within(scale, training, (0.5, 1.0)))}

    def evaluations(self, scale: Scale, name: str, training: Training) -> Sequence[Evaluation]:
        """The epochs of both rules."""
        del name, training
        return [Evaluation(attacks=scale.entry(self.attacks), weights=len(RULES))]

    def run(self, context: Context) -> Findings:
        """Select an epoch by each rule on the validation split, and evaluate both on the test images; test C10."""
        declared = self.trainings(context.scale)
        trained = context.train_all(declared)["AT"]
        choices = epochs_within(context.scale, declared["AT"], (0.5, 1.0))
        robust, images = measured(trained, "valid", "robust").loc[list(choices)], images_of(trained, "valid")
        epochs = {name: selected_epoch(rule, robust, images) for name, (rule, _) in RULES.items()}
        attacks = context.scale.entry(self.attacks)
        audits = {
            name: context.audit(trained, attacks, which=epoch_weights("last", epoch)) for name, epoch in epochs.items()
        }
        printed = catalogue.printed("cfa23/F4")["numbers_in_text"]
        rows = []
        for name, epoch in epochs.items():
            printed_row = printed[RULES[name][1]]
            cells = [
                Cell(str(epoch)),
                pair_cell(counts_at(epoch, robust, images)),
                pair_cell(audits[name].counts("all")),
            ]
            rows.append(Row(name, [*cells, Cell(f"{printed_row['overall']:g} / {printed_row['worst']:g}")]))
        table = Table(
            "Average / worst class of the selected epoch, in percent",
            ("selected by", "epoch (from 1)", "validation", "test", "printed"),
            rows,
            f"Validation: PGD of the training on {int(images.sum())} held-out images, which select among the epochs "
            f"{choices[0]} to {choices[-1]}, so these values are biased upwards. Test: the attack of the "
            f"table of settings, on other images. {LAST_ITERATE} 95 % confidence intervals.",
        )
        places = [float(epoch) for epoch in robust.index]
        by_epoch = [counts_at(int(epoch), robust, images) for epoch in robust.index]
        lines = [
            Series("average", places, [class_mean(counts).value for counts in by_epoch], "stroke-main"),
            Series("worst class", places, [worst_estimate(counts).value for counts in by_epoch], "line-weak"),
        ]
        drawing = line_chart("Robust accuracy on the validation split, in percent", lines, "epoch")
        test = not_tested("cfa23/C10", f"both rules select epoch {epochs['overall']} of this training")
        if len(set(epochs.values())) > 1:
            test = Test(
                claim="cfa23/C10",
                estimand="worst class on test images at the epoch selected by the sum minus that at the epoch "
                "selected by the overall accuracy",
                estimators=[paired_models(audits["overall + worst"], audits["overall"]).worst()],
                note=f"both selected on the validation split; {NOTE}",
            )
        return Findings(tables=(table,), figures=((drawing, "Adversarial training."),), tests=[test])
