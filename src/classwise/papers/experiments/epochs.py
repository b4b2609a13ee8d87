"""Class accuracies over the epochs of training: kdd21/F1, benz20/P1.11."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from classwise.analysis.trend import trend
from classwise.auditing.outcomes import Outcomes
from classwise.papers.claims import Test
from classwise.papers.context import Context
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.protocol import under_pgd
from classwise.papers.measurements import Measurement
from classwise.papers.scales import CIFAR, MANY_TRAININGS, REDUCED, SMOKE, TIAN, Name, Scale
from classwise.papers.tables import Key, class_table, skipped_table
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import ClassCounts
from classwise.stats.interval_estimators import widest

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
        figures, rows, measurements = [], [], []
        for measure in ("robust", "clean"):
            history = trend({"AT": run}, measure, window=(0.5, 1.0))
            figures.append((history.figure(), f"Validation split, {measure}."))
            turns, epochs = history.summary["turns"]["AT"], history.epochs
            late = epochs[epochs["epoch"] > run.recipe.epochs / 2]
            weakest = dict.fromkeys(map(str, late["worst_class"]))
            rows.append(Row(measure, [Cell(f"{turns:.0f}"), Cell(", ".join(weakest))]))
            quantity = f"changes of the weakest class in the second half of one training, {measure}"
            measurements.append(Measurement(question="benz20/C4", quantity=quantity, value=turns))
        heads = ("measure", "changes of the weakest class", "weakest classes")
        return Findings(
            tables=(Table("Second half of training", heads, rows),),
            figures=figures,
            measurements=measurements,
        )
