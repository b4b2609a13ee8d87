"""Misclassified and homing matrices, and groups of classes derived from them: kdd21/F4a, F4b, E8."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd

from classwise.analysis.homing import Homing, homing
from classwise.analysis.pairs import Pairs, pairs
from classwise.papers.claims import Test
from classwise.papers.context import Context, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.protocol import AT, SETUP_STEP, pgd
from classwise.papers.interval_estimators import interval
from classwise.papers.scales import CIFAR, CLASSWISE, REDUCED, Name, Scale, other_data
from classwise.papers.tables import estimate_cell
from classwise.reporting.formatting import NONE
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.intervals import Estimate, wilson

SHOWN = 10
MANY = 0.25
"""Share of homing images interpreted as many; it is 0.6 for the paper's pair 3 to 5."""
SEEDS_APART = 1
"""Seed of the control, which is trained with all classes, minus that of the base model."""
SCALES: Mapping[Name, Scale] = {
    **CLASSWISE,
    "smoke": CLASSWISE["smoke"].with_overrides(epochs=1),
    "reduced": replace(
        REDUCED.with_overrides(epochs=8),
        about="5,000 images of CIFAR-10, a quarter-width ResNet-18, 8 epochs in bfloat16 for each of twelve models: "
        "indicative, with wide intervals",
    ),
}
GROUPS = ((3, 5), (1, 9), (0, 8))
"""The pairs of CIFAR-10 classes that the paper names."""


def homing_matrices(context: Context) -> Homing:
    """Compute both matrices of adversarial training under PGD by C trainings, each without one class, and a control.

    The computation is locked in the store, so that one process at a time runs it.
    """
    trained = context.train_all({"AT": AT})["AT"]
    attack = {"PGD": pgd(context, SETUP_STEP)}
    context.note_audit(context.test_images, attack)
    name = f"homing-{context.scale.name}"
    with context.store.timed(f"{name}-{trained.key}", trained.run.path / name, context.progress):
        return homing(
            trained.run,
            out=trained.run.path / name,
            data=context.train_images,
            test=context.test_images,
            attack=attack,
            precision=context.scale.precision,
            control=trained.run.recipe.seed + SEEDS_APART,
            device=context.device,
            progress=context.progress,
        )


class _Homing(Experiment):
    """An experiment with the base model of the homing matrix, which also trains a model without each class."""

    scales: ClassVar[Mapping[Name, Scale]] = SCALES
    declared: ClassVar[Trainings] = {"AT": AT}


class HomingMatrix(_Homing):
    """kdd21 Figure 4b: homing counts."""

    def run(self, context: Context) -> Findings:
        """Compute both matrices, and test claim C19 over all pairs."""
        matrices = homing_matrices(context)
        home, errors = int(matrices.homing.sum()), int(matrices.misclassified.sum())
        low, high = (float(end) for end in wilson(np.array(home), np.array(errors)))
        share = Estimate(home / errors if errors else math.nan, low, high)
        beyond = matrices.difference()
        rows = [
            Row(
                f"{one['truth']} misclassified as {one['taken_for']}",
                [
                    *(Cell(str(one[column])) for column in ("misclassified", "homing", "control")),
                    estimate_cell(Estimate(one["share"], one["low"], one["high"])),
                    estimate_cell(Estimate(one["difference"], one["difference_low"], one["difference_high"])),
                ],
            )
            for one in matrices.table.head(SHOWN).to_dict("records")
        ]
        assert matrices.control is not None, "the control is always requested"
        totals = [Cell(str(count)) for count in (errors, home, int(matrices.control.sum()))]
        rows.append(Row("all pairs", [*totals, estimate_cell(share), estimate_cell(beyond)]))
        heads = ("pair", "misclassified", "homing", "robust with another seed", "homing, percent", "beyond, points")
        note = (
            "The control is trained with all classes and another seed, and attacked on the same images. Beyond: share "
        )
        note += (
            "of homing images minus that of the control, paired. Small print: 95 % confidence intervals for new images."
        )
        return Findings(
            tables=(Table("The most frequent pairs", heads, rows, note),),
            figures=(
                (matrices.misclassified_figure(), "Misclassified images under PGD; rows: truth."),
                (
                    matrices.figure(),
                    "Of these, images that are robust for the model trained without the class of the column.",
                ),
                (
                    matrices.control_figure(),
                    "Of these, images that are robust for the control: all classes, another seed.",
                ),
            ),
            tests=(
                Test(
                    claim="kdd21/C19",
                    estimand="share of homing images among the misclassified, minus the share of the same images that "
                    "are robust for a model with all classes and another seed; the share of homing images minus 25 "
                    "points",
                    estimators=[
                        lambda level: Estimate(*(100 * end for end in matrices.difference(level))),
                        interval(Estimate(*(end - MANY for end in share)), 100),
                    ],
                    note="homing beyond a change of seed; one training without each class and one control; 'many' is "
                    "interpreted as more than a quarter",
                ),
            ),
            not_tested={} if context.scale.data == CIFAR else other_data("kdd21/C20", context.scale),
        )


class GroupRelations(_Homing):
    """kdd21 section 6.1: groups of classes derived from the misclassified and the homing matrix."""

    def run(self, context: Context) -> Findings:
        """Compare the strongest ties of both matrices with the superclasses; test claim C20 over the named pairs."""
        both = class_pairs(homing_matrices(context), context.test_images.superclasses)
        tests, not_tested = [], other_data("kdd21/C20", context.scale)
        if context.scale.data == CIFAR:
            leads = [one.lead(*pair) for one in both.values() for a, b in GROUPS for pair in ((a, b), (b, a))]
            estimand = "the named class's share of all images minus that of the next, each class of 3-5, 1-9, 0-8; "
            estimand += "misclassified, and homing"
            tests, not_tested = (
                [Test(claim="kdd21/C20", estimand=estimand, estimators=[interval(one, 100) for one in leads])],
                {},
            )
        caption = "Symmetric matrix: mean of the two shares."
        return Findings(
            tables=[_tie_table(title, one) for title, one in both.items()],
            figures=[(one.figure(), f"{title}. {caption}") for title, one in both.items() if one.errors.any()],
            tests=tests,
            not_tested=not_tested,
        )


def class_pairs(matrices: Homing, superclasses: Sequence[int] | None) -> dict[str, Pairs]:
    """Pairs of the misclassified and of the homing matrix; the diagonal of each is the rest of the class."""
    rest = np.diag(matrices.matrix.sum(axis=1) - matrices.homing.sum(axis=1))
    return {
        "Misclassified": pairs(matrices.matrix, matrices.class_names, superclasses),
        "Homing": pairs(matrices.homing + rest, matrices.class_names, superclasses),
    }


def _tie_table(title: str, class_pairs_of_matrix: Pairs) -> Table:
    rows = []
    for one in class_pairs_of_matrix.table.head(SHOWN).to_dict("records"):
        inside = NONE if pd.isna(one["inside"]) else "yes" if one["inside"] else "no"
        cells = [
            str(one["there"]),
            str(one["back"]),
            f"{100 * one['tie']:.1f}",
            "yes" if one["mutual"] else "no",
            inside,
        ]
        rows.append(Row(f"{one['first']} and {one['second']}", [Cell(cell) for cell in cells], good=one["mutual"]))
    heads = ("pair", "first as second", "second as first", "tie, percent", "mutual first", "same superclass")
    note = "Tie: mean over both classes of the share of errors that are predictions of the other class."
    rows = rows or [Row("no pair", [Cell(NONE)] * (len(heads) - 1))]
    return Table(f"{title}: strongest ties", heads, rows, note)
