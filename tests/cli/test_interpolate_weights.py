"""``classwise interpolate-weights``: what it prints and what it leaves."""

from __future__ import annotations

import shutil
from pathlib import Path

from classwise.core.files.ownership import OWNER, owned

from .conftest import Classwise


def test_interpolate_writes_a_model_and_says_what_it_tried(
    classwise: Classwise, run_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_folder, run)
    words = ("interpolate-weights", run, "--start", run_folder, "--attack", "pgd:steps=1", "--shares", "0.3,0.7")
    assert "saved" in classwise(*words).printed
    assert (run / "checkpoints" / "interpolated.safetensors").is_file()
    facts = classwise(*words, "--json", "--out", tmp_path / "mix.safetensors").facts
    assert Path(facts["weights"]) == tmp_path / "mix.safetensors"
    assert list(facts["tried"]) == ["0.3", "0.7"]


def test_a_mistake_is_one_line(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    for words, line in (
        ((run_folder,), "started from random weights"),
        ((run_folder, "--which", "nonsense"), "has no weights 'nonsense'"),
        ((run_folder, "--start", run_folder, "--shares", "a,b"), "--shares 'a,b' should be numbers with commas"),
        ((tmp_path,), "contains no run"),
    ):
        assert line in classwise("interpolate-weights", *words).refusal


def test_a_run_that_another_process_uses_is_not_written(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(run_folder, tmp_path / "run"))
    words = ["interpolate-weights", run, "--start", run_folder, "--attack", "pgd:steps=1"]
    with owned(run):
        assert f"{run} is in use by process " in classwise(*words).refusal
        assert not (run / "checkpoints" / "interpolated.safetensors").exists()
        assert classwise(*words, "--out", tmp_path / "elsewhere.safetensors").status == 0
    assert classwise(*words).status == 0
    assert not (run / OWNER).exists()
