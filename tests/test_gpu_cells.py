"""Cells of the GPU benchmarks: resumption, the time limit, and the frame of the pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.gpu import machine
from benchmarks.gpu.cells import Result, Timer, page, run_stage

from .toy_cells import HERE, Clock, toy


def test_an_interrupted_stage_is_resumed(tmp_path: Path) -> None:
    calls: list[str] = []

    def cell(name: str) -> Callable[[Timer], Result]:
        def run(_: Timer) -> Result:
            calls.append(name)
            if calls == ["a", "b"]:
                raise KeyboardInterrupt
            return {"n": len(calls)}

        return run

    stage = toy({name: cell(name) for name in "abc"})
    with pytest.raises(KeyboardInterrupt):
        run_stage(stage, tmp_path, HERE, "x", "cpu")
    text = (tmp_path / "toy.md").read_text()
    assert "- 1 of 3 cells have finished." in text
    assert text.endswith("a=1")
    assert run_stage(stage, tmp_path, HERE, "x", "cpu")
    assert calls == ["a", "b", "b", "c"]
    assert (tmp_path / "toy.md").read_text().endswith("a=1 b=3 c=4")


@pytest.mark.parametrize("name", [*HERE, "quick"])
def test_cells_of_another_machine_or_code_are_measured_again(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[int] = []

    def cell(_: Timer) -> Result:
        calls.append(0)
        return {"n": 0}

    stage = toy({"a": cell})
    other = HERE | {name: "other"}
    for here in (HERE, other, other):
        assert run_stage(stage, tmp_path, here, "x", "cpu")
    output = capsys.readouterr().out
    if name in machine.NOT_COMPARED:
        assert len(calls) == 1
    else:
        assert len(calls) == 2
        assert f"is of another {name}" in output


def test_a_cell_that_fails_is_reported_and_repeated(tmp_path: Path) -> None:
    ready: list[int] = []

    def cell(_: Timer) -> Result:
        if not ready:
            raise RuntimeError("CUDA out of memory.\nTried to allocate 2 GiB")
        return {"n": 2}

    stage = toy({"a": cell, "b": lambda _: {"n": 3}})
    assert not run_stage(stage, tmp_path, HERE, "x", "cpu")
    text = (tmp_path / "toy.md").read_text()
    assert "- 1 of 2 cells have finished.\n- `a` has failed: RuntimeError: CUDA out of memory..\n\nb=3" in text
    ready.append(1)
    assert run_stage(stage, tmp_path, HERE, "x", "cpu")
    assert (tmp_path / "toy.md").read_text().endswith("|\n\na=2 b=3")


@pytest.mark.parametrize(("each", "rounds"), [(1, 15), (20, 3), (44, 1), (200, 1)])
def test_the_rounds_fit_the_time_limit(each: float, rounds: int, tmp_path: Path) -> None:
    """Besides the warm-up: 20 s, then rounds that end at 40, 60 and 80 s."""
    clock = Clock()
    stage = toy({"a": lambda timer: timer.seconds(lambda: clock.advance(each), 15) | {"n": 0}})
    assert run_stage(stage, tmp_path, HERE, "x", "cpu", clock)
    cell = json.loads((tmp_path / "toy.json").read_text())["cells"]["a"]
    assert cell["result"] == {"seconds": each, "rounds": rounds, "planned": 15, "n": 0}
    assert cell["seconds"] == (rounds + 1) * each
    text = (tmp_path / "toy.md").read_text()
    assert (f"`a`: {rounds} of 15 rounds, to end within 90 s." in text) == (rounds < 15)
    assert ("`a` took 400" in text) == (each == 200)


def test_preparation_counts_towards_the_time_limit() -> None:
    clock = Clock()
    timer = Timer("cpu", 90.0, clock)
    clock.advance(40)
    assert timer.seconds(lambda: clock.advance(20), 15)["rounds"] == 1


def test_the_page_of_a_folder_without_a_repository() -> None:
    content = {"machine": HERE | {"commit": "f00", "modified": None}, "command": "x", "date": "2026-01-01", "cells": {}}
    text = page(toy({}), content)
    assert "| classwise | 0.1.0, commit f00, without a repository, sources abc |" in text
    assert "| driver, CUDA, cuDNN | 580.1, 13.0, 91000 |" in text


def test_the_sources_of_a_result(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "docs").mkdir()
    code = tmp_path / "src" / "a.py"
    code.write_text("1")
    before = machine.sources(tmp_path)
    (tmp_path / "docs" / "a.py").write_text("2")
    assert machine.sources(tmp_path) == before
    code.write_text("2")
    assert machine.sources(tmp_path) != before
