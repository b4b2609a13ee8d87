"""Ctrl-C, SIGTERM and SIGHUP: work that is saved, one line that says so, and the same bits after ``--resume``."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch

import classwise as cw
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.writer import OutcomeWriter
from classwise.cli import console, main
from classwise.core.progress import interruption
from classwise.core.progress.interruption import Terminated, deferred, signals, stop_point
from classwise.training.folder import Which
from classwise.training.trainer import Trainer

from ..options import with_options
from .conftest import QUICK, Classwise

STOPS = [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "Ctrl-C"), (signal.SIGHUP, 129, "SIGHUP")]


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """The handlers as they were: a program that was stopped leaves the system's."""
    before = {number: signal.getsignal(number) for number in interruption.STOP_SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets background jobs ignore it
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


class Sending:
    """Sends a signal to this process when the task has advanced so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, task: str, after: int) -> None:
        advance, left = console.Lines.advance, [after]

        def advanced(lines: console.Lines, amount: int) -> None:
            advance(lines, amount)
            if lines.task == task:
                left[0] -= 1
                if left[0] == 0:
                    send(number)

        monkeypatch.setattr(console.Lines, "advance", advanced)


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.rglob("*.safetensors"))}


def trained(folder: Path, *words: str) -> list[str]:
    return with_options(["train", "cfa-at", "--budget=short", "--data=digits", f"--out={folder}", *QUICK], *words)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status", "cause"), STOPS)
def test_a_training_is_saved_at_the_step_and_ends_with_the_same_bits(
    classwise: Classwise,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    run_folder: Path,
    number: signal.Signals,
    status: int,
    cause: str,
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        Sending(patch, number, "training", 7)  # the state it begins with counts as one; an epoch has four steps
        said = classwise(*trained(folder))
    assert said.status == status
    saved = f"1 of 2 epochs and 2 of 4 steps are saved in {folder}"
    assert said.err.splitlines()[-1] == f"classwise: stopped by {cause}; {saved}; continue with --resume"
    assert said.out == ""
    state = torch.load(folder / "checkpoints" / "state.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == (1, 2)
    assert classwise(*trained(folder, "--resume")).status == 0
    assert content(folder) == content(run_folder)


def validating(monkeypatch: pytest.MonkeyPatch, call: int, act: Callable[[], None]) -> None:
    """Act when a training validates for the ``call``-th time (from 1)."""
    validate, left = Trainer._validate, [call]

    def validated(trainer: Trainer, which: Which, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        left[0] -= 1
        if left[0] == 0:
            act()
        return validate(trainer, which, model)

    monkeypatch.setattr(Trainer, "_validate", validated)


def promised(folder: Path) -> dict[str, bytes]:
    return content(folder) | {name: (folder / name).read_bytes() for name in ("epochs.parquet", "events.jsonl")}


@pytest.mark.parametrize("call", [2, 3])  # of the second epoch: the model, and the average
def test_a_training_stopped_in_validation_keeps_the_steps_of_the_epoch(
    classwise: Classwise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_folder: Path, call: int
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        validating(patch, call, lambda: send(signal.SIGTERM))
        said = classwise(*trained(folder))
    assert said.status == 143
    saved = f"1 of 2 epochs and 4 of 4 steps are saved in {folder}"
    assert said.err.splitlines()[-1] == f"classwise: stopped by SIGTERM; {saved}; continue with --resume"
    assert classwise(*trained(folder, "--resume")).status == 0
    assert promised(folder) == promised(run_folder)


def test_a_batch_of_validation_that_takes_long_is_stopped_and_saved(
    classwise: Classwise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With settings that change with each step (CFOL's), which the epoch's rows hold."""

    def act() -> None:
        send(signal.SIGINT)
        time.sleep(60)
        pytest.fail("it is not stopped")

    words = ["train", "cfol", "--data=digits", *QUICK, "--set=data.subset=60"]
    assert classwise(*words, f"--out={tmp_path / 'whole'}").status == 0
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(interruption, "GRACE_SECONDS", 0.05)
        validating(patch, 1, act)
        said = classwise(*words, f"--out={folder}")
    assert said.status == 130
    assert f"0 of 2 epochs and 2 of 2 steps are saved in {folder}" in said.err.splitlines()[-1]
    assert classwise(*words, f"--out={folder}", "--resume").status == 0
    assert promised(folder) == promised(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status", "cause"), STOPS)
def test_an_audit_writes_the_finished_images_and_ends_with_the_same_outcomes(
    classwise: Classwise,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    run_folder: Path,
    number: signal.Signals,
    status: int,
    cause: str,
) -> None:
    words = ["audit", run_folder, "--subset=120", "--attack=pgd:steps=3", "--batch-size=32", "--fail-if=worst(all) < 0"]
    assert classwise(*words, f"--out={tmp_path / 'whole'}").status == 0
    folder = tmp_path / "audit"
    with monkeypatch.context() as patch:
        Sending(patch, number, "clean", 2)
        said = classwise(*words, f"--out={folder}")
    assert said.status == status
    line = f"classwise: stopped by {cause}; 64 outcomes are saved in {folder}; continue with --resume"
    assert said.err.splitlines()[-1] == line
    assert not (folder / "page.html").exists()
    assert classwise(*words, f"--out={folder}", "--resume").status == 0
    resumed, whole = (
        outcome_files.read_all(place)[0].sort_values(["attack", "index"], ignore_index=True)
        for place in (folder, tmp_path / "whole")
    )
    pd.testing.assert_frame_equal(resumed, whole)


def test_a_stop_beside_saved_work_says_how_to_continue(
    classwise: Classwise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_folder: Path
) -> None:
    words = ["audit", run_folder, "--subset=30", "--attack=fgsm", "--guards=off", f"--out={tmp_path / 'audit'}"]
    for function, more, saved in (
        ("report", [], f"the audit is saved in {tmp_path / 'audit'}; "),  # while the page is written
        ("audit", ["--resume"], ""),  # before the first image
    ):
        with monkeypatch.context() as patch:
            patch.setattr(cw, function, functools.wraps(getattr(cw, function))(lambda *_, **__: send(signal.SIGTERM)))
            said = classwise(*words, *more)
        assert said.status == 143
        assert said.err.splitlines()[-1] == f"classwise: stopped by SIGTERM; {saved}continue with --resume"


def test_a_search_writes_the_finished_images_of_its_first_pass(
    classwise: Classwise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_folder: Path
) -> None:
    words = ["worst-class", run_folder, "--subset=150", "--attack=fgsm", "--attack=pgd:steps=2", "--batch-size=32"]
    folder = tmp_path / "search"
    with monkeypatch.context() as patch:
        Sending(patch, signal.SIGTERM, "clean, fgsm", 2)
        said = classwise(*words, f"--out={folder}")
    assert said.status == 143
    line = f"classwise: stopped by SIGTERM; the finished images are saved in {folder}; continue with --resume"
    assert said.err.splitlines()[-1] == line
    answers = [classwise(*words, "--json", *more) for more in ([f"--out={folder}", "--resume"], [])]
    assert [answer.status for answer in answers] == [0, 0]
    resumed, whole = ({**json.loads(answer.out), "seconds": None, "environment": None} for answer in answers)
    assert resumed == whole | {"page": str(folder / "page.html")}


def test_a_request_outside_of_long_work_stops_at_once() -> None:
    for number, kind in (
        (signal.SIGTERM, Terminated),
        (signal.SIGHUP, Terminated),
        (signal.SIGINT, KeyboardInterrupt),
    ):
        with pytest.raises(kind), signals():
            send(number)


def test_a_request_waits_for_the_stop_point_and_what_it_saves() -> None:
    done: list[str] = []
    with pytest.raises(Terminated), signals(), deferred():  # noqa: PT012  # where it stops is the point
        stop_point(lambda: done.append("not requested"))
        send(signal.SIGTERM)
        send(signal.SIGTERM)  # torchrun repeats it within a moment: still one request
        done.append("worked")
        stop_point(lambda: done.append("saved"))
    assert done == ["worked", "saved"]


def test_a_request_without_a_stop_point_stops_at_the_end_of_the_block() -> None:
    with pytest.raises(Terminated), signals():  # noqa: PT012  # where it stops is the point
        with deferred():
            send(signal.SIGTERM)
        pytest.fail("it goes on after the block")


def test_a_second_request_and_a_late_stop_point_stop_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(interruption, "REPEAT_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt), signals(), deferred():  # noqa: PT012  # where it stops is the point
            send(signal.SIGINT)
            send(signal.SIGINT)
            pytest.fail("the second one is ignored")
    monkeypatch.setattr(interruption, "GRACE_SECONDS", 0.05)
    with pytest.raises(Terminated), signals(), deferred():  # noqa: PT012  # where it stops is the point
        send(signal.SIGTERM)
        time.sleep(5)
        pytest.fail("it waits for ever")


def test_handlers_of_the_caller_are_left_alone() -> None:
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for a job in the background of a script
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as of nohup
    with signals():
        send(signal.SIGTERM)
        send(signal.SIGHUP)
        send(signal.SIGINT)
    assert heard == [signal.SIGTERM]


@pytest.mark.parametrize(
    ("number", "status", "cause"),
    [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "SIGINT"), (signal.SIGHUP, 129, "SIGHUP")],
)
def test_a_signal_during_the_imports_is_one_line(number: signal.Signals, status: int, cause: str) -> None:
    code = (
        "import os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == 'typer': os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from classwise.cli import main\n"
        "sys.exit(main(['--version']))\n"
    )
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", f"classwise: stopped by {cause}\n")


@pytest.mark.slow
def test_a_process_that_trains_ends_within_seconds(tmp_path: Path) -> None:
    """The whole program, signalled from outside."""
    words = [sys.executable, "-m", "classwise", *trained(tmp_path / "run", "--epochs=10000")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "epoch 1/" in line:
                break
        process.terminate()
        began = time.monotonic()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert out == ""
    assert err.splitlines()[-1].startswith("classwise: stopped by SIGTERM; ")
    assert "Traceback" not in err
    assert time.monotonic() - began < interruption.GRACE_SECONDS + 20  # on a machine that is busy
    assert (tmp_path / "run" / "checkpoints" / "state.pt").is_file()


def removing(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, folder: Path) -> None:
    """Remove a folder when a method is called."""
    import shutil

    original: Callable[..., None] = getattr(owner, method)

    def removed(self: object, *arguments: object) -> None:
        shutil.rmtree(folder)
        original(self, *arguments)

    monkeypatch.setattr(owner, method, removed)


def test_a_folder_that_is_removed_during_the_work_is_one_line(
    classwise: Classwise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_folder: Path
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        removing(patch, Trainer, "_end_epoch", folder)
        said = classwise(*trained(folder))
    assert said.status == 2
    assert said.err.splitlines()[-1] == f"classwise: {folder} was removed during training; start the run again"
    folder = tmp_path / "audit"
    removing(monkeypatch, OutcomeWriter, "add", folder)
    said = classwise("audit", run_folder, "--subset=40", "--attack=fgsm", f"--out={folder}")
    assert said.status == 2
    assert said.err.splitlines()[-1] == f"classwise: {folder} was removed during the audit; start the audit again"
    assert list(tmp_path.iterdir()) == []


def test_main_is_not_stopped_by_a_request_of_an_earlier_call() -> None:
    with pytest.raises(KeyboardInterrupt), signals():
        send(signal.SIGINT)
    assert main(["--version"]) == 0
    assert interruption.received() is None
