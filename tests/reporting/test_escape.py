"""Hostile names in every output format of a report are read back unchanged."""

from __future__ import annotations

import csv
import re
import tempfile
import unicodedata
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from classwise.auditing.compare.compare import compare
from classwise.auditing.curve.result import Curve
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.core.files.csv_files import original_text
from classwise.reporting import export, report
from classwise.reporting.escape import (
    checked_svg,
    markdown_text,
    visible,
)
from classwise.reporting.tables import Cell, Row, Table
from tests.refusals import check_refused

from .conftest import MakeAudit
from .markup import parsed, rows_of, tags, text_of

EXAMPLES = (
    "</style><script>alert(1)</script>",
    "{{7*7}}",
    '=HYPERLINK("http://x","y")',
    "+1",
    "-2+3",
    "@SUM(A1)",
    "'=quoted",
    "\t=tab",
    "\r=return",
    "a|b",
    "two\nlines",
    "`code` **bold** _it_ [a](b) <!-- c -->",
    "\u202ereversed",
    "\u05e9\u05dc\u05d5\u05dd",
    "nul\x00bell\x07esc\x1b[31m",
    " spaces ",
    "&amp; &lt;",
    'quote"s',
    "$x$ \\$ \\",
    "]]>",
    "-->",
    "# head",
    "\u2028",
)
LETTERS = st.characters(exclude_categories=["Cs"], max_codepoint=0x2FFF)
NAMES = st.lists(
    st.one_of(
        st.sampled_from(EXAMPLES),
        st.text(LETTERS | st.sampled_from("=+-@|`<>&'\"\n\r\t{}*_$\\"), min_size=1, max_size=8),
    ).filter(str.strip),
    min_size=3,
    max_size=3,
    unique_by=(lambda name: visible(name).strip(), lambda name: unicodedata.normalize("NFC", " ".join(name.split()))),
)


def original(text: str) -> str:
    """Invert `visible`."""
    return re.sub(r"⟨U\+([0-9A-F]{4,})⟩", lambda match: chr(int(match[1], 16)), text)


def audit_of(names: list[str], model: str) -> Audit:
    labels = np.repeat(np.arange(3), 4)
    wrong = np.where(np.arange(12) % 4 < labels, (labels + 1) % 3, labels)
    return Audit(Outcomes.from_predictions(labels, labels, {"pgd": wrong}, names, model=model, model_hash="ab"))


def read_csv(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


TAGS = frozenset(
    re.findall(
        r"\w+",
        "html head meta title style body header main section footer p h1 h2 h3 em strong span dl dt dd div figure "
        "figcaption a caption table thead tbody tr th td small details summary svg g path rect circle text ul li code",
    )
)
ATTRIBUTES = frozenset(
    re.findall(
        r"\S+",
        "lang charset name content class id scope open viewbox width height role aria-label x y rx cx cy r d opacity "
        "font-size text-anchor font-weight transform xmlns href tabindex data-head",
    )
)


@pytest.mark.slow
@settings(max_examples=8, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(NAMES)
def test_names_are_read_back_from_every_format(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        audit, target = audit_of(names, names[0]), Path(folder)
        export(audit, target, ("csv", "md", "svg"))
        export(audit, target / "raw", ("csv",), raw_csv=True)
        report(audit, target / "a.html")

        rows = read_csv(target / "classes.csv")
        assert [original_text(row[0]) for row in rows[1:]] == names
        assert not any(cell[:1] in {*"=+-@\t\r\n"} for row in rows[1:] for cell in row[:1])
        assert [row[0] for row in read_csv(target / "raw" / "classes.csv")[1:]] == names
        head, *body = read_csv(target / "confusion-all.csv")
        assert [original_text(cell) for cell in head[1:]] == [original_text(row[0]) for row in body] == names
        assert all(float(cell) >= 0 for row in body for cell in row[1:])

        text = (target / "classes.md").read_text(encoding="utf-8")
        made = parsed(MarkdownIt("commonmark").enable("table").render(text))
        head, *body = rows_of(made)
        assert {original(row[0]) for row in body} == set(names)
        assert all(len(row) == len(head) for row in body)
        assert {*tags(made)} <= {"h3", "table", "thead", "tbody", "tr", "th", "td", "strong", "p"}

        svg = ET.parse(target / "classes.svg")
        titles = [element.text or "" for element in svg.iter("{http://www.w3.org/2000/svg}title")]
        assert {original(title.rsplit(", all: ", 1)[0]) for title in titles if ", all: " in title} == set(names)

        html = parsed((target / "a.html").read_text(encoding="utf-8"))
        assert {*tags(html)} <= TAGS
        assert {name for element in html.iter() for name in element.attrib} <= ATTRIBUTES
        assert [original(row[0]) for row in rows_of(html)[1:4]] == [names[label] for label in (2, 1, 0)]


@pytest.mark.slow
@settings(max_examples=3, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(NAMES)
def test_names_of_methods_and_curves_are_read_back(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder)
        comparison = compare({name: audit_of(names, name) for name in names[:2]})
        export(comparison, target, ("csv", "md"))
        report(comparison, target / "a.html")
        assert [original_text(row[0]) for row in read_csv(target / "methods.csv")[1:]] == names[:2]
        assert {original_text(row[0]) for row in read_csv(target / "classes.csv")[1:]} == set(names)
        assert {*tags(parsed((target / "a.html").read_text(encoding="utf-8")))} <= TAGS

        frame = pd.DataFrame({"index": range(6), "label": [0, 0, 1, 1, 2, 2], "low": 0.0, "high": [0.1, 0.2] * 3})
        frame = frame.assign(first_success="pgd", probes=1, forwards=1, backwards=1)
        curve = Curve(frame, Meta(class_names=tuple(names), attacks={"clean": None}, norm="Linf"), 0.25, 3)
        export(curve, target / "curve", ("csv", "md", "svg"))
        report(curve, target / "b.html")
        assert {original_text(row[0]) for row in read_csv(target / "curve" / "radii.csv")[1:-1]} == set(names)
        assert {*tags(parsed((target / "b.html").read_text(encoding="utf-8")))} <= TAGS
        ET.parse(target / "curve" / "curve.svg")


@given(st.text(LETTERS, max_size=12) | st.sampled_from(EXAMPLES))
def test_texts_of_markdown_can_be_read_back(text: str) -> None:
    html = MarkdownIt("commonmark").render(f"x{markdown_text(text)}x")
    assert "\n" not in markdown_text(text)
    inner = re.sub(r"<[^>]*>", "", html).strip()
    assert original(text_of(parsed(inner))) == f"x{text}x"


def test_a_table_of_hostile_names_keeps_its_shape() -> None:
    rows = [Row(name, [Cell(name, name)], weak=True) for name in EXAMPLES]
    made = rows_of(parsed(MarkdownIt("commonmark").enable("table").render(Table("a", ("x", "y"), rows).markdown())))
    assert [original(row[0]) for row in made[1:]] == list(EXAMPLES)
    assert {len(row) for row in made} == {2}


@pytest.mark.parametrize(
    "svg",
    [
        "<svg><script>alert(1)</script></svg>",
        '<svg onload="alert(1)"></svg>',
        '<svg><image href="javascript:alert(1)"/></svg>',
        '<!DOCTYPE svg [<!ENTITY a "b">]><svg>&a;</svg>',
        "<svg><foreignObject/></svg>",
        "<svg>",
    ],
)
def test_svg_files_may_contain_only_shapes_and_texts(svg: str) -> None:
    check_refused("figure: must contain only the shapes and texts of a drawing", checked_svg, svg)


def test_raw_csv_disables_escaping(make_audit: MakeAudit, tmp_path: Path) -> None:
    audit = make_audit(names=("=a", "b", "c", "d"))
    export(audit, tmp_path / "safe", ("csv",))
    export(audit, tmp_path / "raw", ("csv",), raw_csv=True)
    assert read_csv(tmp_path / "safe" / "classes.csv")[1][0] == "'=a"
    assert read_csv(tmp_path / "raw" / "classes.csv")[1][0] == "=a"
