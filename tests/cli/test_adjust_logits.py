"""``classwise adjust-logits``: what it prints and what it leaves."""

from __future__ import annotations

import shutil
from pathlib import Path

from classwise.core.files.ownership import OWNER, owned

from .conftest import Classwise


def test_adjust_logits_writes_a_model_and_says_what_it_did(
    classwise: Classwise, run_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_folder, run)
    printed = classwise("adjust-logits", run, "--attack", "pgd:steps=1").printed
    assert "cross-fitted" in printed
    assert "another attack may find another class weaker" in printed
    assert (run / "checkpoints" / "adjusted.safetensors").is_file()
    words = ["adjust-logits", run, "--which", "last", "--attack", "pgd:steps=1", "--folds", "0", "--json"]
    facts = classwise(*words, "--out", tmp_path / "o.st").facts
    assert Path(facts["weights"]) == tmp_path / "o.st"
    assert len(facts["classes"]) == 10
    columns = set(next(iter(facts["classes"].values())))
    assert columns == {"n", "adjustment", "fitted"} | {
        f"{name}{end}" for name in ("before", "robust") for end in ("", "_low", "_high")
    }


def test_a_mistake_is_one_line(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    assert "has no weights 'nonsense'" in classwise("adjust-logits", run_folder, "--which", "nonsense").refusal
    assert classwise("adjust-logits", tmp_path).status == 2


def test_a_run_that_another_process_uses_is_not_written(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(run_folder, tmp_path / "run"))
    words = ["adjust-logits", run, "--attack", "pgd:steps=1", "--folds", "0"]
    with owned(run):
        assert f"{run} is in use by process " in classwise(*words).refusal
        assert not (run / "checkpoints" / "adjusted.safetensors").exists()
        assert classwise(*words, "--out", tmp_path / "elsewhere.safetensors").status == 0
    assert classwise(*words).status == 0
    assert not (run / OWNER).exists()
