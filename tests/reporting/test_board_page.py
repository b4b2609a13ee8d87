"""The page of a leaderboard: its tables, its size, and its script in a browser if there is one."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

import classwise as cw
from classwise.auditing.run.suite import CROSS_ENTROPY
from classwise.core.errors import ClasswiseError
from classwise.reporting.pages.board import MAX_ROWS, columns

from .test_board import audit_of, published, with_meta
from .test_pages import Page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 120


class Tables(HTMLParser):
    """The head and the rows of each table, as texts, and the attributes of its heads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.heads: list[list[str]] = []
        self.rows: list[list[list[str]]] = []
        self.attributes: list[list[dict[str, str | None]]] = []
        self.captions: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.heads.append([])
            self.rows.append([])
            self.attributes.append([])
        elif tag in {"thead", "tbody", "caption"}:
            self.inside = tag
            self.captions += [""] if tag == "caption" else []
        elif tag == "tr" and self.inside == "tbody":
            self.rows[-1].append([])
        elif tag == "th" and self.inside == "thead":
            self.heads[-1].append("")
            self.attributes[-1].append(dict(attrs))
        elif tag in {"th", "td"} and self.inside == "tbody":
            self.rows[-1][-1].append("")
        elif tag == "small":
            self.handle_data("|")

    def handle_endtag(self, tag: str) -> None:
        if tag in {"thead", "tbody", "caption"}:
            self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "caption":
            self.captions[-1] += data
        elif self.inside == "thead" and data.strip():
            self.heads[-1][-1] += data
        elif self.inside == "tbody" and data.strip():
            self.rows[-1][-1][-1] += data


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
    page = Tables(text)
    assert [len(rows) for rows in page.rows] == [3, 1, 1]
    assert page.heads[0] == [column.head for column in columns()]
    assert page.captions[0] == "3 models, 400 images, 2 classes; accuracy in percent"
    assert [row[:2] for row in page.rows[0]] == [
        ["dafa|best of 3 on these images", "1|1–2"],
        ["<b>cfa</b>", "1|1–2"],
        ["at", "3"],
    ]
    first = dict(zip(page.heads[0], page.rows[0][0], strict=True))
    assert re.fullmatch(r"61\.0\|\d\d\.\d–\d\d\.\d", first["Worst class"])
    assert (first["May be worst"], first["Extra data"], first["Network"]) == ("cat", "yes", "small-cnn")
    assert (first["Warnings"], first["Weights"], first["Version"]) == ("not checked", "64616661", "9.9")
    assert [row[page.heads[0].index("Extra data")] for row in page.rows[0]] == ["yes", "–", "no"]
    assert "Rank" not in page.heads[2]
    assert page.rows[2][0][:4] == ["Author2020Paper", "53.4", "85.3", "–"]
    assert "have no worst class and no rank" in text
    assert "paired; joint confidence 95\u00a0%" in text
    assert text.count(CROSS_ENTROPY) == 1
    sorted_by = [[head.get("aria-sort") for head in heads] for heads in page.attributes]
    assert sorted_by[0] == [None, "ascending", *[None] * (len(columns()) - 2)]


def test_the_page_is_one_well_formed_file_without_outside_addresses(tmp_path: Path) -> None:
    text = cw.report(board_of(tmp_path), tmp_path / "board.html").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)
    assert script is not None
    parsed = Page(text.replace(script[1], ""))
    assert "link" not in parsed.tags
    assert parsed.tags.count("h1") == 1
    assert parsed.tags.count("caption") == parsed.tags.count("table") == 3
    assert all(address.startswith("#") for address in parsed.addresses)
    assert not re.search(r"url\(|@import|https?://|fetch|XMLHttp", text)
    identifiers = re.findall(r'id="([^"]+)"', text)
    assert len(set(identifiers)) == len(identifiers)
    assert {address.removeprefix("#") for address in parsed.addresses} == {"content", "table-1", "table-2", "published"}


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
    page = Tables(path.read_text(encoding="utf-8"))
    assert [len(rows) for rows in page.rows] == [MAX_ROWS, 1]
    assert "20 more rows are in board.csv." in path.read_text(encoding="utf-8")
    assert path.stat().st_size < 400_000


def test_only_a_board_is_reported_as_one(tmp_path: Path) -> None:
    with pytest.raises(ClasswiseError, match="must be an Audit, a Board, a Comparison"):
        cw.report(board_of(tmp_path).tables[0], tmp_path / "board.html")  # type: ignore[arg-type]


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
