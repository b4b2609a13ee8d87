"""The page of a leaderboard: its tables, its size, and its script in a browser if there is one."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import classwise as cw
from classwise.auditing.run.suite import CROSS_ENTROPY
from classwise.reporting.pages.board import MAX_ROWS, columns
from tests.refusals import check_refused

from .markup import addresses, parsed, rows_of, tags, text_of
from .test_board import audit_of, published, with_meta

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 120


def tables_in(text: str) -> list[ET.Element]:
    """The tables of a page, with a bar before the small print of a cell."""
    return [*parsed(text.replace("<small", "|<small")).iter("table")]


def board_of(folder: Path) -> cw.Board:
    return cw.board(
        [
            audit_of("at", 0.2),
            audit_of("<b>cfa</b>", 0.6),
            audit_of("dafa", 0.61),
            with_meta(audit_of("l2", 0.5), threat="L2:0.5", attacks={"clean": None, "pgd": {"name": "pgd"}}),
            published(folder),
        ],
        extra_data={"dafa": True, "at": False},
    )


def test_tables_sorted_by_rank(tmp_path: Path) -> None:
    text = cw.report(board_of(tmp_path), tmp_path / "board.html").read_text(encoding="utf-8")
    tables = tables_in(text)
    heads, rows = zip(*((rows[0], rows[1:]) for rows in map(rows_of, tables)), strict=True)
    assert [*map(len, rows)] == [3, 1, 1]
    assert heads[0] == [column.head for column in columns()]
    assert text_of(next(tables[0].iter("caption"))) == "3 models, 400 images, 2 classes; accuracy in percent"
    assert [row[:2] for row in rows[0]] == [
        ["dafa|first of 3 on these images", "1|1–2"],
        ["<b>cfa</b>", "1|1–2"],
        ["at", "3"],
    ]
    first = dict(zip(heads[0], rows[0][0], strict=True))
    assert re.fullmatch(r"61\.0\|\d\d\.\d–\d\d\.\d", first["Worst class"])
    assert (first["May be worst"], first["Extra data"], first["Network"]) == ("cat", "yes", "small-cnn")
    assert (first["Warnings"], first["Weights"], first["Version"]) == ("not checked", "64616661", "9.9")
    assert [row[heads[0].index("Extra data")] for row in rows[0]] == ["yes", "–", "no"]
    assert "Rank" not in heads[2]
    assert rows[2][0][:4] == ["Author2020Paper", "53.4", "85.3", "–"]
    assert "have no worst class and no rank" in text
    assert "paired; joint confidence 95\u00a0%" in text
    assert text.count(CROSS_ENTROPY) == 1
    assert re.search(r"at, Worst class: 20\.0\s% of 200\b", text)
    assert re.search(r"at, Overall: 55\.0\s% of 400\b", text)
    assert [head.get("aria-sort") for head in tables[0].iterfind("thead//th")] == [
        None,
        "ascending",
        *[None] * (len(columns()) - 2),
    ]


def test_the_page_is_one_well_formed_file_without_outside_addresses(tmp_path: Path) -> None:
    text = cw.report(board_of(tmp_path), tmp_path / "board.html").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)
    assert script is not None
    page = parsed(text.replace(script[1], ""))
    assert "link" not in tags(page)
    assert tags(page).count("h1") == 1
    assert tags(page).count("caption") == tags(page).count("table") == 3
    assert not re.search(r"url\(|@import|https?://|fetch|XMLHttp", text)
    identifiers = re.findall(r'id="([^"]+)"', text)
    assert len(set(identifiers)) == len(identifiers)
    assert {*addresses(page)} == {"#content", "#table-1", "#table-2", "#published"}


@pytest.mark.slow
def test_a_page_of_many_models_stays_small(tmp_path: Path) -> None:
    file = cw.board(audit_of("at", 0.2)).save(tmp_path)[0]
    content = json.loads(file.read_text(encoding="utf-8"))
    [row] = content["tables"][0]["rows"]
    content["tables"][0]["rows"] = [
        {"entry": row["entry"] | {"name": f"model {place}", "model_sha256": f"{place:064x}"}}
        for place in range(MAX_ROWS + 20)
    ]
    file.write_text(json.dumps(content), encoding="utf-8")
    path = cw.report(cw.board([file, published(tmp_path)]), tmp_path / "board.html")
    tables = tables_in(path.read_text(encoding="utf-8"))
    assert [len(rows_of(table)) - 1 for table in tables] == [MAX_ROWS, 1]
    assert "20 more rows are in board.csv." in path.read_text(encoding="utf-8")
    assert path.stat().st_size < 400_000


def test_only_a_board_is_reported_as_one(tmp_path: Path) -> None:
    check_refused(
        "must be an Audit, a Board, a Comparison", cw.report, board_of(tmp_path).tables[0], tmp_path / "board.html"
    )


PROBE = """
<script>
const names = () => [...document.querySelectorAll("#table-1 tbody tr")].map((row) => row.cells[0].dataset.sort);
const shown = () => [...document.querySelectorAll("table.board tbody tr")].filter((row) => !row.hidden)
  .map((row) => row.cells[0].dataset.sort);
const sections = () => [...document.querySelectorAll("section:has(table.board)")].filter((each) => !each.hidden)
  .map((each) => each.querySelector("table.board").id);
const button = (head) => [...document.querySelectorAll("#table-1 thead button")]
  .find((each) => each.textContent === head);
const sorted = () => [...document.querySelectorAll("#table-1 th[aria-sort]")]
  .map((head) => `${head.textContent} ${head.getAttribute("aria-sort")}`);
const found = { start: names(), heads: document.querySelectorAll("#table-1 thead button[type=button]").length };
button("Overall").click();
found.overall = [names(), sorted()];
button("Overall").click();
found.reversed = [names(), sorted()];
button("Extra data").click();
found.extra = names();
button("Rank").click();
found.rank = [names(), sorted()];
const form = document.querySelector("form.controls");
form.elements.text.value = "SMALL-cnn dafa";
form.dispatchEvent(new Event("input"));
found.text = [shown(), form.querySelector("[role=status]").textContent];
found.sections = sections();
form.elements.text.value = "";
form.dispatchEvent(new Event("input"));
found.allSections = sections();
form.elements.extra.checked = true;
form.dispatchEvent(new Event("input"));
found.noExtra = shown();
form.elements.extra.checked = false;
form.elements.warned.checked = true;
form.dispatchEvent(new Event("input"));
found.noWarnings = shown();
document.body.innerHTML = "";
document.body.textContent = JSON.stringify(found);
</script>
"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs the browser chromium")
def test_sorting_and_filtering_in_a_browser(tmp_path: Path) -> None:
    page = cw.report(board_of(tmp_path), tmp_path / "board.html")
    probe = tmp_path / "probe.html"
    probe.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    assert BROWSER is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [BROWSER, *options, probe.as_uri()], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    body = re.search(r"<body>(.*)</body>", done.stdout, re.DOTALL)
    assert body is not None
    found = json.loads(html.unescape(body[1]))
    by_rank = ["dafa", "<b>cfa</b>", "at"]
    assert found["start"] == by_rank
    assert found["heads"] == len(columns())
    assert found["overall"] == [by_rank, ["Overall descending"]]
    assert found["reversed"] == [by_rank[::-1], ["Overall ascending"]]
    assert found["extra"] == ["at", "dafa", "<b>cfa</b>"]  # no, yes, not known
    assert found["rank"] == [["dafa", "<b>cfa</b>", "at"], ["Rank ascending"]]
    assert found["text"] == [["dafa"], "1 of 5 rows"]
    assert found["sections"] == ["table-1"]
    assert found["allSections"] == ["table-1", "table-2", "published"]
    assert found["noExtra"] == ["at", "Author2020Paper"]
    assert found["noWarnings"] == ["Author2020Paper"]
