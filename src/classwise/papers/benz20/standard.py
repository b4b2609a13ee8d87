"""benz20 Figure 1: accuracy and robustness of each class for a standard model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from classwise.auditing.result import Audit
from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.attacks import under_pgd
from classwise.papers.scales import USUAL, Name, Scale
from classwise.papers.store import Trained
from classwise.papers.tables import Key, class_table, estimate_cell
from classwise.report.drawing import Drawing
from classwise.report.figures.dots import ROW_WIDTH, Value, dot_rows
from classwise.report.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.counts import ClassCounts
from classwise.stats.interval_estimators import wider, widest
from classwise.stats.intervals import class_intervals
from classwise.threat import Threat

RADII: Sequence[float] = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1)
"""In radii of the scale: 0.25, 0.5, 1, 2 and 8 of 8/255, where a standard model stands at 0 percent in all classes."""
HALF = 0.5


def at_radius(bench: Bench, trained: Trained, share: float) -> Audit:
    """A run under PGD at a share of the scale's radius, on the same images."""
    threat = Threat.parse(bench.scale.threat)
    assert isinstance(threat.epsilon, float)
    scale = replace(bench.scale, threat=f"{threat.norm}:{share * threat.epsilon!r}")
    own = Bench(scale, bench.store, device=bench.device, progress=bench.progress)
    return under_pgd(own, trained)


class StandardModel(Experiment):
    """benz20 Figure 1: a standard model, clean and under PGD of several radii; raw, and minus the mean."""

    item = "benz20/F1"
    scales: ClassVar[Mapping[Name, Scale]] = USUAL

    def run(self, bench: Bench) -> Findings:
        """One audit for each radius; claim C1, and C3 as far as one radius can speak."""
        trained = bench.trained("standard", {"seed": 1})
        audits = {share: at_radius(bench, trained, share) for share in RADII}
        first = next(iter(audits.values()))
        counts = {"clean": first.counts("clean")}
        counts |= {name_of(bench.scale, share): audit.counts("PGD") for share, audit in audits.items()}
        robust = {share: float(audit.counts("PGD").accuracy.mean()) for share, audit in audits.items()}
        judged = min(RADII, key=lambda share: abs(robust[share] - HALF))
        shown = ("clean", name_of(bench.scale, judged))
        drawn = [counts[name] for name in shown]
        table = first.outcomes
        adversarial = under_pgd(bench, bench.trained("at")).outcomes
        smaller = [drawn[0], drawn[1], adversarial.counts("clean")]
        rows = [
            Row(
                name,
                [
                    estimate_cell(metric_intervals.macro(one)),
                    estimate_cell(metric_intervals.discrepancy(one)),
                    _spread(one),
                ],
            )
            for name, one in counts.items()
        ]
        note = f"Judged at {shown[1]}, where the average is nearest 50 percent. Small: 95 % intervals for new images."
        classes: dict[Key, ClassCounts] = {(name,): one for name, one in counts.items()}
        return Findings(
            tables=(
                Table("Over the classes", ("images", "average", "MCD", "CV, percent squared"), rows, note),
                class_table("Class accuracy, in percent", classes, table.class_names),
            ),
            figures=(
                (class_dots("Standard training, in percent", drawn, shown, table.class_names), "Test images."),
                (_centred(drawn, shown, table.class_names), "The same minus the mean of the classes."),
            ),
            tests=(
                Test(
                    claim="benz20/C1",
                    estimand="MCD of clean accuracy, standard training",
                    parts=[widest(counts["clean"])],
                    note="'non-trivial' is read as: above zero by intervals that hold for all classes at once",
                ),
                Test(
                    claim="benz20/C3",
                    estimand="MCD of the adversarial model under PGD minus each of: standard clean, standard under "
                    f"{shown[1]}, adversarial clean",
                    parts=[wider(adversarial.counts("PGD"), one) for one in smaller],
                    note="the standard model is judged where its average is nearest 50 percent",
                ),
            ),
        )


def name_of(scale: Scale, share: float) -> str:
    """What a radius is called."""
    radius = Threat.parse(scale.threat).epsilon
    assert isinstance(radius, float)
    return f"PGD at {255 * share * radius:.3g}/255"


def _spread(counts: ClassCounts) -> Cell:
    return estimate_cell(metric_intervals.variance(counts), 1e4)


def class_dots(title: str, counts: Sequence[ClassCounts], shown: Sequence[str], names: Sequence[str]) -> Drawing:
    """A row for each class, and in it the accuracy of each of some counts with its 95 % interval."""
    ends = [class_intervals(one) for one in counts]
    values = [
        [
            Value(float(one.accuracy[c]), float(low[c]), float(high[c]), int(one.count[c]))
            for one, (low, high) in zip(counts, ends, strict=True)
        ]
        for c in range(len(names))
    ]
    return dot_rows(title, names, shown, values, width=ROW_WIDTH)


def _centred(counts: Sequence[ClassCounts], shown: Sequence[str], names: Sequence[str]) -> Drawing:
    sides = [(*metric_intervals.beyond_mean(one), one.count) for one in counts]
    values = [
        [Value(float(value[c]), float(low[c]), float(high[c]), int(count[c])) for value, low, high, count in sides]
        for c in range(len(names))
    ]
    title = "Standard training, class minus mean, in points"
    return dot_rows(title, names, shown, values, difference=True, width=ROW_WIDTH)
