"""``classwise sweep`` at the command line: its actions, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from classwise.sweeps import cells
from classwise.sweeps.executors.choice import executor_of
from classwise.sweeps.executors.local import Local
from tests.launching import ENVIRONMENT, program_call
from tests.training.on_digits import TINY

from .conftest import Classwise

PLAN = "recipes: [at]\ndata: [digits]\nseeds: [0, 1]\naudits: {quick: {attack: fgsm, subset: 40, guards: off}}\n"


@pytest.fixture
def plan(forked: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan in the working folder, whose cells exit with the status of their seed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    failing = "print('classwise: no luck'); exit({})"
    monkeypatch.setattr(cells.Cell, "calls", lambda cell, run, device: (program_call(failing.format(cell.seed)),))
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN)
    return file


@pytest.mark.slow
def test_a_sweep_its_status_and_its_resumption(classwise: Classwise, plan: Path) -> None:
    said = classwise("sweep", plan, "--workers=2")
    assert said.status == 3
    summary = "1 failed, 1 finished of the cells in sweeps/plan; continue with classwise sweep resume sweeps/plan"
    assert said.err.splitlines()[-1] == f"classwise: {summary}"
    lines = classwise("sweep", "status", "sweeps/plan").out.splitlines()
    assert lines[0] == "1 failed, 1 finished"
    assert [line.split()[:2] for line in lines[2:]] == [["at-digits-seed0", "finished"], ["at-digits-seed1", "failed"]]
    assert lines[3].endswith("no luck")
    assert [cell["state"] for cell in classwise("sweep", "status", "sweeps/plan", "--json").facts] == [
        "finished",
        "failed",
    ]
    resumed = classwise("sweep", "resume", "sweeps/plan")
    assert resumed.status == 3
    assert "cells: 1 to do" in resumed.err
    assert "failed (attempt 2)" in classwise("sweep", "status", "sweeps/plan").out
    assert classwise("sweep", "collect", "sweeps/plan").status == 3


def test_resume_runs_where_the_sweep_ran(classwise: Classwise, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Any] = []

    def run(folder: Any, executor: Any, progress: Any) -> None:
        used.append(executor)

    monkeypatch.setattr("classwise.sweeps.executors.run._run", run)
    for words in ((plan, "--workers=3", "--out=x"), ("resume", "x"), ("resume", "x", "--workers=2")):
        assert "2 queued of the cells in x" in classwise("sweep", *words).err
    assert used == [Local(workers=3), Local(workers=3), Local(workers=2)]


@pytest.mark.slow
def test_an_estimate_starts_nothing(classwise: Classwise, plan: Path) -> None:
    plan.write_text(PLAN + f"set: {json.dumps(TINY)}\n")
    cost = classwise("sweep", plan, "--estimate", "--json", "--workers=2").facts
    # 2 epochs of 3 steps of 48 images with 3 passes; 40 images: 1 clean, 2 to start and verify, 1 step with gradient
    assert (cost["cells"], cost["workers"]) == (2, 2)
    assert cost["passes"] >= 2 * 2 * 3 * 48 * 3
    assert cost["hours"] == pytest.approx(cost["training_hours"] + cost["audit_hours"])
    assert [file.name for file in plan.parent.iterdir()] == ["plan.yaml"]
    plan.write_text(PLAN + f"set: {json.dumps(TINY | {'precision.dtype': 'auto'})}\n")
    predicted = classwise("sweep", plan, "--estimate", "--rates=h100")
    assert predicted.out.startswith("2 cells: at most "), predicted.err
    assert "on one NVIDIA H100 80GB HBM3 (rates of the documentation, On a GPU)" in predicted.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["statuss", "x"], "No such command 'statuss'"),
        (["run", "nothing.yaml"], "plan file 'nothing.yaml' does not exist"),
        (["nothing.yaml"], "plan file 'nothing.yaml' does not exist"),
        (["status"], "Missing argument 'FOLDER'; see classwise sweep status --help"),
        (["status", "x"], "x contains no sweep; start one with: classwise sweep plan.yaml --out x"),
        (["resume", "plan.yaml"], "plan.yaml is a file; give the folder of a sweep"),
        (["status", "x", "--workers=2"], "No such option: --workers"),
        (["plan.yaml", "--on=lokal"], "unknown executor 'lokal'; did you mean 'local'?"),
        (["plan.yaml", "--slurm=partition"], "--slurm 'partition' should be KEY=VALUE"),
        (["plan.yaml", "--slurm=partition=a"], "--slurm does not apply to --on local, which takes --workers"),
        (["plan.yaml", "--ray-address=auto"], "--ray-address does not apply to --on local"),
        (["plan.yaml", "--device=cuda:1"], "--device cuda:1: the executor selects the GPUs of a cell"),
        pytest.param(
            ["plan.yaml", "--device=cuda"],
            "there is no device 'cuda' on this machine",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device"),
        ),
        (["plan.yaml", "--gpus-per-cell=2"], "--gpus-per-cell 2 requires --device cuda"),
        (["plan.yaml", "--out=plan.yaml"], "plan.yaml is a file; give a folder"),
        (["plan.yaml", "--workers=0"], "--workers"),
        (["plan.yaml", "--rates=h100"], "--rates h100 requires --estimate"),
        (["plan.yaml", "--estimate", "--rates=h10"], "unknown rates 'h10'; did you mean 'h100'?"),
    ],
)
def test_bad_input_is_refused_in_one_line(classwise: Classwise, plan: Path, words: list[str], message: str) -> None:
    said = classwise("sweep", *words)
    assert (said.status, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert message in line
    assert [file.name for file in plan.parent.iterdir()] == ["plan.yaml"]


def test_local_workers_get_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert executor_of(gpus=2) == Local(workers=1, gpus=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    assert executor_of(workers=1, gpus=2)
    with pytest.raises(
        ValueError, match=r"2 workers with 2 GPUs each need 4, and CUDA_VISIBLE_DEVICES=4,5,6 has fewer"
    ):
        executor_of(workers=2, gpus=2)
