"""The numbers of docs/results/gpu/models.md on the papers' claims, from the predictions beside it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from classwise.analysis.confusion import excess, rate_correlation
from classwise.analysis.norm_link import norm_link
from classwise.auditing.outcomes.table import Outcomes
from classwise.papers.experiments.protocol import largest_drop
from classwise.papers.interval_estimators import widest
from classwise.stats.confusion import confusion, confusion_rates
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Estimate, proportion_interval

GPU = Path(__file__).parents[2] / "docs/results/gpu"
VEHICLES = (0, 1, 8, 9)


def test_the_claims_on_one_model_follow_from_its_predictions() -> None:
    frame = pd.read_parquet(GPU / "at-pgd.parquet")
    label, predicted = (frame[column].to_numpy(dtype=np.int64) for column in ("label", "pgd"))
    counts, matrix = ClassCounts.from_labels(label, label == predicted, 10), confusion(label, predicted, 10)
    group = np.isin(np.arange(10), VEHICLES).astype(np.int64)
    wrong = label != predicted
    inside = int((group[label] == group[predicted])[wrong].sum())
    share = Estimate(inside / wrong.sum(), *map(float, proportion_interval(inside, wrong.sum())))
    rates = 100 * confusion_rates(matrix)
    text = (GPU / "models.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"\n## What this AT shows.*?\n(?=## )", text, re.DOTALL)
    for shown in (
        "{:.1f} points [{:.1f}, {:.1f}]".format(*widest(counts, 0.0)(0.05)),
        "{:.2f} [{:.2f}, {:.2f}]".format(*rate_correlation(matrix).estimate(0.05)),
        "{:.1f} % [{:.1f}, {:.1f}]".format(*(100 * end for end in share)),
        f"{100 * (share.value - excess(matrix, group).value):.1f} % by chance",
        f"the {100 * (1 - share.value):.1f} % across",
        f"dog as cat {rates[5, 3]:.1f} % is, cat as dog {rates[3, 5]:.1f} % is not",
        f"cat as frog has {rates[3, 6]:.1f} %",
    ):
        assert shown in section
    mutual = ((0, 8), (8, 0), (1, 9), (9, 1), (5, 3))
    assert all(int(np.argmax(matrix[row] * (np.arange(10) != row))) == column for row, column in mutual)
    ends = [rates[pair] for pair in mutual[:4]]
    assert f"{min(ends):.1f} to {max(ends):.1f} %" in section


def test_norms_and_temperatures_of_the_last_epoch_follow_from_its_predictions() -> None:
    frame = pd.read_parquet(GPU / "at-last-temperature.parquet")
    columns = {"PGD": "pgd", "2": "t2", "5": "t5"}
    attacked = {attack: frame[column].to_numpy(dtype=np.int64) for attack, column in columns.items()}
    label, clean = (frame[column].to_numpy(dtype=np.int64) for column in ("label", "clean"))
    outcomes = Outcomes.from_predictions(label, clean, attacked, [str(number) for number in range(10)])
    assert np.bincount(label).tolist() == 10 * [200]
    text = (GPU / "models.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"norms of the rows, by class: ([\d., ]+)\.\n", text)
    link = norm_link(outcomes, "PGD", [float(norm) for norm in listed.split(", ")])
    assert "rank correlation {:.2f} [{:.2f}, {:.2f}] (last epoch)".format(*link.ranked.estimate(0.05)) in text
    drops = [largest_drop(outcomes, ["PGD", inverse])(0.05) for inverse in ("2", "5")]
    first, second = ((-drop.value, -drop.high, -drop.low) for drop in drops)
    assert "{:.1f} points [{:.1f}, {:.1f}] at 1/T = 2, ".format(*first) in text
    assert "at 1/T = 2, {:.1f} [{:.1f}, {:.1f}] at 5".format(*second) in text


def test_the_confidences_of_the_last_epoch_follow_from_their_variances() -> None:
    """The means over the classes of each group, and a normal interval of their difference, by hand."""
    frame = pd.read_parquet(GPU / "at-last-confidences.parquet")
    by_class = frame.groupby("label")["confidence_variance"]
    means, squares = by_class.mean(), by_class.var() / by_class.count()
    vehicles = np.isin(means.index, VEHICLES)
    found = 1000 * (means[vehicles].mean() - means[~vehicles].mean())
    half = 1960 * np.sqrt(squares[vehicles].sum() / 4**2 + squares[~vehicles].sum() / 6**2)
    text = (GPU / "models.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"by ([\d.]+) thousandths \[([\d.]+), ([\d.]+)\]", text)
    value, low, high = map(float, shown)
    assert value == pytest.approx(found, abs=0.05)
    assert value - low == pytest.approx(high - value, abs=0.11)
    assert half < value - low < 1.5 * half, "that of a bounded variable is wider"
