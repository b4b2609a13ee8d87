from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from classwise.reporting import export, report
from classwise.reporting.facts.training_curves import curves_of
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import lowest_interval
from classwise.training.folder import Run

from .conftest import NAMES, MakeAudit
from .sample_pages import sample_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return sample_run(tmp_path / "run", NAMES, epochs=3, selected=1)


def test_every_measured_split_has_its_panel_and_varying_settings_too(run: Run) -> None:
    found = curves_of(run)
    assert found is not None
    assert list(found.drawings) == ["valid-robust", "valid-average-robust", "train-robust", "valid-clean", "epsilon"]
    valid = found.drawings["valid-robust"].svg()
    assert "cat: 60.0\u00a0% in epoch 3 (n 50, 95\u00a0% interval " in valid
    low, high = lowest_interval(ClassCounts(np.full(4, 50), np.array([15, 20, 25, 30])))
    lowest = f"95 % interval of the lowest class accuracy, whichever class it is {100 * low:.1f}–{100 * high:.1f}"
    assert f"{NAMES[0]}: 30.0\u00a0% in epoch 3 (n 50, {lowest})" in valid
    assert "overall: 45.0\u00a0% in epoch 3" in valid
    assert "epoch 2: selected weights" in valid


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
