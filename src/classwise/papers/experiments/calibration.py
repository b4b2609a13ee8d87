"""Ablation of CFA and of its hyper-parameters lambda_1 and lambda_2: cfa23/T2, T3, F5, F7."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from classwise.auditing.result import Audit
from classwise.core.threat import Threat
from classwise.papers import catalogue
from classwise.papers.claims import Test
from classwise.papers.context import Context
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.estimates import average, paired_models, worst
from classwise.papers.experiments.fair_methods import (
    BASES,
    METHODS,
    NOTE,
    Method,
    at_scale,
    audit_methods,
    pair_cell,
    with_gate_note,
)
from classwise.papers.scales import CIFAR, MANY_TRAININGS, Name, Scale, other_data
from classwise.reporting.figures.lines import Series, class_lines, line_chart
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import FloatArray
from classwise.stats.interval_estimators import IntervalEstimator, exactly, plus
from classwise.training.folder import Run

BOTH = "TRADES + CCM + CCR"
AVERAGING_COST = 0.5
"""Points of the average that FAWA may lose."""
LAMBDAS: Mapping[Name, Sequence[float]] = {
    "smoke": (0.5,),
    "reduced": (0.3, 0.5, 0.7),
    "full": (0.3, 0.4, 0.5, 0.6, 0.7),
}
INSENSITIVE = 2
"""Change in points below which a method is insensitive."""
HARD = (2, 3, 4, 5)
"""The classes of CIFAR-10 with a radius below the default in the paper."""


def ccm(lambda1: float) -> dict[str, Any]:
    """Schedule of class-wise radii (CCM)."""
    return {"name": "ccm", "lambda1": lambda1}


def ccr(lambda2: float) -> dict[str, Any]:
    """Schedule of class-wise betas (CCR)."""
    return {"name": "ccr", "lambda2": lambda2}


class _Ablation(Experiment):
    """Average and worst class of several methods at their best epoch, attacked."""

    methods: ClassVar[Mapping[str, Method]]
    scales: ClassVar[Mapping[Name, Scale]] = MANY_TRAININGS

    def run(self, context: Context) -> Findings:
        """Audit each method once, and test the claims."""
        methods = at_scale(self.methods, context.scale)
        audits = {name: audit for (name, _), audit in audit_methods(context, methods, ("best",)).items()}
        printed = {row["method"]: row for row in catalogue.printed_rows(self.item)}
        rows = [
            Row(name, [pair_cell(audit.counts("all")), Cell(f"{printed[name]['avg']:g} / {printed[name]['worst']:g}")])
            for name, audit in audits.items()
        ]
        note = (
            "Small print: 95 % confidence intervals for new images. The attack is that of cfa23/T1 at this scale; "
            "printed: AutoAttack."
        )
        table = Table(
            "Average / worst class, best epoch, attacked, in percent", ("method", "this run", "printed"), rows, note
        )
        return Findings(tables=(with_gate_note(context, methods, table),), tests=self.claims(audits))

    @abstractmethod
    def claims(self, audits: Mapping[str, Audit]) -> Sequence[Test]:
        """Tests of the claims of the table."""


def _gains(audits: Mapping[str, Audit], pairs: Sequence[tuple[str, str]]) -> list[IntervalEstimator]:
    return [metric(paired_models(audits[one], audits[other])) for one, other in pairs for metric in (average, worst)]


class CalibrationOnly(_Ablation):
    """cfa23 Table 2: CCM and CCR without weight averaging."""

    item = "cfa23/T2"
    methods: ClassVar[Mapping[str, Method]] = {
        "AT": METHODS["AT"],
        "AT + CCM": Method("at", {"schedules": [ccm(0.5)]}),
        "TRADES": METHODS["TRADES"],
        "TRADES + CCM": Method("trades", {"schedules": [ccm(0.3)]}),
        "TRADES + CCR": Method("trades", {"schedules": [ccr(0.5)]}),
        BOTH: Method("trades", {"schedules": [ccm(0.3), ccr(0.5)]}),
        "FAT": METHODS["FAT"],
        "FAT + CCM": Method("cfa-fat", {"schedules": [ccm(0.7)], "averaging": "none"}),
    }

    def claims(self, audits: Mapping[str, Audit]) -> Sequence[Test]:
        """Test C16: each part improves average and worst class, and both together most."""
        pairs_of_base = [(name, name.partition(" + ")[0]) for name in audits if "+" in name]
        together = [(BOTH, name) for name in ("TRADES + CCM", "TRADES + CCR") if BOTH in audits]
        bases = tuple(dict.fromkeys(base for _, base in pairs_of_base))
        comparisons = {
            "each method with CCM, CCR or both minus the plain one: average and worst class": (pairs_of_base, bases),
            "TRADES with both minus TRADES with one of them: average and worst class": (together, ("both together",)),
        }
        return [
            Test(claim="cfa23/C16", estimand=estimand, estimators=_gains(audits, pairs), note=NOTE, covers=covers)
            for estimand, (pairs, covers) in comparisons.items()
            if pairs
        ]


class AveragingOnly(_Ablation):
    """cfa23 Table 3: EMA against FAWA, without CCM and CCR."""

    item = "cfa23/T3"
    methods: ClassVar[Mapping[str, Method]] = {
        name: method
        for base in BASES["full"]
        for name, method in (
            (f"{base} + EMA", METHODS[f"{base} + EMA"]),
            (f"{base} + FAWA", Method(f"cfa-{base.lower()}", {"schedules": []}, averaged=True)),
        )
    }

    def claims(self, audits: Mapping[str, Audit]) -> Sequence[Test]:
        """Test C19: the worst class gains and the average loses little (up to 0.3 points in the paper)."""
        bases = [base for base in BASES["full"] if f"{base} + EMA" in audits]
        pairs = [paired_models(audits[f"{base} + FAWA"], audits[f"{base} + EMA"]) for base in bases]
        parts = [worst(pair) for pair in pairs]
        parts += [plus(average(pair), AVERAGING_COST) for pair in pairs]
        estimand = f"FAWA minus EMA: worst class, and average plus {AVERAGING_COST} points"
        return [Test(claim="cfa23/C19", estimand=estimand, estimators=parts, note=NOTE, covers=bases)]


def class_quantity(run: Run, quantity: str) -> tuple[Drawing, Mapping[str, float]]:
    """Draw a quantity of each class over the epochs of a run; also return its values in the last epoch."""
    rows = run.epochs
    table = rows[rows["split"] == "train"].pivot_table(index="epoch", columns="class", values=quantity, sort=False)
    lines = class_lines(table.astype(float))
    last: Mapping[str, float] = {str(name): float(value) for name, value in table.iloc[-1].items()}
    return line_chart(f"{quantity.capitalize()} of each class", lines, "epoch (from 0)", share=False), last


class _Sweep(Experiment):
    """A method over one of its hyper-parameters, compared with its base method."""

    plain: ClassVar[str]
    claim: ClassVar[str]
    quantity: ClassVar[str]
    metrics: ClassVar[Sequence[Any]]
    full_range: ClassVar[str]
    scales: ClassVar[Mapping[Name, Scale]] = MANY_TRAININGS

    def covers(self, values: Sequence[float]) -> Sequence[str]:
        """Parts of the claim that the tested values cover: the whole range of the paper, or single values."""
        reached = min(values) <= min(LAMBDAS["full"]) and max(values) >= max(LAMBDAS["full"])
        return (self.full_range,) if reached else tuple(f"{self.full_range}: {value:g} only" for value in values)

    @abstractmethod
    def overrides(self, value: float) -> Mapping[str, Any]:
        """Recipe overrides for a value of the hyper-parameter."""

    def run(self, context: Context) -> Findings:
        """Evaluate average and worst class over the hyper-parameter, and the resulting class-wise quantity."""
        values = LAMBDAS[context.scale.name]
        plain = METHODS[self.plain]
        methods = {self.plain: plain, **{f"{value:g}": Method(plain.recipe, self.overrides(value)) for value in values}}
        audits = {name: audit for (name, _), audit in audit_methods(context, methods, ("best",)).items()}
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
        own = context.train(plain.recipe, self.overrides(0.5)).run
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
        more, not_tested = self.further_tests(audits, last, own, context.scale)
        rows = [Row(name, [pair_cell(audit.counts("all"))]) for name, audit in audits.items()]
        heads = ("method or lambda", "average / worst class")
        return Findings(
            tables=(
                Table(
                    "Best epoch, attacked, in percent",
                    heads,
                    rows,
                    "Small print: 95 % confidence intervals for new images.",
                ),
            ),
            figures=(
                (line_chart("Average and worst class, in percent", lines, "lambda"), "Dashed: the base method."),
                (drawing, "At lambda 0.5."),
            ),
            tests=[*tests, *more],
            not_tested=not_tested,
        )

    @abstractmethod
    def further_tests(
        self, audits: Mapping[str, Audit], last: Mapping[str, float], run: Run, scale: Scale
    ) -> tuple[list[Test], dict[str, str]]:
        """Further tests, on the audits by value and on the class-wise quantity at the end of a run."""


class MarginBase(_Sweep):
    """cfa23 Figure 5: AT + CCM over lambda_1, and the radius of each class over the epochs."""

    item = "cfa23/F5"
    plain = "AT"
    claim = "cfa23/C17"
    full_range = "all better than AT"
    quantity = "epsilon"
    metrics = (average, worst)

    def overrides(self, value: float) -> Mapping[str, Any]:
        """Use CCM alone."""
        return {"schedules": [ccm(value)]}

    def further_tests(
        self, audits: Mapping[str, Audit], last: Mapping[str, float], run: Run, scale: Scale
    ) -> tuple[list[Test], dict[str, str]]:
        """Test C17 (0.5 is best, the value matters little) and C18 (hard classes have a radius below the default)."""
        others = [audit for name, audit in audits.items() if name not in (self.plain, "0.5")]
        ways = [
            pair
            for other in others
            for pair in (paired_models(audits["0.5"], other), paired_models(other, audits["0.5"]))
        ]
        best = "average and worst class at 0.5 minus those at each other value"
        flat = (
            f"{INSENSITIVE} points minus the change of average and worst class from 0.5 to each other value, in "
            "either direction"
        )
        tests = [
            Test(claim=self.claim, estimand=estimand, estimators=parts, note=NOTE, covers=(covered,))
            for covered, estimand, parts in (
                (
                    "0.5 best",
                    best,
                    [metric(paired_models(audits["0.5"], other)) for other in others for metric in self.metrics],
                ),
                ("insensitive", flat, [plus(metric(pair), INSENSITIVE) for pair in ways for metric in self.metrics]),
            )
            if parts
        ]
        if scale.data != CIFAR:
            return tests, other_data("cfa23/C18", scale)
        default = Threat.parse(str(run.recipe.threat)).epsilon
        assert isinstance(default, float)
        sides = [(default - e if c in HARD else e - default) * 255 for c, e in enumerate(last.values())]
        test = Test(
            claim="cfa23/C18",
            estimand="radius at the end: default minus that of classes 2 to 5; that of the others minus default",
            estimators=[exactly(side) for side in sides],
            unit="/255",
            exact=True,
            note="one training",
        )
        return [*tests, test], {}


class RegularisationBase(_Sweep):
    """cfa23 Figure 7: TRADES + CCM + CCR over lambda_2, and the beta of each class over the epochs."""

    item = "cfa23/F7"
    plain = "TRADES"
    claim = "cfa23/C23"
    full_range = "worst class over lambda_2"
    quantity = "beta"
    metrics = (worst,)

    def overrides(self, value: float) -> Mapping[str, Any]:
        """Use CCM at 0.3, and CCR."""
        return {"schedules": [ccm(0.3), ccr(value)]}

    def further_tests(
        self, audits: Mapping[str, Audit], last: Mapping[str, float], run: Run, scale: Scale
    ) -> tuple[list[Test], dict[str, str]]:
        """Test the second half of C23: hard classes have a smaller beta at the end."""
        del run, scale
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
        return [test], {}
