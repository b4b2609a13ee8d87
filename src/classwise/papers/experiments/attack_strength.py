"""Drop of vulnerable classes under stronger attacks: kdd21/E4, E5 and iclr21/E6."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from classwise.analysis.drop import drop
from classwise.attacks.suites import SUITES
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.config import Spec, configurable
from classwise.core.errors import ClasswiseError
from classwise.papers import catalogue
from classwise.papers.claims import Test
from classwise.papers.context import Context, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.defences import attacked_trainings, audit_defences
from classwise.papers.experiments.protocol import DEFENCES, SCALES, defences, pgd
from classwise.papers.interval_estimators import interval
from classwise.papers.scales import Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.intervals import Estimate

VULNERABLE, ROBUST = (2, 3, 4, 5), (0, 1, 6, 7, 8, 9)
"""The classes of CIFAR-10 below and above the total under PGD, for all four defences of the paper."""
SUITE: Mapping[Name, Mapping[str, Spec]] = {
    "smoke": {"apgd-ce": "apgd-ce:steps=5", "apgd-dlr": "apgd-dlr:steps=5"},
    "reduced": {spec: spec for spec in SUITES["fast"]["standard"]},
    "full": {spec: spec for spec in SUITES["autoattack"]["standard"]},
}
"""AutoAttack at full scale; at reduced scale the suite ``fast``, which has no black-box attack."""


@configurable
class Drops(Experiment):
    """Drop from a weaker to a stronger attack: vulnerable classes minus the others.

    Attributes:
        claim: the claim that is tested.
        weak: name of the weaker attack.
        strong: name of the stronger attack.
        covers: the parts of the claim that are tested.
    """

    claim: str
    weak: str
    strong: str
    covers: tuple[str, ...] = ()

    @abstractmethod
    def tables(self, context: Context) -> Mapping[str, Outcomes]:
        """Outcomes of both attacks on the same images, by model."""

    def printed(self) -> Mapping[str, float]:
        """Printed differences in points, by model; empty if the paper prints none."""
        return {}

    def run(self, context: Context) -> Findings:
        """Measure the drop of every model, and test the claim."""
        drops, rows, not_tested = dict[str, Estimate](), [], {}
        figures = []
        printed = self.printed()
        for name, table in self.tables(context).items():
            try:
                class_drop = drop(table, self.weak, self.strong)
            except ClasswiseError as error:
                not_tested[self.claim] = f"{name}: {error}"
                drops[name] = Estimate(math.nan, math.nan, math.nan)
                continue
            drops[name] = class_drop.difference
            figures.append((class_drop.figure(), f"{name}."))
        estimand = f"drop from {self.weak} to {self.strong}: vulnerable classes minus the others, each defence"
        parts = [interval(one, 100) for one in drops.values()]
        tests = [] if not_tested else [Test(claim=self.claim, estimand=estimand, estimators=parts, covers=self.covers)]
        for name, one in drops.items():
            printed_cells = [Cell(f"{printed[name]:+z.1f}")] if name in printed else []
            rows.append(Row(name, [estimate_cell(one, sign="+", tests=tests), *printed_cells]))
        shown = Table(
            f"Drop from {self.weak} to {self.strong}: vulnerable classes minus the others, in points",
            ("defence", "this run", *(["printed (classes 2-5)"] if printed else [])),
            rows,
            f"Small print: 95 % confidence intervals. The vulnerable classes under {self.weak} are selected on "
            "one half of "
            "the images and evaluated on the other.",
        )
        return Findings(tables=(shown,), figures=figures, tests=tests, not_tested=not_tested)


class DropOfDefences(Drops):
    """The four defences of kdd21 Table 1."""

    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def trainings(self, scale: Scale) -> Trainings:
        """The models of Table 1."""
        return attacked_trainings(scale)

    def tables(self, context: Context) -> Mapping[str, Outcomes]:
        """Outcomes of both attacks from the audits of Table 1."""
        audits = audit_defences(context, self.trainings(context.scale))
        return {name: one.outcomes(self.weak, self.strong) for name, one in audits.items()}

    def printed(self) -> Mapping[str, float]:
        """Differences computed from the printed rows of Table 1."""
        rows = {
            (row["defence"], row["attack"]): np.array(row["per_class"]) for row in catalogue.printed_rows("kdd21/T1")
        }
        drops = {name: rows[name, self.weak] - rows[name, self.strong] for name in DEFENCES}
        return {name: float(one[list(VULNERABLE)].mean() - one[list(ROBUST)].mean()) for name, one in drops.items()}


class HiddenGradients(Drops):
    """iclr21 Appendix F: is the gap between PGD and a stronger attack larger in vulnerable classes?"""

    scales: ClassVar[Mapping[Name, Scale]] = {
        name: replace(scale, about=f"{scale.about}; PGD against {', '.join(SUITE[name])}")
        for name, scale in SCALES.items()
    }

    def trainings(self, scale: Scale) -> Trainings:
        """TRADES and MART."""
        return {name: defences(scale)[name] for name in ("TRADES", "MART")}

    def tables(self, context: Context) -> Mapping[str, Outcomes]:
        """Outcomes of PGD and of a suite on the same images, without a cascade."""
        attacks = {"PGD": pgd(context), **SUITE[context.scale.name]}
        models = context.train_all(self.trainings(context.scale))
        return {name: context.audit(one, attacks, early_stop=True).outcomes for name, one in models.items()}
