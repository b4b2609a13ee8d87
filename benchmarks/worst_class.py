"""Racing for the worst class, replayed: the share of a full audit's passes, and how often the answer is right.

The outcomes are either recorded (``docs/results/worst-class/*.csv``, of a real model) or made up to have a certain gap.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.pairing import table
from benchmarks.replay import RecordedAudit, replay
from classwise.stats.best_arm import Rules, default_draw, default_tolerance

RECORDED = Path(__file__).parents[1] / "docs" / "results" / "worst-class"
BATCH = 128

FATES = ("clean", "first", "escalation", "rest", "stands")
AUTOATTACK = {"first": 201, "escalation": 9 * 202, "rest": 9 * 202 + 5001}
"""Passes of APGD-CE, of APGD-T, and of FAB-T with Square on an image that stands; one that breaks takes about half."""
CIFAR = (0.45, 0.65, 0.30, 0.20, 0.32, 0.40, 0.52, 0.56, 0.57, 0.62)
"""Robust accuracies of the usual shape on CIFAR-10: cats last, then birds and deer (ours, after published tables)."""


def made_up(accuracy: Sequence[float], images: int, falls: float = 0.04, rest: float = 0.002) -> RecordedAudit:
    """Classes of these final accuracies; the second attack breaks a share of survivors, the rest few."""
    generator = np.random.default_rng(0)
    fates = []
    for value in accuracy:
        is_robust = round(value * images)
        survivors = min(images, round(is_robust / (1 - falls - rest)))
        last = generator.binomial(survivors - is_robust, rest / (falls + rest))
        wrong = round(0.3 * (images - survivors))
        count = (wrong, images - survivors - wrong, survivors - is_robust - last, last, is_robust)
        fates.append(np.repeat(np.arange(5), count))
    fate = np.concatenate(fates)
    return from_fates(np.repeat(np.arange(len(accuracy)), images), fate, autoattack_passes(fate))


def autoattack_passes(fate: np.ndarray) -> np.ndarray:
    """(N, 4) passes of each stage, half of them where the image breaks in it."""
    cost = np.array([1, *AUTOATTACK.values()], dtype=np.float64)
    return cost * np.where(fate[:, None] == np.arange(4), [1.0, 0.5, 0.5, 0.5], 1.0)


def from_fates(labels: np.ndarray, fate: np.ndarray, passes: np.ndarray) -> RecordedAudit:
    """From the place of each image's fate in `FATES`."""
    return RecordedAudit(labels, fate != 0, fate == 1, fate == 2, fate == 3, passes)


def recorded(path: Path, *, autoattack: bool = False) -> RecordedAudit:
    """A table with a row per class and fate: how many images, and the mean passes of each stage.

    With ``autoattack`` the fates are the recorded ones, and the passes what AutoAttack's stages would take.
    """
    labels, fates, passes = [], [], []
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            count = int(row["images"])
            labels += [int(row["label"])] * count
            fates += [FATES.index(row["fate"])] * count
            passes += [[float(row[stage]) for stage in FATES[:4]]] * count
    fate = np.array(fates)
    return from_fates(np.array(labels), fate, autoattack_passes(fate) if autoattack else np.array(passes))


def record(folder: str | Path, path: Path) -> None:
    """Write the table of an audit's outcomes, as if its attacks had run in cascade.

    ``python -c "from benchmarks.worst_class import *; record('audits/mine', RECORDED / 'mine.csv')"``
    """
    from classwise.auditing.outcomes import Outcomes

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
    frame = frame[frame["place"] <= frame["last"]]  # a cascade hands on what stands
    wide = frame.pivot_table(index=["index", "label"], columns="stage", values="passes", aggfunc="sum").reset_index()
    wide = wide.reindex(columns=["index", "label", *FATES[:4]])  # a suite of two attacks has no rest
    names = dict(enumerate(stage.values()))
    wide["fate"] = wide["index"].map(success.map(names)).fillna("stands")
    rows = (
        wide.fillna(0).groupby(["label", "fate"]).agg(images=("index", "size"), **{s: (s, "mean") for s in FATES[:4]})
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    rows.reset_index().round(3).to_csv(path, index=False)


def rules(record: RecordedAudit, tolerance: float | None = None, together: int | None = None) -> Rules:
    classes, draw = int((record.images > 0).sum()), default_draw(record.images)
    slack = default_tolerance(classes) if tolerance is None else tolerance
    return Rules(tolerance=slack, draw=draw, together=together or max(1, BATCH // draw))


def row(name: str, record: RecordedAudit, orders: int, chosen: Rules) -> list[str]:
    found = replay(record, orders, seed=0, rules=chosen)
    share = found.share
    present = np.sort(record.accuracy[record.images > 0])
    low, high = np.quantile(share, [0.05, 0.95])
    return [
        name,
        f"{len(present):,} x {int(np.median(record.images[record.images > 0])):,}",
        f"{100 * (present[1] - present[0]):.1f}",
        f"{100 * chosen.tolerance:g}",
        f"{chosen.together}",
        f"{np.median(share):.1%} ({low:.1%} to {high:.1%})",
        f"{share.max():.1%}",
        f"{np.median(found.rounds):.0f}",
        f"{found.right.mean():.2%}",
        f"{found.covered.mean():.2%}",
        f"{orders:,}",
    ]


HEADER = [
    "outcomes",
    "classes x images",
    "gap (points)",
    "tolerance (points)",
    "classes at once",
    "passes of a full audit: median (5 % to 95 % of orders)",
    "most",
    "rounds",
    "answer right",
    "interval holds",
    "orders",
]


def with_gap(accuracy: Sequence[float], gap: float) -> list[float]:
    """The first class as it is, the others at least the gap above it."""
    return [accuracy[0], *(max(value, accuracy[0] + gap) for value in accuracy[1:])]


def run(*, quick: bool) -> str:
    orders = 100 if quick else 10_000
    rows = []

    def add(name: str, record: RecordedAudit, tolerance: float | None = None) -> None:
        for together in (None, 1) if len(record.images) < 100 else (None,):
            chosen = rules(record, tolerance, together)
            most = 500 if chosen.together == 1 else max(200, 100_000 // len(record.images))
            rows.append(row(name, record, min(orders, most), chosen))
            print(*rows[-1], sep="; ", file=sys.stderr, flush=True)

    for path in sorted(RECORDED.glob("*.csv")):
        add(f"{path.stem}, recorded", recorded(path))
        add(f"{path.stem}, recorded, at AutoAttack's passes", recorded(path, autoattack=True))
    for gap in (0.10, 0.05, 0.02, 0.01):
        nearest = [0.2 + gap if value == 0.30 else value for value in CIFAR]
        add(f"like CIFAR-10, gap {100 * gap:g}", made_up(nearest, 1000))
    for worst in (0.20, 0.30, 0.45):
        add(f"all others tie, {worst:.0%} and {worst + 0.05:.0%}", made_up([worst] + [worst + 0.05] * 9, 1000))
        name = f"the same, {worst:.0%} and {worst + 0.05:.0%}, 6 % fall to the second attack"
        add(name, made_up([worst] + [worst + 0.05] * 9, 1000, falls=0.06, rest=0.003))
    add("all ten tie", made_up([0.4] * 10, 1000))
    for classes, images in ((100, 100), (1000, 50)):
        spread = np.clip(np.random.default_rng(0).beta(3, 3, classes), 0.1, 0.95)
        spread[0] = 0.1
        for gap in (0.10, 0.02):
            for tolerance in (0.02, 0.0):
                add("spread widely", made_up(with_gap(spread.tolist(), gap), images), tolerance=tolerance)
        add("all others tie", made_up([0.3] + [0.36] * (classes - 1), images))
    title = "Racing for the worst class at 95 % confidence, replayed over many orders"
    return table(title, HEADER, rows)
