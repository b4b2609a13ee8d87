"""A process killed at any write or at a random time leaves a folder that resumes to the same bits."""

from __future__ import annotations

import random
from pathlib import Path

import pandas as pd
import pytest

from .client import AUDIT, TRAIN, Runner, files_of_run, rows_of_audit, temporaries

KILLED = -9


def _spread(count: int, cases: int, seed: int) -> list[int]:
    """Sample ``cases`` different numbers from 1 to ``count``: 1 to 8, when the folder is created, and random others."""
    first = list(range(1, 9))
    return sorted(first + random.Random(seed).sample(range(9, count + 1), cases - len(first)))


def _train_again(runner: Runner, trained: Path, out: Path) -> None:
    begun = (out / "recipe.yaml").is_file()
    runner.succeed([*TRAIN, "--out", out, *(["--resume"] if begun else [])], out)
    assert files_of_run(out) == files_of_run(trained)
    assert temporaries(out) == []
    assert "have no checksum" in runner.succeed(["report", out, "--check"], out).lines[-1]


def _audit_again(runner: Runner, model: Path, audited: Path, out: Path) -> None:
    begun = (out / "audit.json").is_file()
    runner.succeed(["audit", model, *AUDIT, "--out", out, *(["--resume"] if begun else [])], out)
    pd.testing.assert_frame_equal(rows_of_audit(out), rows_of_audit(audited), check_exact=True)
    assert temporaries(out) == []
    runner.succeed(["report", out, "--check"], out)


def _kill_training(runner: Runner, trained: Path, out: Path, **kill: float) -> bool:
    ended = runner.run([*TRAIN, "--out", out], out, **kill)
    _train_again(runner, trained, out)
    return ended.status == KILLED


def _kill_audit(runner: Runner, trained: Path, audited: Path, out: Path, **kill: float) -> bool:
    ended = runner.run(["audit", trained, *AUDIT, "--out", out], out, **kill)
    _audit_again(runner, trained, audited, out)
    return ended.status == KILLED


@pytest.mark.slow
@pytest.mark.parametrize("call", [3, 24])
def test_a_killed_training_resumes_to_the_same_bits(runner: Runner, trained: Path, tmp_path: Path, call: int) -> None:
    assert _kill_training(runner, trained, tmp_path / "run", kill=call)


@pytest.mark.slow
@pytest.mark.parametrize("call", [4, pytest.param(20, marks=pytest.mark.hostile)])
def test_a_killed_audit_resumes_to_the_same_bits(
    runner: Runner, trained: Path, audited: Path, tmp_path: Path, call: int
) -> None:
    assert _kill_audit(runner, trained, audited, tmp_path / "audit", kill=call)


@pytest.mark.hostile
def test_trainings_killed_at_writes_resume_to_the_same_bits(runner: Runner, trained: Path, tmp_path: Path) -> None:
    count = runner.succeed([*TRAIN, "--out", tmp_path / "counted"], tmp_path / "counted").count
    calls = _spread(count, 24, seed=0)
    assert all(_kill_training(runner, trained, tmp_path / str(call), kill=call) for call in calls)


@pytest.mark.hostile
def test_audits_killed_at_writes_resume_to_the_same_bits(
    runner: Runner, trained: Path, audited: Path, tmp_path: Path
) -> None:
    count = runner.succeed(["audit", trained, *AUDIT, "--out", tmp_path / "counted"], tmp_path / "counted").count
    calls = _spread(count, 24, seed=1)
    assert all(_kill_audit(runner, trained, audited, tmp_path / str(call), kill=call) for call in calls)


@pytest.mark.hostile
def test_processes_killed_at_random_times_resume_to_the_same_bits(
    runner: Runner, trained: Path, audited: Path, tmp_path: Path
) -> None:
    times = random.Random(2)
    killed = [
        (
            _kill_training(runner, trained, tmp_path / f"run-{case}", after=times.uniform(0.05, 2.5)),
            _kill_audit(runner, trained, audited, tmp_path / f"audit-{case}", after=times.uniform(0.05, 1.5)),
        )
        for case in range(6)
    ]
    assert sum(map(sum, killed)) >= 4  # the others had ended before


@pytest.mark.hostile
def test_a_process_killed_repeatedly_resumes_to_the_same_bits(runner: Runner, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for call in (4, 9, 12, 17, 23, 31, 8, 41):
        begun = (out / "recipe.yaml").is_file()
        ended = runner.run([*TRAIN, "--out", out, *(["--resume"] if begun else [])], out, kill=call)
        assert ended.status in (0, KILLED), ended.lines
    _train_again(runner, trained, out)
