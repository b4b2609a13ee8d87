"""Ablation of CFA and of its hyper-parameters lambda_1 and lambda_2: cfa23/T2, T3, F5, F7."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from classwise.auditing.run.result import Audit
from classwise.core.config import Spec
from classwise.core.threat import Threat
from classwise.papers.bootstrap import Resampled
from classwise.papers.claims import Test
from classwise.papers.context import Context, Training, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.estimates import average, paired_models, worst
from classwise.papers.experiments.fair_methods import (
    ATTACKS,
    BASES,
    NOTE,
    PAPER_GATE,
    PGD_ATTACKS,
    RELATIVE,
    TRAININGS,
    UNSCALED,
    Evaluated,
    Method,
    base_of,
    closed_gate,
    evaluate_methods,
    pair_cell,
    printed_row,
    with_gate_note,
)
from classwise.papers.interval_estimators import IntervalEstimator, exactly, plus
from classwise.papers.scales import CIFAR, MANY_TRAININGS, Name, Scale, other_data
from classwise.reporting import formatting
from classwise.reporting.figures.lines import Series, class_lines, line_chart
from classwise.reporting.svg import Drawing
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import FloatArray
from classwise.training.folder import Run

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

    scales: ClassVar[Mapping[Name, Scale]] = MANY_TRAININGS
    attacks: ClassVar[Mapping[Name, Mapping[str, Spec]]] = ATTACKS

    @abstractmethod
    def methods(self, scale: Scale) -> Mapping[str, Method]:
        """Rows of the table."""

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
            "Small print: 95 % confidence intervals for new images. The attack is that of cfa23/T1 at this scale; "
            "printed: AutoAttack."
        )
        table = Table(
            "Average / worst class, best epoch, attacked, in percent", ("method", "this run", "printed"), rows, note
        )
        tests, not_tested = self.claims(evaluated)
        return Findings(tables=(with_gate_note(evaluated, table),), tests=tests, not_tested=not_tested)

    @abstractmethod
    def claims(self, evaluated: Evaluated) -> tuple[list[Test], dict[str, str]]:
        """Tests of the claims of the table, and the claims that are not tested with the reasons."""


def _paired(evaluated: Evaluated, one: str, other: str) -> Resampled:
    """Best epochs of two methods on the same images."""
    return paired_models(evaluated.audits[one, "best"], evaluated.audits[other, "best"])


def _gains(evaluated: Evaluated, pairs: Sequence[tuple[str, str]]) -> list[IntervalEstimator]:
    return [metric(_paired(evaluated, one, other)) for one, other in pairs for metric in (average, worst)]


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
        return {name: one for name, one in everything.items() if base_of(name) in BASES[scale.name]}

    def methods(self, scale: Scale) -> Mapping[str, Method]:
        """A row for each training."""
        return {name: Method(name) for name in self.trainings(scale)}

    def claims(self, evaluated: Evaluated) -> tuple[list[Test], dict[str, str]]:
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
        ], {}


class AveragingOnly(_Ablation):
    """cfa23 Table 3: EMA against FAWA, without CCM and CCR; with a short budget also FAWA with a relative gate."""

    def trainings(self, scale: Scale) -> Trainings:
        """The base methods with EMA, and with FAWA."""
        declared: dict[str, Training] = {}
        for base in BASES[scale.name]:
            declared[f"{base} + EMA"] = TRAININGS[base]
            plain: dict[str, Any] = {"schedules": []} | ({"objective.scaled": True} if base == "TRADES" else {})
            recipe = f"cfa-{base.lower()}"
            declared[f"{base} + FAWA"] = Training(recipe=recipe, overrides={**plain, **PAPER_GATE})
            if scale.budget is not None:
                declared[f"{base} + FAWA{RELATIVE}"] = Training(recipe=recipe, overrides=plain)
        return declared

    def methods(self, scale: Scale) -> Mapping[str, Method]:
        """A row for each training: its averaged weights."""
        return {name: Method(name, averaged=True) for name in self.trainings(scale)}

    def claims(self, evaluated: Evaluated) -> tuple[list[Test], dict[str, str]]:
        """Test C19: the worst class gains and the average loses little (up to 0.3 points in the paper)."""
        names = [name for name in evaluated.runs if name.endswith("FAWA")]
        closed = evaluated.closed(names)
        bases = [base_of(name) for name in names if name not in closed]
        pairs = [_paired(evaluated, f"{base} + FAWA", f"{base} + EMA") for base in bases]
        parts = [worst(pair) for pair in pairs]
        parts += [plus(average(pair), AVERAGING_COST) for pair in pairs]
        estimand = f"FAWA minus EMA: worst class, and average plus {AVERAGING_COST} points"
        tests = [Test(claim="cfa23/C19", estimand=estimand, estimators=parts, note=NOTE, covers=bases)] if bases else []
        return tests, {"cfa23/C19": closed_gate(closed)} if closed else {}


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
    recipe: ClassVar[str]
    claim: ClassVar[str]
    quantity: ClassVar[str]
    metrics: ClassVar[Sequence[Any]]
    full_range: ClassVar[str]
    scales: ClassVar[Mapping[Name, Scale]] = MANY_TRAININGS
    attacks: ClassVar[Mapping[Name, Mapping[str, Spec]]] = ATTACKS

    def covers(self, values: Sequence[float]) -> Sequence[str]:
        """Parts of the claim that the tested values cover: the whole range of the paper, or single values."""
        reached = min(values) <= min(LAMBDAS["full"]) and max(values) >= max(LAMBDAS["full"])
        return (self.full_range,) if reached else tuple(f"{self.full_range}: {value:g} only" for value in values)

    @abstractmethod
    def overrides(self, value: float) -> Mapping[str, Any]:
        """Recipe overrides for a value of the hyper-parameter."""

    def trainings(self, scale: Scale) -> Trainings:
        """The base method, and one training for each value."""
        plain = {name: one for name, one in TRAININGS.items() if name.partition(",")[0] == self.plain}
        values = {
            f"{value:g}": Training(recipe=self.recipe, overrides=self.overrides(value)) for value in LAMBDAS[scale.name]
        }
        return {**plain, **values}

    def run(self, context: Context) -> Findings:
        """Evaluate average and worst class over the hyper-parameter, and the resulting class-wise quantity."""
        values = LAMBDAS[context.scale.name]
        declared = self.trainings(context.scale)
        evaluated = evaluate_methods(
            context, {name: Method(name) for name in declared}, declared, ("best",), self.attacks
        )
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
                (drawing, f"At lambda {DRAWN:g}."),
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

    plain = "AT"
    recipe = "at"
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

    plain = "TRADES"
    recipe = "trades"
    claim = "cfa23/C23"
    full_range = "worst class over lambda_2"
    attacks = PGD_ATTACKS
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
