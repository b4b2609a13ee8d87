"""CFA, EMA and FRL on three base methods: cfa23/T1, T4, F6, E2."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from classwise.core.config import Spec
from classwise.papers import catalogue
from classwise.papers.bootstrap import Resampled
from classwise.papers.claims import Test
from classwise.papers.context import Context, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.estimates import average, paired_models, worst
from classwise.papers.experiments.fair_methods import (
    ATTACKS,
    BASES,
    CHOSEN,
    METHODS,
    NOTE,
    UNSCALED,
    Evaluated,
    Method,
    at_scale,
    closed_gate,
    evaluate_methods,
    methods_table,
    pair_cell,
    trainings_of,
    with_gate_note,
)
from classwise.papers.scales import CIFAR, DEFAULT_SCALES, Name, Scale, other_data
from classwise.papers.tables import Key, class_table
from classwise.reporting.figures.bars import class_bars
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import ClassCounts, FloatArray

NO_FAT = "this scale does not include FAT"
LIFTED, LOWERED = (2, 3, 4, 6), (7, 8)
"""Classes of CIFAR-10 that are better, and slightly worse, with CFA in the paper."""


class _Methods(Experiment):
    """Rows of the main table of cfa23."""

    scales: ClassVar[Mapping[Name, Scale]] = DEFAULT_SCALES
    attacks: ClassVar[Mapping[Name, Mapping[str, Spec]]] = ATTACKS
    methods: ClassVar[Mapping[str, Method]] = METHODS

    def trainings(self, scale: Scale) -> Trainings:
        """The trainings of the rows."""
        return trainings_of(at_scale(self.methods, scale))


class MainTable(_Methods):
    """cfa23 Table 1: average and worst class of eleven methods, and of TRADES without its division by 1 + beta."""

    def run(self, context: Context) -> Findings:
        """Tabulate clean and attacked accuracy at the best and last epoch of each method; test claims C11 to C15."""
        methods = at_scale(self.methods, context.scale)
        evaluated = evaluate_methods(context, methods, self.trainings(context.scale))
        table = with_gate_note(evaluated, methods_table("cfa23/T1", methods, evaluated, context.scale))
        tests, not_tested = _main_tests(evaluated, BASES[context.scale.name])
        return Findings(tables=(table,), tests=tests, not_tested=not_tested)


def _main_tests(evaluated: Evaluated, bases: Sequence[str]) -> tuple[list[Test], dict[str, str]]:
    def paired(one: str, other: str, kind: str, attack: str = "all") -> Resampled:
        return paired_models(evaluated.audits[one, kind], evaluated.audits[other, kind], attack)

    tests, not_tested = frl_tests(evaluated)
    closed = evaluated.closed([f"{base} + CFA" for base in bases])
    averaged = [base for base in bases if f"{base} + CFA" not in closed]
    if averaged:
        differences = [
            metric(paired(f"{base} + CFA", other, kind))
            for base in averaged
            for other in (base, f"{base} + EMA")
            for kind in CHOSEN
            for metric in (average, worst)
        ]
        tests += [
            Test(
                claim="cfa23/C11",
                estimand="CFA minus plain and minus EMA: average and worst class, best and last, each base",
                estimators=differences,
                note=NOTE,
                covers=tuple(averaged),
            ),
            Test(
                claim="cfa23/C12",
                estimand="clean average of the plain method minus that of CFA, best epoch, each base",
                estimators=[average(paired(base, f"{base} + CFA", "best", "clean")) for base in averaged],
                note=NOTE,
                covers=tuple(averaged),
            ),
        ]
    if closed:
        not_tested |= {claim: closed_gate(closed) for claim in ("cfa23/C11", "cfa23/C12")}
    if "FAT" in bases:
        falls = [worst(paired(other, "FAT", "best")) for other in ("AT", "TRADES")]
        estimand = "worst class of AT and of TRADES minus that of FAT, best epoch"
        tests.append(Test(claim="cfa23/C13", estimand=estimand, estimators=falls, note=NOTE))
    else:
        not_tested["cfa23/C13"] = NO_FAT
    return tests, not_tested


def frl_tests(evaluated: Evaluated) -> tuple[list[Test], dict[str, str]]:
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
                part for one, other in pairs for part in (worst(paired(one, other)), average(paired(other, one)))
            ],
            covers=("direction of gain and loss",),
            note=f"{NOTE}; the claimed bound of 2 points on the gain is not tested for lack of power",
        )
    ]
    if closed := evaluated.closed(["TRADES + CFA"]):
        return tests, {"cfa23/C15": closed_gate(closed)}
    over_frl = paired("TRADES + CFA", "FRL + EMA")
    tests.append(
        Test(
            claim="cfa23/C15",
            estimand="TRADES + CFA minus FRL + EMA: average and worst class, best epoch; the reverse: worst "
            "class, last epoch",
            estimators=[average(over_frl), worst(over_frl), worst(paired("FRL + EMA", "TRADES + CFA", "last"))],
            note=NOTE,
        )
    )
    return tests, {}


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
        keyed: dict[Key, ClassCounts] = {(name,): one for name, one in counts.items()}
        pairs = {
            base: paired_models(audits[f"{base} + CFA", "best"], audits[f"{base} + EMA", "best"]) for base in bases
        }
        rows = []
        for base, pair in pairs.items():
            estimate = pair.estimate(_narrowed)
            cells = [
                Cell(f"{float(one.accuracy.std()):.3f}") for one in (counts[f"{base} + {a}"] for a in ("EMA", "CFA"))
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
        not_tested = {}
        if closed := evaluated.closed([f"{base} + CFA" for base in bases]):
            tests, not_tested = [], {"cfa23/C22": closed_gate(closed)}
        elif context.scale.data == CIFAR:
            parts = [
                pair.part(lambda a, c=c, sign=sign: sign * (a[..., 0, c] - a[..., 1, c]), 100)  # type: ignore[misc]
                for pair in pairs.values()
                for classes, sign in ((LIFTED, 1), (LOWERED, -1))
                for c in classes
            ]
            estimand = "CFA minus EMA for classes 2, 3, 4, 6 and EMA minus CFA for 7 and 8, AT and TRADES, best epoch"
            covers = ("single classes",)
            tests.append(Test(claim="cfa23/C22", estimand=estimand, estimators=parts, note=NOTE, covers=covers))
        else:
            not_tested = other_data("cfa23/C22", context.scale)
        spread = Table(
            "Standard deviation of the class accuracies (fractions)", ("method", "EMA", "CFA", "EMA minus CFA"), rows
        )
        return Findings(
            tables=(spread, class_table("Class accuracy, best epoch, attacked, in percent", keyed, names)),
            figures=((class_bars(names, counts, range(len(names))), "Best epoch, attacked as in cfa23/T1."),),
            tests=tests,
            not_tested=not_tested,
        )


class FairnessOfFRL(_Methods):
    """cfa23 section 5.2: FRL compared with TRADES + EMA and TRADES + CFA, best and last epoch."""

    methods: ClassVar[Mapping[str, Method]] = {
        name: method for name, method in METHODS.items() if name.startswith(("TRADES", "FRL"))
    }

    def run(self, context: Context) -> Findings:
        """Tabulate the rows of T1 about TRADES and FRL; test claims C14 and C15."""
        evaluated = evaluate_methods(context, self.methods, self.trainings(context.scale))
        table = methods_table("cfa23/T1", self.methods, evaluated, context.scale)
        tests, not_tested = frl_tests(evaluated)
        return Findings(tables=(with_gate_note(evaluated, table),), tests=tests, not_tested=not_tested)


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
        parts = [
            part
            for base in BASES[context.scale.name]
            for pair in [paired_models(audits[f"{base} + CFA", "best"], audits[f"{base} + EMA", "best"])]
            for part in (average(pair), pair.part(worst_fifth, 100))
        ]
        test = Test(
            claim="cfa23/C21",
            covers=(context.scale.data,),
            estimand="CFA minus EMA: average and worst fifth of the classes, best epoch, each base",
            estimators=parts,
            note=NOTE if context.scale.data == "tiny-imagenet" else f"{NOTE}; on {context.scale.data}",
        )
        table = methods_table(
            self.item,
            methods,
            evaluated,
            context.scale,
            "worst fifth",
            lambda counts: pair_cell(counts, metric_intervals.worst_fifth),
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
