"""cfa23/F4: overall and worst class over the epochs, of adversarial training and of its fair average."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from classwise.analysis.trends import Trend, inside, trend
from classwise.papers.cfa23.parts import FAWA
from classwise.papers.claims import Test, difference, exactly, interval
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.scales import MANY_TRAININGS, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.report.analyses import figure
from classwise.report.tables import Row, Table
from classwise.stats.counts import FloatArray
from classwise.stats.intervals import Estimate, student
from classwise.training.folder import Run

WINDOW = (0.5, 1.0)
"""Which epochs, as shares; the paper has 101 to 120 of 200, too few of a short training."""


class Fluctuation(Experiment):
    """cfa23 Figure 4: how much the worst class changes from epoch to epoch, with and without FAWA."""

    item = "cfa23/F4"
    scales: ClassVar[Mapping[Name, Scale]] = MANY_TRAININGS

    def run(self, bench: Bench) -> Findings:
        """Both over the epochs on the validation split; claims C9, C20 and C24."""
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
                Test(
                    claim="cfa23/C20",
                    estimand="overall accuracy with FAWA minus that of AT without, the same epochs",
                    parts=[interval(student(_gain(found)), 100)],
                    note="over the epochs of one training, which are not independent: the interval is too narrow",
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


def _gain(found: Trend) -> FloatArray:
    """Overall accuracy of FAWA minus that of AT at each epoch of the window."""
    epochs = found.epochs.pivot_table(index="epoch", columns="run", values="overall")
    last = int(epochs.index.max())
    chosen = epochs[[inside(int(epoch), last, WINDOW) for epoch in epochs.index]]
    return (chosen["AT + FAWA"] - chosen["AT"]).to_numpy(dtype=np.float64)


def _saved(run: Run) -> float:
    """Of a held-out image: the inner attack and three passes of the update, against one of the average's judgements."""
    parts = run.recipe.parts()
    trained = 2 * parts.attack.length + 3
    judged = 1 + 2 * parts.validation_attack.length + 1
    return float(trained - judged)
