"""The versions that pages state are those that are tested."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"


def test_each_lower_bound_is_tested() -> None:
    """A bound such as 2.5 is tested with 2.5.0."""
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.lower().split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    bounds = [*project["project"]["dependencies"], *project["dependency-groups"]["test"]]
    for name, bound in (bound.lower().split(">=") for bound in bounds):
        assert re.fullmatch(rf"{re.escape(bound)}(\.0)*", tested[name]), name


@pytest.mark.parametrize("page", ["reference/interoperability.md", "explanation/validation.md"])
def test_versions_on_pages_are_those_of_the_tests(page: str) -> None:
    pins = re.findall(r"^([\w-]+)==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    used = re.findall(
        r" \| ([\w-]+) ([\d.]+) \|$", (REFERENCE / "compatibility.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    tested = dict(pins) | dict(used) | {"ART": dict(pins)["adversarial-robustness-toolbox"]}
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition("\nSources: ")[0]  # READMEs that were read
    stated = re.findall(r"\b([\w-]+) (\d+\.\d+\.\d+)\b", text)
    compared = [(name, version) for name, version in stated if name in tested]
    assert len(compared) > 3
    assert [(name, version) for name, version in compared if version != tested[name]] == []
