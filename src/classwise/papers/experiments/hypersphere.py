"""Hypersphere embedding and its two schedules under PGD and Temperature-PGD: iclr21/T5, T6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from classwise.papers import catalogue
from classwise.papers.bootstrap import Resampled, beyond_others
from classwise.papers.claims import Test
from classwise.papers.context import Context, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.protocol import (
    HARDEST,
    HYPERSPHERE,
    SETUP_STEP,
    SPHERE_SCALES,
    audit_temperatures,
    settings_table,
    under_pgd,
)
from classwise.papers.interval_estimators import greatest, plus
from classwise.papers.scales import CIFAR, Name, Scale, other_data
from classwise.papers.tables import Key, class_table
from classwise.reporting import formatting
from classwise.reporting.figures.lines import Series, line_chart
from classwise.reporting.palette import SERIES
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import ClassCounts, FloatArray

TEMPERATURES: Mapping[Name, Sequence[float]] = {
    "smoke": (1, 10, 50),
    "reduced": (1, 5, 10, 50, 75, 100, 125, 150, 200, 300),
    "full": (1, 5, 10, 50, 75, 100, 125, 150, 200, 300),
}


class Hypersphere(Experiment):
    """iclr21 Table 5: accuracy of adversarial training, HE, HE-LIS and HE-CMP, clean and under PGD-20."""

    scales: ClassVar[Mapping[Name, Scale]] = SPHERE_SCALES
    declared: ClassVar[Trainings] = HYPERSPHERE

    def run(self, context: Context) -> Findings:
        """Tabulate the accuracies; test claim C18: a growing scale raises the robust accuracy under PGD."""
        tables = {name: under_pgd(context, one).outcomes for name, one in context.train_all(HYPERSPHERE).items()}
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
            )
        ]
        not_tested = {}
        if context.scale.data == CIFAR:
            estimand = "the same difference: gain of classes 3 and 4 minus that of the others"
            parts = [pair.part(lambda a: beyond_others(_gains(a), HARDEST), 100) for pair in paired]
            covers = ("classes 3 and 4",)
            tests.append(Test(claim="iclr21/C18", estimand=estimand, estimators=parts, note=note, covers=covers))
        else:
            not_tested = other_data("iclr21/C18", context.scale)
        heads = ("model", "natural", "printed", "PGD-20", "printed")
        return Findings(
            tables=(
                Table("Totals in percent", heads, rows, "Small print: 95 % confidence intervals."),
                class_table("By class, in percent", counts, first.class_names),
                settings_table(context.scale, HYPERSPHERE),
            ),
            tests=tests,
            not_tested=not_tested,
        )


def _gains(accuracy: FloatArray) -> FloatArray:
    """First row minus second row, by class: (..., 2, C) to (..., C)."""
    return np.asarray(accuracy[..., 0, :] - accuracy[..., 1, :])


class LargeTemperatures(Experiment):
    """iclr21 Table 6: totals of the models of Table 5 under Temperature-PGD, 1/T from 1 to 300."""

    scales: ClassVar[Mapping[Name, Scale]] = SPHERE_SCALES
    declared: ClassVar[Trainings] = HYPERSPHERE

    def run(self, context: Context) -> Findings:
        """Test claims C17 and C19: the gain of HE and its schedules under PGD vanishes at a large 1/T."""
        temperatures = TEMPERATURES[context.scale.name]
        tables = audit_temperatures(context, context.train_all(HYPERSPHERE), temperatures, SETUP_STEP)
        attacks = [f"{inverse:g}" for inverse in temperatures]
        columns = list(catalogue.printed("iclr21/T6")["columns_inv_T"])
        printed = {
            row["defence"]: dict(zip(columns, row["tot"], strict=True)) for row in catalogue.printed_rows(self.item)
        }
        rows, lines = [], []
        for (name, table), colour in zip(tables.items(), SERIES, strict=False):
            totals = [metric_intervals.overall(table.counts(attack)) for attack in attacks]
            cells = [Cell(formatting.bare_percent(one.value), formatting.span(one.low, one.high)) for one in totals]
            rows.append(Row(name, cells))
            rows.append(Row(f"{name}, printed", [Cell(f"{printed[name][inverse]:g}") for inverse in temperatures]))
            lines.append(Series(name, temperatures, [one.value for one in totals], f"stroke-{colour}"))
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
