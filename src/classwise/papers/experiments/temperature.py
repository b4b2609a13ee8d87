"""Temperature-PGD compared with PGD: kdd21/T3, E6, iclr21/T3, T4, E5."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from classwise.analysis.ablation import OVERALL, ablation
from classwise.attacks.gradient.ascent import TEMPERATURES
from classwise.auditing.outcomes.table import Outcomes
from classwise.papers import catalogue
from classwise.papers.bootstrap import beyond_others
from classwise.papers.claims import Test
from classwise.papers.context import Context, Training, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.estimates import (
    Selected,
    dropped_more,
    largest_drop,
    mean_of_halves,
    resampled,
    select_on_halves,
    strongest,
)
from classwise.papers.experiments.protocol import (
    AT,
    FAMILY,
    HARDEST,
    SETUP_STEP,
    SPHERE_SCALES,
    TABLE_STEP,
    TEMPERATURE_SCALES,
    audit_temperatures,
    defences,
    settings_table,
    temperature_grid,
    train_with_rst,
    unlabelled_note,
    with_rst,
)
from classwise.papers.interval_estimators import averaged, negative, plus
from classwise.papers.scales import CIFAR, Name, Scale, other_data
from classwise.papers.store import Trained
from classwise.papers.tables import Key, class_table, estimate_cell, summary_table
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import ClassCounts, FloatArray
from classwise.stats.intervals import Estimate

CHOSEN_TEMPERATURES: Mapping[str, float] = {"Madry": 2, "TRADES": 5, "MART": 5, "RST": 5}
"""The paper's 1/T for each defence."""
DEER = 4
LITTLE = 1
"""Drop of the total in points below which a model is insensitive."""
SMOOTHING = 0.1
"""The common default; the paper gives no value."""
SELECTED = "selected on one half of the images, evaluated on the other"
"""How the best temperature of claims C13 and C14 of kdd21 is chosen."""
COVERS = ("smaller drop than the others", "nearly insensitive")
"""The parts of claim C11 of iclr21."""


class Temperature(Experiment):
    """kdd21 Table 3: the best temperature of the grid for each defence, compared with PGD."""

    scales: ClassVar[Mapping[Name, Scale]] = TEMPERATURE_SCALES

    def trainings(self, scale: Scale) -> Trainings:
        """The four defences."""
        return defences(scale)

    def run(self, context: Context) -> Findings:
        """Run PGD and the grid on each defence, in the paper's arithmetic; test claims C12, C13 and C14."""
        names = context.test_images.class_names
        attacks = temperature_grid(context)
        models = context.train_all(self.trainings(context.scale))
        audits = {defence: context.audit(one, attacks).outcomes for defence, one in models.items()}
        inverses = [name for name in attacks if name != "PGD"]
        ours: dict[Key, ClassCounts] = {}
        for defence, table in audits.items():
            best = strongest(table, inverses)
            ours[defence, f"1/T = {best}"] = table.counts(best)
        selected = {defence: select_on_halves(table, inverses, "PGD") for defence, table in audits.items()}
        printed_rows = catalogue.printed_rows("kdd21/T3")
        printed: dict[Key, Mapping[str, Any]] = {(row["defence"], f"1/T = {row['inv_T']}"): row for row in printed_rows}
        printed_changes = [f"{row['defence']} {row['d_tot']:+g} at 1/T = {row['inv_T']}" for row in printed_rows]
        tests = [
            Test(
                claim="kdd21/C12",
                estimand="total under PGD minus that under the best temperature, each defence",
                estimators=[largest_drop(table, list(attacks)) for table in audits.values()],
            ),
            Test(
                claim="kdd21/C13",
                covers=("CV",),
                estimand=f"CV under the best temperature minus that under PGD, each defence; {SELECTED}",
                estimators=[averaged([one.variance_change() for one in halves]) for halves in selected.values()],
                unit="%²",
            ),
            Test(
                claim="kdd21/C13",
                covers=("MCD",),
                estimand=f"MCD under the best temperature minus that under PGD, each defence; {SELECTED}",
                estimators=[averaged([one.discrepancy_change() for one in halves]) for halves in selected.values()],
            ),
        ]
        not_tested = {}
        if context.scale.data == CIFAR:
            tests.append(
                Test(
                    claim="kdd21/C14",
                    estimand=f"drop of classes 3 and 4 minus that of the others, each defence; {SELECTED}",
                    estimators=[
                        mean_of_halves(halves, lambda a: beyond_others(_drop(a), HARDEST))
                        for halves in selected.values()
                    ],
                )
            )
        else:
            not_tested = other_data("kdd21/C14", context.scale)
        changes = Table(
            "Change from PGD to the best temperature, in points",
            ("defence", "1/T", "total", "MCD", "CV, %²"),
            [_change_row(defence, halves, tests) for defence, halves in selected.items()],
            "1/T is selected on one half of the images and evaluated on the other; means over both halves. CV is "
            "corrected for its bias. Small print: 95 % confidence intervals. Printed changes of the total: "
            f"{', '.join(printed_changes)}.",
        )
        return Findings(
            tables=(
                changes,
                summary_table("Under the best temperature of all images, in percent", ours, printed, names),
                class_table("By class, in percent", ours, names),
                settings_table(context.scale, self.trainings(context.scale)),
            ),
            tests=tests,
            not_tested=not_tested,
        )


def _drop(accuracy: FloatArray) -> FloatArray:
    return np.asarray(accuracy[..., 1, :] - accuracy[..., 0, :])


def _change_row(defence: str, halves: Sequence[Selected], tests: Sequence[Test]) -> Row:
    changes = (
        mean_of_halves(halves, lambda a: -_drop(a).mean(axis=-1)),
        averaged([one.discrepancy_change() for one in halves]),
        averaged([one.variance_change() for one in halves]),
    )
    cells = [estimate_cell(change(0.05), 1, sign="+", tests=tests) for change in changes]
    return Row(defence, [Cell(" and ".join(dict.fromkeys(one.attack for one in halves))), *cells])


class ChosenTemperatures(Experiment):
    """iclr21 Table 3: change from PGD to Temperature-PGD at the paper's 1/T for each defence."""

    scales: ClassVar[Mapping[Name, Scale]] = TEMPERATURE_SCALES

    def trainings(self, scale: Scale) -> Trainings:
        """The four defences, and the teacher of RST."""
        return with_rst(scale)

    def run(self, context: Context) -> Findings:
        """Use the audits of kdd21/T3 where they exist; test claim C10."""
        names = context.test_images.class_names
        attacks = temperature_grid(context)
        printed = {row["defence"]: row for row in catalogue.printed_rows(self.item)}
        rows, parts = [], []
        for name, trained in train_with_rst(context).items():
            table = context.audit(trained, attacks).outcomes
            pair = resampled(table, [f"{CHOSEN_TEMPERATURES[name]:g}", "PGD"])
            cells = [
                Cell(f"{CHOSEN_TEMPERATURES[name]:g}"),
                estimate_cell(pair.estimate(lambda a: (a[..., 0, :] - a[..., 1, :]).mean(-1))),
            ]
            cells += [Cell(f"{printed[name]['d_tot']:+g}")]
            cells += [
                estimate_cell(pair.estimate(lambda a, c=c: a[..., 0, c] - a[..., 1, c]))  # type: ignore[misc]
                for c in range(len(names))
            ]
            rows.append(Row(name, cells))
            if name != "Madry":
                parts.append(pair.part(lambda a: (a[..., 1, :] - a[..., 0, :]).mean(-1), 100))
                if context.scale.data == CIFAR:
                    parts.append(pair.part(lambda a: a[..., 1, DEER] - a[..., 0, DEER], 100))
        heads = ("defence", "1/T", "total", "printed", *names)
        caption = "Change from PGD to Temperature-PGD, in points"
        whole = context.scale.data == CIFAR
        test = Test(
            claim="iclr21/C10",
            covers=("total", "class 4") if whole else ("total",),
            estimand=f"drop of the total{' and of class 4' if whole else ''}, TRADES, MART and RST",
            estimators=parts,
            note="" if whole else "without the part of the claim about a class of CIFAR-10",
        )
        return Findings(
            tables=(
                Table(caption, heads, rows, f"Small print: 95 % confidence intervals. {unlabelled_note(context)}"),
                settings_table(context.scale, self.trainings(context.scale)),
            ),
            tests=(test,),
        )


class _Temperatures(Experiment):
    """Robustness of several models over 1/T."""

    temperatures: ClassVar[Sequence[float]]
    step: ClassVar[float] = TABLE_STEP
    scales: ClassVar[Mapping[Name, Scale]] = TEMPERATURE_SCALES

    def models(self, context: Context) -> Mapping[str, Trained]:
        """Train the models; the first is the one that the others are compared with."""
        return context.train_all(self.trainings(context.scale))

    @abstractmethod
    def claims(self, tables: Mapping[str, Outcomes], scale: Scale) -> tuple[list[Test], dict[str, str]]:
        """Tests of the claims, and the claims that this scale cannot test with the reasons."""

    def note(self, context: Context) -> str:
        """Further note on the models."""
        del context
        return ""

    def run(self, context: Context) -> Findings:
        """Run the grid on each model, paired with PGD."""
        tables = audit_temperatures(context, self.models(context), self.temperatures, self.step)
        result = ablation(tables, "PGD", FAMILY)
        overall = result.rows[result.rows["class"] == OVERALL]
        rows = []
        for name in tables:
            changes = overall[overall["model"] == name][["change", "low", "high"]].itertuples(index=False)
            rows.append(Row(name, [estimate_cell(Estimate(*change)) for change in changes]))
        heads = ("model", *(f"1/T = {inverse:g}" for inverse in self.temperatures))
        note = "Small print: 95 % confidence intervals. Best 1/T: "
        note += ", ".join(f"{name} {one:g}" for name, one in result.best["inverse_temperature"].items()) + "."
        note = f"{note} {self.note(context)}".strip()
        tests, not_tested = self.claims(tables, context.scale)
        return Findings(
            tables=(Table("Change of the total from PGD, in points", heads, rows, note),),
            figures=((result.figure(), "All classes; shaded: 95 % confidence intervals."),),
            tests=tests,
            not_tested=not_tested,
        )


class TemperatureAblation(_Temperatures):
    """iclr21 Table 4: changes of robustness over 1/T for four defences."""

    temperatures = (2, 3, 4, 7, 10)

    def trainings(self, scale: Scale) -> Trainings:
        """The four defences, Madry's model first, and the teacher of RST."""
        return with_rst(scale)

    def models(self, context: Context) -> Mapping[str, Trained]:
        """Train the defences, and leave out the teacher."""
        return train_with_rst(context)

    def note(self, context: Context) -> str:
        """Note on the source of the unlabelled images of RST."""
        return unlabelled_note(context)

    def claims(self, tables: Mapping[str, Outcomes], scale: Scale) -> tuple[list[Test], dict[str, str]]:
        """Test C11 (Madry's model is the least sensitive) and C12 (class 4 loses at every 1/T)."""
        attacks = ["PGD", *(f"{inverse:g}" for inverse in self.temperatures)]
        _, *others = tables.values()
        estimand = "largest drop of the total over 1/T: TRADES, MART and RST minus Madry's model"
        steep = largest_drop(next(iter(tables.values())), attacks)
        tests = [
            Test(claim="iclr21/C11", estimand=estimand, estimators=dropped_more(tables, attacks), covers=COVERS[:1]),
            Test(
                claim="iclr21/C11",
                estimand=f"{LITTLE} point minus the largest drop of Madry's model over 1/T",
                estimators=[plus(negative(steep), LITTLE)],
                note=f"'nearly insensitive' is interpreted as less than {LITTLE} point",
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
            Test(claim="iclr21/C12", estimand="drop of class 4, TRADES, MART and RST, every 1/T", estimators=parts),
        ], {}


class TemperatureGrid(_Temperatures):
    """kdd21 section 5: the grid of 1/T and its best value for each defence."""

    temperatures = TEMPERATURES

    def trainings(self, scale: Scale) -> Trainings:
        """The defences of kdd21/T3."""
        return defences(scale)

    def claims(self, tables: Mapping[str, Outcomes], scale: Scale) -> tuple[list[Test], dict[str, str]]:
        """Test C12: the best temperature lowers the total of every defence."""
        del scale
        attacks = ["PGD", *(f"{inverse:g}" for inverse in self.temperatures)]
        parts = [largest_drop(table, attacks) for table in tables.values()]
        estimand = "total under PGD minus that under the best temperature, each defence"
        return [Test(claim="kdd21/C12", estimand=estimand, estimators=parts)], {}


class SmoothLabels(_Temperatures):
    """iclr21 section 4, suggested only: is label smoothing vulnerable to Temperature-PGD?"""

    temperatures = (2, 5, 10, 50)
    step = SETUP_STEP
    scales: ClassVar[Mapping[Name, Scale]] = SPHERE_SCALES

    def trainings(self, scale: Scale) -> Trainings:
        """Adversarial training without and with label smoothing."""
        del scale
        smooth = {"name": "at", "criterion": {"name": "label-smoothing", "smoothing": SMOOTHING}}
        return {"AT": AT, "AT, smooth labels": Training(recipe="at", overrides={"objective": smooth})}

    def claims(self, tables: Mapping[str, Outcomes], scale: Scale) -> tuple[list[Test], dict[str, str]]:
        """Test C20: its total drops more than that of adversarial training."""
        del scale
        attacks = ["PGD", *(f"{inverse:g}" for inverse in self.temperatures)]
        parts = [largest_drop(tables["AT, smooth labels"], attacks), *dropped_more(tables, attacks)]
        note = f"label smoothing {SMOOTHING:g}; the paper gives no value"
        estimand = "largest drop of the total over 1/T with smooth labels; the same minus that of adversarial training"
        return [Test(claim="iclr21/C20", estimand=estimand, estimators=parts, note=note)], {}
