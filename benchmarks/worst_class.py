"""Search for the worst class, replayed: passes as a fraction of a full audit, and how often the answer is correct.

The outcomes are either recorded (``docs/results/worst-class/*.csv``, of real models) or simulated with a chosen gap.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import ratios
from benchmarks.replay import RecordedAudit, replay
from benchmarks.tables import table
from classwise.core.files.csv_files import write_csv
from classwise.stats.best_arm import Rules, default_sample_size, default_tolerance

RECORDED = Path(__file__).parents[1] / "docs" / "results" / "worst-class"
BATCH = 128

OUTCOMES = ("clean", "first", "escalation", "rest", "robust")
"""The stage in which an image is misclassified first, or ``robust``."""
AUTOATTACK = {"first": 201, "escalation": 9 * 202, "rest": 9 * 202 + 5001}
"""Passes of APGD-CE, of APGD-T, and of FAB-T with Square on a robust image; about half on a success."""
CIFAR = (0.45, 0.65, 0.30, 0.20, 0.32, 0.40, 0.52, 0.56, 0.57, 0.62)
"""Typical robust accuracies on CIFAR-10: cats lowest, then birds and deer (chosen after published tables)."""


def simulated(accuracy: Sequence[float], images: int, escalation: float = 0.04, rest: float = 0.002) -> RecordedAudit:
    """Simulate classes with these robust accuracies.

    Args:
        accuracy: (C,) robust accuracies under the whole suite.
        images: number of images of each class.
        escalation: fraction of the survivors of the first attack on which the escalating attack succeeds.
        rest: fraction of them on which only a later attack succeeds.
    """
    generator = np.random.default_rng(0)
    outcomes = []
    for value in accuracy:
        is_robust = round(value * images)
        survivors = min(images, round(is_robust / (1 - escalation - rest)))
        last = generator.binomial(survivors - is_robust, rest / (escalation + rest))
        wrong = round(0.3 * (images - survivors))
        count = (wrong, images - survivors - wrong, survivors - is_robust - last, last, is_robust)
        outcomes.append(np.repeat(np.arange(5), count))
    outcome = np.concatenate(outcomes)
    return from_outcomes(np.repeat(np.arange(len(accuracy)), images), outcome, autoattack_passes(outcome))


def autoattack_passes(outcome: np.ndarray) -> np.ndarray:
    """(N, 4) passes of each stage, half of them for the stage that succeeds."""
    cost = np.array([1, *AUTOATTACK.values()], dtype=np.float64)
    return cost * np.where(outcome[:, None] == np.arange(4), [1.0, 0.5, 0.5, 0.5], 1.0)


def from_outcomes(labels: np.ndarray, outcome: np.ndarray, passes: np.ndarray) -> RecordedAudit:
    """Convert outcomes, as indices into `OUTCOMES`."""
    return RecordedAudit(labels, outcome != 0, outcome == 1, outcome == 2, outcome == 3, passes)


def recorded(path: Path, *, autoattack: bool = False) -> RecordedAudit:
    """Read a table with a row per class and outcome: the number of images, and the mean passes of each stage.

    With ``autoattack`` the outcomes are the recorded ones, and the passes those of AutoAttack's stages.
    """
    labels, outcomes, passes = [], [], []
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            count = int(row["images"])
            labels += [int(row["label"])] * count
            outcomes += [OUTCOMES.index(row["outcome"])] * count
            passes += [[float(row[stage]) for stage in OUTCOMES[:4]]] * count
    outcome = np.array(outcomes)
    return from_outcomes(np.array(labels), outcome, autoattack_passes(outcome) if autoattack else np.array(passes))


def record(folder: str | Path, path: Path) -> None:
    """Write the table of an audit's outcomes, as if its attacks had run in cascade.

    ``python -c "from benchmarks.worst_class import *; record('audits/mine', RECORDED / 'mine.csv')"``
    """
    from classwise.auditing.outcomes.table import Outcomes

    outcomes = Outcomes.load(folder)
    attacks = [label for label in outcomes.meta.attacks if label != "clean"]
    stage = dict(zip(("clean", *attacks), ("clean", "first", "escalation", *["rest"] * len(attacks)), strict=False))
    frame = outcomes.frame.assign(
        place=outcomes.frame["attack"].astype(str).map({label: place for place, label in enumerate(stage)}),
        stage=outcomes.frame["attack"].astype(str).map(stage),
        passes=outcomes.frame["forwards"] + outcomes.frame["backwards"],
        correct=outcomes.frame["correct"].astype(bool),
    )
    success = frame[~frame["correct"]].groupby("index")["place"].min()
    frame["last"] = frame["index"].map(success).fillna(len(stage))
    frame = frame[frame["place"] <= frame["last"]]  # a cascade runs each attack on the survivors only
    wide = frame.pivot_table(index=["index", "label"], columns="stage", values="passes", aggfunc="sum").reset_index()
    wide = wide.reindex(columns=["index", "label", *OUTCOMES[:4]])  # a suite of two attacks has no rest
    names = dict(enumerate(stage.values()))
    wide["outcome"] = wide["index"].map(success.map(names)).fillna("robust")
    means = {stage: (stage, "mean") for stage in OUTCOMES[:4]}
    rows = wide.fillna(0).groupby(["label", "outcome"]).agg(images=("index", "size"), **means)
    write_csv(path, rows.reset_index().round(3), float_format=None)


def rules(record: RecordedAudit, tolerance: float | None = None, classes_per_round: int | None = None) -> Rules:
    classes, sample_size = int((record.images > 0).sum()), default_sample_size(record.images)
    tolerance = default_tolerance(classes) if tolerance is None else tolerance
    return Rules(
        tolerance=tolerance,
        sample_size=sample_size,
        classes_per_round=classes_per_round or max(1, BATCH // sample_size),
    )


def row(name: str, record: RecordedAudit, orders: int, chosen: Rules) -> list[str]:
    result = replay(record, orders, seed=0, rules=chosen)
    share = result.share
    present = np.sort(record.accuracy[record.images > 0])
    low, high = np.quantile(share, [0.05, 0.95])
    case = [
        name,
        f"{len(present):,} x {int(np.median(record.images[record.images > 0])):,}",
        f"{100 * (present[1] - present[0]):.1f}",
        f"{100 * chosen.tolerance:g}",
        f"{chosen.classes_per_round}",
    ]
    ratios.recorded(f"{', '.join(case)}: passes / full audit", share.tolist(), [1.0] * len(share))
    return [
        *case,
        f"{np.median(share):.1%} ({low:.1%} to {high:.1%})",
        f"{share.max():.1%}",
        f"{np.median(result.rounds):.0f}",
        f"{result.right.mean():.2%}",
        f"{result.covered.mean():.2%}",
        f"{orders:,}",
    ]


HEADER = [
    "outcomes",
    "classes x images",
    "gap (points)",
    "tolerance (points)",
    "classes per round",
    "fraction of the passes of a full audit: median (5 % to 95 % of orders)",
    "maximum",
    "rounds",
    "answer correct",
    "interval covers",
    "orders",
]


def with_gap(accuracy: Sequence[float], gap: float) -> list[float]:
    """The accuracies with a minimal gap between the first class and all others."""
    return [accuracy[0], *(max(value, accuracy[0] + gap) for value in accuracy[1:])]


def run(*, quick: bool) -> str:
    orders = 100 if quick else 10_000
    rows = []

    def add(name: str, record: RecordedAudit, tolerance: float | None = None) -> None:
        for classes_per_round in (None, 1) if len(record.images) < 100 else (None,):
            chosen = rules(record, tolerance, classes_per_round)
            most = 500 if chosen.classes_per_round == 1 else max(200, 100_000 // len(record.images))
            rows.append(row(name, record, min(orders, most), chosen))
            print(*rows[-1], sep="; ", file=sys.stderr, flush=True)

    for path in sorted(RECORDED.glob("*.csv")):
        add(f"{path.stem}, recorded", recorded(path))
        add(f"{path.stem}, recorded, at AutoAttack's passes", recorded(path, autoattack=True))
    for gap in (0.10, 0.05, 0.02, 0.01):
        nearest = [0.2 + gap if value == 0.30 else value for value in CIFAR]
        add(f"like CIFAR-10, gap {100 * gap:g}", simulated(nearest, 1000))
    for worst in (0.20, 0.30, 0.45):
        add(f"all others tie, {worst:.0%} and {worst + 0.05:.0%}", simulated([worst] + [worst + 0.05] * 9, 1000))
        name = f"the same, {worst:.0%} and {worst + 0.05:.0%}, second attack succeeds on 6 %"
        add(name, simulated([worst] + [worst + 0.05] * 9, 1000, escalation=0.06, rest=0.003))
    add("all ten tie", simulated([0.4] * 10, 1000))
    for classes, images in ((100, 100), (1000, 50)):
        spread = np.clip(np.random.default_rng(0).beta(3, 3, classes), 0.1, 0.95)
        spread[0] = 0.1
        for gap in (0.10, 0.02):
            for tolerance in (0.02, 0.0):
                add("spread widely", simulated(with_gap(spread.tolist(), gap), images), tolerance=tolerance)
        add("all others tie", simulated([0.3] + [0.36] * (classes - 1), images))
    title = "Search for the worst class at 95 % confidence, replayed over many orders"
    return table(title, HEADER, rows)
