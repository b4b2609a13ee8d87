"""Snapshots of the texts of one result: on the terminal, and on its page."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from classwise.cli.paper_results import show_result
from classwise.papers import catalogue
from classwise.papers.claims import Measurement, Test, Verdict, evaluate, not_tested
from classwise.papers.interval_estimators import interval
from classwise.papers.page import interval as drawn_interval
from classwise.papers.page import models, write_pages
from classwise.papers.result import Evidence, Result, save_result
from classwise.papers.store import Store
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.intervals import Estimate

BUDGET = Evidence(scale="small", trainings=1, data=("cifar10",), train_images=(5000,), epochs=(12,), widths=(0.25,))
WORDS = {"claim": "kdd21/C10", "covers": ("CV",), "unit": "%²", "note": "a <note>"}
RESULT = Result(
    item="kdd21/T1",
    evidence=BUDGET,
    setting="a setting",
    tables=(Table("A table", ("row", "total"), (Row("AT", (Cell("50.0", "40.0–60.0"),)),), "A note."),),
    verdicts=(
        *evaluate([Test(estimand="a number", estimators=[interval(Estimate(5.0, 3.04, 6.96))], **WORDS)]),  # type: ignore[arg-type]
        *evaluate([not_tested("kdd21/C8", "no cats here")]),
    ),
    measurements=(Measurement.of("kdd21/C9", "a correlation", Estimate(0.5, 0.25, 0.75), unit=""),),
    runs={"0123abcd4567-e75": "at"},
    seconds=61.3,
    work={"0123abcd4567-e75": 60.0},
)


def test_a_result_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_result(RESULT)
    lines = capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ").splitlines()
    text = "\n".join(line.rstrip() for line in lines if not line.startswith(("note ", "further notes")))
    for number in ("C8", "C9", "C10"):
        text = text.replace(catalogue.claim(f"kdd21/{number}").claim, f"STATEMENT {number}")
    assert text.strip() == TERMINAL


def test_a_result_on_its_page(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    save_result(RESULT, store)
    page = write_pages(["kdd21"], store.path, tmp_path)[0].read_text(encoding="utf-8")
    section = page[page.index('id="kdd21/T1"') :]
    section = section[section.index("<h3") : section.index("Printed numbers")]
    words = unescape(re.sub(r"<[^>]*>", " ", section)).replace("\N{NO-BREAK SPACE}", " ")
    assert " ".join(words.split()).partition(" Deviations")[0] == " ".join(PAGE.split())


def test_a_page_has_of_a_smaller_scale_only_what_still_decides(tmp_path: Path) -> None:
    """The part that only the small scale tested; numbers of the chart state their scale."""
    store = Store(tmp_path / "store")
    gain = Test(claim="kdd21/C8", estimand="a gain", covers=("on average",), estimators=[interval(Estimate(9, 8, 10))])
    save_result(replace(RESULT, verdicts=(*RESULT.verdicts[:1], *evaluate([gain]))), store)
    reduced = replace(BUDGET, scale="reduced")
    save_result(
        replace(RESULT, evidence=reduced, tables=(), verdicts=evaluate([replace(gain, estimand="more")])), store
    )
    page = write_pages(["kdd21"], store.path, tmp_path)[0].read_text(encoding="utf-8")
    section = page[page.index('id="kdd21/T1"') :]
    section = section[: section.index("<section")]
    assert re.findall(r"Scale (\w+)", section) == ["reduced"]
    smaller = section[section.index("The result at small scale is in the store; of its verdicts, these") :]
    assert ("a number" in smaller, "a gain" in section, "A table" in section) == (True, False, False)
    chart = dict(re.findall(r'<tr id="(C\d+)">(.*?)(?=<tr|</tbody)', page, re.DOTALL))
    assert "<small>reduced, cifar10, <a " in chart["C8"]
    key = page[page.index('<div class="note key">') : page.index("</div>")]
    named = re.findall("<b>([^<]*)</b>", key)
    assert named[:2] == ["small", "reduced"]
    assert ("CV" in named, "class 0 to 9" in named, "N_attack" in named) == (True, True, False)
    assert "which is no evidence against the paper" in page
    assert "more" in chart["C8"]
    assert "<small>small, cifar10, <a " in chart["C10"]
    models = page[page.index('id="models"') :]
    assert re.findall(r"<caption>(Models at \w+ scale)", models) == ["Models at small scale", "Models at reduced scale"]


def test_models_with_one_recipe_name_are_distinguished() -> None:
    """A page states that its results rest on different trainings."""
    other = replace(RESULT, item="kdd21/T3", runs={"0123abcd4567": "at", "fedcba98": "at", "aaaa0000": "trades"})
    (table,) = models({"kdd21/T1": [RESULT], "kdd21/T3": [other]})
    assert [(row.name, *row.cells) for row in table.rows] == [
        ("at", Cell("2"), Cell("", "0123abcd: kdd21/T1, kdd21/T3; fedcba98: kdd21/T3")),
        ("trades", Cell("1"), Cell("", "aaaa0000: kdd21/T3")),
    ]
    assert table.note.startswith("Results at small scale rest on different trainings of at:")
    assert models({"kdd21/T1": [RESULT]})[0].note == ""


@pytest.mark.parametrize(
    ("ends", "places"),
    [((1, 2, 4), (62.5, 75, 100)), ((-4, -2, 1), (0, 25, 62.5)), ((math.nan, 3, math.nan), (100, 100, 100))],
)
def test_an_interval_is_drawn_around_zero(ends: tuple[float, ...], places: tuple[float, ...]) -> None:
    low, value, high = ends
    one = Verdict(claim="kdd21/C8", answer="inconclusive", estimand="a gain", low=low, value=value, high=high)
    assert drawn_interval(one) == places


TERMINAL = """\
kdd21/T1 at scale small: a setting

A table
row             total
AT   50.0 [40.0–60.0]
A note.

kdd21/C10, CV: supported at small scale (1 training, 5,000 images, 12 epochs, quarter width)
  a number: +5.00 %² +3.04 to +6.96 (95 %)
  a <note>
kdd21/C8 not tested: STATEMENT C8
  no cats here
kdd21/C9 measurement: STATEMENT C9
  a correlation: 0.50 (0.25 to 0.75; 95 % interval for new images of the same classes, with the trained models fixed)
kdd21/C10 by this item alone: partly tested: CV; not tested: vulnerable classes, MCD: STATEMENT C10"""
PAGE = """\
Scale small a setting. Each model: 1 training, 5,000 images, 12 epochs, quarter width. Models: at 0123abcd. 61.3 s
including all trainings and audits, classwise 0.1.0. Claims claim statement verdict estimate adjusted p C10
Stronger white-box attacks hurt the weak classes most a number CV: supported at
small scale a <note> +5.00 %² +3.04 to +6.96 (95 %) < 0.001 C8 Automobile always most robust, cat always least
not tested no cats here – –
Measurements claim statement quantity estimate C9 The ranking of classes is the same in every row
a correlation interval for new images of the same classes, with
the trained models fixed 0.50 0.25 to 0.75 Measurements have no verdict; their 95 % intervals are not
corrected for multiple testing. A table A table row total AT 50.0 40.0–60.0 A note."""
