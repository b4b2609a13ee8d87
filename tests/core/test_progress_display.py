"""The argument ``progress`` and the bar of notebooks."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from html import escape
from types import ModuleType
from typing import Any

import pytest

import classwise as cw
from classwise.core.progress import display as progress_display
from classwise.core.progress.display import Lines, NotebookBar, listening, log_in_cells
from classwise.core.progress.listener import NullProgress, Timed, expect
from tests.auditing.toys import images, model


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a notebook displays: a kernel of IPython is pretended."""
    texts: list[str] = []
    display: Any = ModuleType("IPython.display")

    def update(bundle: dict[str, str], raw: bool) -> None:
        assert raw
        text = escape(bundle["text/plain"])  # the same line where HTML is not shown
        assert bundle["text/html"].endswith(f"></progress> {text}")
        texts.append(bundle["text/html"])

    handle = type("Handle", (), {"update": staticmethod(update)})()

    def show(bundle: dict[str, str], raw: bool, display_id: bool) -> Any:
        assert display_id
        update(bundle, raw)
        return handle

    display.display = show
    ipython: Any = ModuleType("IPython")
    ipython.get_ipython = type("ZMQInteractiveShell", (), {})
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return texts


def test_the_listener_of_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    mine = NullProgress()
    for argument, kind in ((None, NullProgress), (False, NullProgress), (True, Lines)):
        with listening(argument) as listener:
            assert type(listener) is kind
    with listening(mine) as listener:
        assert listener is mine
    for given in (True, mine):
        with listening(given, active=False) as listener:
            assert listener is not mine
            listener.log("not shown")
    assert not capsys.readouterr().err


def test_an_audit_shows_its_progress(capsys: pytest.CaptureFixture[str]) -> None:
    cw.audit(model(), images(30), "Linf:0.02", "fgsm", guards="off", progress=True)
    assert "30 to do" in capsys.readouterr().err


def test_a_bar_in_a_notebook(
    shown: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_display, "SECONDS_BETWEEN_UPDATES", 3600)
    with listening(True) as bar:
        assert isinstance(bar, NotebookBar)
        bar.start("audit <1>", 4)
        bar.advance(1)
        bar.advance(3)
        bar.log("done")
    assert [text.partition(">")[0] for text in shown] == [
        '<progress value="0" max="4"',
        '<progress value="4" max="4"',
    ]
    assert "audit &lt;1&gt;: 4 of 4 (100%)" in shown[1]
    assert capsys.readouterr().out == "done\n"


@contextlib.contextmanager
def unconfigured() -> Iterator[logging.Logger]:
    """The logger of the package in a program that has not configured logging, without the handlers of pytest."""
    logger = logging.getLogger("classwise")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logger, "handlers", [])
        patch.setattr(logging.root, "handlers", [])
        yield logger


def test_log_lines_are_in_the_output_of_a_cell(shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Not on stderr, which notebooks show in red; once however often it is asked for."""
    with unconfigured():
        log_in_cells()
        log_in_cells()
        logging.getLogger("classwise.data").warning("%s: no images of 1 of 3 classes", "photos")
        assert capsys.readouterr() == ("warning: photos: no images of 1 of 3 classes\n", "")
        assert not shown
        logging.root.addHandler(logging.NullHandler())  # the program configures logging: its handlers have the line
        logging.getLogger("classwise.data").warning("again")
        assert capsys.readouterr() == ("", "")


def test_log_lines_outside_of_notebooks() -> None:
    with unconfigured() as logger:
        log_in_cells()
        assert not logger.handlers


def test_a_task_of_unknown_length(
    shown: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no fraction, and no time left."""
    monkeypatch.setattr(progress_display, "SECONDS_BETWEEN_UPDATES", 0)
    for listener in (Lines(0), NotebookBar()):
        listener.start("stream", 0)
        for _ in range(3):
            listener.advance(2)
    assert [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "stream",
        "stream: 2 done",
        "stream: 4 done",
        "stream: 6 done",
    ]
    assert shown[-1] == "<progress></progress> stream: 6 done"


def test_the_expected_time_replaces_the_extrapolation(
    shown: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_display, "SECONDS_BETWEEN_UPDATES", 0)
    for listener in (Lines(0), NotebookBar()):
        listener.start("pgd", 100)
        listener.expect(60, 7200.5)
        listener.expect(10.5, 11.5)
        listener.start("next", 100)
        listener.advance(1)
    lines = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines[1:3] == [
        "pgd: 0 of 100 (0%), about 60 s to 2 h 0 min left",
        "pgd: 0 of 100 (0%), about 12 s left",
    ]
    assert lines[-1] == "next: 1 of 100 (1%)"
    assert shown[-1].endswith("next: 1 of 100 (1%)")
    expect(NullProgress(), 1, 2)  # has no use for it


def test_an_estimate_is_shown_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    timed = Timed()
    timed.start("pgd", 100)
    timed.is_due(10, 1.0)
    timed.is_due_with(5.0, 8.0, 1.0)
    now = 6.0
    assert timed.seconds_left == (0.0, 2.0)
    now = 10.0
    timed.is_due(10, 1.0)
    assert timed.seconds_left == (80.0, 80.0), "of 80 images, at 10 images in 10 s"
