"""``classwise adjust-logits`` and ``interpolate-weights``: what they print and what they leave."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import classwise as cw
from classwise.core.files.ownership import OWNER, owned
from classwise.models import read_state
from classwise.posthoc.logit_adjustment import LogitAdjustment

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


def test_an_adjustment_without_an_effect_is_noted(
    classwise: Classwise, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_effect(*arguments: Any, **options: Any) -> LogitAdjustment:
        found = adjust_logits(*arguments, **options | {"rates": [1e-6]})
        assert found.constants.any()
        return found

    adjust_logits, words = cw.adjust_logits, ["adjust-logits", run, "--attack=pgd:steps=1", "--which=last"]
    line = "cross-fitted, the adjustment changes the robust accuracy of no class"
    assert line not in classwise(*words).printed
    monkeypatch.setattr(cw, "adjust_logits", without_effect)
    assert line in classwise(*words).printed
    assert line not in classwise(*words, "--folds=0").printed


def test_classes_of_one_image_have_no_cross_fitted_accuracy(classwise: Classwise, run: Path, tmp_path: Path) -> None:
    words = [run / "checkpoints" / "last.safetensors", "--data=digits", "--split=train", "--subset=10"]
    printed = classwise("adjust-logits", *words, "--attack=fgsm", "--out", tmp_path / "o.st").printed
    assert "after, on the images of the fit" in printed
    assert "cross-fitted" not in printed


def test_interpolate_weights_writes_a_model_and_says_what_it_tried(
    classwise: Classwise, run: Path, run_folder: Path, tmp_path: Path
) -> None:
    words = words_of("interpolate-weights", run, run_folder)
    printed = classwise(*words).printed
    assert "saved" in printed
    assert "overall + worst, %" in printed
    assert (run / "checkpoints" / "interpolated.safetensors").is_file()
    facts = classwise(*words, "--json", "--out", tmp_path / "mix.safetensors").facts
    assert Path(facts["weights"]) == tmp_path / "mix.safetensors"
    assert list(facts["tried"]) == ["0.3", "0.7"]


@pytest.mark.parametrize(
    ("command", "options", "line"),
    [
        ("adjust-logits", ["RUN", "--which=nonsense"], "has no weights 'nonsense'"),
        ("adjust-logits", ["EMPTY"], "contains no run"),
        ("adjust-logits", ["RUN", "--data=digits"], "--data does not apply to the run"),
        ("adjust-logits", ["RUN", "--weights=w.pt"], "--weights does not apply to the run"),
        ("adjust-logits", ["RUN/checkpoints/last.safetensors", "--out=o.st"], "--data is required"),
        ("adjust-logits", ["RUN/checkpoints/last.safetensors", "--data=digits"], "--out is required"),
        ("adjust-logits", ["small-cnn", "--data=digits", "--out=o.st"], "unknown split of digits 'val'"),
        ("interpolate-weights", ["small-cnn", "--data=digits", "--split=train", "--out=o.st"], "--start is required"),
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


NETWORK = """
from torch import nn

def build(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 64, num_classes, bias=False))
"""


def test_a_network_and_checkpoints_of_ones_own(
    classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fit, audit the written file, and interpolate: everything by the command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "posthoc_net.py").write_text(NETWORK)
    weights = {name: {"1.weight": torch.randn(10, 64, generator=torch.Generator().manual_seed(seed))}
               for seed, name in enumerate(("tuned.pt", "start.pt"))}  # fmt: skip
    for name, tensors in weights.items():
        torch.save(tensors, name)
    model = ["posthoc_net:build", "--data", "digits", "--subset", "100", "--threat", "Linf:0.02"]
    fit = [*model, "--split", "train", "--weights", "tuned.pt", "--attack", "pgd:steps=2"]
    facts = classwise("adjust-logits", *fit, "--folds=0", "--out", "adjusted.safetensors", "--json").facts
    constants = [row["adjustment"] for row in facts["classes"].values()]
    audited = ["--attack", "pgd:steps=2", "--out", "audit"]
    classwise("audit", *model, "--weights", "adjusted.safetensors", *audited)
    outcomes = cw.Audit.load("audit").outcomes.frame.query("attack == 'clean'")
    images = cw.load_data("digits", subset=100)
    logits = images.pixels(slice(None)).flatten(1) @ weights["tuned.pt"]["1.weight"].T + torch.tensor(constants)
    assert outcomes["prediction"].tolist() == logits.argmax(1).tolist()
    printed = classwise("adjust-logits", *fit, "--out", "again.safetensors").printed
    assert "robust accuracy on 100 images of the fit" in printed
    mixed = ["--start", "start.pt", "--shares", "0.25", "--out", "mixed.safetensors"]
    assert "selected on 100 images of the fit" in classwise("interpolate-weights", *fit, *mixed).printed
    first, second = (weights[name]["1.weight"] for name in ("tuned.pt", "start.pt"))
    (stored,) = read_state("mixed.safetensors").tensors.values()
    torch.testing.assert_close(stored, 0.25 * first + 0.75 * second)
