"""Temperature-PGD: defences, hypersphere embedding, variance of the confidences, and confidences along an attack."""

from __future__ import annotations

import dataclasses
import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from classwise.analysis.ablation import OVERALL, ablation
from classwise.analysis.sensitivity import sensitivity
from classwise.analysis.smoothness import Smoothness, smoothness
from classwise.analysis.steps import Steps, steps_of
from classwise.attacks.gradient.ascent import TEMPERATURES
from classwise.auditing.outcomes.table import Outcomes
from classwise.core.config import configurable
from classwise.core.precision import EXACT
from classwise.papers import catalogue
from classwise.papers.claims import CORRELATION, Test
from classwise.papers.experiment import Context, Evaluation, Experiment, Findings, Training, Trainings, pgd_of
from classwise.papers.experiments.protocol import (
    AT,
    DEFENCES,
    FAMILY,
    HARDEST,
    HYPERSPHERE,
    SCALES,
    SETUP_STEP,
    SPHERE_SCALES,
    TABLE_STEP,
    TEMPERATURE_SCALES,
    Selected,
    audit_temperatures,
    choose_image,
    defences,
    dropped_more,
    largest_drop,
    mean,
    mean_of_halves,
    proportion,
    resampled,
    select_on_halves,
    settings_table,
    strongest,
    temperature_grid,
    train_with_rst,
    under_pgd,
    unlabelled_note,
    with_rst,
)
from classwise.papers.interval_estimators import (
    IntervalEstimator,
    Resampled,
    alike,
    averaged,
    beyond_others,
    difference,
    greatest,
    interval,
    minus,
    negative,
    plus,
)
from classwise.papers.scales import CIFAR, Name, Scale
from classwise.papers.tables import Key, class_table, elsewhere, estimate_cell, summary_table
from classwise.reporting import formatting
from classwise.reporting.figures.lines import Series, line_chart
from classwise.reporting.formatting import NONE
from classwise.reporting.palette import SERIES
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray
from classwise.stats.intervals import Estimate
from classwise.training.folder import Run

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


class _Grid(Experiment):
    """An experiment that audits each model under PGD and Temperature-PGD."""

    def grid(self, scale: Scale) -> Sequence[float]:
        """The 1/T of the audits; those of the paper's grid by default."""
        del scale
        return TEMPERATURES

    def evaluations(self, scale: Scale, name: str, training: Training) -> Sequence[Evaluation]:
        """PGD and Temperature-PGD at each 1/T."""
        del name, training
        (spec,) = pgd_of(scale).values()
        return [Evaluation(attacks=dict.fromkeys(("PGD", *map(str, self.grid(scale))), spec))]


class Temperature(_Grid, scales=TEMPERATURE_SCALES, trainings=defences):
    """kdd21 Table 3: the best temperature of the grid for each defence, compared with PGD."""

    def run(self, context: Context) -> Findings:
        """Run PGD and the grid on each defence, in the paper's arithmetic; test claims C12, C13 and C14."""
        names = context.test_images.class_names
        attacks = temperature_grid(context)
        models = context.train_all(self.trainings(context.scale))
        audits = {defence: context.audit(model, attacks).outcomes for defence, model in models.items()}
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
                estimators=[averaged([half.variance_change() for half in halves]) for halves in selected.values()],
                unit="%²",
            ),
            Test(
                claim="kdd21/C13",
                covers=("MCD",),
                estimand=f"MCD under the best temperature minus that under PGD, each defence; {SELECTED}",
                estimators=[averaged([half.discrepancy_change() for half in halves]) for halves in selected.values()],
            ),
            Test(
                claim="kdd21/C14",
                estimand=f"drop of classes 3 and 4 minus that of the others, each defence; {SELECTED}",
                estimators=[
                    mean_of_halves(halves, lambda a: beyond_others(_drop(a), HARDEST)) for halves in selected.values()
                ],
                cifar10=True,
            ),
        ]
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
        )


def _drop(accuracy: FloatArray) -> FloatArray:
    return np.asarray(accuracy[..., 1, :] - accuracy[..., 0, :])


def _change_row(defence: str, halves: Sequence[Selected], tests: Sequence[Test]) -> Row:
    changes = (
        mean_of_halves(halves, lambda a: -_drop(a).mean(axis=-1)),
        averaged([half.discrepancy_change() for half in halves]),
        averaged([half.variance_change() for half in halves]),
    )
    cells = [estimate_cell(change(0.05), 1, sign="+", tests=tests) for change in changes]
    return Row(defence, [Cell(" and ".join(dict.fromkeys(half.attack for half in halves))), *cells])


class ChosenTemperatures(_Grid, scales=TEMPERATURE_SCALES, trainings=with_rst):
    """iclr21 Table 3: change from PGD to Temperature-PGD at the paper's 1/T for each defence."""

    def run(self, context: Context) -> Findings:
        """Use the audits of kdd21/T3 where they exist; test claim C10."""
        names = context.test_images.class_names
        attacks = temperature_grid(context)
        printed = {row["defence"]: row for row in catalogue.printed_rows(self.item)}
        rows, parts = [], []
        for name, trained in train_with_rst(context).items():
            pair = resampled(context.audit(trained, attacks).outcomes, [f"{CHOSEN_TEMPERATURES[name]:g}", "PGD"])
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


class _Temperatures(_Grid, scales=TEMPERATURE_SCALES):
    """Robustness of several models over 1/T."""

    temperatures: ClassVar[Sequence[float]]
    step: ClassVar[float] = TABLE_STEP

    def grid(self, scale: Scale) -> Sequence[float]:
        """The temperatures."""
        del scale
        return self.temperatures

    def models(self, context: Context) -> Mapping[str, Run]:
        """Train the models; the first is the one that the others are compared with."""
        return context.train_all(self.trainings(context.scale))

    @abstractmethod
    def claims(self, tables: Mapping[str, Outcomes], attacks: Sequence[str]) -> list[Test]:
        """Tests of the claims, from the tables of each model and the names of PGD and of the attacks of the grid."""

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
        best = ", ".join(f"{name} {inverse:g}" for name, inverse in result.best["inverse_temperature"].items())
        note = f"Small print: 95 % confidence intervals. Best 1/T: {best}. {self.note(context)}".strip()
        return Findings(
            tables=(Table("Change of the total from PGD, in points", heads, rows, note),),
            figures=((result.figure(), "All classes; shaded: 95 % confidence intervals."),),
            tests=self.claims(tables, ["PGD", *(f"{inverse:g}" for inverse in self.temperatures)]),
        )


class TemperatureAblation(_Temperatures, trainings=with_rst):
    """iclr21 Table 4: changes of robustness over 1/T for four defences."""

    temperatures = (2, 3, 4, 7, 10)

    def models(self, context: Context) -> Mapping[str, Run]:
        """Train the defences, and leave out the teacher."""
        return train_with_rst(context)

    def note(self, context: Context) -> str:
        """Note on the source of the unlabelled images of RST."""
        return unlabelled_note(context)

    def claims(self, tables: Mapping[str, Outcomes], attacks: Sequence[str]) -> list[Test]:
        """Test C11 (Madry's model is the least sensitive) and C12 (class 4 loses at every 1/T)."""
        _, *others = tables.values()
        estimand = "largest drop of the total over 1/T: TRADES, MART and RST minus Madry's model"
        return [
            Test(claim="iclr21/C11", estimand=estimand, estimators=dropped_more(tables, attacks), covers=COVERS[:1]),
            Test(
                claim="iclr21/C11",
                estimand=f"{LITTLE} point minus the largest drop of Madry's model over 1/T",
                estimators=[plus(negative(largest_drop(next(iter(tables.values())), attacks)), LITTLE)],
                note=f"'nearly insensitive' is interpreted as less than {LITTLE} point",
                covers=COVERS[1:],
            ),
            Test(
                claim="iclr21/C12",
                estimand="drop of class 4, TRADES, MART and RST, every 1/T",
                estimators=[
                    resampled(table, ["PGD", attack]).part(lambda a: a[..., 0, DEER] - a[..., 1, DEER], 100)
                    for table in others
                    for attack in attacks[1:]
                ],
                cifar10=True,
            ),
        ]


class TemperatureGrid(_Temperatures, trainings=defences):
    """kdd21 section 5: the grid of 1/T and its best value for each defence."""

    temperatures = TEMPERATURES

    def claims(self, tables: Mapping[str, Outcomes], attacks: Sequence[str]) -> list[Test]:
        """Test C12: the best temperature lowers the total of every defence."""
        parts = [largest_drop(table, attacks) for table in tables.values()]
        estimand = "total under PGD minus that under the best temperature, each defence"
        return [Test(claim="kdd21/C12", estimand=estimand, estimators=parts)]


class SmoothLabels(_Temperatures, scales=SPHERE_SCALES):
    """iclr21 section 4, suggested only: is label smoothing vulnerable to Temperature-PGD?"""

    temperatures = (2, 5, 10, 50)
    step = SETUP_STEP

    def trainings(self, scale: Scale) -> Trainings:
        """Adversarial training without and with label smoothing."""
        del scale
        smooth = {"name": "at", "criterion": {"name": "label-smoothing", "smoothing": SMOOTHING}}
        return {"AT": AT, "AT, smooth labels": Training(recipe="at", overrides={"objective": smooth})}

    def claims(self, tables: Mapping[str, Outcomes], attacks: Sequence[str]) -> list[Test]:
        """Test C20: its total drops more than that of adversarial training."""
        parts = [largest_drop(tables["AT, smooth labels"], attacks), *dropped_more(tables, attacks)]
        note = f"label smoothing {SMOOTHING:g}; the paper gives no value"
        estimand = "largest drop of the total over 1/T with smooth labels; the same minus that of adversarial training"
        return [Test(claim="iclr21/C20", estimand=estimand, estimators=parts, note=note)]


LARGE: Mapping[Name, Sequence[float]] = {
    "smoke": (1, 10, 50),
    "reduced": (1, 5, 10, 50, 75, 100, 125, 150, 200, 300),
    "full": (1, 5, 10, 50, 75, 100, 125, 150, 200, 300),
}


class Hypersphere(Experiment, scales=SPHERE_SCALES, trainings=HYPERSPHERE):
    """iclr21 Table 5: accuracy of adversarial training, HE, HE-LIS and HE-CMP, clean and under PGD-20."""

    def run(self, context: Context) -> Findings:
        """Tabulate the accuracies; test claim C18: a growing scale raises the robust accuracy under PGD."""
        tables = {name: under_pgd(context, model).outcomes for name, model in context.train_all(HYPERSPHERE).items()}
        printed = {row["defence"]: row for row in catalogue.printed_rows("iclr21/T5")}
        rows = []
        for name, table in tables.items():
            cells = []
            for attack, key in (("clean", "nat"), ("PGD", "adv")):
                one = metric_intervals.overall(table.counts(attack))
                cells += [Cell(formatting.bare_percent(one.value), formatting.span(one.low, one.high))]
                cells += [Cell(f"{printed[name][key]:g}")]
            rows.append(Row(name, cells))
        counts: dict[Key, ClassCounts] = {
            (name, attack): table.counts(attack) for name, table in tables.items() for attack in ("clean", "PGD")
        }
        first = tables["HE"]
        paired = [
            Resampled(np.stack([tables[name].correct("PGD"), first.correct("PGD")]), first.labels, first.num_classes)
            for name in ("HE-LIS", "HE-CMP")
        ]
        note = "one training of each model"
        tests = [
            Test(
                claim="iclr21/C18",
                covers=("total",),
                estimand="total under PGD: HE-LIS and HE-CMP minus HE",
                estimators=[pair.part(lambda a: _gains(a).mean(axis=-1), 100) for pair in paired],
                note=note,
            ),
            Test(
                claim="iclr21/C18",
                covers=("classes 3 and 4",),
                estimand="the same difference: gain of classes 3 and 4 minus that of the others",
                estimators=[pair.part(lambda a: beyond_others(_gains(a), HARDEST), 100) for pair in paired],
                note=note,
                cifar10=True,
            ),
        ]
        heads = ("model", "natural", "printed", "PGD-20", "printed")
        return Findings(
            tables=(
                Table("Totals in percent", heads, rows, "Small print: 95 % confidence intervals."),
                class_table("By class, in percent", counts, first.class_names),
                settings_table(context.scale, HYPERSPHERE),
            ),
            tests=tests,
        )


def _gains(accuracy: FloatArray) -> FloatArray:
    """First row minus second row, by class: (..., 2, C) to (..., C)."""
    return np.asarray(accuracy[..., 0, :] - accuracy[..., 1, :])


class LargeTemperatures(_Grid, scales=SPHERE_SCALES, trainings=HYPERSPHERE):
    """iclr21 Table 6: totals of the models of Table 5 under Temperature-PGD, 1/T from 1 to 300."""

    def grid(self, scale: Scale) -> Sequence[float]:
        """The 1/T of the table."""
        return LARGE[scale.name]

    def run(self, context: Context) -> Findings:
        """Test claims C17 and C19: the gain of HE and its schedules under PGD vanishes at a large 1/T."""
        temperatures = LARGE[context.scale.name]
        tables = audit_temperatures(context, context.train_all(HYPERSPHERE), temperatures, SETUP_STEP)
        attacks = [f"{inverse:g}" for inverse in temperatures]
        columns = list(catalogue.printed("iclr21/T6")["columns_inv_T"])
        printed = {
            row["defence"]: dict(zip(columns, row["tot"], strict=True)) for row in catalogue.printed_rows(self.item)
        }
        rows, lines = [], []
        for (name, table), colour in zip(tables.items(), SERIES, strict=False):
            totals = [metric_intervals.overall(table.counts(attack)) for attack in attacks]
            cells = [
                Cell(formatting.bare_percent(total.value), formatting.span(total.low, total.high)) for total in totals
            ]
            rows.append(Row(name, cells))
            rows.append(Row(f"{name}, printed", [Cell(f"{printed[name][inverse]:g}") for inverse in temperatures]))
            lines.append(Series(name, temperatures, [total.value for total in totals], f"stroke-{colour}"))
        first = tables["HE"]
        stack = np.stack([table.correct(attack) for table in tables.values() for attack in attacks])
        images = Resampled(stack, first.labels, first.num_classes)

        # Rows of each model. The minimum of one is below the minimum of another if it is below each of its rows.
        _, he, *others = (range(place * len(attacks), (place + 1) * len(attacks)) for place in range(len(tables)))
        return Findings(
            tables=(
                Table(
                    "Totals under Temperature-PGD, in percent",
                    ("model", *(f"1/T = {inverse:g}" for inverse in temperatures)),
                    rows,
                    "Small print: 95 % confidence intervals. The paper's arithmetic: at a large 1/T most "
                    "gradients are zero.",
                ),
                settings_table(context.scale, HYPERSPHERE),
            ),
            figures=((line_chart("Total under Temperature-PGD, in percent", lines, "1/T"), "One line per model."),),
            tests=(
                Test(
                    claim="iclr21/C17",
                    estimand="total of HE at 1/T = 1 minus its minimum over 1/T",
                    estimators=[greatest([images.total(he[0], row) for row in he[1:]])],
                ),
                Test(
                    claim="iclr21/C19",
                    estimand="minimum total of HE, plus 1 point, minus that of HE-LIS and of HE-CMP",
                    estimators=[
                        plus(greatest([images.total(own, row) for row in other]), 1) for other in others for own in he
                    ],
                    note="'vanishes' is interpreted as a remaining gain of less than 1 point",
                ),
            ),
        )


TRANSPORTATION, ANIMALS = (0, 1, 8, 9), (2, 3, 4, 5, 6, 7)
"""The superclasses of CIFAR-10 (kdd21 Table 2)."""
LOWEST = (4, 3)
"""The classes with the lowest CVC in the paper, lowest first."""
OF_CVC = ("animals and transportation", "classes 3 and 4")
"""The parts of claim C16 of kdd21."""
PLAIN, STEEP, SMOOTH = "PGD", "Madry", "HE"
"""The plain attack; the defences whose confidences the paper finds steepest and smoothest."""


@configurable
class Confidences(Experiment, scales=SCALES):
    """CVC of each class on images attacked by PGD; the papers do not specify the images.

    Attributes:
        defences: names of the defences.
    """

    defences: tuple[str, ...] = ("Madry", "TRADES", "MART", "HE")

    step: ClassVar[float] = TABLE_STEP

    def trainings(self, scale: Scale) -> Trainings:
        """The models of the figure."""
        return {name: defences(scale)[name] for name in self.defences}

    def run(self, context: Context) -> Findings:
        """Draw a bar for each class and model, and test the claims of the figure."""
        trained = context.train_all(self.trainings(context.scale))
        tables = {name: under_pgd(context, model, step=self.step).outcomes for name, model in trained.items()}
        variances = smoothness(tables, "PGD")
        table = Table(
            "Mean CVC over the classes",
            ("model", "CVC, thousandths"),
            [Row(name, [estimate_cell(variances.mean(name), 1000, 2)]) for name in tables],
            "Small print: 95 % confidence intervals for new images.",
        )
        caption = "Smooth confidences have a low CVC; the lowest class of each model is highlighted."
        return Findings(tables=(table,), figures=((variances.figure(), caption),), tests=self.claims(variances, tables))

    def claims(self, variances: Smoothness, tables: Mapping[str, Outcomes]) -> list[Test]:
        """Test C13 of iclr21: of two models, the more robust one under PGD is smoother."""
        return [_stronger_is_smoother(variances, tables)]


def _stronger_is_smoother(variances: Smoothness, tables: Mapping[str, Outcomes]) -> Test:
    """Test that in each pair of models, the one with the larger total under PGD has the lower mean CVC."""
    parts = []
    for first, second in itertools.combinations(tables, 2):
        rows = np.stack([tables[name].correct("PGD") for name in (first, second)])
        total = Resampled(rows, tables[first].labels, tables[first].num_classes).total()
        parts.append(alike(total, interval(difference(variances.mean(second), variances.mean(first)), 1000)))
    estimand = "mean CVC of the model that is weaker under PGD minus that of the stronger one, each pair of models"
    return Test(
        claim="iclr21/C13", estimand=estimand, estimators=parts, unit="thousandths", covers=("stronger models",)
    )


class ConfidencesOfDefences(Confidences):
    """kdd21 Figure 3a: CVC of four defences."""

    def claims(self, variances: Smoothness, tables: Mapping[str, Outcomes]) -> list[Test]:
        """Test C17 (HE is the smoothest) and C16 (animals are smoother than transportation)."""
        others = [name for name in tables if name != "HE"]

        def larger(name: str, above: Sequence[int], below: Sequence[int]) -> IntervalEstimator:
            return interval(difference(variances.mean(name, above), variances.mean(name, below)), 1000)

        return [
            Test(
                claim="kdd21/C17",
                estimand="mean CVC of each other defence minus that of HE",
                estimators=[
                    interval(difference(variances.mean(other), variances.mean(SMOOTH)), 1000) for other in others
                ],
                unit="thousandths",
            ),
            Test(
                claim="kdd21/C16",
                covers=OF_CVC[:1],
                estimand="mean CVC of transportation minus that of animals, each defence",
                estimators=[larger(name, TRANSPORTATION, ANIMALS) for name in tables],
                unit="thousandths",
                cifar10=True,
            ),
            Test(
                claim="kdd21/C16",
                covers=OF_CVC[1:],
                estimand="CVC of each other class minus that of class 4, and of each class but 3 and 4 minus that of "
                "class 3, each defence",
                estimators=[
                    larger(name, (above,), (label,))
                    for name in tables
                    for place, label in enumerate(LOWEST)
                    for above in (*TRANSPORTATION, *ANIMALS)
                    if above not in LOWEST[: place + 1]
                ],
                unit="thousandths",
                cifar10=True,
            ),
        ]


class ConfidencesOnTheSphere(Confidences, scales=SPHERE_SCALES, trainings=HYPERSPHERE):
    """iclr21 Figure 5e: CVC of hypersphere embedding, its two schedules, and adversarial training."""

    step: ClassVar[float] = SETUP_STEP


class SmoothVulnerableSensitive(_Grid, scales=TEMPERATURE_SCALES, trainings=defences):
    """kdd21 section 5: are smooth classes the vulnerable ones, and the ones sensitive to the temperature?"""

    def run(self, context: Context) -> Findings:
        """Compute rank correlations over the classes of each defence; test claims C29 and C15."""
        trained = context.train_all(self.trainings(context.scale))
        tables = {
            defence: context.audit(model, temperature_grid(context)).outcomes for defence, model in trained.items()
        }
        inverses = [f"{inverse:g}" for inverse in TEMPERATURES]
        best = {defence: strongest(table, inverses) for defence, table in tables.items()}
        drops = {defence: largest_drop(table, [PLAIN, *inverses]) for defence, table in tables.items()}
        sensitivities = {defence: sensitivity(table, PLAIN, best[defence]) for defence, table in tables.items()}
        means = smoothness(tables, PLAIN)
        heads = (
            "defence",
            "CVC and robustness",
            "CVC and drop",
            "mean CVC, thousandths",
            "best 1/T",
            "largest drop of the total, points",
        )
        note = (
            "Spearman's correlation over the classes; CVC on images attacked by PGD. "
            "Small print: 95 % confidence intervals for new images; that of the largest drop covers every 1/T."
        )
        others = [defence for defence in tables if defence != SMOOTH]
        order = [(STEEP, other) for other in others if other != STEEP] + [(other, SMOOTH) for other in others]
        tests = [
            Test(
                claim="kdd21/C29",
                estimand="Spearman's correlation of CVC and robustness over the classes, each defence",
                estimators=[interval(result.vulnerable) for result in sensitivities.values()],
                unit="",
                limits=CORRELATION,
            ),
            Test(
                claim="kdd21/C15",
                covers=("HE reacts most",),
                estimand=f"largest drop of the total over 1/T: {SMOOTH} minus each other defence",
                estimators=[minus(drops[SMOOTH], drops[other]) for other in others],
            ),
            Test(
                claim="kdd21/C15",
                covers=("Madry hardly reacts",),
                estimand=f"{LITTLE} point minus the largest drop of {STEEP}",
                estimators=[plus(negative(drops[STEEP]), LITTLE)],
                note=f"'hardly reacts' is interpreted as less than {LITTLE} point",
            ),
            Test(
                claim="kdd21/C15",
                covers=("order of the confidences",),
                estimand=f"mean CVC: {STEEP} minus TRADES and MART, each of the three minus {SMOOTH}",
                estimators=[
                    interval(difference(means.mean(first), means.mean(second)), 1000) for first, second in order
                ],
                unit="thousandths",
            ),
        ]
        rows = []
        for defence, result in sensitivities.items():
            both = [estimate_cell(link, 1, 2, tests=tests) for link in (result.vulnerable, result.sensitive)]
            cells = [
                *both,
                estimate_cell(means.mean(defence), 1000, 2),
                Cell(best[defence]),
                estimate_cell(drops[defence](0.05), 1, tests=[elsewhere("kdd21/C12", drops[defence])]),
            ]
            rows.append(Row(defence, cells))
        return Findings(
            tables=(Table("CVC, robustness and sensitivity to the temperature", heads, rows, note),),
            figures=[
                (result.figure(), f"{defence}; 1/T = {best[defence]}.") for defence, result in sensitivities.items()
            ],
            tests=tests,
        )


class TrajectoryLine(NamedTuple):
    """A row of panels: a defence and an attack of the grid of temperatures."""

    defence: str
    inverse: float = 1

    @property
    def attack(self) -> str:
        """Name of the attack in the audit of the grid."""
        return PLAIN if self.inverse == 1 else f"{self.inverse:g}"

    @property
    def title(self) -> str:
        """Title of the row in the figure."""
        return f"{self.defence}, 1/T = {self.inverse:g}"


@configurable
class AlongAttack(_Grid, scales=TEMPERATURE_SCALES):
    """Two traces of one image, and the frequency of the same pattern among the test images.

    The pattern is that the image is robust in the first line and misclassified in the second.

    Attributes:
        lines: the two traces.
        number: index of the image of the paper.
        situation: description of the pattern.
        claim: claim that more images show the pattern than its converse.
        estimand: description of the difference.
        note: remark shown with the verdict.
    """

    lines: tuple[TrajectoryLine, TrajectoryLine]
    number: int
    situation: str
    claim: str
    estimand: str
    note: str = ""

    def trainings(self, scale: Scale) -> Trainings:
        """The defences of the lines, from the tables of defences."""
        return {line.defence: defences(scale)[line.defence] for line in self.lines}

    def run(self, context: Context) -> Findings:
        """Audit the grid of temperatures, then trace the attacks on a single image."""
        attacks = temperature_grid(context)
        trained = context.train_all(self.trainings(context.scale))
        audits = {defence: context.audit(model, attacks).outcomes for defence, model in trained.items()}
        rows = [audits[line.defence].rows(line.attack) for line in self.lines]
        right = np.stack([row["correct"].to_numpy(dtype=np.bool_) for row in rows])
        arises, converse = self.arises(right), self.arises(right[::-1])
        index = rows[0]["index"].to_numpy(dtype=np.int64)
        number, provenance = choose_image(context.test_images, self.number, index[arises])
        place = context.test_images.take(context.test_images.index == number)
        parts = []
        for line in self.lines:
            attack = {line.attack: attacks[line.attack]}
            audit = context.audit(trained[line.defence], attack, images=place, trace=[number], precision=EXACT)
            parts.append(steps_of(audit, number, steps=shown(int(attacks[line.attack]["steps"]))))
        traces = _beside(parts, [line.title for line in self.lines])
        table = Table(
            "Frequency of the pattern among test images",
            (
                "images",
                "of the test set",
                "percent",
                f"variance, thousandths, {self.lines[0].title}",
            ),
            [_share_row(words, where, rows[0]) for words, where in self.shares(arises, converse)],
            "Small print: 95 % confidence intervals for new images. The variance is that of the confidences on "
            "attacked "
            "images, 0 to "
            f"{1000 * (traces.confidences.shape[2] - 1) / traces.confidences.shape[2] ** 2:.0f} thousandths.",
        )
        caption = (
            f"{provenance} Its class is highlighted; one row each for "
            f"{' and '.join(line.title for line in self.lines)}."
        )
        return Findings(tables=(table,), figures=((traces.figure(), caption),), tests=self.claims(right, rows, context))

    def arises(self, right: BoolArray) -> BoolArray:
        """Whether images (N,) show the pattern, from the robust images (2, N) of both lines."""
        return np.asarray(right[0] & ~right[1])

    def shares(self, arises: BoolArray, converse: BoolArray) -> list[tuple[str, BoolArray]]:
        """Rows of the table: description and selected images (N,)."""
        return [(self.situation, arises), ("the converse", converse), ("all", np.ones_like(arises))]

    def claims(self, right: BoolArray, rows: Sequence[pd.DataFrame], context: Context) -> list[Test]:
        """Tests of the claim, from the robust images (2, N) and the rows of both audits."""
        more = Resampled(right, rows[0]["label"], context.test_images.num_classes).total()
        return [Test(claim=self.claim, estimand=self.estimand, estimators=[more], note=self.note)]


class AlongAttackOnTheSphere(
    AlongAttack,
    scales={**TEMPERATURE_SCALES, "full": SPHERE_SCALES["full"]},
    trainings=lambda scale: {"HE": (HYPERSPHERE if scale.name == "full" else DEFENCES)["HE"]},
):
    """The same for hypersphere embedding, with its own training at full scale."""


class OutputsAlongAttack(AlongAttack):
    """The pattern is that the image is robust for both models, so that their outputs are comparable."""

    def arises(self, right: BoolArray) -> BoolArray:
        """Whether PGD fails for both models."""
        return np.asarray(right.all(axis=0))

    def shares(self, arises: BoolArray, converse: BoolArray) -> list[tuple[str, BoolArray]]:
        """Rows of the table, without a converse."""
        del converse
        return [(self.situation, arises), ("all", np.ones_like(arises))]

    def claims(self, right: BoolArray, rows: Sequence[pd.DataFrame], context: Context) -> list[Test]:
        """Test on images robust for both models that the outputs of the weaker model are sharper."""
        where = self.arises(right)
        values = [row["confidence_variance"].to_numpy(dtype=np.float64)[where] for row in rows]
        stronger = Resampled(right[::-1], rows[0]["label"], context.test_images.num_classes).total()
        sharper = alike(stronger, interval(mean(values[0] - values[1]), 1000))
        covers = ("stronger models",)
        test = Test(claim=self.claim, covers=covers, estimand=self.estimand, estimators=[sharper], unit="thousandths")
        return [test]


def shown(steps: int) -> tuple[int, ...]:
    """Indices of the first, the middle and the last step: 1, 10 and 20 of 20."""
    return tuple(sorted({1, max(1, steps // 2), steps}))


def _beside(parts: Sequence[Steps], titles: Sequence[str]) -> Steps:
    """Combine several traces of one image."""
    confidences: FloatArray = np.concatenate([part.confidences for part in parts])
    return dataclasses.replace(parts[0], attacks=tuple(titles), confidences=confidences)


def _share_row(words: str, where: BoolArray, rows: pd.DataFrame) -> Row:
    values: Any = rows["confidence_variance"].to_numpy(dtype=np.float64)[where]
    sharp = estimate_cell(mean(values), 1000, 2) if len(values) > 1 else Cell(NONE)
    return Row(words, [Cell(f"{int(where.sum())} of {len(where)}"), estimate_cell(proportion(where)), sharp])
