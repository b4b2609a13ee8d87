"""cfa23/E1: the epoch that the overall robustness chooses, and the one that CFA's rule does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pandas as pd
import torch

from classwise.analysis.epochs import images_of, measured
from classwise.papers import catalogue
from classwise.papers.cfa23.methods import METHODS, audited, pair_cell
from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.scales import USUAL, Name, Scale
from classwise.report import wording
from classwise.report.figures.lines import Series, line_chart
from classwise.report.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import ClassCounts, IntArray
from classwise.stats.interval_estimators import difference, interval
from classwise.training.selection import Rule, overall, overall_plus_worst

RULES: Mapping[str, tuple[Rule, str]] = {
    "overall": (overall, "epoch_108"),
    "overall + worst": (overall_plus_worst, "epoch_110"),
}
"""Rules with the epoch of the paper that each stands for."""


def chosen(rule: Rule, robust: pd.DataFrame, images: pd.Series[int]) -> int:
    """The epoch (an index of the table) that a rule keeps, of ties the last.

    Args:
        rule: from class accuracies and counts to a score.
        robust: accuracies, epochs (rows) by classes (columns), fractions; NaN for absent classes.
        images: of each class.
    """
    count = torch.tensor(images.reindex(robust.columns).fillna(0).to_numpy(dtype=np.float32))
    scores = [rule(torch.tensor(row, dtype=torch.float32), count) for row in robust.to_numpy(dtype=np.float32)]
    return int(robust.index[len(scores) - 1 - int(np.argmax(scores[::-1]))])


def counts_at(epoch: int, robust: pd.DataFrame, images: pd.Series[int]) -> ClassCounts:
    """The validation images that stand at an epoch."""
    count: IntArray = np.asarray(images.reindex(robust.columns), dtype=np.int64)
    right: IntArray = (robust.loc[epoch].to_numpy(dtype=np.float64) * count).round().astype(np.int64)
    return ClassCounts(count, right)


class UnfairChoice(Experiment):
    """cfa23 section 3.3: choosing the epoch by overall robustness, or by its sum with the worst class's."""

    item = "cfa23/E1"
    scales: ClassVar[Mapping[Name, Scale]] = USUAL

    def run(self, bench: Bench) -> Findings:
        """Both choices in one training, judged on its validation split; on test images where the weights are kept."""
        audits = audited(bench, {"AT": METHODS["AT"]})
        run = bench.trained(METHODS["AT"].recipe).run
        robust, images = measured(run, "valid", "robust"), images_of(run, "valid")
        best = run.best_epoch()
        kept = {run.recipe.epochs: "last", **({} if best is None else {best + 1: "best"})}
        printed = catalogue.printed("cfa23/F4")["numbers_in_text"]
        epochs = {name: chosen(rule, robust, images) for name, (rule, _) in RULES.items()}
        counts = {name: counts_at(epoch, robust, images) for name, epoch in epochs.items()}
        rows = []
        for name, epoch in epochs.items():
            theirs = printed[RULES[name][1]]
            known = epoch in kept
            on_test = pair_cell(audits["AT", kept[epoch]].counts("all")) if known else Cell(wording.NONE)
            cells = [Cell(str(epoch)), pair_cell(counts[name]), on_test]
            rows.append(Row(name, [*cells, Cell(f"{theirs['overall']:g} / {theirs['worst']:g}")]))
        table = Table(
            "Average / worst class of the epoch that a rule chooses, in percent",
            ("chosen by", "epoch (from 1)", "validation", "test", "printed"),
            rows,
            f"Validation: PGD of the training on {int(images.sum())} held-out images, on which the epochs are "
            "chosen: the chosen numbers lie high. Test: the attack of cfa23/T1; a training keeps the weights of the "
            "epoch that its own rule chooses and of the last, and others have no test numbers. Small: 95 % intervals.",
        )
        places = [float(epoch) for epoch in robust.index]
        each = [counts_at(int(epoch), robust, images) for epoch in robust.index]
        lines = [
            Series("average", places, [metric_intervals.macro(one).value for one in each], "stroke-main"),
            Series("worst class", places, [metric_intervals.worst(one).value for one in each], "line-weak"),
        ]
        drawing = line_chart("Robust accuracy on the validation split, in percent", lines, "epoch")
        tests, beyond = [], {}
        if len(set(epochs.values())) == 1:
            beyond["cfa23/C10"] = f"both rules choose epoch {epochs['overall']} of this training"
        else:
            gained = difference(
                metric_intervals.worst(counts["overall + worst"]), metric_intervals.worst(counts["overall"])
            )
            tests.append(
                Test(
                    claim="cfa23/C10",
                    estimand="worst class at the epoch chosen by the sum minus that at the epoch chosen by the overall",
                    parts=[interval(gained, 100)],
                    note="on the images that chose the epochs: the difference lies high",
                )
            )
        return Findings(tables=(table,), figures=((drawing, "Adversarial training."),), tests=tests, beyond=beyond)
