"""The numbers of docs/results/gpu/models.md on the papers' claims, from the predictions beside it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from classwise.analysis.confusion import excess, rate_correlation
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
