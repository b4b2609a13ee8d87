"""Temperature-PGD: defences, hypersphere embedding, variance of the confidences, and confidences along an attack."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

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
from classwise.papers.claims import Measurement
from classwise.papers.declared import Measures, declared_tests
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
    VULNERABLE,
    Selected,
    audit_temperatures,
    choose_image,
    defences,
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
    under_pgd,
    unlabelled_note,
    unmet_preconditions,
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
)
from classwise.papers.scales import CIFAR, Scale
from classwise.papers.tables import class_table, elsewhere, estimate_cell, summary_table
from classwise.reporting.figures.lines import Series, line_chart
from classwise.reporting.formatting import NONE
from classwise.reporting.palette import SERIES
from classwise.reporting.tables import Cell, Row, Table, share_cell
from classwise.stats.counts import BoolArray, FloatArray
from classwise.stats.intervals import Estimate, class_intervals
from classwise.stats.metrics.averages import overall_estimate
from classwise.training.folder import Run

CHOSEN_TEMPERATURES: Mapping[str, float] = {"Madry": 2, "TRADES": 5, "MART": 5, "RST": 5}
"""The paper's 1/T for each defence."""
DEER = 4
SMOOTH_LABELS = {"name": "at", "criterion": {"name": "label-smoothing", "smoothing": 0.1}}
"""The common default; the paper gives no value."""


@configurable
class _Grid(Experiment):
    """An experiment that audits each model under PGD and Temperature-PGD.

    Attributes:
        temperatures: the 1/T of the audits; those of the paper's grid by default.
        at_smoke_scale: the same at smoke scale; empty for all.
    """

    temperatures: tuple[int | float, ...] = tuple(TEMPERATURES)
    at_smoke_scale: tuple[int | float, ...] = ()

    def grid(self, scale: Scale) -> Sequence[float]:
        """The 1/T of the audits at a scale."""
        return self.at_smoke_scale if scale.name == "smoke" and self.at_smoke_scale else self.temperatures

    def evaluations(self, scale: Scale, name: str, training: Training) -> Sequence[Evaluation]:
        """PGD and Temperature-PGD at each 1/T."""
        (spec,) = pgd_of(scale).values()
        return [Evaluation(attacks=dict.fromkeys(("PGD", *map(str, self.grid(scale))), spec))]

    def audit(self, context: Context, step: float = TABLE_STEP) -> dict[str, Outcomes]:
        """Train each model, but for a teacher, and audit it."""
        trainings = self.trainings(context.scale)
        teachers = {training.teacher for training in trainings.values()}
        models = {name: run for name, run in context.train_all(trainings).items() if name not in teachers}
        return audit_temperatures(context, models, self.grid(context.scale), step)


class Temperature(_Grid, scales=TEMPERATURE_SCALES, trainings=defences):
    """kdd21 Table 3: the best temperature of the grid for each defence, compared with PGD."""

    def run(self, context: Context) -> Findings:
        """Run PGD and the grid on each defence, in the paper's arithmetic."""
        names, tables = context.test_images.class_names, self.audit(context)
        inverses = [f"{inverse:g}" for inverse in self.temperatures]
        best = {defence: strongest(table, inverses) for defence, table in tables.items()}
        ours = {f"{defence}, 1/T = {name}": tables[defence].counts(name) for defence, name in best.items()}
        selected = {defence: select_on_halves(table, inverses, "PGD") for defence, table in tables.items()}
        printed_rows = catalogue.printed_rows("kdd21/T3")
        measures: dict[str, Callable[[str], IntervalEstimator]] = {
            "total": lambda name: mean_of_halves(selected[name], lambda a: -_drop(a).mean(axis=-1)),
            "MCD": lambda name: averaged([half.discrepancy_change() for half in selected[name]]),
            "CV": lambda name: averaged([half.variance_change() for half in selected[name]]),
        }
        further: Measures = {
            **measures,
            "drop": lambda name: largest_drop(tables[name], ["PGD", *inverses]),
            "drop of classes 3 and 4": lambda name: mean_of_halves(
                selected[name], lambda a: beyond_others(_drop(a), HARDEST)
            ),
            "drop of class": lambda name, one, other: mean_of_halves(
                selected[name], lambda a: _drop(a)[..., int(one)] - _drop(a)[..., int(other)]
            ),
        }
        tests = declared_tests(self.tests, further, excluded=unmet_preconditions(context.scale, tables))
        rows = []
        for defence, halves in selected.items():
            cells = [estimate_cell(change(defence)(ALPHA), 1, sign="+", tests=tests) for change in measures.values()]
            rows.append(Row(defence, [Cell(" and ".join(dict.fromkeys(half.attack for half in halves))), *cells]))
        changes = Table(
            "Change from PGD to the best temperature, in points",
            ("defence", "1/T", "total", "MCD", "CV, %²"),
            rows,
            "1/T is selected on one half of the images and evaluated on the other; means over both halves. CV is "
            "corrected for its bias. 95 % confidence intervals.",
        )
        return Findings(
            tables=(
                changes_by_class(tables, printed_rows),
                changes,
                summary_table("Under the best temperature of all images, in percent", ours, printed_rows, names),
                class_table("By class, in percent", ours, names),
                settings_table(context.scale, self.trainings(context.scale)),
            ),
            tests=tests,
        )


def _drop(accuracy: FloatArray) -> FloatArray:
    return np.asarray(accuracy[..., 1, :] - accuracy[..., 0, :])


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
    small = "CV is corrected for its bias. " if spread else ""
    return Table(
        "Change from PGD to Temperature-PGD, by class, in points",
        ("defence", "total", *names, *(("MCD", "CV, %²") if spread else ())),
        rows,
        f"The temperatures are those of the paper. {small}95 % confidence intervals. {note}".strip(),
    )


class ChosenTemperatures(_Grid, scales=TEMPERATURE_SCALES, trainings=with_rst):
    """iclr21 Table 3: change from PGD to Temperature-PGD at the paper's 1/T for each defence."""

    def run(self, context: Context) -> Findings:
        """Use the audits of kdd21/T3 where they exist; one part of the claim is about a class of CIFAR-10."""
        tables, trainings = self.audit(context), self.trainings(context.scale)

        def drop(name: str, of: str) -> IntervalEstimator:
            pair = resampled(tables[name], [f"{CHOSEN_TEMPERATURES[name]:g}", "PGD"])
            return pair.part(lambda a: _drop(a)[..., DEER] if of == "class 4" else _drop(a).mean(-1), 100)

        whole = context.scale.data == CIFAR
        lists = {
            "of": ["total", *(["class 4"] if whole else [])],
            "and_class": " and of class 4" if whole else "",
            "lacking": "" if whole else "without the part of the claim about a class of CIFAR-10",
        }
        return Findings(
            tables=(
                changes_by_class(tables, catalogue.printed_rows(self.item), unlabelled_note(context, trainings)),
                settings_table(context.scale, trainings),
            ),
            tests=declared_tests(
                self.tests, {"drop": drop}, lists=lists, excluded=unmet_preconditions(context.scale, tables)
            ),
        )


@configurable
class Temperatures(_Grid, scales=TEMPERATURE_SCALES):
    """Change of the robustness of several models over 1/T.

    Attributes:
        step: step size of PGD at radius 0.031.
    """

    step: float = TABLE_STEP

    def run(self, context: Context) -> Findings:
        """Run the grid on each model, paired with PGD."""
        tables = self.audit(context, self.step)
        result = ablation(tables, "PGD", FAMILY)
        overall = result.rows[result.rows["class"] == OVERALL]
        rows = []
        for name in tables:
            changes = overall[overall["model"] == name][["change", "low", "high"]].itertuples(index=False)
            rows.append(Row(name, [estimate_cell(Estimate(*change)) for change in changes]))
        heads = ("model", *(f"1/T = {inverse:g}" for inverse in self.temperatures))
        best = ", ".join(f"{name} {inverse:g}" for name, inverse in result.best["inverse_temperature"].items())
        teachers = unlabelled_note(context, self.trainings(context.scale))
        note = f"95 % confidence intervals. Best 1/T: {best}. {teachers}".strip()
        printed = catalogue.printed_rows(self.item)
        return Findings(
            tables=(
                Table("Change of the total from PGD, in points", heads, rows, note),
                *([changes_by_class(tables, printed)] if printed else []),
            ),
            figures=((result.figure(), "All classes; shaded: 95 % confidence intervals."),),
            tests=declared_tests(
                self.tests, _drops(tables, self.temperatures), excluded=unmet_preconditions(context.scale, tables)
            ),
        )


def _drops(
    tables: Mapping[str, Outcomes], temperatures: Sequence[float]
) -> dict[str, Callable[..., IntervalEstimator]]:
    """Largest drop of the total of a model over 1/T, or that minus the one of another model; the drop of a class."""
    attacks = ["PGD", *(f"{inverse:g}" for inverse in temperatures)]

    def drop(one: str, *other: str) -> IntervalEstimator:
        first, *second = (largest_drop(tables[name], attacks) for name in (one, *other))
        return minus(first, *second) if second else first

    def of_class(name: str, label: str, inverse: str) -> IntervalEstimator:
        return resampled(tables[name], ["PGD", inverse]).part(lambda a: _gains(a)[..., int(label)], 100)

    return {"drop": drop, "drop of class": of_class}


class TemperatureAblation(Temperatures, trainings=with_rst):
    """iclr21 Table 4: changes of robustness over 1/T for four defences."""


class TemperatureGrid(Temperatures, trainings=defences):
    """kdd21 section 5: the grid of 1/T and its best value for each defence."""


class SmoothLabels(
    Temperatures,
    scales=SPHERE_SCALES,
    trainings={"AT": AT, "AT, smooth labels": Training(recipe="at", overrides={"objective": SMOOTH_LABELS})},
):
    """iclr21 section 4, suggested only: is label smoothing vulnerable to Temperature-PGD?"""


class VirtualPower(
    Experiment,
    scales=TEMPERATURE_SCALES,
    trainings=lambda scale: {name: defences(scale)[name] for name in CHOSEN_TEMPERATURES if name != "RST"},
):
    """iclr21 section 4: Temperature-PGD at the paper's 1/T, with half of the steps, and towards a target class.

    The target is the most likely wrong class on the clean image. The paper's own targets and numbers of steps are not
    in the facts, so there is no verdict.
    """

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


WITH_MARGIN = "HE, margin 0.2"
"""HE with the angular margin of its own paper."""


class Hypersphere(Experiment, scales=SPHERE_SCALES, trainings={**HYPERSPHERE, WITH_MARGIN: Training(recipe="he")}):
    """iclr21 Table 5: accuracy of adversarial training, HE, HE-LIS and HE-CMP, clean and under PGD."""

    def run(self, context: Context) -> Findings:
        """Tabulate the accuracies."""
        trainings = self.trainings(context.scale)
        tables = {name: under_pgd(context, model).outcomes for name, model in context.train_all(trainings).items()}
        counts = {
            f"{name}, {attack}": table.counts(attack) for name, table in tables.items() for attack in ("clean", "PGD")
        }
        gains: dict[str, Callable[[FloatArray], FloatArray]] = {
            "total": lambda a: _gains(a).mean(axis=-1),
            "classes 3 and 4": lambda a: beyond_others(_gains(a), HARDEST),
            "vulnerable classes": lambda a: beyond_others(_gains(a), VULNERABLE),
        }

        def gain(of: str, one: str, other: str) -> IntervalEstimator:
            return resampled_models([tables[one], tables[other]], "PGD").part(gains[of], 100)

        return Findings(
            tables=(
                _against_first(
                    tables, catalogue.printed_rows("iclr21/T5"), pgd_name(tables["HE"]), context.scale.data == CIFAR
                ),
                class_table("By class, in percent", counts, tables["HE"].class_names),
                settings_table(context.scale, trainings),
            ),
            tests=declared_tests(self.tests, gain, excluded=unmet_preconditions(context.scale, tables)),
        )


def _against_first(
    tables: Mapping[str, Outcomes], printed: Sequence[Mapping[str, Any]], attack_name: str, same_classes: bool
) -> Table:
    """Table of totals, and of class accuracies under PGD: of the first model, and changes of the others against it.

    Args:
        tables: outcomes by model, the first one first.
        printed: printed rows.
        attack_name: name of the attack in the head of its column.
        same_classes: whether the classes are those of the paper; printed numbers of other classes are not shown.
    """
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
            values = values if same_classes else [NONE] * len(names)
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

    def run(self, context: Context) -> Findings:
        """Draw the totals over 1/T."""
        temperatures, tables = self.grid(context.scale), self.audit(context, SETUP_STEP)
        attacks = [f"{inverse:g}" for inverse in temperatures]
        columns = list(catalogue.printed("iclr21/T6")["columns_inv_T"])
        printed = {
            row["defence"]: dict(zip(columns, row["tot"], strict=True)) for row in catalogue.printed_rows(self.item)
        }
        rows, lines = [], []
        for (name, table), colour in zip(tables.items(), SERIES, strict=False):
            totals = [overall_estimate(table.counts(attack)) for attack in attacks]
            rows.append(Row(name, [share_cell(*total) for total in totals]))
            rows.append(Row(f"{name}, printed", [Cell(f"{printed[name][inverse]:g}") for inverse in temperatures]))
            lines.append(Series(name, temperatures, [total.value for total in totals], f"stroke-{colour}"))
        first, models = tables["HE"], list(tables)
        stack = np.stack([table.correct(attack) for table in tables.values() for attack in attacks])
        images = Resampled(stack, first.labels, first.num_classes)

        def above(model: str, inverse: str, other: str) -> IntervalEstimator:
            """Total of a model at one 1/T minus the minimum of another over 1/T.

            The minimum of a model is below that of another if it is below each total of the other.
            """
            row = models.index(model) * len(attacks) + attacks.index(inverse)
            rows_of = range(models.index(other) * len(attacks), (models.index(other) + 1) * len(attacks))
            return greatest([images.total(row, below) for below in rows_of if below != row])

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
            tests=declared_tests(
                self.tests,
                {"above minimum": above},
                lists={"inverses": attacks},
                excluded=unmet_preconditions(context.scale, tables),
            ),
        )


PLAIN = "PGD"
"""The plain attack."""


@configurable
class Confidences(Experiment, scales=SCALES):
    """CVC of each class on images attacked by PGD; the papers do not specify the images.

    Attributes:
        defences: names of the defences.
        step: step size of PGD at radius 0.031.
    """

    defences: tuple[str, ...] = ("Madry", "TRADES", "MART", "HE")
    step: float = TABLE_STEP

    def trainings(self, scale: Scale) -> Trainings:
        """The models of the figure."""
        return {name: defences(scale)[name] for name in self.defences}

    def run(self, context: Context) -> Findings:
        """Draw a bar for each class and model."""
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

        def weaker_is_sharper(first: str, second: str) -> IntervalEstimator:
            """CVC of the model with the smaller total under PGD minus that of the other."""
            total = resampled_models([tables[first], tables[second]], "PGD").total()
            return alike(total, _sharper(variances, second, first))

        measures: Measures = {
            "CVC": partial(_sharper, variances),
            "CVC of classes": partial(_of_classes, variances),
            "CVC of the weaker model": weaker_is_sharper,
        }
        return Findings(
            tables=(table,),
            figures=((variances.figure(), caption),),
            tests=declared_tests(self.tests, measures, excluded=unmet_preconditions(context.scale, tables)),
        )


def _sharper(variances: Smoothness, one: str, other: str, factor: str = "1") -> IntervalEstimator:
    """Mean CVC of one model minus a multiple of that of another, in thousandths."""
    multiple = Estimate(*(float(factor) * end for end in variances.mean(other)))
    return interval(difference(variances.mean(one), multiple), 1000)


def _of_classes(variances: Smoothness, name: str, above: str, below: str) -> IntervalEstimator:
    """Mean CVC of some classes of a model minus that of others, in thousandths; labels are separated by spaces."""
    means = (variances.mean(name, [int(label) for label in labels.split()]) for labels in (above, below))
    return interval(difference(*means), 1000)


class ConfidencesOnTheSphere(
    Confidences,
    scales=SPHERE_SCALES,
    trainings={name: training for name, training in HYPERSPHERE.items() if name != "Madry"},
):
    """iclr21 Figure 5e: CVC of hypersphere embedding and its two schedules.

    Their outputs are cosines, which are not comparable with the logits of adversarial training.
    """


class SmoothVulnerableSensitive(_Grid, scales=TEMPERATURE_SCALES, trainings=defences):
    """kdd21 section 5: are smooth classes the vulnerable ones, and the ones sensitive to the temperature?"""

    def run(self, context: Context) -> Findings:
        """Compute rank correlations over the classes of each defence."""
        tables = self.audit(context)
        inverses = [f"{inverse:g}" for inverse in self.temperatures]
        best = {defence: strongest(table, inverses) for defence, table in tables.items()}
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
        drops = _drops(tables, self.temperatures)
        measures: Measures = {
            **drops,
            "correlation": lambda name: sensitivities[name].robustness.estimate,
            "CVC": partial(_sharper, means),
        }
        tests = declared_tests(self.tests, measures, excluded=unmet_preconditions(context.scale, tables))
        rows = []
        for defence, result in sensitivities.items():
            drop = drops["drop"](defence)
            both = [estimate_cell(link, 1, 2, tests=tests) for link in (result.vulnerable, result.sensitive)]
            cells = [
                *both,
                estimate_cell(means.mean(defence), 1000, 2),
                Cell(best[defence]),
                estimate_cell(drop(ALPHA), 1, tests=[elsewhere("kdd21/C12", drop)]),
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

    The pattern is that the image is robust in the first line and misclassified in the second, or robust in both, so
    that their outputs are comparable.

    Attributes:
        lines: the two traces.
        number: index of the image of the paper.
        situation: description of the pattern.
        both: whether the image is robust in both lines.
    """

    lines: tuple[TrajectoryLine, TrajectoryLine]
    number: int
    situation: str
    both: bool = False

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
        shares = {self.situation: arises, "the converse": converse, "all": np.ones_like(arises)}
        if self.both:
            del shares["the converse"]
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
            [_share_row(words, where, rows[0]) for words, where in shares.items()],
            "95 % confidence intervals for new images. The variance is that of the confidences on attacked images, 0 "
            f"to {1000 * (traces.confidences.shape[2] - 1) / traces.confidences.shape[2] ** 2:.0f} thousandths.",
        )
        caption = (
            f"{provenance} Its class is highlighted; one row each for "
            f"{' and '.join(line.title for line in self.lines)}."
        )
        labels, classes = rows[0]["label"], context.test_images.num_classes

        def sharper() -> IntervalEstimator:
            """Whether the model with the smaller total has the larger variance, on the images of the pattern."""
            values = [row["confidence_variance"].to_numpy(dtype=np.float64)[arises] for row in rows]
            stronger = Resampled(right[::-1], labels, classes).total()
            return alike(stronger, interval(mean(values[0] - values[1], -MOST, MOST), 1000))

        measures = {"excess": lambda: Resampled(right, labels, classes).total(), "weaker is sharper": sharper}
        tests = declared_tests(self.tests, measures)
        return Findings(tables=(table,), figures=((traces.figure(), caption),), tests=tests)

    def arises(self, right: BoolArray) -> BoolArray:
        """Whether images (N,) show the pattern, from the robust images (2, N) of both lines."""
        return np.asarray(right[0] & (right[1] if self.both else ~right[1]))


class AlongAttackOnTheSphere(
    AlongAttack,
    scales={**TEMPERATURE_SCALES, "full": SPHERE_SCALES["full"]},
    trainings=lambda scale: {"HE": (HYPERSPHERE if scale.as_published else DEFENCES)["HE"]},
):
    """The same for hypersphere embedding, with its own training at full scale."""


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
