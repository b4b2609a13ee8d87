"""Two-phase estimates of AutoAttack replayed over many orders: the coverage of the intervals, and the passes.

The outcomes are recorded (``docs/results/worst-class/*.csv``, and ``docs/results/two-phase/*.csv`` as `record` writes
them from audits under AutoAttack) or synthetic with the rates of a measurement. ``python -m benchmarks two-phase``
prints the table and writes it into ``docs/results/two-phase.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from benchmarks import ratios
from benchmarks.tables import table
from benchmarks.worst_class import OUTCOMES
from classwise.core.files.csv_files import write_csv
from classwise.stats.two_phase import (
    UNKNOWN,
    Survivors,
    TwoPhaseEstimate,
    low_margin,
    next_sample,
    two_phase_estimate,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

RESULTS = Path(__file__).parents[1] / "docs" / "results"
PAGE = RESULTS / "two-phase.md"
RECORDED = RESULTS / "two-phase"
"""Outcomes with margins, a row per image."""
MARK = "<!-- The tables below are written by: python -m benchmarks two-phase -->"

ORDERS, QUICK_ORDERS = 500, 10
SETTLE = 0.005
CLEAN, FIRST, SECOND, ROBUST = range(4)
"""The stage in which an image is misclassified first: without attack, in phase 1, in phase 2, or not at all."""
STAGES = np.array([CLEAN, FIRST, FIRST, SECOND, ROBUST])
"""The stage of each of `worst_class.OUTCOMES`, where phase 1 is APGD-CE and APGD-T."""
FORWARDS, BACKWARDS = (101, 909, 1809 + 5001), (100, 900, 900)
"""Passes of APGD-CE, of APGD-T, and of FAB-T with Square, on a robust image; half of them on a success."""
INFORMATIVE = 0.8
"""Where margins are simulated as informative: the share of the successes of phase 2 among the lowest fifth."""


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of AutoAttack on each image.

    Args:
        name: of the row.
        label: (N,) class of each image.
        stage: (N,) see `CLEAN`.
        margin: (N,) margin after phase 1; any number for images that do not survive it.
        forwards: (N, 2) forward passes of each phase, if it is run on the image.
        backwards: (N, 2) backward passes.
        margins: what the margins are.
    """

    name: str
    label: Ints
    stage: Ints
    margin: Floats
    forwards: Floats
    backwards: Floats
    margins: str

    @property
    def images(self) -> Ints:
        return np.bincount(self.label)

    @property
    def accuracy(self) -> Floats:
        """(C,) accuracies under all attacks."""
        return np.bincount(self.label[self.stage == ROBUST], minlength=len(self.images)) / self.images

    def take(self, rows: Ints) -> Outcomes:
        return replace(
            self,
            label=self.label[rows],
            stage=self.stage[rows],
            margin=self.margin[rows],
            forwards=self.forwards[rows],
            backwards=self.backwards[rows],
        )

    def share(self, drawn: Ints, *, backwards: bool) -> float:
        """Passes of the first phase and of the second on some images, as a fraction of AutoAttack's cascade."""
        cost = self.forwards + self.backwards if backwards else self.forwards
        first = cost[:, 0].sum()
        return float((first + cost[drawn, 1].sum()) / (first + cost[self.stage >= SECOND, 1].sum()))


def of_stages(name: str, label: Ints, fell: Ints, *, informative: bool, seed: int = 0) -> Outcomes:
    """Outcomes with simulated margins, and with AutoAttack's passes.

    Args:
        name: of the row.
        label: (N,) classes.
        fell: (N,) where an image is misclassified first: an index into `worst_class.OUTCOMES`.
        informative: whether the successes of phase 2 are at low margins.
        seed: of the margins.
    """
    rng, stage = np.random.default_rng(seed), STAGES[fell]
    margin = rng.random(len(label))
    if informative:
        lowest = rng.random(len(label)) < INFORMATIVE
        margin = np.where((stage == SECOND) & lowest, margin / 10, margin)
    # A stage takes all of its passes, half of them where it succeeds, and none after a success.
    part = np.where(fell[:, None] == [1, 2, 3], 0.5, 1.0) * (fell[:, None] >= [1, 2, 3])
    forwards, backwards = ((part * passes) @ [[1, 0], [1, 0], [0, 1]] for passes in (FORWARDS, BACKWARDS))
    margins = "informative" if informative else "uninformative"
    return Outcomes(name, label, stage, margin, forwards + np.array([1, 0]), backwards, margins)


def of_counts(path: Path) -> tuple[Ints, Ints]:
    """Labels and first misclassifications of a table of `benchmarks.worst_class`, a row per class and outcome."""
    rows = pd.read_csv(path)
    fell = rows["outcome"].map(OUTCOMES.index).to_numpy(dtype=np.int64)
    return np.repeat(rows["label"].to_numpy(dtype=np.int64), rows["images"]), np.repeat(fell, rows["images"])


def with_successes(fell: Ints, rate: float, seed: int = 0) -> Ints:
    """The outcomes if phase 2 succeeds on this share of the robust images."""
    rng, fell = np.random.default_rng(seed), fell.copy()
    robust = np.flatnonzero(fell == OUTCOMES.index("robust"))
    fell[rng.choice(robust, round(rate * len(robust)), replace=False)] = OUTCOMES.index("rest")
    return fell


def mnist(images: int, *, uneven: bool) -> tuple[Ints, Ints]:
    """Synthetic outcomes with the rates of ``mnist-trades`` (docs/results/autoattack.md).

    Of 1,000 images 13 are misclassified without attack, 45 by APGD-CE, 12 by APGD-T, and 37 more by FAB-T or Square:
    4 % of the survivors. ``uneven``: half of these 37 are of one class.
    """
    label, rng = np.arange(images) % 10, np.random.default_rng(0)
    counts = [round(images * count / 1000) for count in (13, 45, 12)]
    fell = rng.permutation(np.repeat([0, 1, 2, 4], [*counts, images - sum(counts)]))
    robust = np.flatnonzero(fell == OUTCOMES.index("robust"))
    weight = np.where(uneven & (label[robust] == 8), 9.0, 1.0)
    chosen = rng.choice(robust, round(images * 37 / 1000), replace=False, p=weight / weight.sum())
    fell[chosen] = OUTCOMES.index("rest")
    return label, fell


def record(folder: str | Path, path: Path) -> None:
    """Write the outcomes of an audit under AutoAttack, with a row per image.

    ``python -c "from benchmarks.two_phase import *; record('audits/mine', RECORDED / 'mine.csv')"``
    """
    from classwise.auditing.outcomes.table import Outcomes as Rows
    from classwise.auditing.run.sampling import Sampling

    rows = Rows.load(folder)
    first = ("clean", *Sampling.of(0.01, rows.attacks, 0).first)
    frame = rows.frame.assign(
        phase=np.where(rows.frame["attack"].isin(first), 0, 1), correct=rows.frame["correct"].astype(bool)
    )
    verdict = {name: pd.Series(rows.verdicts(name) > 0, rows.index) for name in ("clean", "all")}
    survives = frame[frame["phase"] == 0].groupby("index")["correct"].all()
    stage = np.select([~verdict["clean"], ~survives, ~verdict["all"]], [CLEAN, FIRST, SECOND], ROBUST)
    cost = {
        f"{name}_{phase + 1}": frame[frame["phase"] == phase].groupby("index")[name].sum()
        for name in ("forwards", "backwards")
        for phase in (0, 1)
    }
    margin = frame[frame["phase"] == 0].groupby("index")["margin"].min().round(5)
    about = pd.DataFrame({"label": rows.labels, "stage": stage, "margin": margin}, index=rows.index)
    write_csv(path, about.assign(**cost).fillna(0).rename_axis("index").reset_index())


def recorded(path: Path) -> Outcomes:
    """Read a file of `record`."""
    rows = pd.read_csv(path)
    forwards, backwards = (rows[[f"{name}_1", f"{name}_2"]].to_numpy(float) for name in ("forwards", "backwards"))
    label, stage = (rows[name].to_numpy(dtype=np.int64) for name in ("label", "stage"))
    name = f"{path.stem}, recorded under AutoAttack"
    return Outcomes(name, label, stage, rows["margin"].to_numpy(float), forwards, backwards, "recorded")


class Run(NamedTuple):
    """One order: the estimate, the images of the sample, and the number of samples."""

    estimate: TwoPhaseEstimate
    drawn: Ints
    samples: int


def replay(outcomes: Outcomes, settle: float, rng: np.random.Generator) -> Run:
    """Sample the survivors in a random order until the intervals are narrow enough."""
    rows = np.flatnonzero(outcomes.stage >= SECOND)
    low = low_margin(outcomes.label[rows], outcomes.margin[rows])
    order = rng.permutation(len(rows))
    rows, low = rows[order], low[order]
    survivors = Survivors(outcomes.images, outcomes.label[rows], low)
    truth, results = (outcomes.stage[rows] == SECOND).astype(np.int64), np.full(len(rows), UNKNOWN)
    samples = 0
    while len(places := next_sample(survivors, results, settle)):
        results[places] = truth[places]
        samples += 1
    return Run(two_phase_estimate(survivors, results, settle), rows[results != UNKNOWN], samples)


HEADER = [
    "outcomes",
    "margins",
    "images",
    "survivors",
    "successes of phase 2",
    "settle (points)",
    "sampled survivors: median (5 % to 95 % of orders)",
    "forward passes of AutoAttack: median (maximum)",
    "forward and backward passes: median (maximum)",
    "samples",
    "covered, these images: overall",
    "worst class",
    "covered, new images: overall",
    "worst class",
    "undercoverage",
]


def row(outcomes: Outcomes, settle: float, orders: int, seed: int = 0) -> list[str]:
    """Replay one set of outcomes; for new images each order is of images resampled from it with replacement."""
    rng = np.random.default_rng(seed)
    runs, hits = [], np.zeros(4)
    overall, worst = (outcomes.stage == ROBUST).mean(), outcomes.accuracy.min()
    by_class = [np.flatnonzero(outcomes.label == label) for label in range(len(outcomes.images))]
    for _ in range(orders):
        runs.append(replay(outcomes, settle, rng))
        found = runs[-1].estimate
        hits[0] += found.overall.low - 1e-9 <= overall <= found.overall.high + 1e-9
        hits[1] += found.worst.low - 1e-9 <= worst <= found.worst.high + 1e-9
        again = outcomes.take(np.concatenate([rng.choice(rows, len(rows)) for rows in by_class]))
        found = replay(again, settle, rng).estimate
        hits[2] += found.overall.new_low <= overall <= found.overall.new_high
        hits[3] += found.worst.new_low <= worst <= found.worst.new_high
    survivors = int((outcomes.stage >= SECOND).sum())
    sampled = np.array([len(run.drawn) for run in runs]) / survivors
    forwards, both = ([outcomes.share(run.drawn, backwards=kind) for run in runs] for kind in (False, True))
    # Fewer hits than 99 % of experiments with a coverage of 95 % would have.
    below = [name for name, hit in zip("OWow", hits, strict=True) if stats.binom.cdf(hit, orders, 0.95) < 0.01]
    low, high = np.quantile(sampled, [0.05, 0.95])
    case = f"{outcomes.name}, {outcomes.margins} margins, {100 * settle:g} points"
    ratios.recorded(f"{case}: passes / AutoAttack's", both, [1.0] * orders)
    return [
        outcomes.name,
        outcomes.margins,
        f"{len(outcomes.label):,}",
        f"{survivors:,}",
        f"{(outcomes.stage == SECOND).sum():,}",
        f"{100 * settle:g}",
        f"{np.median(sampled):.1%} ({low:.1%} to {high:.1%})",
        f"{np.median(forwards):.1%} ({np.max(forwards):.1%})",
        f"{np.median(both):.1%} ({np.max(both):.1%})",
        f"{np.median([run.samples for run in runs]):.0f}",
        *(f"{hit / orders:.1%}" for hit in hits),
        " ".join(below) or "none",
    ]


def cases() -> Iterator[tuple[Outcomes, float]]:
    """The outcomes of the table, each with the requested width."""
    for path in sorted(RECORDED.glob("*.csv")):
        for settle in (0.01, SETTLE):
            yield recorded(path), settle
    label, fell = of_counts(RESULTS / "worst-class" / "cifar10-at-apgd.csv")
    none = of_stages("cifar10-at, APGD recorded, phase 2 succeeds on none", label, fell, informative=False)
    for settle in (0.01, SETTLE, 0.0025):
        yield none, settle
    for rate in (0.001, 0.005, 0.02):
        name = f"cifar10-at, APGD recorded, phase 2 simulated on {100 * rate:g} %"
        for informative in (False, True):
            yield of_stages(name, label, with_successes(fell, rate), informative=informative), SETTLE
    for stem in ("cifar10-at", "cifar10-cfa-at", "fashion-mnist-at"):
        name = f"{stem}, six PGD attacks recorded (the last four as phase 2)"
        yield of_stages(name, *of_counts(RESULTS / "worst-class" / f"{stem}.csv"), informative=False), SETTLE
    for images, uneven, informative in ((10_000, False, False), (10_000, False, True), (10_000, True, True)):
        name = f"synthetic, rates of mnist-trades{', half of the successes in one class' if uneven else ''}"
        yield of_stages(name, *mnist(images, uneven=uneven), informative=informative), SETTLE
    yield of_stages("synthetic, rates of mnist-trades", *mnist(1000, uneven=False), informative=True), 0.01


def run(*, quick: bool) -> str:
    orders, rows = QUICK_ORDERS if quick else ORDERS, []
    for outcomes, settle in cases():
        rows.append(row(outcomes, settle, orders))
        print(*rows[-1], sep="; ", file=sys.stderr, flush=True)
    text = table(f"Two-phase estimates of AutoAttack at 95 % confidence, replayed over {orders:,} orders", HEADER, rows)
    if not quick:
        about = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
        PAGE.write_text(f"{about}{MARK}\n\n{text}", encoding="utf-8")
    return text
