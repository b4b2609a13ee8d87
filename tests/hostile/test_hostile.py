"""A deterministic slice of the hostile cases, in this process; ``make test-hostile`` runs all of them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.case import CLEAN_AUDIT, Case, Shared
from tests.hostile.harness import (
    CATEGORIES,
    ESCAPED,
    EXITED,
    OUTPUTS,
    Result,
    differences,
    generate,
    judge,
    numbers,
    prepare,
    problems_in_files,
    snapshot,
    status_of,
    write_files,
)

EACH = 8
"""Cases of each category."""
WALL_SECONDS = 20

GENERATED = generate()
CASES = {
    f"{category}: {number}: {case.name[:60]!a}": case
    for category, found in GENERATED.items()
    for number, case in list(enumerate(found))[:: max(1, len(found) // EACH)][:EACH]
    if not case.reference and not case.heavy
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return prepare(tmp_path_factory.mktemp("hostile") / "shared")


@pytest.fixture(autouse=True)
def bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Raise after some seconds."""

    def late(*_: object) -> None:
        raise TimeoutError(f"still running after {WALL_SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(WALL_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(case: Case, shared: Shared) -> Result:
    """The command in this process, with what it prints."""
    out, err = io.StringIO(), io.StringIO()
    modules, paths, here = set(sys.modules), list(sys.path), Path.cwd()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(), patience():
        warnings.simplefilter("default")
        try:
            with case.around():
                status = status_of(case, shared)
        except SystemExit:
            status = EXITED
        except BaseException:
            traceback.print_exc()
            status = ESCAPED
    os.chdir(here)
    sys.path[:] = paths
    for name in set(sys.modules) - modules:
        if name in ("mine", "torch", "json"):
            del sys.modules[name]
    return Result(status, out.getvalue(), err.getvalue())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_hostile_input(shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    case = CASES[name]
    write_files(case, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    common = shared.run.parent
    before = snapshot(tmp_path, OUTPUTS) | snapshot(common)
    result = run(case, shared)
    touched = differences(before, snapshot(tmp_path, OUTPUTS) | snapshot(common))
    assert [*judge(case, result, touched), *problems_in_files(case, tmp_path)] == [], result.err[-2000:]


@pytest.mark.slow
def test_numbers_after_all_that(shared: Shared, tmp_path: Path) -> None:
    """The control: the audit of the shared run gives the numbers that it was saved with."""
    result = run(Case("control", (*CLEAN_AUDIT, f"--out={tmp_path / 'out'}")), shared)
    assert result.status == 0, result
    again = run(Case("control", (*CLEAN_AUDIT, f"--out={tmp_path / 'again'}")), shared)
    assert numbers(result.out) == numbers(again.out)
    from classwise.auditing.run.result import Audit

    saved = Audit.load(shared.audit).by_class["clean"].tolist()
    assert [row["clean"] for row in json.loads(result.out)["classes"].values()] == saved


def test_the_generator() -> None:
    """A thousand cases and more, the same for a seed, each with a name of its own."""
    cases, again = GENERATED, generate()
    assert set(cases) == set(CATEGORIES)
    assert sum(map(len, cases.values())) >= 1000
    assert [case.name for found in again.values() for case in found] == [
        case.name for found in cases.values() for case in found
    ]
    assert [case.words for case in cases["recipes"]] == [case.words for case in again["recipes"]]
