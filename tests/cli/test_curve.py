from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Classwise


@pytest.mark.slow
def test_the_radii_of_each_class(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    words = ["curve", run_folder, "--rounds=2", "--attack=fgsm", "--subset=60", f"--out={tmp_path / 'c'}"]
    printed = classwise(*words, "--threat=Linf:0.1").printed
    assert f"curve: {tmp_path / 'c'}" in printed
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert names >= {"radii.parquet", "curve.csv", "radii.csv", "curve.svg", "curve.png", "page.html"}
    again = classwise(*words, "--threat=Linf:0.1")
    assert again.status == 2
    assert "already contains this curve with these settings: add --resume" in again.err
    loaded = classwise(*words, "--threat=Linf:0.1", "--resume")
    assert (loaded.status, loaded.out) == (0, printed)
    other = classwise(*words, "--resume")
    assert "contains a curve with other settings: threat was " in other.err
    facts = classwise(*words[:-1], f"--out={tmp_path / 'd'}", "--json").facts
    assert facts["highest"] == pytest.approx(0.2)
    assert facts["width"] == pytest.approx(0.05)
    assert facts["weakest"] == next(iter(facts["classes"]))


def test_a_bad_number_of_rounds_is_refused(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    assert (
        "rounds = 0" in classwise("curve", run_folder, "--subset=60", f"--out={tmp_path / 'c'}", "--rounds=0").refusal
    )
    assert not (tmp_path / "c").exists()
