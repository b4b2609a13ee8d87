"""Checks of the tables of a paper's page, their cells recomputed from raw numbers."""

from __future__ import annotations

import re

import numpy as np

from .page_texts import NONE, Place, agrees, number, plain, printed_of
from .raw_evidence import RawMeasurement
from .statements import (
    ALPHA,
    Paper,
    RawResult,
    RawTable,
    Shown,
    facts,
    interval_of,
    is_question,
    listed,
    shows,
    variance_bounds,
    wilson_of,
    words_of,
    z_of,
)
from .whole_claims import tests_of, whole


def check_estimate(one: Shown, value: str, span: str) -> None:
    """Check the estimate with its unit, and its interval at one of the levels allowed by Holm's procedure."""
    raw = one.raw
    text, _, unit = value.partition(" ")
    assert unit == raw.unit
    shows(text, one.value, 2, sign=True)
    if raw.exact:
        assert span == ""
        return
    if one.error != one.error:
        assert span == "no interval: all resamples are equal"
        return
    found = re.fullmatch(r"(\S+) to (\S+) \(([\d.]+) %\)", span)
    assert found is not None, span
    assert found[3] != "100"
    failures = []
    for level in one.levels:
        reach = z_of(level / one.shares) * one.error
        ends = [one.value - reach, one.value + reach]
        if raw.limits is not None:
            ends = [max(ends[0], raw.limits[0]), min(ends[1], raw.limits[1])]
        try:
            shows(found[1], ends[0], 2, sign=True)
            shows(found[2], ends[1], 2, sign=True)
            step = 10.0 ** -len(found[3].partition(".")[2])
            assert abs(float(found[3]) - (100 - 100 * level / one.shares)) <= 0.5 * step + 1e-9
        except AssertionError as failure:
            failures.append(failure)
    assert len(failures) < len(one.levels), failures


def check_p(text: str, one: Shown) -> None:
    if one.raw.exact:
        assert text == "exact"
    elif text == "< 0.001":
        assert one.adjusted < 0.001
    else:
        assert one.adjusted >= 0.001
        shows(text, one.adjusted, 3)


def cell(text: str, small: str) -> str:
    return f"{plain(text)}|{plain(small)}" if small else plain(text)


def check_verdicts(place: Place, table: list[list[str]], marks: list[str]) -> None:
    assert table[0] == ["claim", "statement", "verdict", "estimate", "adjusted p"]
    tests, untested = place.paper.shown(place.below), place.below.untested
    assert len(table) == 1 + len(tests) + len(untested)
    for row, mark, one in zip(table[1:], marks[1:], tests, strict=False):
        claim = one.raw.claim
        assert row[:2] == [claim.partition("/")[2], cell(words_of(claim)["claim"], one.raw.estimand)]
        assert row[2] == cell(one.covered(short=True), one.raw.note)
        value, _, span = row[3].partition("|")
        check_estimate(one, value, span)
        check_p(row[4], one)
        assert mark == one.mark
    for row, mark, (claim, reason) in zip(
        table[1 + len(tests) :], marks[1 + len(tests) :], untested.items(), strict=True
    ):
        words = [
            claim.partition("/")[2],
            words_of(claim)["claim"],
            f"not tested|{reason}",
            NONE,
            NONE,
        ]
        assert [*map(plain, words)] == row
        assert mark == ""


def check_measurements(place: Place, table: list[list[str]], marks: list[str]) -> None:
    assert table[0] == ["claim", "statement", "quantity", "estimate"]
    assert not any(marks)
    assert len(table) == 1 + len(place.below.measurements)
    for row, one in zip(table[1:], place.below.measurements, strict=True):
        assert row[:2] == [one.question.partition("/")[2], plain(words_of(one.question)["claim"])]
        value, _, span = row[3].partition("|")
        check_measured(one, value, span)
        assert row[2] == cell(one.quantity, "interval for new images of a kind" if span else "")


def check_measured(one: RawMeasurement, value: str, span: str) -> None:
    text, _, unit = value.partition(" ")
    assert unit == one.unit
    shows(text, one.value, 2)
    if one.low != one.low:
        assert span == ""
        return
    low, high = span.split(" to ")
    shows(low, one.low, 2)
    shows(high, one.high, 2)


def check_claims(paper: Paper, table: list[list[str]], marks: list[str]) -> None:
    claims = facts(paper.name)["claims"]
    assert table[0] == SUMMARY
    assert len(table) == 1 + len(claims)
    for row, mark, claim in zip(table[1:], marks[1:], claims, strict=True):
        text, small, expected = whole(paper, claim["id"], short=True)
        stated = [claim["id"].partition("/")[2], plain(claim["claim"]), plain(claim["paper"])]
        assert [*row[:3], row[5]] == [*stated, cell(text, small)]
        assert mark == expected
        if is_question(claim["id"]):
            known = [one for item in _measuring(paper, claim["id"]) for one in item.measurements]
            asked = [("", one.value, one.unit) for one in known if one.question == claim["id"]]
            check_ours(row[3], asked)
            scales = [item.scale for item in _measuring(paper, claim["id"])]
        else:
            tests = [one for _, one in tests_of(paper, claim["id"])]
            check_ours(row[3], [(", ".join(one.raw.covers), one.value, one.raw.unit) for one in tests])
            scales = [one.evidence.scale for one in tests if one.raw.basis == "experiment"]
        assert row[4].partition("|")[0] == (", ".join(dict.fromkeys(scales)) or NONE)


SUMMARY = ["claim", "statement", "paper", "ours", "scale", "verdict"]


def _measuring(paper: Paper, question: str) -> list[RawResult]:
    """The results whose measurements answer an open question."""
    items = [item for item, asked in paper.measured() if question in asked]
    return [paper.of(item)[0] for item in items]


def check_ours(text: str, estimates: list[tuple[str, float, str]]) -> None:
    """Check the estimates of a claim: each follows from a value, with the parts it tests, and each value is shown."""
    shown = text.partition("|")[0]
    if not estimates:
        assert shown == NONE
        return
    matched = set()
    for one in shown.split("; "):
        fits = []
        for place, (parts, value, unit) in enumerate(estimates):
            number, _, own = one.removeprefix(f"{plain(parts)}: ").partition(" ") if parts else one.partition(" ")
            if value != value:
                fits += [place] if one.endswith(NONE) else []
            elif re.fullmatch(r"[+-]?[\d.]+", number) and own == unit and abs(float(number) - value) <= 0.005 + 1e-9:
                fits.append(place)
        assert fits, (one, estimates)
        matched |= set(fits)
    assert matched == set(range(len(estimates))), (shown, estimates)


def check_table(raw: RawTable, table: list[list[str]], marks: list[str]) -> None:
    assert not any(marks)
    if raw.form == "estimates":
        assert len(table) == 1 + len(raw.estimates)
        for row, (value, low, high) in zip(table[1:], raw.estimates, strict=True):
            text, _, small = row[1].partition("|")
            if value != value:
                assert (text, small) == (NONE, "")
                continue
            shows(text, 100 * value, 1)
            if low != low:
                assert small == ""
                continue
            ends = small.split(" to ")
            shows(ends[0], 100 * low, 1)
            shows(ends[1], 100 * high, 1)
        return
    assert len(table) == 1 + len(raw.rows)
    for row, (name, right, images), printed in zip(table[1:], raw.rows, raw.printed, strict=True):
        assert row[0] == f"{name}, PGD"
        check_counts(raw, row[1:], right, images, printed) if raw.form == "summary" else check_classes(
            row[1:], right, images
        )


def check_span(text: str, low: float, high: float) -> None:
    ends = text.split("–")
    shows(ends[0], 100 * low, 1)
    shows(ends[1], 100 * high, 1)


def check_classes(cells: list[str], right: tuple[int, ...], images: tuple[int, ...]) -> None:
    assert len(cells) == len(images)
    for text, good, count in zip(cells, right, images, strict=True):
        value, _, small = text.partition("|")
        if count == 0:
            assert (value, small) == (NONE, NONE)
        else:
            shows(value, 100 * good / count, 1)
            check_span(small, *interval_of(good, count))


def check_counts(
    raw: RawTable,
    cells: list[str],
    right: tuple[int, ...],
    images: tuple[int, ...],
    printed: tuple[float, ...] | None,
) -> None:
    """Check total, CV and MCD, each next to the printed one, and all lowest and highest classes."""
    shares = {label: good / count for label, (good, count) in enumerate(zip(right, images, strict=True)) if count}
    values = np.array(list(shares.values()))
    level = 1 - (1 - ALPHA) ** (1 / len(shares))
    box = [interval_of(right[label], images[label], level) for label in shares]
    low, high = (np.array(ends) for ends in zip(*box, strict=True))
    total, small = cells[0].split("|")
    shows(total, 100 * sum(right) / sum(images), 1)
    check_span(small, *wilson_of(sum(right), sum(images)))
    variance, small = cells[2].split("|")
    squared = 1e4 * float(((values - values.mean()) ** 2).mean())
    shows(variance, squared, 0 if squared >= 100 else 1)
    ends = [1e4 * end for end in variance_bounds(low, high)]
    for text, end in zip(small.split("–"), ends, strict=True):
        digits = 0 if ends[1] >= 100 else 1
        assert abs(float(text) - end) <= 0.5 * 10.0**-digits + 2e-3 * max(end, 1)
        assert len(text.partition(".")[2]) == digits
    gap, small = cells[4].split("|")
    shows(gap, 100 * (values.max() - values.min()), 1)
    check_span(small, max(low.max() - high.min(), 0.0), high.max() - low.min())
    for place, pick in ((6, min), (8, max)):
        found = pick(shares.values())
        name, accuracy = cells[place].split("|")
        assert name == plain(listed([raw.names[label] for label, share in shares.items() if share == found]))
        shows(accuracy, 100 * found, 1)
        if printed is None:
            assert cells[place + 1] == NONE
            continue
        labels = [str(label) for label, value in enumerate(printed) if value == pick(printed)]
        assert cells[place + 1] == f"class{'es' * (len(labels) > 1)} {listed(labels)}|{number(pick(printed))}"
    printed_metrics = [NONE] * 3 if printed is None else [number(printed[0]), NONE, "30.25"]
    assert [cells[1], cells[3], cells[5]] == printed_metrics


def check_printed(place: Place, table: list[list[str]], marks: list[str]) -> None:
    """Check the printed rows number by number, with total, CV and MCD recomputed from the printed classes."""
    rows = printed_of(place.item)["rows"]
    assert isinstance(rows, list)
    assert len(table) == 1 + len(rows)
    for row, mark, known in zip(table[1:], marks[1:], rows, strict=True):
        name = [str(known[key]) for key in ("defence", "method", "attack", "test_set", "line") if key in known]
        assert row[0] == plain(", ".join([*name, *([f"1/T = {known['inv_T']}"] if "inv_T" in known else [])]))
        if not all("per_class" in one for one in rows):
            heads = [head.replace(" ", "_") for head in table[0][1:]]
            for head, text in zip(heads, row[1:], strict=True):
                assert text == number(known.get(head)), (place.item, head)
            assert set(known) <= {*heads, "defence", "method", "attack", "test_set", "line", "inv_T"}
            continue
        a = np.array(known["per_class"], dtype=float)
        assert (mark == "weak") == (not agrees(known))
        for text, printed, ours, digits in (
            (row[1], known.get("tot", known.get("adv")), a.mean(), 2),
            (row[-2], known.get("cv"), ((a - a.mean()) ** 2).mean(), 2),
            (row[-1], known.get("mcd"), a.max() - a.min(), 1),
        ):
            value, _, small = text.partition("|")
            assert value == number(printed)
            shows(small, float(ours), digits)
        for text, value in zip(row[2:-2], a, strict=True):
            shows(text, value, 1)
