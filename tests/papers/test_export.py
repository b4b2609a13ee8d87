"""Tables and figures of papers' results as files."""

from __future__ import annotations

import csv
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from classwise.papers.export import export
from classwise.papers.page import write_pages
from classwise.papers.result import stored_results
from classwise.papers.store import Store
from tests.refusals import check_refused

COMMITTED = Path(__file__).parents[2] / "docs/results/papers"
SVG = "{http://www.w3.org/2000/svg}"


def test_every_table_and_figure_of_the_committed_results_is_a_file(tmp_path: Path) -> None:
    """Of the largest scale, as on the page, with the texts of the result; figures have their own styles."""
    written = export(["cfa23"], COMMITTED, tmp_path, ("csv", "md", "tex", "svg"))
    assert len(written) == len(set(written)) == sum(file.is_file() for file in tmp_path.rglob("*"))
    tables = figures = 0
    for item, results in stored_results(Store(COMMITTED, create=False)).items():
        if not results or not item.startswith("cfa23/"):
            continue
        stem = tmp_path / f"{item}-{results[0].scale}"
        for number, table in enumerate(results[0].tables, 1):
            tables += 1
            head, *rows = csv.reader(Path(f"{stem}-{number}.csv").read_text(encoding="utf-8").splitlines())
            texts = {name: column for name, *column in zip(head, *rows, strict=True)}
            columns = [name for name in texts if not name.endswith(", small print")]
            assert [name.partition(" (")[0] for name in columns] == [name.partition(" (")[0] for name in table.heads]
            for place, name in enumerate(columns[1:]):
                assert [text.lstrip("'") for text in texts[name]] == [row.cells[place].text for row in table.rows]
            latex = Path(f"{stem}-{number}.tex").read_text(encoding="utf-8")
            assert f"\\label{{tab:{item.replace('/', '-')}-{results[0].scale}-{number}}}" in latex
        for number, _ in enumerate(results[0].figures, 1):
            figures += 1
            root = ET.parse(f"{stem}-{number}.svg").getroot()
            assert root.tag == f"{SVG}svg"
            assert ".m-" in (root.findtext(f"{SVG}style") or "")
    assert len(written) == 3 * tables + figures
    assert figures > 0


def test_a_page_shows_as_many_figures_as_are_written(tmp_path: Path) -> None:
    """But for those that an earlier item of the page has."""
    written = export(["cfa23"], COMMITTED, tmp_path, ("svg",))
    (page,) = write_pages(["cfa23"], COMMITTED, tmp_path)
    shown = page.read_text(encoding="utf-8").count('role="img"')
    assert 0 < len({file.read_bytes() for file in written}) <= shown


def test_an_unknown_format_or_store_is_refused(tmp_path: Path) -> None:
    check_refused("unknown format 'pdf'", export, ["cfa23"], COMMITTED, tmp_path / "x", ("pdf",))
    with pytest.raises(Exception, match="store"):
        export(["cfa23"], tmp_path / "none", tmp_path / "x", ("svg",))
    assert not (tmp_path / "x").exists()
