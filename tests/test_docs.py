"""The documents say what is there."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import classwise
from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.auditing.guards import GUARDS
from classwise.settings import make
from classwise.training.recipe import Recipe

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/guards").glob("*.md"))]


def code_blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)


def test_every_guard_has_a_page_and_a_line_of_the_index() -> None:
    index = (ROOT / "docs" / "guards.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[`([a-z-]+)`\]\(guards/\1\.md\) \|", index, re.MULTILINE) == list(GUARDS)
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "guards").iterdir()}
    assert set(pages) == set(GUARDS)
    for name, page in pages.items():
        assert page.startswith(f"# `{name}`\n")
        for part in ("Looks at", "Why it matters", "What to do", "Passes"):
            assert f"**{part}.** " in page, (name, part)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_compiles_and_names_exist(document: Path) -> None:
    for block in code_blocks(document, "python"):
        compile(block, document.name, "exec")
        for name in re.findall(r"\bcw\.(\w+)", block):
            assert getattr(classwise, name) is not None


def test_the_examples_of_extending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = ROOT / "docs" / "extending.md"
    attack, foreign, schedule = code_blocks(document, "python")
    (tmp_path / "mine.py").write_text(attack + schedule)
    (tmp_path / "theirs.py").write_text(foreign.replace("import torchattacks", ""))  # imported when it is called
    (tmp_path / "mine.yaml").write_text(code_blocks(document, "yaml")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    made: Attack = make(ATTACKS, "mine:FocalPGD:gamma=1,steps=50")
    assert made.length == 50
    assert len(Recipe.read("mine.yaml").parts().schedules) == 2
    assert make(ATTACKS, "foreign:build=theirs:attack").length == 1
    sys.modules.pop("mine")
    sys.modules.pop("theirs")


def test_one_version_everywhere() -> None:
    assert metadata.version("classwise") == classwise.__version__ if _installed() else True
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{classwise.__version__}"' in project
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == classwise.__version__
    assert classwise.__version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def _installed() -> bool:
    return any(found.metadata["Name"] == "classwise" for found in metadata.distributions())


def test_constraints_pin_every_requirement() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", pin) for pin in pins)
    names = {_normal(pin.partition("==")[0]) for pin in pins}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    tables = re.findall(r"^(?:dependencies|dev|peers) = \[(.*?)^\]", project, re.DOTALL | re.MULTILINE)
    wanted = {_normal(name) for table in tables for name in re.findall(r'^\s*"([A-Za-z0-9_.-]+)', table, re.MULTILINE)}
    assert len(wanted) > 20
    assert wanted <= names


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
