from __future__ import annotations

import re

import numpy as np
import pytest

from classwise.reporting.figures import heatmap, matrix
from classwise.reporting.palette import PALETTE, SERIES, STYLES, style_rules, variables


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("colour", ["text", "soft", "weak", "good", "main"])
def test_text_can_be_read_on_paper_and_on_wash(theme: str, colour: str) -> None:
    for ground in ("paper", "wash"):
        assert contrast(getattr(PALETTE[colour], theme), getattr(PALETTE[ground], theme)) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("colour", ["main", "weak"])
def test_text_can_be_read_on_every_cell_of_a_matrix(theme: str, colour: str) -> None:
    cell, ground, text = (getattr(PALETTE[name], theme) for name in (colour, "wash", "text"))
    assert STYLES["heat"].fill == "main"
    assert STYLES["heat-error"].fill == "weak"
    for shade in np.linspace(0, max(heatmap.MAX_SHADE, matrix.MAX_SHADE), 20):
        channels = [
            round(shade * int(cell[at : at + 2], 16) + (1 - shade) * int(ground[at : at + 2], 16)) for at in (1, 3, 5)
        ]
        assert contrast(text, "#" + "".join(f"{channel:02x}" for channel in channels)) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_series_contrast_with_paper(theme: str) -> None:
    for colour in SERIES:
        assert contrast(getattr(PALETTE[colour], theme), getattr(PALETTE["paper"], theme)) >= 3


def test_every_style_uses_known_colours_and_has_a_rule() -> None:
    rules = style_rules()
    for name, style in STYLES.items():
        assert style.fill or style.stroke
        assert {style.fill, style.stroke} - {None} <= set(PALETTE)
        assert f".m-{name} {{" in rules
    assert set(re.findall(r"var\(--(\w+)\)", rules)) <= set(PALETTE)


def test_both_themes_define_every_colour() -> None:
    for theme in ("light", "dark"):
        assert re.findall(r"--(\w+): #[0-9a-f]{6};", variables(theme)) == list(PALETTE)
