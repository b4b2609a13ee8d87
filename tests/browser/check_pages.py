"""Pages of every kind in headless Chromium with axe-core; for ``make test-pages``, which names this file."""

from __future__ import annotations

from typing import Any

import pytest

from classwise.reporting.palette import PALETTE

from ..reporting.sample_pages import sample_pages
from .chromium import AXE, CHROMIUM, SCREENS, measure

pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed"),
    pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed; npm installs it in make test-pages"),
]
KINDS = ("audit", "incomplete", "comparison", "bounds", "curve", "worst-class", "board", "paper", "evidence")
FAULTY = """<!doctype html><html><head><title>faults</title><style>
:root { color-scheme: light dark; --paper: #fff }
</style></head><body><main><h1>Faults</h1><h3>Skipped level</h3><p style="color: #ccc; background: #fff">pale</p>
<svg viewBox="0 0 100 20" width="100" height="20" role="img" aria-label="a drawing">
<text x="80" y="12">clipped</text></svg>
<div style="overflow-x: auto; width: 200px"><div style="width: 900px">wide</div></div>
<p style="width: 1500px">wider than the screen</p></main></body></html>"""
LEAST_SCALE = 0.85
"""Smallest scale of a drawing that is not in a scroller; its small print of 10.5 pixels is then 9 pixels high."""


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, Any]]:
    return measure({**sample_pages(), "faulty": FAULTY})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("theme", "width"), SCREENS)
def test_a_page_is_accessible_and_fits(measured: dict[str, dict[str, Any]], kind: str, theme: str, width: int) -> None:
    found = measured[f"{kind}, {theme}, {width}"]
    assert "error" not in found
    assert found["violations"] == []
    assert found["clipped"] == []
    assert found["scrollers"] == []
    assert found["overflow"] == 0
    assert [label for scale, label in found["scales"] if scale < LEAST_SCALE] == []
    paper = getattr(PALETTE["paper"], theme)
    assert found["dark"] == f"rgb({', '.join(str(int(paper[at : at + 2], 16)) for at in (1, 3, 5))})"


def test_faults_are_found(measured: dict[str, dict[str, Any]]) -> None:
    found = measured["faulty, light, 390"]
    rules = {violation.partition(":")[0] for violation in found["violations"]}
    assert {"html-has-lang", "heading-order", "color-contrast"} <= rules
    assert found["clipped"][0].startswith("clipped (")
    assert found["scrollers"]
    assert found["overflow"] > 1000


def test_every_kind_of_page_is_checked() -> None:
    assert set(sample_pages()) == set(KINDS)
