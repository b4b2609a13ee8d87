"""The generated parts of the model cards in checkpoints/README.md, from the files and from recorded outcomes.

``python -m tools.reference --write`` writes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from safetensors import safe_open

from classwise.models import load_model
from classwise.reporting import formatting
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import class_intervals, proportion_interval
from classwise.stats.worst_class import possibly_worst

FOLDER = Path(__file__).parents[1] / "checkpoints"
NAMES = ("cifar10-at", "fashion-mnist-at", "mnist-trades")
RESULTS = FOLDER.parent / "docs/results"
ALPHA = 0.05
OUTCOMES = ("clean", "first", "escalation", "rest", "robust")
"""Where an image of the tables in ``docs/results/worst-class`` is misclassified first; the last: nowhere."""


def counts(name: str) -> pd.DataFrame:
    """The recorded counts of a checkpoint: the images of each class, and those correct without and under attacks."""
    if name == "mnist-trades":
        return _at_least("two-phase/mnist-trades.csv", "stage", {"clean": 1, "APGD-CE, APGD-T": 2, "AutoAttack": 3})
    file, attacks = {
        "cifar10-at": ("cifar10-at-apgd.csv", ("APGD-CE", "APGD-CE, APGD-T")),
        "fashion-mnist-at": ("fashion-mnist-at.csv", ("PGD-20", "default suite")),
    }[name]
    return _at_least(f"worst-class/{file}", "outcome", dict(zip(("clean", *attacks), (1, 2, 4), strict=True)))


def _at_least(file: str, column: str, least: Mapping[str, int]) -> pd.DataFrame:
    """Counts of each class from outcomes of a cascade: all images ``n``, and those that reach an outcome.

    Args:
        file: a table of the results, whose rows are images, or numbers of ``images``.
        column: the column of the outcome, its place in `OUTCOMES` or its name.
        least: for each column of counts, the first outcome that counts as correct.
    """
    rows = pd.read_csv(RESULTS / file)
    place = rows[column].replace({name: number for number, name in enumerate(OUTCOMES)}).astype(int)
    images = rows["images"] if "images" in rows else pd.Series(1, rows.index)
    columns = {name: images.where(place >= first, 0) for name, first in {"n": 0, **least}.items()}
    return pd.DataFrame(columns).groupby(rows["label"]).sum()


def card(name: str) -> str:
    """The facts of a checkpoint, and the accuracies of each class with simultaneous intervals."""
    file = FOLDER / f"{name}.safetensors"
    with safe_open(file, framework="pt") as opened:
        stated = json.loads(opened.metadata()["classwise"])
    size = sum(parameter.numel() for parameter in load_model(file).parameters())
    facts = {
        "Architecture": f"`{json.loads(stated['model'])['name']}`",
        "Size": f"{size:,} parameters, {file.stat().st_size:,} bytes, half precision",
        "Provenance": f"{stated['about']}; the weights after epoch {int(stated['epoch']) + 1}",
        "Licence": "MIT",
        "SHA-256": f"`{hashlib.sha256(file.read_bytes()).hexdigest()}`",
    }
    return "\n".join(f"- {key}: {value}" for key, value in facts.items()) + "\n\n" + _table(name, stated)


def _table(name: str, stated: Mapping[str, str]) -> str:
    found, classes = counts(name), json.loads(stated["class_names"])
    n = found.pop("n").to_numpy()
    columns = {}
    for head, correct in found.items():
        counted = ClassCounts(n, correct.to_numpy())
        ends = [*zip(*class_intervals(counted, ALPHA, simultaneous=True), strict=True)]
        ends += zip(*proportion_interval(np.array([correct.sum()]), np.array([n.sum()]), ALPHA), strict=True)
        shares = [*counted.accuracy, correct.sum() / n.sum()]
        columns[str(head)] = [
            f"{formatting.bare_percent(share)} {formatting.bracketed(low, high)}"
            for share, (low, high) in zip(shares, ends, strict=True)
        ]
    may = ["yes" if possible else "no" for possible in possibly_worst(counted, ALPHA)]
    table = pd.DataFrame(
        {
            "class": [*classes, "all"],
            "n": [f"{images:,}" for images in (*n, n.sum())],
            **columns,
            "may be the worst": [*may, ""],
        }
    )
    rows = [table.columns, ["---"] * table.shape[1], *table.to_numpy()]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)
