"""The table of single-step training in docs/results/baselines.md, from the predictions beside it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from classwise.core.rounding import in_percent
from classwise.stats.counts import ClassCounts
from classwise.stats.metrics import averages, lowest

RESULTS = Path(__file__).parents[1] / "docs/results"


def test_the_rows_of_single_step_training_follow_from_the_predictions() -> None:
    frame = pd.read_parquet(RESULTS / "baselines/single-step.parquet")
    label = frame["label"].to_numpy(np.int64)
    assert np.bincount(label).tolist() == [200] * 10
    text = (RESULTS / "baselines.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"\n## Single-step training.*?\n(?=## )", text, re.DOTALL)
    names = [column.removesuffix(", attacked") for column in map(str, frame) if column.endswith(", attacked")]
    assert names == ["n-fgsm-wa", "nuat", "liet", "fgsm-pgi"]
    for name in names:
        right = frame[f"{name}, attacked"].to_numpy(bool)
        assert not (right & ~frame[f"{name}, clean"].to_numpy(bool)).any()
        counts = ClassCounts.from_labels(label, right, 10)
        cells = [f"{in_percent(frame[f'{name}, clean'].mean()):.1f}"]
        for value, low, high in (averages.overall_estimate(counts), lowest.worst_estimate(counts)):
            cells.append(f"{in_percent(value):.1f} [{in_percent(low):.1f}, {in_percent(high):.1f}]")
        cells += [f"{in_percent(counts.accuracy[place]):.1f}" for place in (2, 3, 4)]
        assert f"| `{name}` | {' | '.join(cells)} |" in section
