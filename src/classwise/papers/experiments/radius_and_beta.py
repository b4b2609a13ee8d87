"""Adversarial training over its radius and TRADES over beta, class by class: cfa23/F2a, F2bc, F3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from classwise.core.threat import Threat
from classwise.papers.bootstrap import Resampled
from classwise.papers.claims import Test
from classwise.papers.context import Context, Training, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.saved_epochs import (
    ATTACK,
    SavedEpochs,
    WindowMeans,
    as_share,
    audit_epochs,
    best_by_other_half,
    epochs_text,
    epochs_within,
    with_checkpoints,
)
from classwise.papers.interval_estimators import plus
from classwise.papers.scales import CIFAR, DEFAULT_SCALES, Name, Scale, other_data
from classwise.papers.tables import estimate_cell
from classwise.reporting.figures.lines import Series, class_lines, line_chart
from classwise.reporting.tables import Row, Table
from classwise.stats.counts import FloatArray

RADII: Mapping[Name, Sequence[float]] = {
    "smoke": (1.0, 2.0),
    "reduced": (0.5, 1.0, 1.5),
    "full": tuple(factor / 4 for factor in range(1, 9)),
}
"""Training radii as multiples of the evaluation radius: 2/255 .. 16/255 at 8/255 in the paper."""
BETAS: Mapping[Name, Sequence[float]] = {"smoke": (6, 8), "reduced": (1, 6, 8), "full": tuple(range(1, 9))}
Window = tuple[float, float]
AFTER_DROP: Mapping[Name, Window] = {"smoke": (0.5, 1.0), "reduced": (0.5, 0.75), "full": (0.5, 0.6)}
"""Epochs 101 to 120 of 200, as fractions; a short training has too few epochs for so narrow a window."""
AT_END: Mapping[Name, Window] = {"smoke": (0.5, 1.0), "reduced": (0.75, 1.0), "full": (0.9, 1.0)}
"""Epochs 181 to 200 of 200."""
LATE: Mapping[Name, Window] = {"smoke": (0.5, 1.0), "reduced": (0.75, 1.0), "full": (0.75, 0.85)}
"""Epochs 151 to 170 of 200."""
RADIUS = "training radius, in test radii"
TOLERANCE = 1
"""Rise in points below which the best epoch is not considered to be raised."""
HARD = (2, 3, 4)
"""The classes of CIFAR-10 that the paper calls hard."""
NOTE = "one training at each value: intervals cover the sampling of images only"


def radius_trainings(scale: Scale) -> dict[str, Training]:
    """Adversarial training at each radius, by the radius in test radii; each saves every epoch (9 GB at full scale)."""
    threat = Threat.parse(scale.threat)
    assert isinstance(threat.epsilon, float)
    declared = {}
    for factor in RADII[scale.name]:
        own = {} if factor == 1 else {"threat": f"{threat.norm}:{factor * threat.epsilon!r}"}
        training = Training(recipe="at", overrides=own)
        declared[f"{factor:g}"] = with_checkpoints(training, every_epoch(scale, training))
    return declared


def every_epoch(scale: Scale, training: Training) -> Sequence[int]:
    """Epochs of the curve of cfa23 Figure 2a, among them both windows of Figures 2b and 2c."""
    return epochs_within(scale, training, (0.0, 1.0))


class _Radii(Experiment):
    """Adversarial training over its radius; all models are evaluated at the radius of the scale."""

    scales: ClassVar[Mapping[Name, Scale]] = DEFAULT_SCALES

    def trainings(self, scale: Scale) -> Trainings:
        """One training for each radius."""
        return radius_trainings(scale)


def evaluate_radii(context: Context) -> dict[float, SavedEpochs]:
    """Train at each radius, and audit every epoch."""
    declared = radius_trainings(context.scale)
    return {
        float(name): audit_epochs(context, trained, every_epoch(context.scale, declared[name]))
        for name, trained in context.train_all(declared).items()
    }


class RadiusSweep(_Radii):
    """cfa23 Figure 2a: overall robustness over the epochs, a line for each training radius."""

    def run(self, context: Context) -> Findings:
        """Test claim C5: a training radius above the evaluation radius helps the last epoch, not the best."""
        sweep = evaluate_radii(context)
        first = next(iter(next(iter(sweep.values())).outcomes.values()))
        labels, classes = first.labels, first.num_classes
        lines = []
        for factor, saved in sweep.items():
            overall = saved.overall(ATTACK)
            lines.append(Series(f"{factor:g}", [float(epoch) for epoch in overall.index], overall.tolist()))
        drawing = line_chart("Robust accuracy of all test images, PGD-10, in percent", lines, "epoch")
        tables = {factor: saved.correct(ATTACK, list(saved.outcomes)) for factor, saved in sweep.items()}
        best = {factor: best_by_other_half(table, labels) for factor, table in tables.items()}
        last = {factor: table[-1] for factor, table in tables.items()}
        rows = []
        for factor in sweep:
            pair = Resampled(np.stack([best[factor], last[factor]]), labels, classes)
            each = [pair.estimate(lambda a, row=row: a[..., row, :].mean(-1)) for row in (0, 1)]  # type: ignore[misc]
            cells = [estimate_cell(as_share(one)) for one in each]
            rows.append(Row(f"{factor:g} of the test radius", cells))
        larger = [factor for factor in sweep if factor > 1]
        gains = {
            kind: [Resampled(np.stack([right[factor], right[1.0]]), labels, classes) for factor in larger]
            for kind, right in (("last", last), ("best", best))
        }
        return Findings(
            tables=(
                Table(
                    "Robust accuracy of all test images under PGD-10, in percent",
                    ("training radius", "best epoch", "last epoch"),
                    rows,
                    "The best epoch of one half of the images is evaluated on the other half, so its accuracy is not "
                    "biased upwards. Small print: 95 % confidence intervals.",
                ),
            ),
            figures=(
                (drawing, "A line for each training radius, in test radii; all are evaluated at the test radius."),
            ),
            tests=(
                Test(
                    claim="cfa23/C5",
                    covers=("last epoch",),
                    estimand="overall accuracy at each larger training radius minus at the test radius, last epoch",
                    estimators=[pair.total() for pair in gains["last"]],
                    note=NOTE,
                ),
                Test(
                    claim="cfa23/C5",
                    covers=("best epoch",),
                    estimand="overall accuracy at the test radius minus at each larger training radius, best epoch, "
                    "plus 1 point",
                    estimators=[plus(pair.total(1, 0), TOLERANCE) for pair in gains["best"]],
                    note=f"'do not raise' is interpreted as a rise of less than {TOLERANCE} point; {NOTE}",
                ),
            ),
        )


class RadiusSweepByClass(_Radii):
    """cfa23 Figures 2b and 2c: robustness of each class over the training radius, averaged over windows of epochs."""

    def run(self, context: Context) -> Findings:
        """Test claims C6 and C7: after the drop hard classes lose beyond the test radius, at the end all gain."""
        sweep = evaluate_radii(context)
        base = radius_trainings(context.scale)["1"]
        windows = {
            name: epochs_within(context.scale, base, window[context.scale.name])
            for name, window in (("after the first drop", AFTER_DROP), ("at the end", AT_END))
        }
        figures, ends = [], {}
        for name, epochs in windows.items():
            rows = {factor: saved.correct(ATTACK, epochs) for factor, saved in sweep.items()}
            averaged = WindowMeans(context, rows, len(epochs))
            drawing = line_chart(f"PGD-10, {name}, in percent", class_lines(averaged.table), RADIUS)
            figures.append((drawing, f"One line per class, mean over {epochs_text(epochs)}."))
            ends[name] = averaged
        middle, end = ends.values()
        tests = [
            Test(
                claim="cfa23/C7",
                estimand="class accuracy at the largest training radius minus at the test radius, mean over the last "
                "window of epochs, each class",
                estimators=[
                    end.change(1.0, max(sweep), lambda change, c=c: change[..., c])  # type: ignore[misc]
                    for c in range(len(end.names))
                ],
                note=NOTE,
            )
        ]
        not_tested = {}
        if context.scale.data == CIFAR:
            easy = [c for c in range(len(end.names)) if c not in HARD]
            tests.append(
                Test(
                    claim="cfa23/C6",
                    estimand="change beyond the test radius after the first drop: hard classes fall, the others rise",
                    estimators=[
                        middle.change(1.0, max(sweep), lambda change: -_mean_of(change, HARD)),
                        middle.change(1.0, max(sweep), lambda change: _mean_of(change, easy)),
                    ],
                    note=NOTE,
                )
            )
        else:
            not_tested = other_data("cfa23/C6", context.scale)
        return Findings(figures=figures, tests=tests, not_tested=not_tested)


class BetaSweep(Experiment):
    """cfa23 Figure 3: robust and clean accuracy of each class over the beta of TRADES, averaged over 20 epochs.

    The loss is divided by 1 + beta, as in the public code, so that all betas have the same learning rate.
    """

    scales: ClassVar[Mapping[Name, Scale]] = DEFAULT_SCALES

    def trainings(self, scale: Scale) -> Trainings:
        """One training for each beta."""
        declared = {}
        for beta in BETAS[scale.name]:
            training = Training(recipe="trades-scaled", overrides={"objective.beta": beta})
            epochs = epochs_within(scale, training, LATE[scale.name])
            declared[f"{beta:g}"] = with_checkpoints(training, epochs)
        return declared

    def run(self, context: Context) -> Findings:
        """Test claim C8: a large beta favours the easy classes at the expense of the hard ones."""
        declared = self.trainings(context.scale)
        epochs = epochs_within(context.scale, next(iter(declared.values())), LATE[context.scale.name])
        sweep = {
            float(name): audit_epochs(context, trained, epochs) for name, trained in context.train_all(declared).items()
        }
        figures, rows, averaged = [], [], {}
        for title, attack in (("Robust accuracy, PGD-10", ATTACK), ("Clean accuracy", "clean")):
            rows_of = {beta: saved.correct(attack, epochs) for beta, saved in sweep.items()}
            averaged[attack] = means = WindowMeans(context, rows_of, len(epochs))
            drawing = line_chart(f"{title}, in percent", class_lines(means.table), "beta of TRADES")
            figures.append((drawing, f"One line per class, mean over {epochs_text(epochs)}."))
            for place, beta in enumerate(sweep):
                each = [
                    means.images.estimate(lambda a, c=c, p=place, m=means: m.means(a)[..., p, c])  # type: ignore[misc]
                    for c in range(len(means.names))
                ]
                rows.append(Row(f"beta {beta:g}, {attack}", [estimate_cell(as_share(one)) for one in each]))
        table = Table(
            f"Class accuracy, mean over {epochs_text(epochs)}, in percent",
            ("training", *averaged[ATTACK].names),
            rows,
            "Small print: 95 % confidence intervals for new images.",
        )
        tests, not_tested = [], {}
        if context.scale.data == CIFAR:
            easy = [c for c in range(len(table.heads) - 1) if c not in HARD]
            ends = (min(sweep), max(sweep))
            tests.append(
                Test(
                    claim="cfa23/C8",
                    estimand="from the smallest to the largest beta: clean loss of hard classes minus that of "
                    "the others; robust gain of the others minus that of hard classes",
                    estimators=[
                        averaged[attack].change(*ends, lambda change: _mean_of(change, easy) - _mean_of(change, HARD))
                        for attack in ("clean", ATTACK)
                    ],
                    note=NOTE,
                )
            )
        else:
            not_tested = other_data("cfa23/C8", context.scale)
        return Findings(tables=(table,), figures=figures, tests=tests, not_tested=not_tested)


def _mean_of(change: FloatArray, classes: Sequence[int]) -> FloatArray:
    return np.asarray(change[..., list(classes)].mean(axis=-1))
