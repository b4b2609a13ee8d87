"""The texts that are generated for the documentation site, and the check of its links."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from tools import check_links, reference
from tools.check_language import phrases

from classwise.attacks import ATTACKS
from classwise.attacks.suites import SUITES
from classwise.auditing.outcomes.files import COLUMNS
from classwise.data import DATA
from classwise.models import MODELS
from classwise.training import AVERAGERS, OBJECTIVES, SCHEDULES, UPDATES
from classwise.training.recipe import all_recipes

from .documents import DOCS


@pytest.mark.slow
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
        ("data-sets", DATA),
        ("data-set-files", DATA),
        ("models", MODELS),
        ("objectives", OBJECTIVES),
        ("schedules", SCHEDULES),
        ("updates", UPDATES),
        ("averagers", AVERAGERS),
        ("columns", COLUMNS),
        ("commands", ["classwise audit", "classwise worst-class"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_generated_text_has_every_name(page: str, names: Iterable[str]) -> None:
    text = reference.PAGES[page]()
    for name in names:
        assert f"`{name}" in text, name
    assert list(phrases(Path(page), text)) == []


def test_every_column_has_a_description() -> None:
    rows = [line.split(" | ") for line in reference.columns().splitlines()[2:]]
    assert [row[0].strip("| `") for row in rows] == list(COLUMNS)
    plain = [row[0].strip("| `") for row in rows if row[2].strip(" |") == "-"]
    assert plain == ["label", "attack", "correct", "p_predicted", "backwards"]


def test_every_generated_text_is_on_a_page() -> None:
    documents = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    assert [name for name in reference.PAGES if f"{{generated}} {name}\n" not in documents] == []


def test_the_signatures_are_those_of_the_sources() -> None:
    """To write them again: ``python -m tools.reference --write``."""
    found = reference.SIGNATURES.search(reference.BASE_CLASSES.read_text(encoding="utf-8"))
    assert found is not None
    assert found[0] == reference.signatures()
    assert "def step(self, model: Forward, batch: TrainingBatch, points" in found[0]


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
