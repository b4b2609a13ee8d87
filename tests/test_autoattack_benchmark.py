"""The benchmark of AutoAttack: a user's network beside the zoo's, the comparison of verdicts, and resumption."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from benchmarks import autoattack, autoattack_audit, ratios
from benchmarks.autoattack import Case, Contender, Problem, Stage, SuiteRun, verdicts
from benchmarks.fusion import own_network
from safetensors.torch import save_file
from torch import Tensor

from classwise.data.images import Images
from classwise.models import build_model
from classwise.training.folder import Run
from classwise.training.train import train
from tests.refusals import check_refused


def test_the_users_network_computes_the_logits_of_the_zoo() -> None:
    torch.manual_seed(0)
    zoo = build_model(
        "preactresnet18", num_classes=10, in_channels=3, width=0.125, mean=(0.1, 0.5, 0.7), std=(0.3,) * 3
    ).eval()
    for buffer in zoo.buffers():
        if buffer.ndim == 1:
            buffer.uniform_(0.5, 1.5)
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(own_network(zoo)(x), zoo(x))


def suite(*success: list[int]) -> SuiteRun:
    """A run with the images on which each stage succeeds, of four."""
    stages = [
        torch.zeros(4, dtype=torch.bool).index_fill(0, torch.tensor(indices, dtype=torch.long), 1)
        for indices in success
    ]
    return SuiteRun({name: Stage(stage, 1, 1.0, 1.0) for name, stage in zip("ab", stages, strict=True)})


def test_verdicts_are_compared_image_by_image() -> None:
    """Which stage succeeds does not matter; single seeds may differ where any seed does not."""
    runs = {
        "same": [suite([0], [2]), suite([1], [0])],
        "seeds": [suite([0], [1]), suite([2], [0])],
        "weaker": [suite([0], []), suite([0], [3])],
        "reference": [suite([2], [0]), suite([0], [1])],
    }
    differences = "{}; success of {} only, in any seed: {}; success of reference only, in any seed: {}.  "
    assert verdicts(runs).splitlines() == [
        "same and reference: the same verdict on every image, with every seed.  ",
        differences.format("seeds and reference: 4 verdicts differ in single seeds", "seeds", "none", "none"),
        differences.format("weaker and reference: 3 verdicts differ in single seeds", "weaker", [3], [1, 2]),
    ]


def test_contenders_take_turns_and_are_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int, str, list[int]]] = []

    def attack(name: str, wins: int) -> Contender:
        def succeed(problem: Problem, spec: str, rows: Tensor) -> tuple[Tensor, int]:
            calls.append((name, problem.seed, spec, rows.tolist()))
            success = torch.zeros(len(problem.y), dtype=torch.bool)
            success[rows[:wins]] = True
            return success, len(rows)

        return Contender(succeed, torch.nn.Flatten())

    each = {"one": attack("one", 1), "other": attack("other", 2)}
    images = Images(torch.eye(4).view(4, 1, 2, 2), torch.tensor([0, 1, 3, 3]), class_names=list("abcd"))
    monkeypatch.setattr(autoattack, "contenders", lambda model, own: each)
    monkeypatch.setattr(autoattack, "load_model", lambda _: torch.nn.Flatten())
    monkeypatch.setattr(autoattack, "load_data", lambda *_, **__: images)
    monkeypatch.setattr(autoattack, "KEEP", tmp_path)
    case = Case("w.safetensors", "digits", 0.1, 4, own=True)
    text = autoattack.compare("mine", case, 4, [0, 1], ["apgd-ce", "apgd-t"])
    assert calls == [  # image 2 is misclassified before any attack
        ("one", 0, "apgd-ce", [0, 1, 3]),
        ("other", 0, "apgd-ce", [0, 1, 3]),
        ("one", 0, "apgd-t", [1, 3]),
        ("other", 0, "apgd-t", [3]),
        ("other", 1, "apgd-ce", [0, 1, 3]),
        ("one", 1, "apgd-ce", [0, 1, 3]),
        ("other", 1, "apgd-t", [3]),
        ("one", 1, "apgd-t", [1, 3]),
    ]
    assert "4 test images (3 correct), seeds 0, 1" in text
    assert re.search(r"\| apgd-t \| 25.00% .* \| 0 per image \| .* \| 0.00% ", text)
    assert "success of other only, in any seed: [3]" in text
    names = list(ratios.taken())
    assert names == ["mine, apgd-ce: other / one, CPU", "mine, apgd-t: other / one, CPU", "mine, all: other / one, CPU"]
    before = len(calls)
    assert autoattack.compare("mine", case, 4, [0, 1], ["apgd-ce", "apgd-t"]) == text
    assert len(calls) == before


def test_a_quick_run_of_the_users_network_has_the_first_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []

    def compare(*arguments: object) -> str:
        calls.append(arguments)
        return ""

    monkeypatch.setattr(autoattack, "compare", compare)
    monkeypatch.setenv("CASES", "own-network,mnist")
    monkeypatch.setenv("SEEDS", "3")
    for quick in (True, False):
        autoattack.run(quick=quick)
    own, mnist = autoattack.CASES["own-network"], autoattack.CASES["mnist"]
    assert calls == [
        ("own-network", own, autoattack.QUICK, [0], ("apgd-ce", "apgd-t")),
        ("mnist", mnist, autoattack.QUICK, [0], autoattack.STAGES),
        ("own-network", own, 128, [3]),
        ("mnist", mnist, 1000, [3]),
    ]


def test_audits_of_a_checkpoint_are_timed_and_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An audit that has ended keeps its times."""
    weights, file = tmp_path / "weights.safetensors", tmp_path / "out" / "autoattack.json"
    save_file(build_model("lenet", num_classes=10, in_channels=1).state_dict(), weights)
    words = ["digits", "--weights", str(weights), "--model", "lenet", "--device", "cpu", "--out", str(tmp_path / "out")]
    words += ["--attacks", "fgsm", "apgd-ce:steps=2", "--images"]
    autoattack_audit.main([*words, "8", "--max-time", "1e-9"])
    assert "until the limit" in capsys.readouterr().out
    autoattack_audit.main([*words, "8"])
    assert re.search(r"\| 8 \| auto \| apgd-ce \| \d \| \d \| \d+\.\d \|", capsys.readouterr().out)
    found = json.loads(file.read_text())
    ended = found["weights-8-auto-compile-auto"]
    assert (ended["resumed"], ended["complete"]) == (True, True)
    autoattack_audit.main([*words, "4", "8", "--compile", "auto", "off"])
    names = ["4-auto-compile-auto", "4-auto-compile-off", "8-auto-compile-auto", "8-auto-compile-off"]
    later = json.loads(file.read_text())
    assert sorted(later) == [f"weights-{name}" for name in names]
    assert later["weights-8-auto-compile-auto"] == ended
    # Not the times of another audit.
    check_refused("attacks", autoattack_audit.main, [*words[:-3], "fgsm", "--images", "8"])


def test_without_weights_a_model_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoattack_audit, "train", partial(train, epochs=1, batch_size=256))
    words = ["digits", "--model", "lenet", "--width", "0.2", "--device", "cpu", "--out", str(tmp_path)]
    for images in ("4", "6"):
        autoattack_audit.main([*words, "--attacks", "fgsm", "--images", images])
    assert sorted(json.loads((tmp_path / "autoattack.json").read_text())) == [
        "last-4-auto-compile-auto",
        "last-6-auto-compile-auto",
    ]
    assert Run.open(tmp_path / "at").recipe.precision.dtype in ("bfloat16", "float32")


def test_accuracies_that_the_time_limit_left_unknown_are_not_stated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "weights.safetensors"
    save_file(build_model("lenet", num_classes=10, in_channels=1).state_dict(), weights)
    words = ["digits", "--weights", str(weights), "--model", "lenet", "--device", "cpu", "--out", str(tmp_path / "out")]
    autoattack_audit.main([*words, "--images", "8", "--attacks", "fgsm", "--max-time", "1e-9"])
    table = capsys.readouterr().out
    assert re.search(r"\| 8 \| auto \| clean \| 8 \|  \| \d+\.\d \|", table)
    assert "until the limit" in table
