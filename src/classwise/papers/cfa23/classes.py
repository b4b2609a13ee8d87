"""cfa23/F6, E2 and T4: what the audits of the main table say class by class, of FRL, and with many classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from classwise.papers import catalogue
from classwise.papers.cfa23.methods import (
    BASES,
    METHODS,
    NOTE,
    Method,
    at_scale,
    audited,
    average,
    both,
    frl_tests,
    gated,
    methods_table,
    pair_cell,
)
from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.scales import CIFAR, USUAL, Name, Scale, other_data
from classwise.papers.tables import Key, class_table
from classwise.report.figures.bars import class_bars
from classwise.report.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import ClassCounts, FloatArray

LIFTED, LOWERED = (2, 3, 4, 6), (7, 8)
"""The classes of CIFAR-10 that the paper finds better and slightly worse under CFA."""


class ClassesOfAverages(Experiment):
    """cfa23 Figure 6: class-wise robustness of CFA and of EMA; the paper does not name the method below them."""

    item = "cfa23/F6"
    scales: ClassVar[Mapping[Name, Scale]] = USUAL

    def run(self, bench: Bench) -> Findings:
        """The audits of T1, best epoch, for adversarial training and TRADES; claim C22."""
        bases = ("AT", "TRADES")
        methods = {name: METHODS[name] for base in bases for name in (f"{base} + EMA", f"{base} + CFA")}
        audits = audited(bench, methods, ("best",))
        names = bench.test_images.class_names
        counts: dict[str, ClassCounts] = {name: audits[name, "best"].counts("all") for name in methods}
        keyed: dict[Key, ClassCounts] = {(name,): one for name, one in counts.items()}
        pairs = {base: both(audits[f"{base} + CFA", "best"], audits[f"{base} + EMA", "best"]) for base in bases}
        rows = []
        for base, pair in pairs.items():
            found = pair.estimate(_narrowed)
            cells = [
                Cell(f"{float(one.accuracy.std()):.3f}") for one in (counts[f"{base} + {a}"] for a in ("EMA", "CFA"))
            ]
            rows.append(Row(base, [*cells, Cell(f"{found.value:.3f}", f"{found.low:.3f} to {found.high:.3f}")]))
        theirs = catalogue.printed("cfa23/F6")["numbers_in_text"]["printed_variance"]
        rows.append(Row("printed", [Cell(f"{theirs['EMA']:g}"), Cell(f"{theirs['CFA']:g}"), Cell("")]))
        tests = [
            Test(
                claim="cfa23/C22",
                estimand=f"standard deviation over classes (fractions) of EMA minus that of CFA, {base}, best epoch",
                parts=[pair.part(_narrowed)],
                unit="",
                note=NOTE,
                covers=(f"spread, {base}",),
            )
            for base, pair in pairs.items()
        ]
        beyond = {}
        if bench.scale.data == CIFAR:
            parts = [
                pair.part(lambda a, c=c, sign=sign: sign * (a[..., 0, c] - a[..., 1, c]), 100)  # type: ignore[misc]
                for pair in pairs.values()
                for classes, sign in ((LIFTED, 1), (LOWERED, -1))
                for c in classes
            ]
            estimand = "CFA minus EMA for classes 2, 3, 4, 6 and EMA minus CFA for 7 and 8, AT and TRADES, best epoch"
            covers = ("single classes",)
            tests.append(Test(claim="cfa23/C22", estimand=estimand, parts=parts, note=NOTE, covers=covers))
        else:
            beyond = other_data("cfa23/C22", bench.scale)
        spread = Table(
            "Standard deviation of the class accuracies (fractions)", ("method", "EMA", "CFA", "narrower by"), rows
        )
        return Findings(
            tables=(spread, class_table("Class accuracy, best epoch, attacked, in percent", keyed, names)),
            figures=((class_bars(names, counts, range(len(names))), "Best epoch, attacked as in cfa23/T1."),),
            tests=tests,
            beyond=beyond,
        )


class FairnessOfFRL(Experiment):
    """cfa23 section 5.2: FRL beside TRADES with an average and with CFA, best and last epoch."""

    item = "cfa23/E2"
    scales: ClassVar[Mapping[Name, Scale]] = USUAL

    def run(self, bench: Bench) -> Findings:
        """The rows of T1 about TRADES and FRL, and claims C14 and C15."""
        methods = {name: method for name, method in METHODS.items() if name.startswith(("TRADES", "FRL"))}
        audits = audited(bench, methods)
        return Findings(
            tables=(gated(bench, methods, methods_table("cfa23/T1", methods, audits, bench.scale)),),
            tests=frl_tests(audits),
        )


class TinyImageNet(Experiment):
    """cfa23 Table 4: nine methods on Tiny-ImageNet, average and worst fifth of the classes.

    There is no scale laptop: 200 classes need far more images and epochs than two cores have time for.
    """

    item = "cfa23/T4"
    methods: ClassVar[Mapping[str, Method]] = {
        name: method for name, method in METHODS.items() if not name.startswith("FRL")
    }
    scales: ClassVar[Mapping[Name, Scale]] = {
        "smoke": USUAL["smoke"],
        "full": replace(
            USUAL["full"],
            about="ResNet-18 on Tiny-ImageNet; 200 classes, of which the validation split has few images each",
            data="tiny-imagenet",
            changes={"model.name": "resnet18"},
        ),
    }

    def run(self, bench: Bench) -> Findings:
        """The frame of T1 with another measure of the weak classes, and claim C21."""
        methods = at_scale(self.methods, bench.scale)
        audits = audited(bench, methods)
        parts = [
            part
            for base in BASES[bench.scale.name]
            for pair in [both(audits[f"{base} + CFA", "best"], audits[f"{base} + EMA", "best"])]
            for part in (average(pair), pair.part(worst_fifth, 100))
        ]
        test = Test(
            claim="cfa23/C21",
            covers=(bench.scale.data,),
            estimand="CFA minus EMA: average and worst fifth of the classes, best epoch, each base",
            parts=parts,
            note=NOTE if bench.scale.data == "tiny-imagenet" else f"{NOTE}; on {bench.scale.data}",
        )
        table = methods_table(
            self.item,
            methods,
            audits,
            bench.scale,
            "worst fifth",
            lambda counts: pair_cell(counts, metric_intervals.worst_fifth),
        )
        return Findings(tables=(gated(bench, methods, table),), tests=(test,))


def worst_fifth(accuracy: FloatArray) -> FloatArray:
    """The mean of the lowest fifth of the classes, of the first row minus that of the second."""
    size = math.ceil(0.2 * accuracy.shape[-1] - 1e-9)
    low = np.sort(accuracy, axis=-1)[..., :size].mean(axis=-1)
    return np.asarray(low[..., 0] - low[..., 1])


def _narrowed(accuracy: FloatArray) -> FloatArray:
    """The standard deviation over the classes of the second row minus that of the first."""
    return np.asarray(accuracy[..., 1, :].std(axis=-1) - accuracy[..., 0, :].std(axis=-1))
