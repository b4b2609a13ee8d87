"""HTML of results for notebooks."""

from __future__ import annotations

import base64
import dataclasses
import re

from classwise.auditing.compare.compare import compare
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit

from .conftest import MakeAudit
from .sample_pages import NAMES, sample_curve


def figure(html: str) -> str:
    (data,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    return base64.b64decode(data).decode()


def test_an_audit(make_audit: MakeAudit) -> None:
    html = make_audit(names=("<b>", "dog", "bird", "cat"), accuracy=(0.6, 0.7, 0.3, 0.1))._repr_html_()
    assert "10.0" in html
    assert "cat" in html
    svg = figure(html)
    assert svg.startswith("<svg")
    assert "&lt;b&gt;" in svg
    assert "<style" not in html  # nothing leaks into the notebook


def test_an_incomplete_audit(make_audit: MakeAudit) -> None:
    table = make_audit().outcomes
    html = Audit(Outcomes(table.frame.iloc[:-3], table.meta))._repr_html_()
    assert "Incomplete audit: 3 of 400 images are not judged" in html
    unstated = Audit(Outcomes(table.frame.iloc[:-3], dataclasses.replace(table.meta, threat=None)))
    assert "incomplete: Bounds of the accuracy per class, percent" in str(unstated)
    assert figure(html)


def test_a_comparison(make_audit: MakeAudit) -> None:
    comparison = compare({"<at>": make_audit(seed=1), "cfa": make_audit(seed=2)})
    html = comparison._repr_html_()
    assert "&lt;at&gt;: " in html
    assert figure(html)
    assert repr(comparison).startswith("<Comparison under every attack together: <at> worst ")
    assert len(repr(comparison)) < 200


def test_a_curve() -> None:
    curve = sample_curve()
    assert NAMES[0] in curve._repr_html_()
    assert figure(curve._repr_html_())
    assert repr(curve).startswith("<Curve 'curve': tiny; ")
