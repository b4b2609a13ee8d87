"""The executors for Ray and Slurm, as far as they need neither."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from classwise.sweeps.executors import EXECUTORS, slurm
from classwise.sweeps.executors.local import Local
from classwise.sweeps.executors.ray import Ray, cpus_of_a_task
from classwise.sweeps.executors.slurm import Slurm
from classwise.sweeps.tasks import record
from tests.refusals import check_refused


def test_executors_are_registered() -> None:
    assert {name: EXECUTORS.load(name) for name in EXECUTORS} == {"local": Local, "ray": Ray, "slurm": Slurm}


def test_missing_packages_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for package in ("ray", "submitit"):
        monkeypatch.setitem(sys.modules, package, None)
    check_refused("^ray is not installed; run pip install 'ray>=", next, Ray().run([tmp_path]))
    check_refused("^submitit is not installed; run pip install 'submitit>=", Slurm)


@pytest.mark.parametrize("executor", [Local, Ray, Slurm])
def test_numbers_out_of_range(executor: type[Local] | type[Ray] | type[Slurm]) -> None:
    check_refused(r"^workers 0 must be at least 1$", executor, workers=0)
    check_refused(r"^gpus -1 must not be negative$", executor, gpus=-1)


@pytest.mark.parametrize(
    ("nodes", "workers", "cpus"), [([1, 1], 2, 1), ([8, 8], 2, 8), ([8, 8], 3, 4), ([0, 6, 4], 3, 3), ([], 2, 1)]
)
def test_the_cpus_of_the_nodes_are_divided_among_the_tasks(nodes: list[int], workers: int, cpus: int) -> None:
    assert cpus_of_a_task(nodes, workers) == cpus


@pytest.mark.parametrize(("text", "value"), [("600", 600), ("1.5", 1.5), ("true", True), ("gpu", "gpu"), ("1h", "1h")])
def test_settings_have_the_types_of_submitit(text: str, value: object) -> None:
    assert slurm._value(text) == value
    assert type(slurm._value(text)) is type(value)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("echo 7_0; echo 7_2", frozenset({"7_0", "7_2"})),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", frozenset()),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", None),
    ],
)
def test_a_queue_that_does_not_answer_ends_no_job(
    answer: str, found: frozenset[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{answer}\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert slurm._queued("7") == found


def test_the_status_of_an_ended_job(tmp_path: Path) -> None:
    assert slurm._status(tmp_path, 0) == -9
    record(tmp_path, attempt="a", event="start", host="here")
    assert slurm._status(tmp_path, 0) == -9
    record(tmp_path, attempt="a", event="end", status=3)
    assert slurm._status(tmp_path, 0) == 3
    assert slurm._status(tmp_path, 2) == -9  # the job of a later submission has left no line
