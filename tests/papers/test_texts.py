"""Snapshots of the texts of one result: on the terminal, and on its page."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from classwise.cli.paper_results import show_result
from classwise.papers import catalogue
from classwise.papers.claims import Measurement, Test, evaluate, not_tested
from classwise.papers.interval_estimators import interval
from classwise.papers.page import write_pages
from classwise.papers.result import Evidence, Result, save_result
from classwise.papers.store import Store
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.intervals import Estimate

BUDGET = Evidence(scale="reduced", trainings=1, data=("cifar10",), train_images=(5000,), epochs=(12,), widths=(0.25,))
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
    runs={"key": "at"},
    seconds=61.3,
    work={"key": 60.0},
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


TERMINAL = """\
kdd21/T1 at scale reduced: a setting

A table
row             total
AT   50.0 [40.0–60.0]
A note.

kdd21/C10, CV: supported at reduced scale (1 training, 5,000 images, 12 epochs, quarter width)
  a number: +5.00 %² +3.04 to +6.96 (95 %)
  a <note>
kdd21/C8 not tested: STATEMENT C8
  no cats here
kdd21/C9 measurement: STATEMENT C9
  a correlation: 0.50 (0.25 to 0.75; 95 % interval for new images of the same classes, with the trained models fixed)
kdd21/C10 as a whole: partly tested: CV; not tested: vulnerable classes, MCD: STATEMENT C10"""
PAGE = """\
Scale reduced a setting. Each model: 1 training, 5,000 images, 12 epochs, quarter width. 1 training, 61.3 s
including all trainings and audits, classwise 0.1.0. Claims claim statement verdict estimate adjusted p C10 A
stronger white-box attack hurts the vulnerable classes most, so CV and MCD rise. a number CV: supported at
reduced scale a <note> +5.00 %² +3.04 to +6.96 (95 %) < 0.001 C8 Class 1 is always the most robust and class 3
always the most vulnerable class, whatever the attack and the defence. not tested no cats here – –
Measurements claim statement quantity estimate C9 The ranking of the classes is consistent over attacks and
defences, hence a property of the data set. a correlation interval for new images of the same classes, with
the trained models fixed 0.50 0.25 to 0.75 Measurements have no verdict; their 95 % intervals are not
corrected for multiple testing. A table A table row total AT 50.0 40.0–60.0 A note."""
