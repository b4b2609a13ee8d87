"""Sweeps on digits: interrupted and resumed to the bits of an uninterrupted run, failed cells, and collecting."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import classwise as cw
from classwise.cli import main
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.progress import interruption
from classwise.sweeps.cells import SweepFolder
from classwise.sweeps.collect import collect
from classwise.sweeps.executors.local import Local
from classwise.sweeps.executors.run import prepare_sweep, resume_sweep, sweep
from classwise.sweeps.jobs import JOB
from classwise.sweeps.status import sweep_status
from classwise.sweeps.tasks import run_task
from tests.launching import program_call
from tests.reporting.test_accessibility import problems
from tests.training.on_digits import TINY

pytestmark = pytest.mark.usefixtures("forked")

ATTACK = "fgsm"
PLAN: dict[str, Any] = {
    "recipes": ["at"],
    "data": ["digits"],
    "seeds": [0, 1],
    "set": TINY | {"epochs": 8},
    "audits": {"quick": {"attack": ATTACK, "subset": 40, "guards": "off"}},
}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Cells compute with the threads of this process, for the same bits; a stopped command leaves its state."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(interruption._requests, "received", None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def audited(run: Path, out: Path) -> cw.Audit:
    data = cw.load_data("digits", split="test", subset=40)
    return cw.audit(run, data, "Linf:0.1", ATTACK, out=out, guards="off")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs and the audits of the cells, by the functions of the library."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    for seed in PLAN["seeds"]:
        run = folder / f"at-digits-seed{seed}"
        cw.train("at", data="digits", out=run, overrides=PLAN["set"], seed=seed)
        audited(run, run / "audits" / "quick")
    return folder


def bits(run: Path) -> Mapping[str, bytes]:
    names = ("epochs.parquet", "events.jsonl", "recipe.yaml")
    files = [*(run / name for name in names), *sorted(run.rglob("*.safetensors"))]
    return {file.name: file.read_bytes() for file in files if "artifacts" not in file.parts}


def outcomes(run: Path) -> pd.DataFrame:
    frame = cw.Audit.load(run / "audits" / "quick").outcomes.frame
    return frame.sort_values(["attack", "index"]).reset_index(drop=True)


def stop_when(file: Path) -> None:
    """Send SIGTERM to this process once a file exists."""

    def wait() -> None:
        deadline = time.monotonic() + 120
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.slow
def test_a_stopped_sweep_resumes_to_the_same_bits(
    tmp_path: Path, uninterrupted: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    prepare_sweep(PLAN | {"seeds": [0]}, out)
    stop_when(out / "runs" / "at-digits-seed0" / "recipe.yaml")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert main(["sweep", "resume", str(out), "--workers=2"]) == 143
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("classwise: stopped by SIGTERM; ")
    assert line.endswith(f"of the cells in {out}; continue with classwise sweep resume {out}")
    assert (out / "runs" / "at-digits-seed0" / "checkpoints" / "state.pt").is_file()  # it was saved when it stopped
    assert [cell.state for cell in sweep_status(out)] == ["stopped"]
    with pytest.raises(IncompleteError, match=r"no audit in .* can be compared: 1 stopped"):
        collect(out)
    (cell,) = resume_sweep(out, executor=Local(workers=2))
    assert (cell.name, cell.state) == ("at-digits-seed0", "finished")
    run, expected = out / "runs" / cell.name, uninterrupted / cell.name
    assert bits(run) == bits(expected)
    pd.testing.assert_frame_equal(outcomes(run), outcomes(expected))


@pytest.fixture
def finished(tmp_path: Path, uninterrupted: Path) -> Path:
    """A sweep of four cells: two methods, of which one has failed and the other has one seed of two."""
    out = tmp_path / "sweep"
    sweep = prepare_sweep(PLAN | {"recipes": ["at", "trades"]}, out)
    for cell in sweep.cells():
        if cell.recipe == "at":
            shutil.copytree(uninterrupted / cell.name, sweep.run(cell))
        if cell.name == "at-digits-seed1":
            shutil.rmtree(sweep.run(cell) / "audits")
    return out


def test_collect_names_what_is_missing(finished: Path) -> None:
    cw.view(finished / "runs" / "at-digits-seed0" / "audits" / "quick")
    collected = collect(finished)
    (group,) = collected.groups
    assert (group.data, group.audit, group.threat, group.comparison.seeds) == (
        "digits",
        "quick",
        "Linf:0.1",
        {"at-digits": 1},
    )
    missing = ["at-digits-seed1", "trades-digits-seed0", "trades-digits-seed1"]
    assert collected.missing == {(name, "quick"): "queued" for name in missing}
    files = {file.name for file in collected.files}
    assert files == {"results.csv", "results.md", "comparison.html", "comparison-digits-quick-Linf-0.1.html"}
    page, table = ((finished / "results" / name).read_text() for name in ("comparison.html", "results.md"))
    assert all(name in page and name in table for name in missing)
    assert 'href="comparison-digits-quick-Linf-0.1.html"' in page
    assert 'Images: <a href="../runs/at-digits-seed0/audits/quick/view/index.html">at-digits</a>' in page
    assert problems(page) == set()
    exported = collect(finished, formats=["tex", "csv"], columns=["overall", "worst"]).files[len(collected.files) :]
    tables = finished / "results" / "files" / "comparison-digits-quick-Linf-0.1"
    assert sorted(exported) == sorted(
        tables / f"{name}.{kind}" for name in ("methods", "classes") for kind in ("tex", "csv")
    )
    assert r"method & overall & worst \\" in (tables / "methods.tex").read_text()
    frame = pd.read_csv(finished / "results" / "results.csv")
    audit = cw.Audit.load(finished / "runs" / "at-digits-seed0" / "audits" / "quick")
    assert frame["overall"].tolist() == pytest.approx([audit.by_attack.loc["all", "overall"]], abs=1e-5)


@pytest.mark.parametrize(
    ("audits", "audit", "reason"),
    [
        (PLAN["audits"], None, "1 queued"),
        (PLAN["audits"], SimpleNamespace(complete=False, finished=False), "1 queued"),
        (PLAN["audits"], SimpleNamespace(complete=False, finished=True), "1 estimated from a sample"),
    ],
)
def test_collect_states_why_nothing_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audits: Any, audit: Any, reason: str
) -> None:
    prepare_sweep(PLAN | {"audits": audits, "seeds": [0]}, tmp_path / "sweep")
    monkeypatch.setattr("classwise.sweeps.collect.audit_of", lambda *place: audit)
    with pytest.raises(IncompleteError, match=f"can be compared: {reason}$"):
        collect(tmp_path / "sweep")


def test_collecting_a_plan_without_audits_is_bad_input(tmp_path: Path) -> None:
    """Not an incomplete sweep, whose status says that it is to be continued."""
    prepare_sweep(PLAN | {"audits": {}, "seeds": [0]}, tmp_path / "sweep")
    with pytest.raises(ClasswiseError, match="has no audits; add them, and run the sweep again") as caught:
        collect(tmp_path / "sweep")
    assert not isinstance(caught.value, IncompleteError)


@pytest.mark.slow
def test_collect_has_the_mean_over_seeds(finished: Path, uninterrupted: Path) -> None:
    for name in ("at-digits-seed1", "trades-digits-seed0"):
        shutil.rmtree(finished / "runs" / name, ignore_errors=True)
    shutil.copytree(uninterrupted / "at-digits-seed1", finished / "runs" / "at-digits-seed1")
    collected = collect(finished)
    row = collected.frame.iloc[0]
    each: list[Any] = [
        cw.Audit.load(finished / "runs" / f"at-digits-seed{seed}" / "audits" / "quick").by_attack.loc["all", "overall"]
        for seed in (0, 1)
    ]
    assert (row["method"], row["seeds"]) == ("at-digits", 2)
    assert row["overall"] == pytest.approx(sum(each) / 2)
    assert row["overall_low"] < row["overall"] < row["overall_high"]
    assert len(collected.missing) == 2


@pytest.mark.slow
def test_a_failed_cell_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class InThisProcess(Local):
        def run(self, folders: Any) -> Any:
            for folder in folders:
                from classwise.sweeps.executors.base import Finished

                yield Finished(folder, run_task(folder))

    monkeypatch.setattr(
        "classwise.sweeps.cells.Cell.calls",
        lambda cell, run, device: (program_call(f"exit('classwise: no luck' if {cell.seed} == 0 else 0)"),),
    )
    out = tmp_path / "sweep"
    first, second = sweep(PLAN, out=out, executor=InThisProcess())
    assert (first.state, first.error, second.state) == ("failed", "no luck", "finished")
    first, second = resume_sweep(out, executor=InThisProcess())
    assert (first.attempts, second.attempts) == (2, 1)


def test_a_sweep_runs_once_at_a_time(tmp_path: Path) -> None:
    from classwise.core.files.ownership import owned

    sweep = prepare_sweep(PLAN, tmp_path / "sweep")
    with owned(sweep.path), pytest.raises(ClasswiseError, match="in use by"):
        resume_sweep(sweep.path)


def test_a_moved_sweep_writes_into_its_new_folder(tmp_path: Path) -> None:
    prepare_sweep(PLAN, tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")

    class Stopping(Local):
        def run(self, folders: Any) -> Any:
            yield from ()

    resume_sweep(tmp_path / "new", executor=Stopping())
    sweep = SweepFolder(tmp_path / "new")
    (cell, *_) = sweep.cells()
    assert str(tmp_path / "new" / "runs") in (sweep.task(cell) / JOB).read_text()
