from __future__ import annotations

import math

import numpy as np
import pytest

from classwise.reporting import formatting


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (formatting.percent(0.1424), "14.2\u00a0%"),
        (formatting.percent(math.nan), "–"),
        (formatting.bare_percent(1.0), "100.0"),
        (formatting.bare_percent(0.6475), "64.8"),
        (formatting.bare_percent(float(np.nextafter(0.6475, 0))), "64.8"),
        (formatting.bare_percent(0.1125), "11.3"),
        (formatting.points(-0.0035, sign=True), "\u22120.4"),
        (formatting.bracketed(0.1, 0.25), "[10.0, 25.0]"),
        (formatting.bracketed(0.1, math.nan), "[10.0, –]"),
        (formatting.points(-0.0123, sign=True), "−1.2"),
        (formatting.points(0.0123, sign=True), "+1.2"),
        (formatting.points(-0.0001, sign=True), "0.0"),
        (formatting.points(0.5), "50.0"),
        (formatting.squared_percent(0.0335), "335"),
        (formatting.squared_percent(0.00123), "12.3"),
        (formatting.squared_span(0.00843, 0.0969), "84–969"),
        (formatting.squared_span(0.00843, 0.00969), "84.3–96.9"),
        (formatting.span(0.121, 0.1649), "12.1–16.5"),
        (formatting.span(math.nan, 1.0), "–"),
        (formatting.signed_span(-0.012, 0.034), "−1.2 to +3.4"),
        (formatting.count(10000), "10,000"),
        (formatting.level(0.05), "95\u00a0%"),
        (formatting.level(0.05 / 21), "99.76\u00a0%"),
        (formatting.level(2.6e-5), "99.997\u00a0%"),
        (formatting.level(3e-9), "99.9999997\u00a0%"),
        (formatting.probability(0.00001), "< 0.001"),
        (formatting.probability(0.0404), "0.040"),
        (formatting.listed([]), ""),
        (formatting.listed(["cat"]), "cat"),
        (formatting.listed(["cat", "deer", "dog"]), "cat, deer and dog"),
        (formatting.listed(list("abcde"), 2), "a, b and 3 more"),
        (formatting.listed(list("abc"), 2), "a, b and c"),
        (formatting.measured(0.142, 0.121, 0.165, 1000), "14.2\u00a0% of 1,000 (95\u00a0% interval 12.1–16.5\u00a0%)"),
    ],
)
def test_formatted_numbers(made: str, expected: str) -> None:
    assert made == expected


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0.0"),
        (1.0, "100.0"),
        (1 / 10_000, "< 0.1"),
        (9_999 / 10_000, "> 99.9"),
        (0.0005, "0.1"),
        (0.9994, "99.9"),
        (0.5, "50.0"),
    ],
)
def test_fractions_are_never_rounded_to_0_or_100(share: float, text: str) -> None:
    assert formatting.percent(share) == f"{text}\u00a0%"


def test_counts_come_with_their_noun() -> None:
    assert [formatting.counted(n, "image") for n in (0, 1, 2000)] == ["0 images", "1 image", "2,000 images"]
    assert formatting.counted(2, "class", "classes") == "2 classes"
