"""Names outside the font or LaTeX's input: every format is written, with one warning that names what to do."""

from __future__ import annotations

import tempfile
import unicodedata
import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from classwise.auditing.compare.compare import compare
from classwise.reporting import characters as module
from classwise.reporting import export, report
from classwise.reporting.characters import FONT, figure_fonts, figure_lacks, latex_lacks, notice
from classwise.reporting.escape import latex_text, visible
from classwise.reporting.exports.export import FORMATS, write_files
from classwise.reporting.facts.audit_summary import AuditSummary
from classwise.reporting.svg import Drawing, Label
from classwise.reporting.tables import Cell, Row, Table

from .conftest import MakeAudit

NAMES = {
    "Chinese": ("猫", True, True),
    "emoji": ("🐈\u200d⬛", True, True),
    "Hebrew": ("\u05d7\u05ea\u05d5\u05dc", True, False),
    "Arabic": ("\u0642\u0637\u0629", True, False),
    "Devanagari": ("\u092c\u093f\u0932\u094d\u0932\u0940", True, True),
    "Greek": ("γάτα", True, False),
    "a mark without a composed letter": ("x\u0302", True, False),
    "an accent as a combining mark": ("cafe\u0301", False, False),
    "accents": ("Ünïcödé Žižek ñandú", False, False),
    "control characters": ("a\x00b\x1b[31m\n\u202ec", False, False),
    "LaTeX": (r"\input{x} $y$ 50% a_b #1 & ~^", False, False),
    "markup": ("<script>&amp;", False, False),
}
"""Names, and whether pdfLaTeX and figures as PNG lack a character of them."""


def written(names: Sequence[str], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a table and a figure with these names; a warning of matplotlib is an error."""
    table = Table("Accuracy", ("class", "all"), [Row(name, [Cell("12.0")]) for name in names])
    drawing = Drawing(200, 20 * len(names), "Accuracy", [Label(5, 20 * row, name) for row, name in enumerate(names)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files = write_files(folder, formats, {}, {"table": table}, {"figure": drawing})
    assert all(path.stat().st_size for path in files)
    return files


@pytest.mark.slow
@pytest.mark.parametrize("kind", NAMES)
def test_every_format_is_written_with_one_warning(
    kind: str, make_audit: MakeAudit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, latex, figure = NAMES[kind]
    for formats, lacks in ((("svg", "md", "csv"), False), (("tex",), latex), (("png",), figure), (("pdf",), figure)):
        caplog.clear()
        assert written([name, f"{name} 2", "ship"], tmp_path, formats)
        assert len(caplog.records) == lacks
    caplog.clear()
    report(make_audit(names=(name, f"{name} 2", f"{name} 3", "ship")), tmp_path / "page.html")
    assert not caplog.records


def test_one_warning_for_all_formats_names_what_to_do(
    make_audit: MakeAudit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(written(["猫", "犬", "鳥", "ship"], tmp_path)) == 5
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith(f"{tmp_path}: pdfLaTeX does not typeset 犬(U+72AC) 猫(U+732B) 鳥(U+9CE5) in the .tex")
    for remedy in ("XeLaTeX or LuaLaTeX", "export svg", "font.family in a matplotlibrc file", "class_names"):
        assert remedy in text
    audit = make_audit(names=("猫", "犬", "鳥", "ship"))
    for result in (audit, compare({"a": audit, "b": audit})):
        caplog.clear()
        export(result, tmp_path / "tables", ("tex", "svg"))
        (record,) = caplog.records
        assert "PNG" not in record.getMessage()


def test_names_of_the_package_need_no_warning(
    make_audit: MakeAudit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = make_audit()
    export(audit, tmp_path, ("tex",))
    assert not figure_lacks(AuditSummary.of(audit).strip().texts)
    assert not caplog.records


def test_a_font_of_the_user_is_used_where_the_usual_one_lacks_a_character() -> None:
    assert figure_fonts() == [FONT]
    with mpl.rc_context({"font.family": ["DejaVu Serif", "STIXGeneral"]}):
        assert figure_fonts() == [FONT, "DejaVu Serif", "STIXGeneral"]
        assert figure_lacks(["a", "猫"]) == {"猫"}
        only_there = "\u2fff" if not figure_lacks(["\u2fff"]) else ""
    assert figure_lacks(["a", only_there]) == set(only_there)


def test_letters_from_right_to_left_need_a_recent_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHAPING", (99, 0))
    assert figure_lacks(["\u05d7\u05ea\u05d5\u05dc", "cat"]) == set("\u05d7\u05ea\u05d5\u05dc")


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(min_size=1, max_size=6))
def test_any_name_is_written(caplog: pytest.LogCaptureFixture, name: str) -> None:
    caplog.clear()
    with tempfile.TemporaryDirectory() as folder:
        source = written([name], Path(folder), ("tex", "png"))[0].read_text(encoding="utf-8")
    lacking = latex_lacks(source) or figure_lacks([unicodedata.normalize("NFC", visible(name))])
    assert len(caplog.records) == bool(lacking)


@given(st.text())
def test_what_latex_lacks_is_outside_ascii(text: str) -> None:
    lacking = latex_lacks(latex_text(text))
    assert not any(character.isascii() for character in lacking)
    assert lacking <= set(unicodedata.normalize("NFC", text))
    assert bool(notice(lacking, set())) == bool(lacking)


def test_a_notice_has_one_line_of_limited_length() -> None:
    many = {chr(0x4E00 + number) for number in range(500)}
    text = notice(many, {"\u0301", "\U0001f408"})
    assert text.isprintable()
    assert "and 492 more" in text
    assert "do not show (U+0301) 🐈(U+1F408);" in text
    assert len(text) < 500
