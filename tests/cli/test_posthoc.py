"""``classwise adjust-logits`` and ``interpolate-weights``: what they print and what they leave."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from classwise.core.files.ownership import OWNER, owned

from .conftest import Classwise

WORDS: dict[str, list[str]] = {
    "adjust-logits": ["--attack=pgd:steps=1", "--folds=0"],
    "interpolate-weights": ["--attack=pgd:steps=1", "--shares=0.3,0.7"],
}
"""The commands with options that make them quick; interpolate-weights also needs ``--start``."""
WRITTEN = {"adjust-logits": "adjusted.safetensors", "interpolate-weights": "interpolated.safetensors"}


@pytest.fixture
def run(run_folder: Path, tmp_path: Path) -> Path:
    """A copy of the run, into which a test may write."""
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def words_of(command: str, run: Path, run_folder: Path) -> list[str | Path]:
    start = [f"--start={run_folder}"] if command == "interpolate-weights" else []
    return [command, run, *WORDS[command], *start]


def test_adjust_logits_writes_a_model_and_says_what_it_did(classwise: Classwise, run: Path, tmp_path: Path) -> None:
    printed = classwise("adjust-logits", run, "--attack", "pgd:steps=1").printed
    assert "cross-fitted" in printed
    assert "another attack may find another class weaker" in printed
    assert (run / "checkpoints" / "adjusted.safetensors").is_file()
    words = ["adjust-logits", run, "--which", "last", *WORDS["adjust-logits"], "--json"]
    facts = classwise(*words, "--out", tmp_path / "o.st").facts
    assert Path(facts["weights"]) == tmp_path / "o.st"
    assert len(facts["classes"]) == 10
    columns = set(next(iter(facts["classes"].values())))
    assert columns == {"n", "adjustment", "fitted"} | {
        f"{name}{end}" for name in ("before", "robust") for end in ("", "_low", "_high")
    }


def test_interpolate_weights_writes_a_model_and_says_what_it_tried(
    classwise: Classwise, run: Path, run_folder: Path, tmp_path: Path
) -> None:
    words = words_of("interpolate-weights", run, run_folder)
    assert "saved" in classwise(*words).printed
    assert (run / "checkpoints" / "interpolated.safetensors").is_file()
    facts = classwise(*words, "--json", "--out", tmp_path / "mix.safetensors").facts
    assert Path(facts["weights"]) == tmp_path / "mix.safetensors"
    assert list(facts["tried"]) == ["0.3", "0.7"]


@pytest.mark.parametrize(
    ("command", "options", "line"),
    [
        ("adjust-logits", ["RUN", "--which=nonsense"], "has no weights 'nonsense'"),
        ("adjust-logits", ["EMPTY"], "contains no run"),
        ("interpolate-weights", ["RUN"], "started from random weights"),
        ("interpolate-weights", ["RUN", "--which=nonsense"], "has no weights 'nonsense'"),
        ("interpolate-weights", ["RUN", "--start=RUN", "--shares=a,b"], "--shares 'a,b' should be numbers with commas"),
        ("interpolate-weights", ["EMPTY"], "contains no run"),
    ],
)
def test_a_mistake_is_one_line(
    classwise: Classwise, run_folder: Path, tmp_path: Path, command: str, options: list[str], line: str
) -> None:
    words = [word.replace("RUN", str(run_folder)).replace("EMPTY", str(tmp_path)) for word in options]
    assert line in classwise(command, *words).refusal


@pytest.mark.parametrize("command", WORDS)
def test_a_run_that_another_process_uses_is_not_written(
    classwise: Classwise, run: Path, run_folder: Path, tmp_path: Path, command: str
) -> None:
    words = words_of(command, run, run_folder)
    with owned(run):
        assert f"{run} is in use by process " in classwise(*words).refusal
        assert not (run / "checkpoints" / WRITTEN[command]).exists()
        assert classwise(*words, "--out", tmp_path / "elsewhere.safetensors").status == 0
    assert classwise(*words).status == 0
    assert not (run / OWNER).exists()
