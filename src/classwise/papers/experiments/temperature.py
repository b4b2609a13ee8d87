"""Temperature-PGD: defences, hypersphere embedding, variance of the confidences, and confidences along an attack."""

from __future__ import annotations

import dataclasses
import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch

from classwise.analysis.ablation import OVERALL, ablation
from classwise.analysis.sensitivity import sensitivity
from classwise.analysis.smoothness import MOST, Smoothness, smoothness
from classwise.analysis.steps import Steps, steps_of
from classwise.attacks.gradient.ascent import TEMPERATURES
from classwise.attacks.losses import nth_other
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.attack import attack as perturb
from classwise.core.compute.precision import EXACT
from classwise.core.settings.config import configurable
from classwise.papers import catalogue
from classwise.papers.claims import CORRELATION, Measurement, Test
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
    pgd,
    pgd_name,
    proportion,
    resampled,
    resampled_models,
    select_on_halves,
    settings_table,
    strongest,
    temperature_grid,
    tpgd,
    train_with_rst,
    under_pgd,
    unlabelled_note,
    with_rst,
)
from classwise.papers.experiments.weak_classes import BATCH, clean_logits
from classwise.papers.interval_estimators import (
    ALPHA,
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
from classwise.papers.tables import Key, class_table, elsewhere, estimate_cell, percent_cell, summary_table
from classwise.reporting.figures.lines import Series, line_chart
from classwise.reporting.formatting import NONE
from classwise.reporting.palette import SERIES
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray
from classwise.stats.intervals import Estimate, class_intervals
from classwise.stats.metrics.averages import overall_estimate
from classwise.training.folder import Run

CHOSEN_TEMPERATURES: Mapping[str, float] = {"Madry": 2, "TRADES": 5, "MART": 5, "RST": 5}
"""The paper's 1/T for each defence."""
DEER = 4
LITTLE = 1
"""Change of the total in points below which a model is insensitive, or a gain vanishes."""
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
            "corrected for its bias. 95 % confidence intervals.",
        )
        return Findings(
            tables=(
                changes_by_class(audits, printed_rows),
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


def changes_by_class(tables: Mapping[str, Outcomes], printed: Sequence[Mapping[str, Any]], note: str = "") -> Table:
    """Table of the changes from PGD to Temperature-PGD at the printed temperatures, each above the printed changes.

    Args:
        tables: outcomes of each defence under PGD and under Temperature-PGD, named by 1/T.
        printed: printed rows with ``d_tot`` and ``d_per_class``; if they have ``d_mcd`` and ``d_cv``, so has the table.
        note: end of the note.
    """
    names, spread = next(iter(tables.values())).class_names, "d_mcd" in printed[0]
    rows = []
    for row in printed:
        name, inverse = f"{row['defence']}, 1/T = {row['inv_T']:g}", f"{row['inv_T']:g}"
        pair = resampled(tables[row["defence"]], [inverse, "PGD"])
        change = [lambda a: _gains(a).mean(axis=-1), *(lambda a, c=c: _gains(a)[..., c] for c in range(len(names)))]
        cells = [estimate_cell(pair.estimate(statistic), sign="+") for statistic in change]
        values = [row["d_tot"], *row["d_per_class"]]
        if spread:
            own = Selected(inverse, pair)
            cells += [estimate_cell(of(ALPHA), 1, sign="+") for of in (own.discrepancy_change(), own.variance_change())]
            values += [row["d_mcd"], row["d_cv"]]
        rows += [Row(name, cells), Row(f"{name}, printed", [Cell(f"{value:+g}") for value in values])]
    heads = ("defence", "total", *names, *(("MCD", "CV, %²") if spread else ()))
    small = "CV is corrected for its bias. " if spread else ""
    return Table(
        "Change from PGD to Temperature-PGD, by class, in points",
        heads,
        rows,
        f"The temperatures are those of the paper. {small}95 % confidence intervals. {note}".strip(),
    )


class ChosenTemperatures(_Grid, scales=TEMPERATURE_SCALES, trainings=with_rst):
    """iclr21 Table 3: change from PGD to Temperature-PGD at the paper's 1/T for each defence."""

    def run(self, context: Context) -> Findings:
        """Use the audits of kdd21/T3 where they exist; test claim C10."""
        attacks, parts = temperature_grid(context), list[IntervalEstimator]()
        tables = {name: context.audit(model, attacks).outcomes for name, model in train_with_rst(context).items()}
        for name, table in tables.items():
            pair = resampled(table, [f"{CHOSEN_TEMPERATURES[name]:g}", "PGD"])
            if name != "Madry":
                parts.append(pair.part(lambda a: (a[..., 1, :] - a[..., 0, :]).mean(-1), 100))
                if context.scale.data == CIFAR:
                    parts.append(pair.part(lambda a: a[..., 1, DEER] - a[..., 0, DEER], 100))
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
                changes_by_class(tables, catalogue.printed_rows(self.item), unlabelled_note(context)),
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
        note = f"95 % confidence intervals. Best 1/T: {best}. {self.note(context)}".strip()
        printed = catalogue.printed_rows(self.item)
        return Findings(
            tables=(
                Table("Change of the total from PGD, in points", heads, rows, note),
                *([changes_by_class(tables, printed)] if printed else []),
            ),
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


class VirtualPower(Experiment, scales=TEMPERATURE_SCALES):
    """iclr21 section 4: Temperature-PGD at the paper's 1/T, with half of the steps, and towards a target class.

    The target is the most likely wrong class on the clean image. The paper's own targets and numbers of steps are not
    in the facts, so there is no verdict.
    """

    def trainings(self, scale: Scale) -> Trainings:
        """The defences of the paper that are attacked with equal steps."""
        return {name: defences(scale)[name] for name in CHOSEN_TEMPERATURES if name != "RST"}

    def run(self, context: Context) -> Findings:
        """Compare Temperature-PGD with PGD of as many steps, and with PGD of twice as many."""
        rows, measurements = [], []
        for name, trained in context.train_all(self.trainings(context.scale)).items():
            inverse = CHOSEN_TEMPERATURES[name]
            attacks = {
                f"{attack}-{steps}": {**spec, "steps": steps}
                for attack, spec in (("PGD", pgd(context)), (FAMILY, tpgd(context, inverse)))
                for steps in dict.fromkeys((int(spec["steps"]), -(-int(spec["steps"]) // 2)))
            }
            images = resampled(context.audit(trained, attacks).outcomes, list(attacks))
            for place, (attack, reached) in enumerate(targets_reached(context, trained, attacks).items()):
                total = images.estimate(lambda a, p=place: a[..., p, :].mean(axis=-1))  # type: ignore[misc]
                cells = [Cell(f"{inverse:g}"), estimate_cell(total), estimate_cell(proportion(reached))]
                rows.append(Row(f"{name}, {attack}", cells))
            plain, *_, fewer = attacks
            change = images.total(0, len(attacks) - 1)(ALPHA)
            measurements.append(
                Measurement.of("iclr21/C10", f"total, {name}: {plain} minus {fewer}, 1/T = {inverse:g}", change)
            )
        heads = ("defence, attack", f"1/T of {FAMILY}", "total", "target reached")
        note = (
            "Target reached: share of images that the attack towards the most likely wrong class moves to that class. "
            "95 % confidence intervals."
        )
        table = Table("Fewer steps, and attacks towards a target, in percent", heads, rows, note)
        return Findings(tables=(table,), measurements=measurements)


def targets_reached(context: Context, trained: Run, attacks: Mapping[str, Mapping[str, Any]]) -> dict[str, BoolArray]:
    """Whether attacks towards the most likely wrong class of each clean test image reach that class, (N,) by attack."""
    images, model = context.test_images, trained.model().to(context.device)
    targets = nth_other(torch.from_numpy(clean_logits(model, images)), images.y, torch.zeros_like(images.y))
    reached = {}
    for name, spec in attacks.items():
        moved = perturb(
            model,
            images.pixels().to(context.device),
            images.y,
            dict(spec),
            threat=context.scale.threat,
            targets=targets,
            index=images.index,
            early_stop=False,
            batch_size=BATCH,
        )
        predicted = clean_logits(model, images.with_pixels(moved.cpu(), f"{images.name}, {name}")).argmax(axis=1)
        reached[name] = np.asarray(predicted == targets.numpy(), dtype=np.bool_)
    return reached


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


WITH_MARGIN = "HE, margin 0.2"
"""HE with the angular margin of its own paper."""


class Hypersphere(Experiment, scales=SPHERE_SCALES, trainings={**HYPERSPHERE, WITH_MARGIN: Training(recipe="he")}):
    """iclr21 Table 5: accuracy of adversarial training, HE, HE-LIS and HE-CMP, clean and under PGD."""

    def run(self, context: Context) -> Findings:
        """Tabulate the accuracies; test claim C18: a growing scale raises the robust accuracy under PGD."""
        trainings = self.trainings(context.scale)
        tables = {name: under_pgd(context, model).outcomes for name, model in context.train_all(trainings).items()}
        counts: dict[Key, ClassCounts] = {
            (name, attack): table.counts(attack) for name, table in tables.items() for attack in ("clean", "PGD")
        }
        paired = [resampled_models([tables[name], tables["HE"]], "PGD") for name in ("HE-LIS", "HE-CMP")]
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
        return Findings(
            tables=(
                _against_first(tables, catalogue.printed_rows("iclr21/T5"), pgd_name(tables["HE"])),
                class_table("By class, in percent", counts, tables["HE"].class_names),
                settings_table(context.scale, trainings),
            ),
            tests=tests,
        )


def _against_first(tables: Mapping[str, Outcomes], printed: Sequence[Mapping[str, Any]], attack_name: str) -> Table:
    """Table of totals, and of class accuracies under PGD: of the first model, and changes of the others against it."""
    reported = {row["defence"]: row for row in printed}
    plain, *_ = tables
    names, rows = tables[plain].class_names, list[Row]()
    for name, table in tables.items():
        cells = [estimate_cell(overall_estimate(table.counts(attack))) for attack in ("clean", "PGD")]
        if name == plain:
            counts = table.counts("PGD")
            ends = zip(counts.accuracy, *class_intervals(counts), strict=True)
            cells += [estimate_cell(Estimate(*map(float, accuracy))) for accuracy in ends]
        else:
            pair = resampled_models([table, tables[plain]], "PGD")
            cells += [
                estimate_cell(pair.estimate(lambda a, c=c: _gains(a)[..., c]), sign="+")  # type: ignore[misc]
                for c in range(len(names))
            ]
        rows.append(Row(name, cells))
        if name in reported:
            row = reported[name]
            values = [f"{value:g}" for value in row.get("per_class", ())]
            values += [f"{value:+g}" for value in row.get("d_per_class", ())]
            rows.append(Row(f"{name}, printed", [Cell(f"{row['nat']:g}"), Cell(f"{row['adv']:g}"), *map(Cell, values)]))
    note = (
        f"Classes: robust accuracy of {plain}'s model under {attack_name}, and changes of the others against it in "
        "points. The text leaves open whether the printed HE has an angular margin, so both are trained. 95 % "
        "confidence intervals."
    )
    return Table("Totals in percent, and classes against Madry", ("model", "natural", attack_name, *names), rows, note)


def _gains(accuracy: FloatArray) -> FloatArray:
    """First row minus second row, by class: (..., 2, C) to (..., C)."""
    return np.asarray(accuracy[..., 0, :] - accuracy[..., 1, :])


class LargeTemperatures(_Grid, scales=SPHERE_SCALES, trainings=HYPERSPHERE):
    """iclr21 Table 6: totals of the models of Table 5 under Temperature-PGD, 1/T from 1 to 300."""

    def grid(self, scale: Scale) -> Sequence[float]:
        """The 1/T of the table."""
        return scale.entry(LARGE)

    def run(self, context: Context) -> Findings:
        """Test claims C17 and C19: the gain of HE and its schedules under PGD vanishes at a large 1/T."""
        temperatures = context.scale.entry(LARGE)
        tables = audit_temperatures(context, context.train_all(HYPERSPHERE), temperatures, SETUP_STEP)
        attacks = [f"{inverse:g}" for inverse in temperatures]
        columns = list(catalogue.printed("iclr21/T6")["columns_inv_T"])
        printed = {
            row["defence"]: dict(zip(columns, row["tot"], strict=True)) for row in catalogue.printed_rows(self.item)
        }
        rows, lines = [], []
        for (name, table), colour in zip(tables.items(), SERIES, strict=False):
            totals = [overall_estimate(table.counts(attack)) for attack in attacks]
            rows.append(Row(name, [percent_cell(total) for total in totals]))
            rows.append(Row(f"{name}, printed", [Cell(f"{printed[name][inverse]:g}") for inverse in temperatures]))
            lines.append(Series(name, temperatures, [total.value for total in totals], f"stroke-{colour}"))
        first = tables["HE"]
        stack = np.stack([table.correct(attack) for table in tables.values() for attack in attacks])
        images = Resampled(stack, first.labels, first.num_classes)

        # Rows of each model. The minimum of one is below the minimum of another if it is below each of its rows.
        plain, he, *others = (range(place * len(attacks), (place + 1) * len(attacks)) for place in range(len(tables)))

        def vanishes(model: range, base: range) -> list[IntervalEstimator]:
            """Minimum of the base, plus 1 point, minus that of the model."""
            return [plus(greatest([images.total(own, row) for row in model]), LITTLE) for own in base]

        return Findings(
            tables=(
                Table(
                    "Totals under Temperature-PGD, in percent",
                    ("model", *(f"1/T = {inverse:g}" for inverse in temperatures)),
                    rows,
                    "95 % confidence intervals. The paper's arithmetic: at a large 1/T most gradients are zero.",
                ),
                settings_table(context.scale, HYPERSPHERE),
            ),
            figures=((line_chart("Total under Temperature-PGD, in percent", lines, "1/T"), "One line per model."),),
            tests=(
                Test(
                    claim="iclr21/C17",
                    covers=("scale factor",),
                    estimand="total of HE at 1/T = 1 minus its minimum over 1/T",
                    estimators=[greatest([images.total(he[0], row) for row in he[1:]])],
                    note=COSINES,
                ),
                Test(
                    claim="iclr21/C17",
                    covers=("hypersphere itself",),
                    estimand="minimum total of Madry's model over 1/T, plus 1 point, minus that of HE",
                    estimators=vanishes(he, plain),
                    note="HE adds no robustness of its own if its gain at the best temperature of each is less than 1 "
                    "point",
                ),
                Test(
                    claim="iclr21/C19",
                    estimand="minimum total of HE, plus 1 point, minus that of HE-LIS and of HE-CMP",
                    estimators=[part for other in others for part in vanishes(other, he)],
                    note="'vanishes' is interpreted as a remaining gain of less than 1 point",
                ),
            ),
        )


COSINES = (
    "HE outputs cosines in -1 to 1 without its scale, whose softmax at 1/T = 1 is nearly uniform for any model: the "
    "verdict follows by construction"
)
"""Note on verdicts that compare the confidences of HE at 1/T = 1 with those of logits or of a larger 1/T."""
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
            "95 % confidence intervals for new images.",
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
        total = resampled_models([tables[first], tables[second]], "PGD").total()
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
                note=COSINES,
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


class ConfidencesOnTheSphere(
    Confidences,
    scales=SPHERE_SCALES,
    trainings={name: training for name, training in HYPERSPHERE.items() if name != STEEP},
):
    """iclr21 Figure 5e: CVC of hypersphere embedding and its two schedules.

    Their outputs are cosines, which are not comparable with the logits of adversarial training.
    """

    step: ClassVar[float] = SETUP_STEP

    def claims(self, variances: Smoothness, tables: Mapping[str, Outcomes]) -> list[Test]:
        """Test C13 of iclr21 between the models of the figure."""
        test = _stronger_is_smoother(variances, tables)
        return [dataclasses.replace(test, note=f"between models with cosines; {COSINES}")]


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
            "95 % confidence intervals for new images; that of the largest drop covers every 1/T."
        )
        others = [defence for defence in tables if defence != SMOOTH]
        order = [(STEEP, other) for other in others if other != STEEP] + [(other, SMOOTH) for other in others]
        tests = [
            Test(
                claim="kdd21/C29",
                estimand="Spearman's correlation of CVC and robustness over the classes, each defence",
                estimators=[result.robustness.estimate for result in sensitivities.values()],
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
            "95 % confidence intervals for new images. The variance is that of the confidences on "
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
    trainings=lambda scale: {"HE": (HYPERSPHERE if scale.as_published else DEFENCES)["HE"]},
):
    """The same for hypersphere embedding, with its own training at full scale."""

    def claims(self, right: BoolArray, rows: Sequence[pd.DataFrame], context: Context) -> list[Test]:
        """The test of the claim, with a note on the confidences of cosines."""
        return [dataclasses.replace(test, note=COSINES) for test in super().claims(right, rows, context)]


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
        sharper = alike(stronger, interval(mean(values[0] - values[1], -MOST, MOST), 1000))
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
    sharp = estimate_cell(mean(values, high=MOST), 1000, 2) if len(values) else Cell(NONE)
    return Row(words, [Cell(f"{int(where.sum())} of {len(where)}"), estimate_cell(proportion(where)), sharp])
