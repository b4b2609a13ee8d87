"""A property is tested on the same examples, whichever tests ran before it in the same process."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def test_examples_do_not_depend_on_the_modules_imported_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()

    @settings(derandomize=True, database=None)
    @given(st.text())
    def draw(text: str) -> None:
        seen.append(text)

    draw()
    before = [*seen]
    seen.clear()
    (tmp_path / "constants.py").write_text(f"NAMES = {[f'name {place}' for place in range(500)]}")
    module = ModuleType("constants")
    module.__file__ = str(tmp_path / "constants.py")
    monkeypatch.setitem(sys.modules, "constants", module)
    draw()
    assert seen == before
