from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from classwise.reporting import export, report
from classwise.reporting.facts.training_curves import curves_of
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import lowest_interval
from classwise.training.folder import Run
from classwise.training.recipe import Recipe

from .conftest import MakeAudit

NAMES = ("airplane", "automobile", "bird", "cat")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run folder after three epochs: validation, averaged weights from the second one, radii that differ."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(Recipe.read("cfa-at", budget="short").yaml(), encoding="utf-8")
    rows = [
        {
            "epoch": epoch,
            "split": split,
            "class": name,
            "label": label,
            "count": 50,
            "clean": 0.8,
            "robust": (0.2 + 0.1 * epoch) * (label + 1) / 4,
            "epsilon": (8 + label) / 255 if split == "train" else None,
        }
        for split in ("train", "valid", "valid-average")
        for epoch in range(1 if split == "valid-average" else 0, 3)
        for label, name in enumerate(NAMES)
    ]
    pd.DataFrame(rows).to_parquet(folder / "epochs.parquet")
    events = [
        {"event": "fawa", "epoch": 1, "admitted": True},
        {"event": "fawa", "epoch": 2, "admitted": False},
        {"event": "selected", "epoch": 1, "which": "best"},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    return Run(folder)


def test_every_measured_split_has_its_panel_and_varying_settings_too(run: Run) -> None:
    found = curves_of(run)
    assert found is not None
    assert list(found.drawings) == ["valid-robust", "valid-average-robust", "train-robust", "valid-clean", "epsilon"]
    valid = found.drawings["valid-robust"].svg()
    assert "cat: 40.0\u00a0% in epoch 3 (n 50, 95\u00a0% interval " in valid
    low, high = lowest_interval(ClassCounts(np.full(4, 50), np.array([5, 10, 15, 20])))
    lowest = f"95 % interval of the lowest class accuracy, whichever class it is {100 * low:.1f}–{100 * high:.1f}"
    assert f"{NAMES[0]}: 10.0\u00a0% in epoch 3 (n 50, {lowest})" in valid
    assert "overall: 25.0\u00a0% in epoch 3" in valid
    assert "epoch 2: selected weights" in valid


def test_sentences_report_the_progress_and_the_accepted_epochs(run: Run) -> None:
    found = curves_of(run)
    assert found is not None
    assert found.sentences[0].endswith("3 of 30 epochs.")
    assert found.sentences[1] == "Weight averaging (FAWA) accepted 1 of 2 epochs."


def test_averaging_without_an_accepted_epoch(run: Run) -> None:
    run.events_file.write_text(json.dumps({"event": "fawa", "epoch": 1, "admitted": False}) + "\n", encoding="utf-8")
    found = curves_of(run)
    assert found is not None
    assert found.sentences[1] == "Weight averaging (FAWA) accepted 0 of 1 epoch; the plain average was saved."


def test_a_run_before_its_first_epoch_has_no_curves(run: Run) -> None:
    run.epochs_file.unlink()
    assert curves_of(run) is None


def test_the_page_shows_the_curves_of_a_given_run(make_audit: MakeAudit, run: Run, tmp_path: Path) -> None:
    text = report(make_audit(), tmp_path / "a.html", run=run).read_text(encoding="utf-8")
    assert "Training curves" in text
    assert "Recipe cfa-at-short" in text


def test_an_audit_inside_a_run_folder_finds_its_run(make_audit: MakeAudit, run: Run, tmp_path: Path) -> None:
    inside = make_audit(path=run.path / "audits" / "audit")
    assert "Training curves" in report(inside, tmp_path / "a.html").read_text(encoding="utf-8")
    written = {path.name for path in export(inside, tmp_path / "out", ("csv", "svg"))}
    assert {"epochs.csv", "epochs-valid-robust.svg", "epochs-epsilon.svg"} <= written
    elsewhere = make_audit(path=tmp_path / "audit")
    assert "Training curves" not in report(elsewhere, tmp_path / "b.html").read_text(encoding="utf-8")
