"""cfa23/F4: overall and worst class over the epochs, of adversarial training and of its fair average."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from classwise.analysis.epochs import images_of
from classwise.analysis.trend import trend
from classwise.papers.cfa23.methods import NOTE, average, both, gate
from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.attacks import under_pgd
from classwise.papers.scales import MANY_TRAININGS, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.report.tables import Row, Table
from classwise.stats.interval_estimators import difference, exactly, interval, plus
from classwise.stats.intervals import Estimate
from classwise.training.folder import Run

WINDOW = (0.5, 1.0)
"""Which epochs, as shares; the paper has 101 to 120 of 200, too few of a short training."""


class Fluctuation(Experiment):
    """cfa23 Figure 4: how much the worst class changes from epoch to epoch, with and without FAWA."""

    item = "cfa23/F4"
    scales: ClassVar[Mapping[Name, Scale]] = MANY_TRAININGS

    def run(self, bench: Bench) -> Findings:
        """Both over the epochs on the validation split; claims C9, C20 and C24."""
        trained = bench.trained("cfa-at", {"schedules": []})
        averaged = trained.run
        found = trend({"AT": averaged, "AT + FAWA": (averaged, "valid-average")}, window=WINDOW)

        def change(name: str, column: str) -> Estimate:
            return Estimate(*(float(found.summary[f"{column}{end}"][name]) for end in ("", "_low", "_high")))

        plain, fair = change("AT", "change"), change("AT + FAWA", "change")
        noise = _of_images(averaged, float(found.summary["worst"]["AT"]))
        calm = interval(Estimate(0.01 - fair.value, 0.01 - fair.high, 0.01 - fair.low), 100)
        told = f"over the epochs of one training; {noise:.1f} points of change can come from the images alone"
        ends = (under_pgd(bench, trained, which="average"), under_pgd(bench, trained, which="last"))
        rows = [
            Row(name, [estimate_cell(change(name, "change_overall")), estimate_cell(change(name, "change"))])
            for name in ("AT", "AT + FAWA")
        ]
        judged = gate(averaged)
        note = f"FAWA admitted {sum(judged)} of {len(judged)} epochs; before the first, it is the plain average. "
        note += (
            "Small: 95 % t intervals over the epochs of this training. Few validation images add noise of their own."
        )
        heads = ("model", "overall", "worst class")
        return Findings(
            tables=(Table("Mean change between adjacent epochs, in points", heads, rows, note),),
            figures=((found.figure(), "The validation split; the same training with and without the average."),),
            tests=(
                Test(
                    claim="cfa23/C9",
                    estimand="mean change of the worst class, less what few images add, minus that of the overall, AT",
                    parts=[plus(interval(difference(plain, change("AT", "change_overall")), 100), -noise)],
                    note=told,
                ),
                Test(
                    claim="cfa23/C20",
                    covers=("adjacent epochs",),
                    estimand="1 point minus the mean change of the worst class with FAWA",
                    parts=[lambda level: calm(level)._replace(high=calm(level).high + noise)],
                    note=told,
                ),
                Test(
                    claim="cfa23/C20",
                    covers=("overall",),
                    estimand="overall accuracy under PGD after the last epoch, test images: FAWA minus AT",
                    parts=[average(both(*ends, "PGD"))],
                    note=NOTE,
                ),
                Test(
                    claim="cfa23/C24",
                    estimand="passes saved in training minus passes to judge FAWA, for each held-out image and epoch",
                    parts=[exactly(_saved(averaged))],
                    unit="forward passes",
                    exact=True,
                    note="a gradient of activations or weights counts one; this library also judges the online model",
                ),
            ),
        )


def _of_images(run: Run, worst: float) -> float:
    """Points by which the accuracy of a class changes at most, on average, between epochs that differ in no class.

    Two independent counts of n images differ by sqrt(2 p (1 - p) / n) in standard deviation, and by sqrt(2 / pi) of
    that in mean size; epochs share their images, so it is less.
    """
    images = int(images_of(run, "valid").min())
    return 100 * math.sqrt(2 / math.pi) * math.sqrt(2 * worst * (1 - worst) / images)


def _saved(run: Run) -> float:
    """Of a held-out image: the inner attack and three passes of the update, against one of the average's judgements."""
    parts = run.recipe.parts
    trained = 2 * parts.attack.length + 3
    judged = 1 + 2 * parts.validation_attack.length + 1
    return float(trained - judged)
