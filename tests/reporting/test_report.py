"""`cw.report` writes the page of every kind of result."""

from __future__ import annotations

from pathlib import Path

import pytest

import classwise as cw
from classwise.auditing.compare.compare import compare
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.curve.result import Curve
from classwise.auditing.run.result import Audit
from classwise.auditing.worst_class.result import WorstClass
from tests.refusals import check_refused

from .conftest import audit_of
from .sample_pages import sample_curve
from .test_worst_class import result_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (audit_of(), "on the worst class"),
        (compare({"a": audit_of(), "b": audit_of()}), "Equal worst-class accuracies on these images"),
        (sample_curve(), "Mean robust radius"),
        (result_of(("cat", "dog"), [0.2, 0.7], set()), "The worst class is"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_of_result(result: Audit | Comparison | Curve | WorstClass, shown: str, tmp_path: Path) -> None:
    path = cw.report(result, str(tmp_path / "new" / "page.html"))
    assert path == tmp_path / "new" / "page.html"
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert shown in text
    assert path.read_bytes() == cw.report(result, tmp_path / "again.html").read_bytes()


def test_other_objects_are_refused(tmp_path: Path) -> None:
    check_refused(r"result = \{\}: must be an Audit, a Board, a Comparison", cw.report, {}, tmp_path / "page.html")
    check_refused(
        "run: accepted only with a result of type Audit, got Curve",
        cw.report,
        sample_curve(),
        tmp_path / "page.html",
        run=cw.Run(tmp_path),
    )
    assert not list(tmp_path.iterdir())
