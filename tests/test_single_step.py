"""The table of single-step training in docs/results/baselines.md, from the predictions beside it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from classwise.stats.counts import ClassCounts
from classwise.stats.metrics import averages, lowest

RESULTS = Path(__file__).parents[1] / "docs/results"


def test_the_rows_of_single_step_training_follow_from_the_predictions() -> None:
    frame = pd.read_parquet(RESULTS / "baselines/single-step.parquet")
    label = frame["label"].to_numpy(np.int64)
    assert np.bincount(label).tolist() == [200] * 10
    text = (RESULTS / "baselines.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"\n## Single-step training.*?\n(?=## )", text, re.DOTALL)
    names = [column.removesuffix(", attacked") for column in frame if column.endswith(", attacked")]
    assert len(names) > 1
    for name in names:
        right = frame[f"{name}, attacked"].to_numpy(bool)
        assert not (right & ~frame[f"{name}, clean"].to_numpy(bool)).any()
        counts = ClassCounts.from_labels(label, right, 10)
        cells = [f"{100 * frame[f'{name}, clean'].mean():.1f}"]
        for value, low, high in (averages.overall_estimate(counts), lowest.worst_estimate(counts)):
            cells.append(f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
        cells += [f"{100 * counts.accuracy[place]:.1f}" for place in (2, 3, 4)]
        assert f"| `{name}` | {' | '.join(cells)} |" in section
