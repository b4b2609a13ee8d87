"""kdd21/F4a and F4b: which images are taken for which class, and which come home without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from classwise.analysis.homing import homing
from classwise.papers.claims import Test, interval
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.attacks import PGD
from classwise.papers.scales import CIFAR, USUAL, Name, Scale, other_data
from classwise.papers.tables import estimate_cell
from classwise.report.analyses import figure, misclassified
from classwise.report.tables import Cell, Row, Table
from classwise.stats.intervals import Estimate, wilson

SHOWN = 10
MANY = 0.25
"""A share of images that come home that counts as many; of the paper's pair 3 to 5 it is 0.6."""


class HomingMatrix(Experiment):
    """kdd21 Figure 4b: homing counts, by C trainings without a class each."""

    item = "kdd21/F4b"
    scales: ClassVar[Mapping[Name, Scale]] = {
        **USUAL,
        "smoke": USUAL["smoke"].with_changes(epochs=1),
    }

    def run(self, bench: Bench) -> Findings:
        """Both matrices, and claim C19 over all pairs."""
        trained = bench.trained("at")
        found = homing(
            trained.run,
            out=trained.run.path / f"homing-{bench.scale.name}",
            data=bench.train_images,
            test=bench.test_images,
            attack={"PGD": bench.pgd(PGD)},
            compute=bench.scale.compute,
            device=bench.device,
            progress=bench.progress,
        )
        home, errors = int(found.homing.sum()), int(found.misclassified.sum())
        low, high = (float(end) for end in wilson(np.array(home), np.array(errors)))
        share = Estimate(home / max(errors, 1), low, high)
        rows = [
            Row(
                f"{one['truth']} taken for {one['taken_for']}",
                [
                    Cell(str(one["misclassified"])),
                    Cell(str(one["homing"])),
                    estimate_cell(Estimate(one["share"], one["low"], one["high"])),
                ],
            )
            for one in found.table.head(SHOWN).to_dict("records")
        ]
        rows.append(Row("all pairs", [Cell(str(errors)), Cell(str(home)), estimate_cell(share)]))
        heads = ("pair", "misclassified", "come home", "percent")
        return Findings(
            tables=(Table("The most frequent pairs", heads, rows, "Small: 95 % intervals for new images."),),
            figures=(
                (misclassified(found), "Misclassified images under PGD; rows: truth."),
                (figure(found), "Of these, those that are robust for the model without the class of the column."),
            ),
            tests=(
                Test(
                    claim="kdd21/C19",
                    estimand="share of the misclassified images that come home, minus 25 points",
                    parts=[interval(Estimate(*(end - MANY for end in share)), 100)],
                    note="one training without each class; 'many' is read as: more than a quarter",
                ),
            ),
            beyond={} if bench.scale.data == CIFAR else other_data("kdd21/C20", bench.scale),
        )


class MisclassifiedMatrix(HomingMatrix):
    """kdd21 Figure 4a: the misclassified images, the diagonal hidden."""

    item = "kdd21/F4a"
