"""Class accuracies over the epochs of training: kdd21/F1, benz20/P1.11, cfa23/F4, E1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd
import torch

from classwise.analysis.epochs import images_of, measured
from classwise.analysis.trend import trend
from classwise.auditing.outcomes import Outcomes
from classwise.papers import catalogue
from classwise.papers.claims import Test
from classwise.papers.context import Context
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.estimates import average, paired_models
from classwise.papers.experiments.fair_methods import METHODS, NOTE, audit_methods, gate, pair_cell
from classwise.papers.experiments.protocol import under_pgd
from classwise.papers.scales import CIFAR, DEFAULT_SCALES, MANY_TRAININGS, REDUCED, SMOKE, TIAN, Name, Scale
from classwise.papers.tables import Key, class_table, estimate_cell, skipped_table
from classwise.reporting import formatting
from classwise.reporting.figures.lines import Series, line_chart
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import ClassCounts, IntArray
from classwise.stats.interval_estimators import difference, exactly, interval, plus, widest
from classwise.stats.intervals import Estimate
from classwise.training.folder import Run
from classwise.training.selection import Rule, overall, overall_plus_worst

MNIST = "mnist"
DATA_SETS: Mapping[Name, Sequence[str]] = {
    "smoke": (SMOKE.data,),
    "reduced": (CIFAR, MNIST),
    "full": (CIFAR, MNIST, "svhn", "stl10", "cifar100"),
}
"""The data sets of the paper without ImageNet, whose models are trained differently."""
LARGE, VISIBLE = 10, 1
"""Thresholds in points of a large and of a visible gap between classes (paper: 40 to 50 on CIFAR-10, 6 on MNIST)."""
HIGH = 95
"""Lower bound of the total on MNIST in the paper, in percent."""
WINDOW = (0.5, 1.0)
"""Range of epochs as fractions; the paper uses 101 to 120 of 200, which are too few in a short training."""
RULES: Mapping[str, tuple[Rule, str]] = {
    "overall": (overall, "epoch_108"),
    "overall + worst": (overall_plus_worst, "epoch_110"),
}
"""Selection rules, each with the epoch that the paper selects by it."""


class GapsOverEpochs(Experiment):
    """kdd21 Figure 1: class-wise robustness over the epochs of adversarial training."""

    item = "kdd21/F1"
    scales: ClassVar[Mapping[Name, Scale]] = {
        "smoke": SMOKE,
        "reduced": replace(REDUCED, about=f"{REDUCED.about}; MNIST: 10,000 images and the four-layer CNN, Linf 0.3"),
        "full": replace(
            TIAN, about=f"{TIAN.about}, and its other data sets except ImageNet; unavailable ones are skipped"
        ),
    }

    def run(self, context: Context) -> Findings:
        """Draw the validation accuracy over the epochs; test claims C1 and C2 on the test images at the end."""
        contexts, absent = context.for_data_sets(DATA_SETS[context.scale.name])
        tables, figures, ends = [], [], dict[str, Outcomes]()
        for data, own in contexts.items():
            trained = own.train("at")
            ends[data] = under_pgd(own, trained).outcomes
            caption = f"{data}: validation split; the band spans the lowest to the highest class."
            figures.append((trend({"AT": trained.run}).figure(), caption))
            counts: dict[Key, ClassCounts] = {("AT",): ends[data].counts("PGD")}
            tables.append(
                class_table(f"{data}: test images at the end of training, in percent", counts, ends[data].class_names)
            )
        tests, not_tested = _gap_tests(ends)
        return Findings(tables=[*tables, *skipped_table(absent)], figures=figures, tests=tests, not_tested=not_tested)


def _gap_tests(ends: Mapping[str, Outcomes]) -> tuple[list[Test], dict[str, str]]:
    """Tests of C1 and C2 on the available data sets, and the claims that are not tested."""
    tests, not_tested = [], {"kdd21/C3": "the claim is about ImageNet, whose training takes days on a GPU"}
    simultaneous = "by simultaneous intervals for all classes"
    parts = [widest(table.counts("PGD"), VISIBLE if data == MNIST else LARGE) for data, table in ends.items()]
    large = f"{LARGE} points ({VISIBLE} point on {MNIST}, where the paper reports 6)"
    note = f"on {', '.join(ends)} of the six data sets; 'large' is interpreted as more than {large} {simultaneous}"
    estimand = f"MCD under PGD at the end of training, minus {large}"
    tests.append(Test(claim="kdd21/C1", estimand=estimand, estimators=parts, note=note, covers=tuple(ends)))
    if MNIST not in ends:
        not_tested["kdd21/C2"] = f"the claim is about MNIST; this run used {', '.join(ends)}"
    elif (total := 100 * float(ends[MNIST].counts("PGD").accuracy.mean())) <= HIGH:
        not_tested["kdd21/C2"] = f"the claim is about a model above {HIGH} percent; this one has {total:.1f} percent"
    else:
        note = (
            f"'visible' is interpreted as more than {VISIBLE} point {simultaneous}; this model has {total:.1f} percent"
        )
        parts = [widest(ends[MNIST].counts("PGD"), VISIBLE)]
        estimand = f"MCD under PGD at the end of training, minus {VISIBLE} point"
        tests.append(Test(claim="kdd21/C2", estimand=estimand, estimators=parts, note=note))
    return tests, not_tested


class ClassTrend(Experiment):
    """benz20 plan: accuracy and robustness of each class over training; does the weakest class change?"""

    item = "benz20/P1.11"
    scales: ClassVar[Mapping[Name, Scale]] = MANY_TRAININGS

    def run(self, context: Context) -> Findings:
        """Draw both measures over the epochs of adversarial training, and count changes of the weakest class."""
        run = context.train("at").run
        figures, rows = [], []
        for measure in ("robust", "clean"):
            history = trend({"AT": run}, measure, window=(0.5, 1.0))
            figures.append((history.figure(), f"Validation split, {measure}."))
            turns, epochs = history.summary["turns"]["AT"], history.epochs
            late = epochs[epochs["epoch"] > run.recipe.epochs / 2]
            weakest = dict.fromkeys(map(str, late["worst_class"]))
            rows.append(Row(measure, [Cell(f"{turns:.0f}"), Cell(", ".join(weakest))]))
        heads = ("measure", "changes of the weakest class", "weakest classes")
        return Findings(
            tables=(Table("Second half of training", heads, rows),),
            figures=figures,
            not_tested={
                "benz20/C4": "the plan asks whether the weakest class changes and makes no claim; see the table"
            },
        )


class Fluctuation(Experiment):
    """cfa23 Figure 4: change of the worst class from epoch to epoch, with and without FAWA."""

    item = "cfa23/F4"
    scales: ClassVar[Mapping[Name, Scale]] = MANY_TRAININGS

    def run(self, context: Context) -> Findings:
        """Compare both over the epochs on the validation split; test claims C9, C20 and C24."""
        trained = context.train("cfa-at", {"schedules": []})
        averaged = trained.run
        history = trend({"AT": averaged, "AT + FAWA": (averaged, "valid-average")}, window=WINDOW)

        def change(name: str, column: str) -> Estimate:
            return Estimate(*(float(history.summary[f"{column}{end}"][name]) for end in ("", "_low", "_high")))

        plain, fair = change("AT", "change"), change("AT + FAWA", "change")
        noise = _sampling_change(averaged, float(history.summary["worst"]["AT"]))
        calm = interval(Estimate(0.01 - fair.value, 0.01 - fair.high, 0.01 - fair.low), 100)
        caveat = f"over the epochs of one training; sampling of images alone can cause {noise:.1f} points of change"
        ends = (under_pgd(context, trained, which="average"), under_pgd(context, trained, which="last"))
        rows = [
            Row(name, [estimate_cell(change(name, "change_overall")), estimate_cell(change(name, "change"))])
            for name in ("AT", "AT + FAWA")
        ]
        admitted = gate(averaged)
        note = (
            f"FAWA admitted {sum(admitted)} of {len(admitted)} epochs; before the first, it equals the plain average. "
        )
        note += (
            "Small print: 95 % t intervals over the epochs of this training. The small validation split adds "
            "sampling noise."
        )
        heads = ("model", "overall", "worst class")
        return Findings(
            tables=(Table("Mean change between adjacent epochs, in points", heads, rows, note),),
            figures=((history.figure(), "Validation split; the same training with and without averaging."),),
            tests=(
                Test(
                    claim="cfa23/C9",
                    estimand="mean change of the worst class, minus the sampling change, minus that of the "
                    "overall accuracy, AT",
                    estimators=[plus(interval(difference(plain, change("AT", "change_overall")), 100), -noise)],
                    note=caveat,
                ),
                Test(
                    claim="cfa23/C20",
                    covers=("adjacent epochs",),
                    estimand="1 point minus the mean change of the worst class with FAWA",
                    estimators=[lambda level: calm(level)._replace(high=calm(level).high + noise)],
                    note=caveat,
                ),
                Test(
                    claim="cfa23/C20",
                    covers=("overall",),
                    estimand="overall accuracy under PGD after the last epoch, test images: FAWA minus AT",
                    estimators=[average(paired_models(*ends, "PGD"))],
                    note=NOTE,
                ),
                Test(
                    claim="cfa23/C24",
                    estimand="passes saved in training minus passes to evaluate FAWA, for each held-out image "
                    "and epoch",
                    estimators=[exactly(_saved_passes(averaged))],
                    unit="forward passes",
                    exact=True,
                    note="a gradient of activations or weights counts as one pass; this library also evaluates "
                    "the online model",
                ),
            ),
        )


def _sampling_change(run: Run, worst: float) -> float:
    """Upper bound in points of the mean change of a class accuracy between epochs caused by sampling alone.

    The difference of two independent accuracies on n images has standard deviation sqrt(2 p (1 - p) / n), and its mean
    absolute value is sqrt(2 / pi) times that. Epochs share their images, so the actual change is smaller.
    """
    images = int(images_of(run, "valid").min())
    return 100 * math.sqrt(2 / math.pi) * math.sqrt(2 * worst * (1 - worst) / images)


def _saved_passes(run: Run) -> float:
    """Passes for a held-out image: inner attack and update (three passes), minus one evaluation of the average."""
    parts = run.recipe.parts
    trained = 2 * parts.attack.length + 3
    evaluated = 1 + 2 * parts.validation_attack.length + 1
    return float(trained - evaluated)


def selected_epoch(rule: Rule, robust: pd.DataFrame, images: pd.Series[int]) -> int:
    """Epoch (an index of the table) that a rule selects; the last at a tie.

    Args:
        rule: function of class accuracies and counts to a score.
        robust: accuracies, epochs (rows) by classes (columns), fractions; NaN for absent classes.
        images: number of images of each class.
    """
    count = torch.tensor(images.reindex(robust.columns).fillna(0).to_numpy(dtype=np.float32))
    scores = [rule(torch.tensor(row, dtype=torch.float32), count) for row in robust.to_numpy(dtype=np.float32)]
    return int(robust.index[len(scores) - 1 - int(np.argmax(scores[::-1]))])


def counts_at(epoch: int, robust: pd.DataFrame, images: pd.Series[int]) -> ClassCounts:
    """Per-class counts of robust validation images at an epoch."""
    count: IntArray = np.asarray(images.reindex(robust.columns), dtype=np.int64)
    right: IntArray = (robust.loc[epoch].to_numpy(dtype=np.float64) * count).round().astype(np.int64)
    return ClassCounts(count, right)


class UnfairChoice(Experiment):
    """cfa23 section 3.3: selection of the epoch by overall robustness, or by its sum with the worst class."""

    item = "cfa23/E1"
    scales: ClassVar[Mapping[Name, Scale]] = DEFAULT_SCALES

    def run(self, context: Context) -> Findings:
        """Evaluate both selections in one training on its validation split, and on test images if weights are saved."""
        audits = audit_methods(context, {"AT": METHODS["AT"]})
        run = context.train(METHODS["AT"].recipe).run
        robust, images = measured(run, "valid", "robust"), images_of(run, "valid")
        best = run.best_epoch()
        saved = {run.recipe.epochs: "last", **({} if best is None else {best + 1: "best"})}
        printed = catalogue.printed("cfa23/F4")["numbers_in_text"]
        epochs = {name: selected_epoch(rule, robust, images) for name, (rule, _) in RULES.items()}
        counts = {name: counts_at(epoch, robust, images) for name, epoch in epochs.items()}
        rows = []
        for name, epoch in epochs.items():
            printed_row = printed[RULES[name][1]]
            known = epoch in saved
            on_test = pair_cell(audits["AT", saved[epoch]].counts("all")) if known else Cell(formatting.NONE)
            cells = [Cell(str(epoch)), pair_cell(counts[name]), on_test]
            rows.append(Row(name, [*cells, Cell(f"{printed_row['overall']:g} / {printed_row['worst']:g}")]))
        table = Table(
            "Average / worst class of the selected epoch, in percent",
            ("selected by", "epoch (from 1)", "validation", "test", "printed"),
            rows,
            f"Validation: PGD of the training on {int(images.sum())} held-out images, which also select the "
            "epochs, so the "
            "values are biased upwards. Test: the attack of cfa23/T1; a training saves the weights of its own selected "
            "epoch and of the last, so other epochs have no test accuracy. Small print: 95 % confidence intervals.",
        )
        places = [float(epoch) for epoch in robust.index]
        each = [counts_at(int(epoch), robust, images) for epoch in robust.index]
        lines = [
            Series("average", places, [metric_intervals.macro(one).value for one in each], "stroke-main"),
            Series("worst class", places, [metric_intervals.worst(one).value for one in each], "line-weak"),
        ]
        drawing = line_chart("Robust accuracy on the validation split, in percent", lines, "epoch")
        tests, not_tested = [], {}
        if len(set(epochs.values())) == 1:
            not_tested["cfa23/C10"] = f"both rules select epoch {epochs['overall']} of this training"
        else:
            gained = difference(
                metric_intervals.worst(counts["overall + worst"]), metric_intervals.worst(counts["overall"])
            )
            tests.append(
                Test(
                    claim="cfa23/C10",
                    estimand="worst class at the epoch selected by the sum minus that at the epoch selected by "
                    "the overall accuracy",
                    estimators=[interval(gained, 100)],
                    note="on the images that selected the epochs, so the difference is biased upwards",
                )
            )
        return Findings(
            tables=(table,), figures=((drawing, "Adversarial training."),), tests=tests, not_tested=not_tested
        )
