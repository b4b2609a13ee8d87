"""Windows of epochs, means over them, and the selection of an epoch by other images."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch

from classwise.data.images import Images
from classwise.papers.catalogue import experiment
from classwise.papers.experiment import Context, Training, recipe_at
from classwise.papers.experiments.fair_training import (
    AFTER_DROP,
    AT_END,
    LATE,
    WINDOW,
    WindowMeans,
    audit_epochs,
    best_by_other_half,
    epochs_within,
    every_epoch,
)
from classwise.papers.scales import FULL

AT = Training(recipe="at")


@pytest.mark.parametrize(
    ("window", "first", "last"),
    [(AFTER_DROP["full"], 101, 120), (AT_END["full"], 181, 200), (LATE["full"], 151, 170), (WINDOW["full"], 101, 120)],
)
def test_the_windows_of_the_paper(window: tuple[float, float], first: int, last: int) -> None:
    assert epochs_within(FULL, AT, window) == tuple(range(first, last + 1))


def test_the_epochs_of_the_radius_figure() -> None:
    """The training saves every epoch for the curve."""
    expected = tuple(range(1, 201))
    assert every_epoch(FULL, AT) == expected
    for training in experiment("cfa23/F2bc").trainings(FULL).values():
        assert recipe_at(FULL, training).checkpoint_epochs == expected


def test_no_image_selects_its_own_epoch() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=60)
    table = rng.random((5, 60)) < 0.5
    found = best_by_other_half(table, labels)
    for image in range(60):
        chosen = {epoch for epoch in range(5) if table[epoch, image] == found[image]}
        changed = table.copy()
        changed[:, image] = ~changed[:, image]
        assert {epoch for epoch in range(5) if changed[epoch, image] == best_by_other_half(changed, labels)[image]} == (
            chosen
        )


def test_selection_by_other_images_is_unbiased() -> None:
    """Twenty equal epochs: the selected one looks better on its own images, not on the others."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(2), 50)
    tables = rng.random((400, 20, 100)) < 0.5
    own = np.mean([table.mean(axis=1).max() for table in tables])
    assert own > 0.58
    assert np.mean([best_by_other_half(table, labels).mean() for table in tables]) == pytest.approx(0.5, abs=0.01)


def test_means_over_a_window() -> None:
    """Recomputed by pandas: three epochs of two trainings."""
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(3), [8, 12, 20])
    rows = {value: rng.random((3, 40)) < 0.6 for value in (1.0, 2.0)}
    images = Images(torch.zeros(40, 1, 2, 2), torch.tensor(labels), class_names=("a", "b", "c"))
    means = WindowMeans(cast("Context", type("Fixed", (), {"test_images": images})), rows)
    expected = {value: pd.DataFrame(table.T).groupby(labels).mean().mean(axis=1) for value, table in rows.items()}
    for value, mean in expected.items():
        assert means.table.loc[value, ["a", "b", "c"]].to_numpy() == pytest.approx(mean.to_numpy())
        assert means.table["overall"][value] == pytest.approx(rows[value].mean())
    change = means.change(1.0, 2.0, "1")(0.05)
    assert change.value == pytest.approx(100 * (expected[2.0][1] - expected[1.0][1]))
    assert change.low < change.value < change.high


def test_the_average_is_the_online_model_before_averaging_starts() -> None:
    trained: Any = SimpleNamespace(saved_weights=lambda: ["epoch-1", "epoch-2", "average-epoch-2"])
    context: Any = SimpleNamespace(pgd=dict, audit=lambda run, attack, which: SimpleNamespace(outcomes=which))
    averages, online = (audit_epochs(context, trained, (1, 2), which).outcomes for which in ("average", "last"))
    assert [str(name) for name in averages.values()] == ["epoch-1", "average-epoch-2"]
    assert [str(name) for name in online.values()] == ["epoch-1", "epoch-2"]
