"""iclr21/T4 and kdd21/E6: Temperature-PGD at every 1/T against PGD, class by class."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from classwise.analysis.ablation import OVERALL, ablation
from classwise.attacks.gradient.ascent import TEMPERATURES
from classwise.auditing.outcomes import Outcomes
from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.iclr21.variants import note as stand_in
from classwise.papers.iclr21.variants import variants
from classwise.papers.kdd21.attacks import DEFENCES, PGD
from classwise.papers.kdd21.temperature import largest_drop, tpgd
from classwise.papers.scales import CIFAR, MANY_TRAININGS, USUAL, Name, Scale, other_data
from classwise.papers.store import Trained
from classwise.papers.tables import estimate_cell
from classwise.report.tables import Row, Table
from classwise.stats.bootstrap import Resampled
from classwise.stats.interval_estimators import IntervalEstimator, minus, negative, plus
from classwise.stats.intervals import Estimate

FAMILY = "T-PGD"
DEER = 4
LITTLE = 1
"""Points of the total to whose loss a model counts as insensitive."""
SMOOTHING = 0.1
"""The usual one; the paper names no number."""


def at_temperatures(bench: Bench, models: Mapping[str, Trained], temperatures: Sequence[float]) -> dict[str, Outcomes]:
    """Models under PGD and under Temperature-PGD at each 1/T, a family of attacks."""
    attacks = {"PGD": bench.pgd(PGD), **{f"{inverse:g}": bench.pgd(tpgd(inverse)) for inverse in temperatures}}
    families = {FAMILY: tuple(f"{inverse:g}" for inverse in temperatures)}
    found = {}
    for name, trained in models.items():
        table = bench.audited(trained, attacks).outcomes
        found[name] = Outcomes(table.frame, dataclasses.replace(table.meta, families=families))
    return found


def resampled(table: Outcomes, attacks: Sequence[str]) -> Resampled:
    """Attacks on the same images: a row for each."""
    return Resampled(np.stack([table.correct(attack) for attack in attacks]), table.labels, table.num_classes)


def dropped_more(tables: Mapping[str, Outcomes], attacks: Sequence[str]) -> list[IntervalEstimator]:
    """Largest drop of the total from the first attack to the others: of each further model minus of the first."""
    first, *others = tables.values()
    return [minus(largest_drop(other, attacks), largest_drop(first, attacks)) for other in others]


COVERS = ("smaller drop than the others", "nearly insensitive")
"""The parts of claim C11 of iclr21."""


class _Temperatures(Experiment):
    """Some models over 1/T."""

    temperatures: ClassVar[Sequence[float]]
    scales: ClassVar[Mapping[Name, Scale]] = USUAL

    @abstractmethod
    def models(self, bench: Bench) -> Mapping[str, Trained]:
        """What is attacked, the model that the others are compared with first."""

    @abstractmethod
    def claims(self, tables: Mapping[str, Outcomes], scale: Scale) -> tuple[list[Test], dict[str, str]]:
        """The tests, and what this scale cannot speak about."""

    def note(self, bench: Bench) -> str:
        """What else to say of the models."""
        del bench
        return ""

    def run(self, bench: Bench) -> Findings:
        """The grid on each model, paired with PGD."""
        tables = at_temperatures(bench, self.models(bench), self.temperatures)
        found = ablation(tables, "PGD", FAMILY)
        overall = found.rows[found.rows["class"] == OVERALL]
        rows = []
        for name in tables:
            mine = overall[overall["model"] == name][["change", "low", "high"]].itertuples(index=False)
            rows.append(Row(name, [estimate_cell(Estimate(*change)) for change in mine]))
        heads = ("model", *(f"1/T = {inverse:g}" for inverse in self.temperatures))
        note = "Small: 95 % intervals. Best 1/T: "
        note += ", ".join(f"{name} {one:g}" for name, one in found.best["inverse_temperature"].items()) + "."
        note = f"{note} {self.note(bench)}".strip()
        tests, beyond = self.claims(tables, bench.scale)
        return Findings(
            tables=(Table("Change of the total from PGD, in points", heads, rows, note),),
            figures=((found.figure(), "All classes; shaded: 95 % intervals."),),
            tests=tests,
            beyond=beyond,
        )


class TemperatureAblation(_Temperatures):
    """iclr21 Table 4: changes of robustness over 1/T, of four defences."""

    item = "iclr21/T4"
    temperatures = (2, 3, 4, 7, 10)

    def models(self, bench: Bench) -> Mapping[str, Trained]:
        """Madry's model first."""
        return variants(bench)

    def note(self, bench: Bench) -> str:
        """What stands in for RST's unlabelled images."""
        return stand_in(bench)

    def claims(self, tables: Mapping[str, Outcomes], scale: Scale) -> tuple[list[Test], dict[str, str]]:
        """C11: Madry's model is the least sensitive; C12: class 4 loses at every 1/T."""
        attacks = ["PGD", *(f"{inverse:g}" for inverse in self.temperatures)]
        _, *others = tables.values()
        estimand = "largest drop of the total over 1/T: TRADES, MART and RST minus Madry's model"
        steep = largest_drop(next(iter(tables.values())), attacks)
        tests = [
            Test(claim="iclr21/C11", estimand=estimand, parts=dropped_more(tables, attacks), covers=COVERS[:1]),
            Test(
                claim="iclr21/C11",
                estimand=f"{LITTLE} point minus the largest drop of Madry's model over 1/T",
                parts=[plus(negative(steep), LITTLE)],
                note=f"'nearly insensitive' is read as: less than {LITTLE} point",
                covers=COVERS[1:],
            ),
        ]
        if scale.data != CIFAR:
            return tests, other_data("iclr21/C12", scale)
        parts = [
            resampled(table, ["PGD", attack]).part(lambda a: a[..., 0, DEER] - a[..., 1, DEER], 100)
            for table in others
            for attack in attacks[1:]
        ]
        return [
            *tests,
            Test(claim="iclr21/C12", estimand="drop of class 4, TRADES, MART and RST, every 1/T", parts=parts),
        ], {}


class TemperatureGrid(_Temperatures):
    """kdd21 section 5: the grid of 1/T, and the best of it for each defence."""

    item = "kdd21/E6"
    temperatures = TEMPERATURES

    def models(self, bench: Bench) -> Mapping[str, Trained]:
        """The defences of kdd21/T3."""
        return {name: bench.trained(recipe) for name, recipe in DEFENCES.items()}

    def claims(self, tables: Mapping[str, Outcomes], scale: Scale) -> tuple[list[Test], dict[str, str]]:
        """C12: the best temperature lowers the total of every defence."""
        del scale
        attacks = ["PGD", *(f"{inverse:g}" for inverse in self.temperatures)]
        parts = [largest_drop(table, attacks) for table in tables.values()]
        estimand = "total under PGD minus that under the best temperature, each defence"
        return [Test(claim="kdd21/C12", estimand=estimand, parts=parts)], {}


class SmoothLabels(_Temperatures):
    """iclr21 section 4, suggested and not done: is a model trained with smooth labels broken by Temperature-PGD?"""

    item = "iclr21/E5"
    temperatures = (2, 5, 10, 50)
    scales: ClassVar[Mapping[Name, Scale]] = MANY_TRAININGS

    def models(self, bench: Bench) -> Mapping[str, Trained]:
        """Adversarial training, and the same on labels that are smoothed."""
        smooth = {"name": "at", "criterion": {"name": "label-smoothing", "smoothing": SMOOTHING}}
        return {"AT": bench.trained("at"), "AT, smooth labels": bench.trained("at", {"objective": smooth})}

    def claims(self, tables: Mapping[str, Outcomes], scale: Scale) -> tuple[list[Test], dict[str, str]]:
        """C20: its total falls by more than that of adversarial training."""
        del scale
        attacks = ["PGD", *(f"{inverse:g}" for inverse in self.temperatures)]
        parts = [largest_drop(tables["AT, smooth labels"], attacks), *dropped_more(tables, attacks)]
        note = f"smoothed by {SMOOTHING:g}, which is ours"
        estimand = "largest drop of the total over 1/T with smooth labels; the same minus that of adversarial training"
        return [Test(claim="iclr21/C20", estimand=estimand, parts=parts, note=note)], {}
