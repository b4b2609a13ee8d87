"""``classwise adjust-logits``: what it prints and what it leaves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from classwise.core.files.ownership import OWNER, owned

from .conftest import Classwise


def test_adjust_logits_writes_a_model_and_says_what_it_did(
    classwise: Classwise, run_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_folder, run)
    said = classwise("adjust-logits", run, "--attack", "pgd:steps=1")
    assert said.status == 0, said.err
    assert "cross-fitted" in said.out
    assert "another attack may find another class weaker" in said.out
    assert (run / "checkpoints" / "adjusted.safetensors").is_file()
    words = ["adjust-logits", run, "--which", "last", "--attack", "pgd:steps=1", "--folds", "0", "--json"]
    said = classwise(*words, "--out", tmp_path / "o.st")
    assert said.status == 0, said.err
    facts = json.loads(said.out)
    assert Path(facts["weights"]) == tmp_path / "o.st"
    assert len(facts["classes"]) == 10
    columns = set(next(iter(facts["classes"].values())))
    assert columns == {"n", "adjustment", "fitted"} | {
        f"{name}{end}" for name in ("before", "robust") for end in ("", "_low", "_high")
    }


def test_a_mistake_is_one_line(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    said = classwise("adjust-logits", run_folder, "--which", "nonsense")
    assert (said.status, said.err.count("\n")) == (2, 1)
    assert "has no weights 'nonsense'" in said.err
    assert classwise("adjust-logits", tmp_path).status == 2


def test_a_run_that_another_process_uses_is_not_written(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(run_folder, tmp_path / "run"))
    words = ["adjust-logits", run, "--attack", "pgd:steps=1", "--folds", "0"]
    with owned(run):
        said = classwise(*words)
        assert (said.status, said.err.count("\n")) == (2, 1)
        assert f"{run} is in use by process " in said.err
        assert not (run / "checkpoints" / "adjusted.safetensors").exists()
        assert classwise(*words, "--out", tmp_path / "elsewhere.safetensors").status == 0
    assert classwise(*words).status == 0
    assert not (run / OWNER).exists()
