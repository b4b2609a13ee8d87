from __future__ import annotations

import re

import numpy as np

from classwise.reporting.figures.points import Cloud, clouds


def test_names_of_clouds_in_one_place_do_not_overlap() -> None:
    """Of three groups with one median, and of one elsewhere, whose name stays there."""
    middle, away = np.full(3, 0.5), np.array([0.0, 1.0])
    x, y = np.concatenate([middle, away]), np.concatenate([middle, away * 0])
    panel = Cloud("clean", x, y, np.array([0, 1, 2, 3, 3]))
    svg = clouds("Title", [panel], ["bird", "cat", "horse", "ship"], range(4)).svg()
    found = re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>(bird|cat|horse|ship)</text>', svg)
    places = {name: float(place) for place, name in found}
    heights = sorted(places[name] for name in ("bird", "cat", "horse"))
    assert np.diff(heights).min() >= 13
    assert heights[1] == places["bird"]
