"""Training steps as CUDA graphs on a GPU: the same bits as steps computed kernel by kernel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import classwise as cw
from classwise.core.determinism import WORKSPACE, WORKSPACES

from ..training.test_graphed_step import CASES, REFUSED, TINY, Log
from ..training.test_trainer import contents

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
os.environ.setdefault(WORKSPACE, WORKSPACES[0])  # before the first matrix product of any test


def dropout(num_classes: int, in_channels: int, **_: Any) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 64, 16), nn.Dropout(), nn.Linear(16, num_classes))


EQUAL = CASES | {"dropout": ("at", {"model": {"name": f"{__name__}:dropout"}})}


@pytest.mark.parametrize("name", EQUAL)
def test_the_bits_are_those_of_steps_without_graphs(name: str, tmp_path: Path) -> None:
    recipe, more = EQUAL[name]
    runs = []
    for graphs in ("on", "off"):
        overrides = TINY | more | {"precision.graphs": graphs, "precision.deterministic": True}
        runs.append(
            cw.train(recipe, budget="short", data="digits", out=tmp_path / graphs, overrides=overrides, device="cuda")
        )
    first, second = map(contents, runs)
    assert [file for file, content in first.items() if content != second[file]] == ["recipe.yaml"]
    assert runs[0].environment["graphs"] == "used"


@pytest.mark.parametrize("name", ["python state", "synchronisation"])
def test_other_steps_are_computed_kernel_by_kernel(name: str, tmp_path: Path) -> None:
    recipe, more, reason = REFUSED[name]
    log = Log()
    run = cw.train(
        recipe, budget="short", data="digits", out=tmp_path / "run", overrides=TINY | more, device="cuda", progress=log
    )
    assert run.complete
    assert run.environment["graphs"] != "used"
    assert reason.partition(" when")[0] in run.environment["graphs"]
    assert sum("CUDA graph" in line for line in log.lines) == 1
