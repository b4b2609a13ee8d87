"""Distributed trainings and audits of two processes, one or both killed: the survivor's message, and resuming."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from classwise.auditing.outcomes import files as outcome_files
from classwise.training.folder import Run

from .client import AUDIT, TRAIN, Ended, Runner, files_of_run, rows_of_audit, temporaries

KILLED = -9
SURVIVAL_SECONDS = 30.0
"""Time limit for a survivor to detect the failure, on a busy machine."""
LOST = "classwise: another process ended without a message; "
RANKS = (0, 1)


@pytest.fixture(scope="module")
def together(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Ended]]:
    """The folder of a complete run of two processes, and how each ended."""
    folder = tmp_path_factory.mktemp("together") / "run"
    ended = runner.run_ranks([*TRAIN, "--out", folder], folder, {}, {})
    assert [rank.status for rank in ended] == [0, 0], ended
    return folder, ended


def _moments(seed: int, ended: Sequence[Ended], count: int) -> list[float]:
    """Random times at which the processes of a complete run were at work, in seconds from their start."""
    times, seconds = random.Random(seed), min(rank.seconds for rank in ended)
    return [times.uniform(0.1, 0.9) * seconds for _ in range(count)]


def _resumed(out: Path, marker: str) -> list[str]:
    return ["--resume"] if (out / marker).is_file() else []


def _check_survivor(ended: Ended, *, started: bool = True, finished: bool = True) -> None:
    """Check that a survivor reports the lost process in one line; before the start it may be killed.

    Args:
        ended: how it ended.
        started: whether the folder exists.
        finished: whether it may have finished.
    """
    if ended.status == KILLED and not started:
        return
    text = "\n".join(ended.lines)
    assert ended.status in ((0, 2) if finished else (2,)), (ended.status, text)
    assert "Traceback" not in text, text
    errors = [line for line in ended.lines if not line[:8].replace(":", "").isdigit()]  # progress has the time of day
    if ended.status == 2:
        assert len(errors) == 1, text
        assert errors[0].startswith(LOST), text
        assert "--resume" in errors[0]


def _kill(
    runner: Runner,
    arguments: list[Any],
    out: Path,
    victims: tuple[int, ...],
    marker: str,
    *,
    finished: bool = True,
    **kill: float,
) -> bool:
    """Kill one rank or both; returns whether any was killed before it finished."""
    jobs: list[dict[str, Any]] = [{"grace": SURVIVAL_SECONDS} for _ in RANKS]
    for rank in victims:
        jobs[rank] |= kill
    ended = runner.run_ranks(arguments, out, *jobs)
    for rank in set(RANKS) - set(victims):
        _check_survivor(ended[rank], started=(out / marker).is_file(), finished=finished)
    assert all(ended[rank].status in (0, 2, KILLED) for rank in victims), ended
    return any(ended[rank].status == KILLED for rank in victims)


def _kill_training(
    runner: Runner, expected: Path, out: Path, victims: tuple[int, ...], *, finished: bool = True, **kill: float
) -> bool:
    killed = _kill(runner, [*TRAIN, "--out", out], out, victims, "recipe.yaml", finished=finished, **kill)
    _train_again(runner, expected, out)
    return killed


def _train_again(runner: Runner, expected: Path, out: Path) -> None:
    ended = runner.run_ranks([*TRAIN, "--out", out, *_resumed(out, "recipe.yaml")], out, {}, {})
    assert [rank.status for rank in ended] == [0, 0], ended
    assert files_of_run(out) == files_of_run(expected)
    assert temporaries(out) == []
    assert "have no checksum" in runner.succeed(["report", out, "--check"], out).lines[-1]


def _kill_audit(
    runner: Runner, model: Path, audited: Path, out: Path, victims: tuple[int, ...], again: int = 1, **kill: float
) -> bool:
    arguments = ["audit", model, *AUDIT, "--out", out]
    killed = _kill(runner, arguments, out, victims, "audit.json", finished=True, **kill)
    ended = runner.run_ranks([*arguments, *_resumed(out, "audit.json")], out, *[{} for _ in range(again)])
    assert [rank.status for rank in ended] == [0] * again, ended
    pd.testing.assert_frame_equal(rows_of_audit(out), rows_of_audit(audited), check_exact=True)
    assert temporaries(out) == []
    runner.succeed(["report", out, "--check"], out)
    return killed


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "call"), [(0, 130), (1, 20)])
def test_a_killed_rank_of_a_training_resumes_to_the_same_bits(
    runner: Runner, together: tuple[Path, list[Ended]], tmp_path: Path, victim: int, call: int
) -> None:
    assert _kill_training(runner, together[0], tmp_path / "run", (victim,), finished=False, kill=call)


@pytest.mark.slow
def test_two_processes_resume_an_audit_whose_clean_pass_is_saved(
    runner: Runner, trained: Path, audited: Path, tmp_path: Path
) -> None:
    """Each process uses its own misclassified images only, although it reads the rows of both."""
    out = Path(shutil.copytree(audited, tmp_path / "audit"))
    for part in outcome_files.listed(out / "outcomes"):
        if set(outcome_files.read(part)[0]["attack"]) != {"clean"}:
            part.unlink()
    ended = runner.run_ranks(["audit", trained, *AUDIT, "--out", out, "--resume"], out, {}, {})
    assert [rank.status for rank in ended] == [0, 0], ended
    pd.testing.assert_frame_equal(rows_of_audit(out), rows_of_audit(audited), check_exact=True)


@pytest.mark.hostile
@pytest.mark.parametrize("victim", RANKS)
def test_trainings_killed_at_calls_resume_to_the_same_bits(
    runner: Runner, together: tuple[Path, list[Ended]], tmp_path: Path, victim: int
) -> None:
    calls = random.Random(victim).sample(range(1, together[1][victim].count + 1), 12)
    killed = [_kill_training(runner, together[0], tmp_path / str(call), (victim,), kill=call) for call in calls]
    assert sum(killed) >= 10  # if the other process is slow, there are fewer calls


@pytest.mark.hostile
@pytest.mark.parametrize("victims", [(0,), (1,), RANKS])
def test_trainings_killed_at_random_times_resume_to_the_same_bits(
    runner: Runner, together: tuple[Path, list[Ended]], tmp_path: Path, victims: tuple[int, ...]
) -> None:
    killed = [
        _kill_training(runner, together[0], tmp_path / str(case), victims, after=after)
        for case, after in enumerate(_moments(sum(victims), together[1], 8))
    ]
    assert sum(killed) >= 4  # the others had ended before


@pytest.mark.hostile
def test_trainings_terminated_at_random_times_resume_to_the_same_bits(
    runner: Runner, together: tuple[Path, list[Ended]], tmp_path: Path
) -> None:
    """SIGTERM is sent to both, as by ``torchrun``; rank 0 saves its state and reports it."""
    stopped = 0
    for case, after in enumerate(_moments(20, together[1], 8)):
        out = tmp_path / str(case)
        request = {"after": after, "signal": signal.SIGTERM, "grace": SURVIVAL_SECONDS}
        first, second = runner.run_ranks([*TRAIN, "--out", out], out, request, request)
        # After the command, while the interpreter ends, the signal has its usual effect.
        assert {first.status, second.status} <= {0, 143, -signal.SIGTERM}, (first, second)
        stopped += first.status == 143
        messages = [line for line in first.lines + second.lines if line.startswith("classwise: ")]
        assert len(messages) == (first.status == 143), (first, second)
        assert "Traceback" not in "\n".join(first.lines + second.lines)
        _train_again(runner, together[0], out)
    assert stopped >= 4


@pytest.mark.hostile
@pytest.mark.parametrize("victim", RANKS)
def test_audits_killed_at_calls_resume_to_the_same_outcomes(
    runner: Runner, trained: Path, audited: Path, tmp_path: Path, victim: int
) -> None:
    whole = runner.run_ranks(["audit", trained, *AUDIT, "--out", tmp_path / "whole"], tmp_path / "whole", {}, {})
    calls = random.Random(victim).sample(range(1, whole[victim].count + 1), 8)
    killed = [
        _kill_audit(runner, trained, audited, tmp_path / str(call), (victim,), again=1 + number % 2, kill=call)
        for number, call in enumerate(calls)
    ]
    assert sum(killed) >= 6  # if the other process is slow, there are fewer calls


@pytest.mark.hostile
@pytest.mark.parametrize("victims", [(0,), (1,), RANKS])
def test_audits_killed_at_random_times_resume_to_the_same_outcomes(
    runner: Runner, trained: Path, audited: Path, tmp_path: Path, victims: tuple[int, ...]
) -> None:
    whole = runner.run_ranks(["audit", trained, *AUDIT, "--out", tmp_path / "whole"], tmp_path / "whole", {}, {})
    killed = [
        _kill_audit(runner, trained, audited, tmp_path / str(case), victims, 1 + case % 2, after=after)
        for case, after in enumerate(_moments(10 + sum(victims), whole, 6))
    ]
    assert sum(killed) >= 3


@pytest.mark.hostile
def test_one_process_continues_a_training_of_two_and_records_it(
    runner: Runner, together: tuple[Path, list[Ended]], tmp_path: Path
) -> None:
    """The batch size of the recipe is that of all processes. The bits differ, since batch norm is per process."""
    out = tmp_path / "run"
    assert _kill(runner, [*TRAIN, "--out", out], out, RANKS, "recipe.yaml", kill=120)
    line = runner.run([*TRAIN, "--out", out, "--resume"], out).refusal()
    assert "batch_size" in line
    runner.succeed([*TRAIN, "--set", "batch_size=64", "--out", out, "--resume"], out)
    run = Run(out)
    assert run.complete
    assert len(run.epochs) == len(Run(together[0]).epochs)
    assert {"epoch": 1, "event": "resumed", "processes": 1} in run.events
    assert temporaries(out) == []
