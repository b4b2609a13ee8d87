"""cfa23/F4: overall and worst class over the epochs, of adversarial training and of its fair average."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from classwise.analysis.trends import trend
from classwise.papers.cfa23.parts import FAWA
from classwise.papers.claims import Test, difference, interval
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.scales import MANY_TRAININGS, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.report.analyses import figure
from classwise.report.tables import Row, Table
from classwise.stats.intervals import Estimate

WINDOW = (0.5, 1.0)
"""Which epochs, as shares; the paper has 101 to 120 of 200, too few of a short training."""


class Fluctuation(Experiment):
    """cfa23 Figure 4: how much the worst class changes from epoch to epoch, with and without FAWA."""

    item = "cfa23/F4"
    scales: ClassVar[Mapping[Name, Scale]] = MANY_TRAININGS

    def run(self, bench: Bench) -> Findings:
        """Both over the epochs on the validation split; claims C9 and C20."""
        averaged = bench.trained("at", {"averaging": FAWA}).run
        found = trend({"AT": averaged, "AT + FAWA": (averaged, "valid-average")}, window=WINDOW)

        def change(name: str, column: str) -> Estimate:
            return Estimate(*(float(found.summary[f"{column}{end}"][name]) for end in ("", "_low", "_high")))

        plain, fair = change("AT", "change"), change("AT + FAWA", "change")
        rows = [
            Row(name, [estimate_cell(change(name, "change_overall")), estimate_cell(change(name, "change"))])
            for name in ("AT", "AT + FAWA")
        ]
        note = "Small: 95 % t intervals over the epochs of this training. Few validation images add noise of their own."
        heads = ("model", "overall", "worst class")
        return Findings(
            tables=(Table("Mean change between adjacent epochs, in points", heads, rows, note),),
            figures=((figure(found), "The validation split; the same training with and without the average."),),
            tests=(
                Test(
                    claim="cfa23/C9",
                    estimand="mean change of the worst class minus that of the overall accuracy, AT",
                    parts=[interval(difference(plain, change("AT", "change_overall")), 100)],
                    note="over the epochs of one training",
                ),
                Test(
                    claim="cfa23/C20",
                    estimand="1 point minus the mean change of the worst class with FAWA",
                    parts=[interval(Estimate(0.01 - fair.value, 0.01 - fair.high, 0.01 - fair.low), 100)],
                    note="over the epochs of one training",
                ),
            ),
        )
