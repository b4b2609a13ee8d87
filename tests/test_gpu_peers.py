"""The benchmarks beside the peers, on a pretended GPU with pretended packages."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks.gpu import command, peers
from benchmarks.gpu.cells import Timer
from torch import Tensor, nn

from .pretend_cuda import PretendCuda


class Pretended:
    """The interfaces of pyautoattack and torchattacks; both return the images unmodified, but the first one."""

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        assert settings.pop("eps") == peers.EPSILON
        self.calls: list[dict[str, Any]] = []
        self.apgd, self.apgd_targeted, self.fab = (SimpleNamespace(n_iter=100) for _ in range(3))
        self.square = SimpleNamespace(n_queries=5000)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        assert len(x) == len(y) == peers.QUICK.batch
        return x.clone()

    def run_standard_evaluation(self, x: Tensor, y: Tensor, *, batch_size: int) -> tuple[Tensor, Tensor]:
        assert (self.fab.n_iter, self.square.n_queries, batch_size) == (1, 1, peers.QUICK.batch)
        return x.clone(), y


@pytest.mark.slow
def test_the_stage_runs_to_its_end_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the packages their cells fail, and say what to install; the next call runs only these."""
    stage = peers.stage(peers.QUICK, [peers.TRAINED])  # which is smaller than the checkpoint
    monkeypatch.setattr(command, "STAGES", {"peers": lambda _: stage})
    for package in ("pyautoattack", "torchattacks"):
        monkeypatch.setitem(sys.modules, package, None)
    with PretendCuda():
        assert command.run(["peers"], tmp_path, "make gpu", quick=True) == 1
        text = capsys.readouterr().out
        assert "pyautoattack is missing; pip install --no-deps pyautoattack, then repeat the command" in text
        steps = json.loads((tmp_path / "results.json").read_text())["stages"]["peers"]["cells"]
        for package, name in (("pyautoattack", "AutoAttack"), ("torchattacks", "PGD")):
            monkeypatch.setitem(sys.modules, package, SimpleNamespace(**{name: Pretended}))
        assert command.run(["peers"], tmp_path, "make gpu", quick=True) == 0
    cells = json.loads((tmp_path / "results.json").read_text())["stages"]["peers"]["cells"]
    for name in ("training step, at", "training step, cfa-at"):
        assert cells[name] == steps[name]
        assert len(cells[name]["result"]["seconds"]) == 2
    attacks = {name: cell["result"] for name, cell in cells.items() if not name.startswith("training")}
    assert list(attacks) == [f"{attack}, {peers.TRAINED}" for attack in ("PGD-20", "AutoAttack")]
    assert len(peers.stage(peers.Size()).run.keywords["cells"]) == 6  # type: ignore[attr-defined]
    for name, result in attacks.items():
        ours, theirs = result["robust"].values()
        assert len(result["seconds"]) == 2
        assert 0 <= ours <= theirs == result["images"] == peers.QUICK.images, name
    page = (tmp_path / "results.md").read_text()
    assert "## Beside the peers" in page
    assert f"| AutoAttack, {peers.TRAINED} | 4 images | pyautoattack |" in page


def test_a_network_is_trained_once() -> None:
    timer = Timer("cpu")
    size = peers.Size(images=4, trained=40, batch=4, width=0.0625, seconds=0.0, pgd=1)
    model, x, y = peers.subject(size, peers.TRAINED, timer.device)
    assert peers.subject(size, peers.TRAINED, timer.device)[0] is model
    assert not model.training
    assert peers.robust(model, x, y) == len(x) == 4
    assert peers.robust(model, x, y + 1) == 0
    assert torch.equal(x, peers.subject(size, peers.CHECKPOINT, timer.device)[1])
