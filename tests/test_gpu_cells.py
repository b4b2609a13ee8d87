"""Cells of the GPU benchmarks: resumption, failures, time limits, the tests' process, and the page."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import cells, machine, suite
from benchmarks.gpu.cells import RESULTS, Result, Stage, Timer

from .toy_cells import HERE, Clock, call, report_of, toy


def noted(calls: list[str], name: str, fails: int = 0) -> Callable[[Timer], Result]:
    """A cell that notes its calls, of which the first ones fail."""

    def run(_: Timer) -> Result:
        calls.append(name)
        if calls.count(name) <= fails:
            raise RuntimeError("CUDA out of memory.\nTried to allocate 2 GiB")
        return {"n": len(calls)}

    return run


def page_of(folder: Path) -> str:
    return (folder / "results.md").read_text()


def test_a_call_that_is_killed_loses_only_the_cell_under_way(tmp_path: Path) -> None:
    calls: list[str] = []

    def killed(_: Timer) -> Result:
        raise KeyboardInterrupt

    made = {"a": noted(calls, "a"), "b": killed, "c": noted(calls, "c")}
    with pytest.raises(KeyboardInterrupt):
        call(tmp_path, toy(made))
    assert "- 1 of 3 cells have been run." in page_of(tmp_path)
    assert report_of(tmp_path, toy(made)).missing([toy(made)]) == ["toy (2 of 3)"]
    report = call(tmp_path, toy(made | {"b": noted(calls, "b")}))
    assert calls == ["a", "b", "c"]
    assert report.missing(report.stages) == []
    assert page_of(tmp_path).endswith("a=1 b=2 c=3\n")


def test_a_failed_cell_stops_no_other_and_is_run_again_last(tmp_path: Path) -> None:
    calls: list[str] = []
    first = toy({"a": noted(calls, "a", fails=1), "b": noted(calls, "b")}, "first")
    second = toy({"c": noted(calls, "c")}, "second")
    report = call(tmp_path, first)
    assert calls == ["a", "b"]
    assert report.failures() == [["first", "a", "RuntimeError: CUDA out of memory."]]
    text = page_of(tmp_path)
    assert "| first | `a` | RuntimeError: CUDA out of memory. |" in text
    assert text.index("### Failures") < text.index("## Toy")
    report = call(tmp_path, first, second)
    assert calls == ["a", "b", "c", "a"]
    assert report.failures() == []
    assert "No cell has failed." in page_of(tmp_path)


def test_a_result_that_has_not_passed_is_a_failure(tmp_path: Path) -> None:
    report = call(tmp_path, toy({"a": lambda _: {"passed": False, "measured": "2", "accepted": "0 | 1"}}))
    assert report.failures() == [["toy", "a", "2; accepted: 0 | 1"]]
    assert "| toy | `a` | 2; accepted: 0 \\| 1 |" in page_of(tmp_path)


@pytest.mark.parametrize("name", [*HERE, "quick"])
def test_cells_of_another_machine_are_measured_again(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    stage = toy({"a": noted(calls, "a")})
    other = HERE | {name: True}
    for here in (HERE, other, other):
        call(tmp_path, stage, machine=here)
    assert len(calls) == (1 if name in machine.NOT_COMPARED else 2)
    assert (f"is of another {name}" in capsys.readouterr().out) == (len(calls) == 2)


def test_cells_of_other_code_are_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []
    for sources in ("abc", "def", "def"):
        call(tmp_path, toy({"a": noted(calls, "a")}), sources=sources)
    assert calls == ["a", "a"]
    assert "toy: measured again, since" in capsys.readouterr().out


def test_a_call_ends_at_its_limit(tmp_path: Path) -> None:
    """No cell is started with less than `LEAST` seconds left."""
    clock = Clock()

    def cell(_: Timer) -> Result:
        clock.advance(30)
        return {"n": 0}

    report = call(tmp_path, toy(dict.fromkeys("abc", cell)), clock=clock, end=60 + cells.LEAST - 1)
    assert list(report.cells["toy"]) == ["a", "b"]
    assert report.missing(report.stages) == ["toy (1 of 3)"]


@pytest.mark.parametrize("kind", ["cell", "call"])
def test_a_cell_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It has failed after `MOST` seconds; at the end of the call it is left for the next one."""
    monkeypatch.setattr(cells, "MOST", 0.2 if kind == "cell" else 60.0)
    monkeypatch.setattr(cells, "LEAST", 0.0)

    def waits(_: Timer) -> Result:
        time.sleep(30)
        return {"n": 0}

    report = call(tmp_path, toy({"a": waits}), end=time.perf_counter() + (60 if kind == "cell" else 0.2))
    assert report.failures() == ([["toy", "a", "it did not end within 0 s"]] if kind == "cell" else [])
    assert bool(report.missing(report.stages)) == (kind == "call")


@pytest.mark.parametrize(("each", "rounds"), [(1, 15), (20, 3), (44, 1), (200, 1)])
def test_the_rounds_fit_the_time_limit(each: float, rounds: int, tmp_path: Path) -> None:
    """Besides the warm-up: 20 s, then rounds that end at 40, 60 and 80 s."""
    clock = Clock()
    stage = toy({"a": lambda timer: timer.seconds(lambda: clock.advance(each), 15) | {"n": 0}})
    cell = call(tmp_path, stage, clock=clock).cells["toy"]["a"]
    assert cell["result"] == {"seconds": each, "rounds": rounds, "planned": 15, "n": 0}
    assert cell["seconds"] == (rounds + 1) * each
    text = page_of(tmp_path)
    assert (f"`a`: {rounds} of 15 rounds, to end within 90 s." in text) == (rounds < 15)
    assert ("`a` took 400" in text) == (each == 200)


def test_preparation_counts_towards_the_time_limit() -> None:
    clock = Clock()
    timer = Timer("cpu", 90.0, clock)
    clock.advance(40)
    assert timer.seconds(lambda: clock.advance(20), 15)["rounds"] == 1


TESTS = {
    "test_good.py": "import pytest\ndef test_a(): pass\n@pytest.mark.skip('why')\ndef test_b(): pass\n",
    "test_bad.py": "def test_wrong(): assert 1 == 2\n",
    "test_import.py": "import no_such_module\ndef test_a(): pass\n",
    "test_hang.py": "import time\ndef test_waits(): time.sleep(60)\ndef test_after(): pass\n",
    "test_dead.py": "import os\ndef test_ends(): os._exit(9)\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("xdist", [True, False])
def test_tests_run_in_a_process_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, xdist: bool) -> None:
    """One that fails, hangs or ends its process stops no other; what has passed is not run again."""
    monkeypatch.setenv("PYTHONPATH", f"{machine.ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the start of each process is most of the time
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p xdist.plugin" if xdist else "")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: find(name) if xdist else None)
    folder = tmp_path / "tests"
    folder.mkdir()
    for name, text in TESTS.items():
        (folder / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    run = functools.partial(suite.run_tests, folder=Path("tests"), root=tmp_path, most=1.5)
    stage = Stage("tests", "Tests", run, suite.tables)
    report = call(tmp_path / "out", stage)
    assert report.missing([stage]) == []
    reasons: dict[str, Any] = {name.removeprefix("tests/"): reason for _, name, reason in report.failures()}
    tests = ("test_bad.py::test_wrong", "test_hang.py::test_waits", "test_dead.py::test_ends")
    assert set(reasons) == {*tests, "test_import.py"}
    assert reasons["test_bad.py::test_wrong"] == "assert 1 == 2"
    assert "no_such_module" in reasons["test_import.py"]
    assert reasons["test_hang.py::test_waits"] == "it did not end within 2 s"
    saved = json.loads((tmp_path / "out" / RESULTS).read_text())["stages"]["tests"]["cells"]
    assert saved["tests/test_good.py::test_b"]["result"] == {"passed": True, "skipped": "Skipped: why"}
    assert "def test_wrong" in saved["tests/test_bad.py::test_wrong"]["detail"]
    for name, text in TESTS.items():
        fixed = text.replace("1 == 2", "1 == 1").replace("60", "0").replace("os._exit(9)", "pass")
        (folder / name).write_text(fixed.replace("test_a(): pass", "test_a(): assert False"))  # it has passed before
    report = call(tmp_path / "out", stage)
    assert [name for _, name, _ in report.failures()] == ["tests/test_import.py"]


def test_the_page_of_a_folder_without_a_repository(tmp_path: Path) -> None:
    call(tmp_path, toy({}), machine=HERE | {"commit": "f00", "modified": None})
    text = page_of(tmp_path)
    assert "| classwise | 0.1.0, commit f00, without a repository |" in text
    assert "| driver, CUDA, cuDNN | 580.1, 13.0, 91000 |" in text
    assert "- Not run." in text


def test_the_sources_of_a_result(tmp_path: Path) -> None:
    for folder in ("src", "docs"):
        (tmp_path / folder).mkdir()
    code = tmp_path / "src" / "a.py"
    code.write_text("1")
    before = machine.sources(["src"], tmp_path)
    (tmp_path / "docs" / "a.py").write_text("2")
    assert machine.sources(["src"], tmp_path) == before
    code.write_text("2")
    assert machine.sources(["src"], tmp_path) != before
