from __future__ import annotations

import io
import json
import math
import re
import sys
import time

import numpy as np
import pytest
import torch

from classwise.cli import console
from classwise.cli.table_layout import fit
from classwise.reporting.text import layout


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that advances only when set."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_lines_tell_share_and_time_left(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = console.Lines()
    lines.start("training", 1000)
    lines.advance(200)  # a resumed run starts here, in no time at all
    clock[0] += 20
    lines.advance(10)
    clock[0] += 20
    lines.advance(10)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[2] for line in said] == [
        "training: 1,000 to do",
        "training: 220 of 1,000 (22%), about 26 min left",  # 20 units took 40 s
    ]


@pytest.mark.parametrize(("seconds", "count"), [(30, 1), (5, 3)])
def test_lines_come_at_intervals(
    seconds: float, count: int, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with console.progress(seconds) as lines:
        lines.start("audit", 10)
        for _ in range(10):
            clock[0] += 1
            lines.advance(1)
    assert len(capsys.readouterr().err.splitlines()) == count


def test_a_bar_forgets_where_a_resumed_task_began() -> None:
    from rich.console import Console
    from rich.progress import Progress

    stream = io.StringIO()
    with Progress(console=Console(file=stream, force_terminal=True), auto_refresh=False) as bars:
        bar = console.Bar(bars)
        bar.advance(3)  # nothing has begun
        bar.start("training", 100)
        bar.advance(90)
        assert bars.tasks[0].completed == 90
        bar.advance(1)
        assert bars.tasks[0].completed == 91
        assert bars.tasks[0].speed is None or bars.tasks[0].speed < 1e7
        bar.start("validation", 7)
        assert [task.description for task in bars.tasks] == ["validation"]
        bar.log("[red] is not markup")
    assert "[red] is not markup" in stream.getvalue()


def test_the_listener_fits_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    with console.progress() as listener:
        assert isinstance(listener, console.Lines)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with console.progress() as listener:
        assert isinstance(listener, console.Bar)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "about 0 s"), (89.2, "about 90 s"), (95, "about 2 min"), (12_000, "about 3 h 20 min")]
)
def test_durations(seconds: float, words: str) -> None:
    assert console.duration(seconds) == words


def test_a_plain_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    console.show(["class", "n", "all"], [("cat", 1000, "–"), ("automobile", 5, "12.0")], "title")
    assert capsys.readouterr().out.splitlines() == [
        "title",
        "class          n   all",
        "cat         1000     –",
        "automobile     5  12.0",
    ]


def test_names_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "cat\x1b[31m\r\u202edog\u00a0house"
    console.show(["class"], [[name]], title=name)
    console.echo(f"worst class: {name}")
    shown = r"cat\x1b[31m\r\u202edog" + "\u00a0house"
    assert capsys.readouterr().out.splitlines() == [shown, "class", shown, f"worst class: {shown}"]


def test_a_table_on_a_terminal_is_drawn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    console.show(["class"], [("[bold]cat",)])
    out = capsys.readouterr().out
    assert "[bold]cat" in out
    assert "━" in out or "─" in out


def test_json_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    value = {1: math.nan, "t": torch.tensor([1, 2]), "n": np.float64(0.5), "s": ("a", None, True), "o": 1 + 2j}
    console.show_json(value)
    read = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert read == {"1": None, "t": [1, 2], "n": 0.5, "s": ["a", None, True], "o": "(1+2j)"}


def test_variances_in_a_column_have_the_same_number_of_digits() -> None:
    assert [layout.in_unit(value, "fraction squared") for value in (0.0123, 0.00123, math.nan)] == [
        "123.0",
        "12.3",
        "–",
    ]


NAMES = ["cat", "German_shepherd_dog_in_a_garden", "a class name of many words, as photographers write them"]
HEADS = ["class", "n", "clean", "pgd", "apgd-ce", "apgd-t", "all", "all, 95 % interval"]
ROWS = [(name, 1000, "88.1", "45.2", "44.1", "43.9", "43.0", "[38.1, 44.3]") for name in NAMES]
OPTIONAL = ("pgd", "apgd-ce", "apgd-t", "n", "clean")


def drawn(columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The table of `ROWS` on a terminal of this width."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    console.show(HEADS, ROWS, "accuracy", optional=OPTIONAL)
    return re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("columns", "dropped"),
    [(160, []), (80, ["pgd"]), (60, ["pgd", "apgd-ce", "apgd-t"])],
)
def test_a_narrow_terminal_drops_columns_and_cuts_nothing(
    columns: int, dropped: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = drawn(columns, capsys, monkeypatch)
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out
    assert out.count("[38.1, 44.3]") == out.count("43.0") == 3
    first = "".join(line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│"))
    assert first.replace(" ", "") == "".join(NAMES).replace(" ", "")
    note = re.findall(r"columns not shown at this width: (.*)", out)
    assert note == ([", ".join(dropped)] if dropped else [])
    assert ("44.1" in out) == ("apgd-ce" not in dropped)


def test_a_very_narrow_terminal_stacks_every_cell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = drawn(30, capsys, monkeypatch).splitlines()
    assert out[:3] == ["accuracy", f"class: {NAMES[0]}", "  n                   1000"]
    assert sum("[38.1, 44.3]" in line for line in out) == 3
    assert len(out) == 1 + 3 * len(HEADS)


def test_layout_narrows_the_widest_text_first() -> None:
    rows = [["name", "number", "text"], ["x" * 30, "12.3", "y" * 50]]
    layout = fit(rows, 60, text=[True, False, True], optional=[])
    assert layout.places == (0, 1, 2)
    assert layout.widths[1] == 6
    assert sum(layout.widths) == 60 - 3 * 3 - 1
    assert abs(layout.widths[0] - layout.widths[2]) <= 14
    assert fit(rows, 20, text=[True, False, True], optional=[]).widths == ()
    assert fit(rows, 30, text=[True, False, True], optional=[2]).places == (0, 1)


def test_a_table_without_rows_is_drawn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    console.show(["class", "n"], [], optional=["n"])
    assert "class" in capsys.readouterr().out
