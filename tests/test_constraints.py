"""The oldest versions that are tested are the ones that are promised."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_each_lower_bound_is_tested() -> None:
    """A bound such as 2.5 is tested with 2.5.0."""
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.lower().split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    bounds = [*project["project"]["dependencies"], *project["dependency-groups"]["test"]]
    for name, bound in (bound.lower().split(">=") for bound in bounds):
        assert re.fullmatch(rf"{re.escape(bound)}(\.0)*", tested[name]), name
