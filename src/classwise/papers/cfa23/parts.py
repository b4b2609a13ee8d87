"""cfa23/T2 and T3: the parts of CFA alone: CCM, CCR and both; FAWA beside EMA."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from classwise.auditing.result import Audit
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
    gated,
    pair_cell,
    worst,
)
from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.scales import MANY_TRAININGS, Name, Scale
from classwise.report.tables import Cell, Row, Table
from classwise.stats.interval_estimators import IntervalEstimator, plus


def ccm(lambda1: float) -> dict[str, Any]:
    """A radius for each class."""
    return {"name": "ccm", "lambda1": lambda1}


def ccr(lambda2: float) -> dict[str, Any]:
    """A beta for each class."""
    return {"name": "ccr", "lambda2": lambda2}


BOTH = "TRADES + CCM + CCR"
LITTLE = 0.5
"""Points of the average that FAWA may cost."""


class _Parts(Experiment):
    """Average and worst class of some methods at their best epoch, attacked."""

    methods: ClassVar[Mapping[str, Method]]
    scales: ClassVar[Mapping[Name, Scale]] = MANY_TRAININGS

    def run(self, bench: Bench) -> Findings:
        """One audit of each method."""
        methods = at_scale(self.methods, bench.scale)
        audits = {name: audit for (name, _), audit in audited(bench, methods, ("best",)).items()}
        printed = {row["method"]: row for row in catalogue.printed_rows(self.item)}
        rows = [
            Row(name, [pair_cell(audit.counts("all")), Cell(f"{printed[name]['avg']:g} / {printed[name]['worst']:g}")])
            for name, audit in audits.items()
        ]
        note = (
            "Small: 95 % intervals for new images. The attack is that of cfa23/T1 at this scale; printed: AutoAttack."
        )
        table = Table(
            "Average / worst class, best epoch, attacked, in percent", ("method", "this run", "printed"), rows, note
        )
        return Findings(tables=(gated(bench, methods, table),), tests=self.claims(audits))

    @abstractmethod
    def claims(self, audits: Mapping[str, Audit]) -> Sequence[Test]:
        """The tests of the table."""


def _gains(audits: Mapping[str, Audit], pairs: Sequence[tuple[str, str]]) -> list[IntervalEstimator]:
    return [metric(both(audits[one], audits[other])) for one, other in pairs for metric in (average, worst)]


class CalibrationAlone(_Parts):
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
        """C16: each part improves average and worst class, and both together most."""
        alone = [(name, name.partition(" + ")[0]) for name in audits if "+" in name]
        together = [(BOTH, name) for name in ("TRADES + CCM", "TRADES + CCR") if BOTH in audits]
        bases = tuple(dict.fromkeys(base for _, base in alone))
        asked = {
            "each method with CCM, CCR or both minus the plain one: average and worst class": (alone, bases),
            "TRADES with both minus TRADES with one of them: average and worst class": (together, ("both together",)),
        }
        return [
            Test(claim="cfa23/C16", estimand=estimand, parts=_gains(audits, pairs), note=NOTE, covers=covers)
            for estimand, (pairs, covers) in asked.items()
            if pairs
        ]


class AveragingAlone(_Parts):
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
        """C19: the worst class gains, the average loses little; the paper has up to 0.3 points."""
        bases = [base for base in BASES["full"] if f"{base} + EMA" in audits]
        pairs = [both(audits[f"{base} + FAWA"], audits[f"{base} + EMA"]) for base in bases]
        parts = [worst(pair) for pair in pairs]
        parts += [plus(average(pair), LITTLE) for pair in pairs]
        estimand = f"FAWA minus EMA: worst class, and average plus {LITTLE} points"
        return [Test(claim="cfa23/C19", estimand=estimand, parts=parts, note=NOTE, covers=bases)]
