from __future__ import annotations

import math

import pytest

from classwise.reporting import wording


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (wording.percent(0.1424), "14.2\u00a0%"),
        (wording.percent(math.nan), "–"),
        (wording.bare_percent(1.0), "100.0"),
        (wording.points(-0.0123, sign=True), "−1.2"),
        (wording.points(0.0123, sign=True), "+1.2"),
        (wording.points(-0.0001, sign=True), "0.0"),
        (wording.points(0.5), "50.0"),
        (wording.squared_percent(0.0335), "335"),
        (wording.squared_percent(0.00123), "12.3"),
        (wording.squared_span(0.00843, 0.0969), "84–969"),
        (wording.squared_span(0.00843, 0.00969), "84.3–96.9"),
        (wording.span(0.121, 0.1649), "12.1–16.5"),
        (wording.span(math.nan, 1.0), "–"),
        (wording.signed_span(-0.012, 0.034), "−1.2 to +3.4"),
        (wording.count(10000), "10,000"),
        (wording.level(0.05), "95\u00a0%"),
        (wording.level(0.05 / 21), "99.76\u00a0%"),
        (wording.level(2.6e-5), "99.997\u00a0%"),
        (wording.level(3e-9), "99.9999997\u00a0%"),
        (wording.probability(0.00001), "< 0.001"),
        (wording.probability(0.0404), "0.040"),
        (wording.listed([]), ""),
        (wording.listed(["cat"]), "cat"),
        (wording.listed(["cat", "deer", "dog"]), "cat, deer and dog"),
        (wording.listed(list("abcde"), 2), "a, b and 3 more"),
        (wording.measured(0.142, 0.121, 0.165, 1000), "14.2\u00a0% of 1,000 (95\u00a0% interval 12.1–16.5\u00a0%)"),
    ],
)
def test_numbers_read_as_people_read_them(made: str, expected: str) -> None:
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
def test_what_is_neither_none_nor_all_is_not_printed_so(share: float, text: str) -> None:
    assert wording.percent(share) == f"{text}\u00a0%"


def test_counts_come_with_their_noun() -> None:
    assert [wording.counted(n, "image") for n in (0, 1, 2000)] == ["0 images", "1 image", "2,000 images"]
    assert wording.counted(2, "class", "classes") == "2 classes"
