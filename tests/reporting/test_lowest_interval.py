"""Every interval beside the worst class, in all outputs of one audit, is that of `lowest_interval`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import classwise as cw
from classwise.auditing.criteria.thresholds import Threshold
from classwise.auditing.curve.result import Curve
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.run.result import Audit
from classwise.cli.compare import comparison_facts
from classwise.cli.console import show_result
from classwise.cli.tables import audit_facts
from classwise.reporting.exports.builds import checks_of, write_junit
from classwise.reporting.exports.export import export
from classwise.reporting.figures.radii import radius_curves
from classwise.reporting.pages.notebook import html
from classwise.reporting.svg import Label, Line
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import class_intervals, lowest_interval
from classwise.testing.robustness import _message

from .markup import visible

TIED = (48, 50, 49, 52, 51, 50, 47, 50, 53, 49)
"""Correct images of ten nearly tied classes of 100."""
NAME = "95 % interval of the lowest class accuracy, whichever class it is"


def counts_of(images: Sequence[int], correct: Sequence[int]) -> ClassCounts:
    return ClassCounts(np.array(images), np.array(correct))


def audit_of(correct: tuple[int, ...], images: tuple[int, ...], name: str = "mine") -> Audit:
    """An audit under one attack, from predictions."""
    labels = np.repeat(np.arange(len(images)), images)
    place = np.concatenate([np.arange(size) for size in images])
    right = place < np.repeat(correct, images)
    outcomes = cw.Outcomes.from_predictions(
        labels,
        clean=labels,
        attacks={"pgd": np.where(right, labels, (labels + 1) % len(images))},
        class_names=[f"kind{label}" for label in range(len(images))],
        model=name,
    )
    return Audit(outcomes, name=name)


@pytest.fixture(scope="module")
def audit() -> Audit:
    return audit_of(TIED, (100,) * 10)


@pytest.fixture(scope="module")
def ends() -> tuple[float, float]:
    found = lowest_interval(counts_of([100] * 10, TIED))
    own = class_intervals(counts_of([100] * 10, TIED))
    assert found[1] > own.high[6] + 0.02  # the outputs below would show it if they used the interval of the class
    return found


@pytest.fixture(scope="module")
def page(audit: Audit, tmp_path_factory: pytest.TempPathFactory) -> str:
    return visible(cw.report(audit, tmp_path_factory.mktemp("page") / "page.html"))


def bracket(ends: tuple[float, float]) -> str:
    return f"[{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"


def span(ends: tuple[float, float]) -> str:
    return f"{100 * ends[0]:.1f}–{100 * ends[1]:.1f}"


def test_the_terminal(audit: Audit, ends: tuple[float, float], capsys: pytest.CaptureFixture[str]) -> None:
    show_result(audit)
    lines = capsys.readouterr().out.splitlines()
    place = next(place for place, line in enumerate(lines) if line.startswith("worst class"))
    assert lines[place].startswith(f"worst class: kind6, 47.0 % {bracket(ends)} of 100 images")
    assert lines[place + 1] == f"in brackets: {NAME}, for new images"


def test_the_page(page: str, ends: tuple[float, float]) -> None:
    assert f"{NAME}: {span(ends)} %." in page  # the headline
    assert f"kind6: 47.0 % of 100; {NAME}: {span(ends)} %" in page  # hover text of the figure below it
    assert f"The {NAME}, is {span(ends)} %" in page
    by_attack = page.partition("Results per attack")[2]
    assert f"kind6 n 100 47.0 {span(ends)}" in by_attack
    own = class_intervals(counts_of([100] * 10, TIED))
    theirs = f"{100 * own.low[6]:.1f}–{100 * own.high[6]:.1f}"
    before, *_ = page.partition("Accuracy per class and attack")  # the figure and the table of classes come after
    assert theirs not in before
    assert theirs not in by_attack


def test_python(audit: Audit, ends: tuple[float, float]) -> None:
    worst = audit.worst_class()
    assert (worst.name, worst.accuracy, worst.low, worst.high) == ("kind6", 0.47, *ends)
    assert worst.minimum[-2:] == ends
    assert tuple(audit.by_attack.loc["all", ["worst_low", "worst_high"]]) == ends
    assert Threshold.parse("worst(all).low < 0.2").value(audit) == ends[0]
    assert Threshold.parse("worst(all).high < 0.2").value(audit) == ends[1]
    assert "[" not in repr(audit)
    assert "–" not in re.sub(r'src="[^"]*"', "", html(audit))  # a notebook shows no interval beside the worst class


def test_json_and_csv(audit: Audit, ends: tuple[float, float], tmp_path: Path) -> None:
    facts = json.loads(json.dumps(audit_facts(audit)))
    assert (facts["worst"]["low"], facts["worst"]["high"], facts["worst"]["interval"]) == (*ends, NAME)
    assert (facts["summary"]["all"]["worst_low"], facts["summary"]["all"]["worst_high"]) == ends
    export(audit, tmp_path, ["csv"])
    attacks = pd.read_csv(tmp_path / "attacks.csv").set_index("attack")
    assert tuple(attacks.loc["all", ["worst_low", "worst_high"]]) == pytest.approx(ends, abs=1e-5)


def test_a_comparison(
    audit: Audit, ends: tuple[float, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = audit_of(tuple(right + 10 for right in TIED), (100,) * 10, "other")
    comparison = cw.compare({"mine": audit, "other": other})
    assert tuple(comparison.table.loc["mine", ["worst_low", "worst_high"]]) == ends
    show_result(comparison)
    printed = capsys.readouterr().out
    assert re.search(rf"^mine .* 47\.0 +{re.escape(bracket(ends))} +kind6", printed, re.MULTILINE)
    assert f"beside worst, the {NAME}" in printed
    facts = comparison_facts(comparison)
    assert (facts["methods"]["mine"]["worst_low"], facts["methods"]["mine"]["worst_high"]) == ends
    assert facts["worst_interval"] == NAME
    text = visible(cw.report(comparison, tmp_path / "compare.html"))
    assert f"worst-class accuracy 47.0 % (kind6; 95 % interval {span(ends)} %)" in text
    assert f"Worst class: {NAME}" in text
    assert f"Worst class, mine: 47.0 % of 100 (95 % interval {span(ends)} %)" in text
    assert f"kind6 47.0 {span(ends)}" in text.partition("Comparison of methods")[2]


def test_a_board(audit: Audit, ends: tuple[float, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board = cw.board({"mine": audit})
    (row,) = board.table.to_dict("records")
    assert (row["worst_low"], row["worst_high"]) == ends
    (table,) = board.to_dict()["tables"]
    assert table["rows"][0]["results"]["worst"] == {"value": 0.47, "low": ends[0], "high": ends[1]}
    show_result(board)
    assert re.search(rf"mine +47\.0 +{re.escape(bracket(ends))} +kind6", capsys.readouterr().out)
    text = visible(cw.report(board, tmp_path / "board.html"))
    assert f"Worst class: the lowest class accuracy, with the {NAME}" in text
    assert f"47.0 {span(ends)}" in text


def test_builds(audit: Audit, ends: tuple[float, float], tmp_path: Path) -> None:
    texts = ("worst(all) < 0.9", "worst(all).low < 0.9", "worst(all).high < 0.9")
    thresholds = {text: Threshold.parse(text) for text in texts}
    write_junit(tmp_path / "junit.xml", checks_of(audit, thresholds), "mine")
    written = (tmp_path / "junit.xml").read_text(encoding="utf-8")
    basis = f"(100 images of kind6; {NAME} {100 * ends[0]:.1f}–{100 * ends[1]:.1f} %); required: at least 90 %"
    low = f"{100 * ends[0]:.1f}"
    assert f"lower end of kind6 under all is {low} % (100 images; 95 % interval {low}–" in written
    assert f"worst.high under all is {100 * ends[1]:.1f} % {basis}" in written
    lines = _message(audit, [thresholds[texts[0]]]).splitlines()
    assert lines[1] == f"  worst under all is 47.0 % {basis}"
    assert "  kind6: 47.0" in lines
    assert [line for line in lines if "[" in line] == [f"{NAME}, for new images: {bracket(ends)}"]


def test_the_shaded_area_of_a_curve() -> None:
    """At each radius the area is the interval of the lowest accuracy there, whichever class it is."""
    random = np.random.default_rng(0)
    high = random.choice([0.0, 0.1, 0.2, 0.3, np.inf], 300)
    columns = {"label": random.integers(0, 6, 300), "low": 0.0, "high": high, "first_success": "pgd"}
    frame = pd.DataFrame({"index": range(300), **columns, "probes": 1, "forwards": 1, "backwards": 1})
    meta = Meta(class_names=tuple("abcdef"), attacks={"clean": None}, norm="L2")
    curve = Curve(frame, meta, 0.4, 2)
    marks = radius_curves(curve).marks
    (area,) = [mark for mark in marks if isinstance(mark, Line) and mark.closed]
    ticks = {mark.text: mark.y - 4 for mark in marks if isinstance(mark, Label) and mark.anchor == "end"}
    shares = [(ticks["0"] - y) / (ticks["0"] - ticks["100"]) for _, y in area.points]
    radii = np.linspace(0, 0.4, len(shares) // 2)
    ends = [lowest_interval(curve.counts(radius)) for radius in radii]
    assert shares == pytest.approx([*(end[1] for end in ends), *(end[0] for end in reversed(ends))], abs=1e-6)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_counts(data: st.DataObject, capsys: pytest.CaptureFixture[str]) -> None:
    """Unequal sizes, absent classes, one class, accuracies of 0 and 1: all outputs agree."""
    images = tuple(data.draw(st.lists(st.sampled_from((0, 1, 5, 40, 200)), min_size=2, max_size=12).filter(any)))
    correct = tuple(data.draw(st.integers(0, size)) for size in images)
    made = audit_of(correct, images)
    ends = lowest_interval(counts_of(images, correct))
    worst = made.worst_class()
    assert (worst.low, worst.high) == ends
    assert tuple(made.by_attack.loc["pgd", ["worst_low", "worst_high"]]) == ends
    assert tuple(cw.compare({"mine": made}).table.loc["mine", ["worst_low", "worst_high"]]) == ends
    assert [Threshold.parse(f"worst(all).{end} < 1").value(made) for end in ("low", "high")] == list(ends)
    capsys.readouterr()
    show_result(made)
    assert f"worst class: {worst.name}, {100 * worst.accuracy:.1f} % {bracket(ends)} of" in capsys.readouterr().out
