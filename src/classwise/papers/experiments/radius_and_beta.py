"""Adversarial training over its radius and TRADES over beta, class by class: cfa23/F2a, F2bc, F3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from classwise.auditing.result import Audit
from classwise.core.threat import Threat
from classwise.papers.claims import Test
from classwise.papers.context import Context
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.scales import CIFAR, DEFAULT_SCALES, Name, Scale, other_data
from classwise.papers.store import Trained
from classwise.papers.tables import Key, class_table
from classwise.reporting.figures.lines import OVERALL, Series, class_lines, line_chart
from classwise.stats.bootstrap import Resampled
from classwise.stats.counts import ClassCounts, FloatArray

PGD: Mapping[str, Any] = {"name": "pgd", "steps": 10, "step_size": "0.25eps"}
"""PGD-10 with step 2/255 at 8/255, for training and evaluation."""
SCALES: Mapping[Name, Scale] = {
    name: replace(scale, overrides={**scale.overrides, "selection": "overall"}) if name == "full" else scale
    for name, scale in DEFAULT_SCALES.items()
}
RADII: Mapping[Name, Sequence[float]] = {
    "smoke": (1.0, 2.0),
    "reduced": (0.5, 1.0, 1.5),
    "full": tuple(factor / 4 for factor in range(1, 9)),
}
"""Training radii as multiples of the evaluation radius: 2/255 .. 16/255 at 8/255 in the paper."""
BETAS: Mapping[Name, Sequence[float]] = {"smoke": (6, 8), "reduced": (1, 6, 8), "full": tuple(range(1, 9))}
RADIUS = "training radius, in test radii"
HARD = (2, 3, 4)
"""The classes of CIFAR-10 that the paper calls hard."""


@dataclass(frozen=True)
class TrainingSweep:
    """Trainings over one hyper-parameter, and the audits of their best and last epochs.

    Attributes:
        places: values of the hyper-parameter.
        trained: one training per value.
        best: audits of the best epochs.
        last: audits of the last epochs.
        names: class names.
    """

    places: Sequence[float]
    trained: Sequence[Trained]
    best: Sequence[Audit]
    last: Sequence[Audit]
    names: Sequence[str]

    def table(self, audits: Sequence[Audit], attack: str) -> pd.DataFrame:
        """Accuracies as fractions: a row for each value, a column for each class, and the overall accuracy last."""
        counts = [audit.counts(attack) for audit in audits]
        table = pd.DataFrame([one.accuracy for one in counts], index=list(self.places), columns=list(self.names))
        table[OVERALL] = [one.correct.sum() / one.count.sum() for one in counts]
        return table

    def ends(self, audits: Sequence[Audit], attack: str, first: int, last: int) -> Resampled:
        """Resample two positions of the sweep on the same images jointly: rows 0 and 1."""
        rows = [audits[place].outcomes.correct(attack) for place in (first, last)]
        return Resampled(np.stack(rows), audits[0].outcomes.labels, len(self.names))


def run_sweep(
    context: Context, recipe: str, overrides: Sequence[Mapping[str, Any]], places: Sequence[float]
) -> TrainingSweep:
    """Train at each value of a sweep, and audit the best and the last epoch of each training."""
    trained = [context.train(recipe, change) for change in overrides]
    best, last = (
        [context.audit(one, {"PGD": context.pgd(PGD)}, which=which) for one in trained] for which in ("best", "last")
    )
    return TrainingSweep(places, trained, best, last, context.test_images.class_names)


def radius_sweep(context: Context) -> TrainingSweep:
    """Sweep the training radius of adversarial training; all models are evaluated at the radius of the scale."""
    threat = Threat.parse(context.scale.threat)
    assert isinstance(threat.epsilon, float)
    factors = RADII[context.scale.name]
    overrides = [{} if factor == 1 else {"threat": f"{threat.norm}:{factor * threat.epsilon!r}"} for factor in factors]
    return run_sweep(context, "at", overrides, factors)


class RadiusSweep(Experiment):
    """cfa23 Figure 2a: overall robustness at the best and the last epoch, over the training radius."""

    item = "cfa23/F2a"
    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def run(self, context: Context) -> Findings:
        """Test claim C5: a training radius above the evaluation radius helps the last epoch, not the best."""
        sweep = radius_sweep(context)
        series = [
            Series(f"{kind} epoch", sweep.places, sweep.table(audits, "PGD")[OVERALL].tolist(), style)
            for kind, audits, style in (("best", sweep.best, "stroke-main"), ("last", sweep.last, "line-weak"))
        ]
        drawing = line_chart("Robust accuracy of all images, PGD-10, in percent", series, RADIUS)
        counts: dict[Key, ClassCounts] = {
            (f"{place:g} of the test radius", kind): audit.counts("PGD")
            for kind, audits in (("best", sweep.best), ("last", sweep.last))
            for place, audit in zip(sweep.places, audits, strict=True)
        }
        middle, end = list(sweep.places).index(1.0), len(sweep.places) - 1
        gains = [sweep.ends(audits, "PGD", middle, end) for audits in (sweep.last, sweep.best)]
        tests = [
            Test(
                claim="cfa23/C5",
                covers=("last epoch",),
                estimand="overall accuracy at the largest training radius minus at the test radius, last epoch",
                estimators=[gains[0].part(_gain, 100)],
                note="one training at each radius: intervals cover the sampling of images only",
            ),
            Test(
                claim="cfa23/C5",
                covers=("best epoch",),
                estimand="overall accuracy at the test radius minus at the largest training radius, best epoch, "
                "plus 1 point",
                estimators=[gains[1].part(lambda a: 0.01 - _gain(a), 100)],
                note="'does not raise' is interpreted as a rise of less than 1 point",
            ),
        ]
        caption = (
            "The best epoch is selected on the validation split at the training radius; the paper selects at the "
            "test radius."
        )
        return Findings(
            tables=(class_table("Class accuracy under PGD-10, in percent", counts, sweep.names),),
            figures=((drawing, caption),),
            tests=tests,
        )


class RadiusSweepByClass(Experiment):
    """cfa23 Figures 2b and 2c: robustness of each class over the training radius."""

    item = "cfa23/F2bc"
    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def run(self, context: Context) -> Findings:
        """Test claims C6 and C7: beyond the test radius hard classes lose at the best epoch, all gain at the last."""
        sweep = radius_sweep(context)
        figures = []
        for kind, audits in (("Best", sweep.best), ("Last", sweep.last)):
            lines = class_lines(sweep.table(audits, "PGD"))
            drawing = line_chart(f"{kind} epoch, PGD-10, in percent", lines, RADIUS)
            figures.append((drawing, "One line per class. The paper averages twenty epochs; this is a single epoch."))
        middle, end = list(sweep.places).index(1.0), len(sweep.places) - 1
        last = sweep.ends(sweep.last, "PGD", middle, end)
        note = "one training at each radius: intervals cover the sampling of images only"
        tests = [
            Test(
                claim="cfa23/C7",
                estimand="class accuracy at the largest training radius minus at the test radius, last epoch, "
                "each class",
                estimators=[
                    last.part(lambda a, c=c: a[..., 1, c] - a[..., 0, c], 100)  # type: ignore[misc]
                    for c in range(len(sweep.names))
                ],
                note=note,
            )
        ]
        not_tested = {}
        if context.scale.data == CIFAR:
            best = sweep.ends(sweep.best, "PGD", middle, end)
            easy = [c for c in range(len(sweep.names)) if c not in HARD]
            tests.append(
                Test(
                    claim="cfa23/C6",
                    estimand="change beyond the test radius: hard classes fall, the others rise; best epoch",
                    estimators=[
                        best.part(lambda a: -_change(a, HARD), 100),
                        best.part(lambda a: _change(a, easy), 100),
                    ],
                    note=note,
                )
            )
        else:
            not_tested = other_data("cfa23/C6", context.scale)
        return Findings(figures=figures, tests=tests, not_tested=not_tested)


class BetaSweep(Experiment):
    """cfa23 Figure 3: robust and clean accuracy of each class over the beta of TRADES."""

    item = "cfa23/F3"
    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def run(self, context: Context) -> Findings:
        """Test claim C8: a large beta favours the easy classes at the expense of the hard ones."""
        betas = BETAS[context.scale.name]
        sweep = run_sweep(context, "trades", [{"objective.beta": beta} for beta in betas], betas)
        figures = []
        counts: dict[Key, ClassCounts] = {}
        for title, attack in (("Robust accuracy, PGD-10", "PGD"), ("Clean accuracy", "clean")):
            lines = class_lines(sweep.table(sweep.last, attack))
            drawing = line_chart(f"{title}, in percent", lines, "beta of TRADES")
            figures.append((drawing, "One line per class, last epoch. The paper averages twenty epochs."))
            counts |= {
                (f"beta {beta:g}", attack): audit.counts(attack) for beta, audit in zip(betas, sweep.last, strict=True)
            }
        tests, not_tested = [], {}
        if context.scale.data == CIFAR:
            clean = sweep.ends(sweep.last, "clean", 0, len(betas) - 1)
            robust = sweep.ends(sweep.last, "PGD", 0, len(betas) - 1)
            easy = [c for c in range(len(sweep.names)) if c not in HARD]
            tests.append(
                Test(
                    claim="cfa23/C8",
                    estimand="from the smallest to the largest beta: clean loss of hard classes minus that of "
                    "the others; "
                    "robust gain of the others minus that of hard classes",
                    estimators=[
                        clean.part(lambda a: _change(a, easy) - _change(a, HARD), 100),
                        robust.part(lambda a: _change(a, easy) - _change(a, HARD), 100),
                    ],
                    note="one training at each beta: intervals cover the sampling of images only",
                )
            )
        else:
            not_tested = other_data("cfa23/C8", context.scale)
        return Findings(
            tables=(class_table("Class accuracy of the last epoch, in percent", counts, sweep.names),),
            figures=figures,
            tests=tests,
            not_tested=not_tested,
        )


def _gain(accuracy: FloatArray) -> FloatArray:
    return np.asarray(accuracy[..., 1, :].mean(axis=-1) - accuracy[..., 0, :].mean(axis=-1))


def _change(accuracy: FloatArray, classes: Sequence[int]) -> FloatArray:
    change = accuracy[..., 1, :] - accuracy[..., 0, :]
    return np.asarray(change[..., list(classes)].mean(axis=-1))
