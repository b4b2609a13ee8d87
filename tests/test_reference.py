"""The generated texts of the reference pages and the model cards, and the check of the links of the site."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from tools import check_links, reference

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.suites import SUITES
from classwise.auditing.outcomes.files import COLUMNS
from classwise.data import DATA
from classwise.models import MODELS
from classwise.training import AVERAGERS, OBJECTIVES, SCHEDULES, UPDATES
from classwise.training.classes.signals import MEASURED
from classwise.training.recipe import all_recipes

WRITTEN = [
    (name, text) for page in reference.FILES for name, text in reference.BLOCK.findall(page.read_text(encoding="utf-8"))
]
"""The generated texts that the pages contain, by name."""


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("attacks", ATTACKS),
        ("suites", SUITES),
        ("recipes", [name for name, recipe in all_recipes().items() if not recipe.distils]),
        ("distillation", [name for name, recipe in all_recipes().items() if recipe.distils]),
        ("losses", OBJECTIVES),
        ("schedule-table", SCHEDULES),
        ("update-table", [f"update: {name}" for name in UPDATES]),
        ("signals", MEASURED),
        ("data-sets", DATA),
        ("data-set-files", DATA),
        ("models", MODELS),
        ("objectives", OBJECTIVES),
        ("schedules", SCHEDULES),
        ("updates", UPDATES),
        ("averagers", AVERAGERS),
        ("columns", COLUMNS),
        ("api", set(cw.__all__) - {"__version__"}),
        ("commands", ["classwise audit", "classwise worst-class"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_generated_text_has_every_name(page: str, names: Iterable[str]) -> None:
    for name in names:
        assert f"`{name}" in dict(WRITTEN)[page], name


def test_every_column_has_a_description() -> None:
    rows = [line.split(" | ") for line in reference.columns().splitlines()[2:]]
    assert [row[0].strip("| `") for row in rows] == list(COLUMNS)
    plain = [row[0].strip("| `") for row in rows if row[2].strip(" |") == "-"]
    assert plain == ["label", "attack", "correct", "p_predicted", "backwards"]


def test_every_generated_text_is_on_a_page() -> None:
    assert sorted(name for name, _ in WRITTEN) == sorted(reference.PAGES)


@pytest.mark.slow
@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_has_the_text_of_the_sources(name: str) -> None:
    """To write them again: ``python -m tools.reference --write``."""
    assert dict(WRITTEN)[name] == reference.PAGES[name]()


def test_generated_texts_are_replaced_in_their_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "PAGES", {"a-b": lambda: "new \\1\n\nlines", "c": lambda: "C"})
    page = "# Page\n\n<!-- generated: a-b -->\n{}\n<!-- end -->\n\ntext\n\n<!-- generated: c -->\n{}\n<!-- end -->\n"
    expected = page.format("new \\1\n\nlines", "C")
    assert reference.written(page.format("old\n\nlines", "")) == expected == reference.written(expected)


def test_the_signatures_have_methods_and_their_summaries() -> None:
    assert "def step(self, model: Forward, batch: TrainingBatch, points" in dict(WRITTEN)["signatures"]


def test_the_names_of_the_api_link_to_their_headings() -> None:
    """With the anchors of GitHub and MyST: in lower case, the second of a name with ``-1``."""
    headings = re.findall(
        r"^#+ `?(\w[\w ]*)`?$", (reference.REFERENCE / "api.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    slugs: list[str] = []
    for heading in headings:
        slug = heading.lower().replace(" ", "-")
        slugs.append(slug if slug not in slugs else f"{slug}-1")
    links = re.findall(
        r"^\| \[`(\w+)`\]\(#([\w-]+)\) \|", dict(WRITTEN)["api"] + dict(WRITTEN)["api-maite"], re.MULTILINE
    )
    assert links == list(zip(headings[1:], slugs[1:], strict=True))
    assert len(links) > 40


def test_links_without_a_target_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in ([], "required: SITE"), ([str(tmp_path)], "contains no page; build one with make docs"):
        with pytest.raises(SystemExit, match="2"):
            check_links.main(arguments)
        assert message in capsys.readouterr().err
    (tmp_path / "index.html").write_text(
        '<a href="a.html#here">1</a> <a href="a.html#there">2</a> <a href="b.html">3</a> <a href="https://x.org">4</a>'
    )
    (tmp_path / "a.html").write_text('<h1 id="here">A</h1><img src="../index.html"><a href="#">top</a>')
    assert list(check_links.missing(tmp_path)) == [
        "a.html: ../index.html: no such file",
        "index.html: a.html#there: no such anchor",
        "index.html: b.html: no such file",
    ]
    assert check_links.main([str(tmp_path)]) == 1


def test_an_empty_block_is_filled_and_takes_no_other_text() -> None:
    page = "<!-- generated: a -->\n<!-- end -->\nkept\n<!-- generated: b -->\nold\n<!-- end -->\n"
    assert reference.BLOCK.findall(page) == [("a", ""), ("b", "old")]
