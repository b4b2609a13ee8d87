"""Every sentence and number of a comparison, on the page and on the terminal, recomputed from the raw outcomes.

The HTML of a page is parsed. Each text must consist of statements of the list below, each with a function that checks
its numbers and its claim against the outcomes. A text that matches no statement fails the test.
"""

from __future__ import annotations

import itertools
import math
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from classwise.auditing.compare import Comparison, Crossing, compare
from classwise.auditing.outcomes import Outcomes
from classwise.auditing.result import Audit
from classwise.cli.compare import show_comparison
from classwise.reporting import report
from classwise.reporting.pages.comparison import comparison_context
from classwise.reporting.templating import render
from classwise.reporting.untested import crossing_context

from .comparisons import (
    METHODS,
    WARNINGS,
    Compared,
    Ends,
    comparisons,
    difference_of_worst,
    resampled_minima,
    worst_of_seeds,
)
from .statements import CLASSES, join_names, percent
from .test_statements import Texts

Check = Callable[[Compared, re.Match[str]], None]
STATEMENTS: list[tuple[re.Pattern[str], Check]] = []
NUMBER = r"[+−-]?\d[\d,]*(?:\.\d+)?|–"
SHARE = r"(?:[<>] )?\d+\.\d %"
SPAN = r"\d+\.\d–\d+\.\d %|no interval"
SIGNED = r"[+−]?\d+\.\d to [+−]?\d+\.\d|–"
NAME = r"[\w-]+"
QUICK = settings(max_examples=25, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))


def statement(pattern: str) -> Callable[[Check], Check]:
    """Register the check of every text that matches the pattern."""

    def add(check: Check) -> Check:
        STATEMENTS.append((re.compile(pattern), check))
        return check

    return add


def check(made: Compared, text: str) -> set[str]:
    """Parse a text into consecutive statements, check each, and return their names."""
    rest, names = text.replace("\u00a0", " ").strip(), set[str]()
    while rest:
        for pattern, checked in STATEMENTS:
            found = pattern.match(rest)
            if found is not None and (found.end() == len(rest) or " " in rest[found.end() - 1 : found.end() + 1]):
                checked(made, found)
                names.add(checked.__name__)
                rest = rest[found.end() :].strip()
                break
        else:
            raise AssertionError(f"no statement fits {rest!r}")
    return names


def near(text: str, value: float, digits: int = 1) -> bool:
    """Whether a text is the rounded value; ties may be rounded either way."""
    if math.isnan(value) or text == "–":
        return math.isnan(value) and text == "–"
    text = text.replace("−", "-").replace(",", "")
    assert len(text.partition(".")[2]) == digits
    return bool(abs(float(text) - value) <= 10.0**-digits / 2 + 1e-6)


def is_share(text: str, share: float) -> bool:
    """Whether a text is a share in percent, with ``<`` and ``>`` for what is neither 0 nor 1."""
    return text == percent(share) or near(text.removesuffix(" %"), 100 * share)


def is_span(text: str, found: Ends | tuple[float, ...]) -> bool:
    """Whether a text is an interval in percent."""
    low, high = found[-2:]
    if text in {"–", "no interval"} or math.isnan(low):
        return text in {"–", "no interval"} and math.isnan(low) and math.isnan(high)
    one, other = text.removesuffix(" %").split("–")
    return near(one, 100 * low) and near(other, 100 * high)


def is_signed(text: str, low: float, high: float) -> bool:
    """Whether a text is an interval of a difference, in percentage points."""
    if text == "–" or math.isnan(low):
        return text == "–" and math.isnan(low) and math.isnan(high)
    one, other = text.split(" to ")
    return near(one, 100 * low) and near(other, 100 * high)


def is_p(text: str, value: float) -> bool:
    """Whether a text is a p-value."""
    return value < 0.001 + 1e-9 if text == "< 0.001" else near(text, value, 3)


def level(made: Compared) -> str:
    return f"{100 - 100 * made.alpha:g}"


def conditions(made: Compared) -> str:
    if not made.attacked:
        return "on clean images"
    if made.attack == "all":
        return "under every attack together"
    return f"under {made.attack}" + ", counts cumulative over the cascade" * made.cascade


def runs(made: Compared, name: str) -> int:
    return len(made.correct[name])


def claims_best(made: Compared) -> bool:
    """Whether the worst class of one method is significantly above that of every other, Bonferroni-corrected."""
    others = [name for name in made.correct if name != made.best[0]]
    return all(made.minima(made.best[0], name, made.alpha / len(others)).low > 1e-9 for name in others)


@statement(rf"({NAME}) has the highest worst-class accuracy: ({SHARE}) \((?:mean over (\d) seeds|(.+?))\)$")
def headline_best(made: Compared, found: re.Match[str]) -> None:
    name, share, seeds, classes = found.groups()
    assert len(made.correct) > 1
    assert [name] == made.best
    assert claims_best(made)
    assert is_share(share, float(made.worst[name]))
    assert (int(seeds) if seeds else 1) == runs(made, name)
    assert classes == (join_names(made.lowest(name)) if seeds is None else None)


@statement(
    r"(No significant difference in worst-class accuracy|No worst-class accuracy is significantly above all others); "
    rf"the highest is ({SHARE}) with (.+)$"
)
def headline_not_significant(made: Compared, found: re.Match[str]) -> None:
    unclear, share, names = found.groups()
    assert len(made.correct) > 1
    assert ("difference" in unclear) == (len(made.correct) == 2)
    assert not claims_best(made)
    assert is_share(share, float(max(made.worst.values())))
    assert names == join_names(
        [name + f" (mean over {runs(made, name)} seeds)" * (runs(made, name) > 1) for name in made.best]
    )


@statement(rf"Worst-class accuracy: ({SHARE}) \((?:mean over (\d) seeds|(.+?))\)$")
def headline_of_one_method(made: Compared, found: re.Match[str]) -> None:
    share, seeds, classes = found.groups()
    (name,) = made.correct
    assert is_share(share, float(made.worst[name]))
    if runs(made, name) > 1:
        assert (classes, seeds) == (None, str(runs(made, name)))
    else:
        assert (classes, seeds) == (join_names(made.lowest(name)), None)


@statement(
    rf"({NAME}) \(one training run\): worst-class accuracy ({SHARE}) \((.+?); (?:([\d.]+) % interval )?({SPAN})\), "
    rf"overall accuracy ({SHARE}) \(({SPAN})\)\."
)
def method_of_one_run(made: Compared, found: re.Match[str]) -> None:
    name, worst, classes, percents, ends, overall, overall_ends = found.groups()
    row = made.rows[name]
    assert runs(made, name) == 1
    assert classes == join_names(made.lowest(name))
    assert percents == level(made)
    assert is_share(worst, row["worst"].value)
    assert is_span(ends, row["worst"])
    assert is_share(overall, row["overall"].value)
    assert is_span(overall_ends, row["overall"])


@statement(
    rf"({NAME}) \(mean over (\d) seeds\): worst-class accuracy ({SHARE}) \((?:([\d.]+) % interval )?({SPAN})\), "
    rf"overall accuracy ({SHARE}) \(({SPAN})\); (.+?) (has|have) the lowest mean\."
)
def method_of_seeds(made: Compared, found: re.Match[str]) -> None:
    name, seeds, worst, percents, ends, overall, overall_ends, classes, verb = found.groups()
    row = made.rows[name]
    assert int(seeds) == runs(made, name) > 1
    assert classes == join_names(made.lowest(name))
    assert (verb == "has") == (len(made.lowest(name)) == 1)
    assert percents == level(made)
    assert is_share(worst, float(made.worst[name]))
    assert is_span(ends, row["worst"])
    assert is_share(overall, row["overall"].value)
    assert is_span(overall_ends, row["overall"])


@statement(
    rf"Difference in worst-class accuracy: ({NUMBER}) percentage points \(([\d.]+) % interval ({SIGNED})\)\. "
    rf"Difference in overall accuracy: ({NUMBER}) percentage points \(({SIGNED}); p (–|< 0\.001|\d\.\d+), "
    r"(.+?), not adjusted for other comparisons\), on ([\d,]+) (images?)\."
)
def pair_overall(made: Compared, found: re.Match[str]) -> None:
    worst, percents, worst_ends, overall, ends, p, test, images, noun = found.groups()
    first, second = made.comparison.names[PAIR[0]], made.comparison.names[0]
    least, difference = made.minima(first, second, made.alpha), made.difference(first, second)
    assert near(worst, 100 * least.value)
    assert near(worst, 100 * float(made.worst[first] - made.worst[second]))
    assert is_signed(worst_ends, least.low, least.high)
    assert percents == level(made)
    assert near(overall, 100 * difference.value)
    assert is_signed(ends, difference.low, difference.high)
    assert is_p(p, difference.p)
    assert test == how_tested(made, first, second)
    assert (int(images.replace(",", "")), noun == "image") == (len(made.ids), len(made.ids) == 1)


def how_tested(made: Compared, first: str, second: str) -> str:
    """How the p-values of two methods are computed."""
    if runs(made, first) == runs(made, second) == 1:
        return "exact McNemar test"
    return f"t test over seeds and images, {'paired by seed' if made.paired(first, second)[2] else 'not paired'}"


@statement(
    r"(Groups|Classes) with a significant difference \(p < ([\d.]+) after Holm's correction over (\d+) tests\): "
    r"(.+?)\.$"
)
def pair_classes(made: Compared, found: re.Match[str]) -> None:
    what, threshold, tested, names = found.groups()
    adjusted = made.adjusted(made.comparison.names[PAIR[0]], made.comparison.names[0])
    assert what == ("Classes" if made.kind == "class" else "Groups")
    assert float(threshold) == made.alpha
    assert int(tested) == sum(not math.isnan(p) for p in adjusted.values())
    assert names == (join_names([unit for unit, p in adjusted.items() if p < made.alpha]) or "none")


@statement(
    r"One training run( of each method)?: intervals cover new images, not new training seeds\.|"
    r"Intervals cover new images and new training seeds"
    r"(?: of (.+?); (.+?) (is one training|are one training each))?\."
)
def about(made: Compared, found: re.Match[str]) -> None:
    each, several, single, verb = found.groups()
    names = list(made.correct) if PAIR[0] == 0 else [made.comparison.names[PAIR[0]], made.comparison.names[0]]
    ones = [name for name in names if runs(made, name) == 1]
    if found[0].startswith("One"):
        assert ones == names
        assert (each is not None) == (len(names) > 1)
    elif single is None:
        assert not ones
    else:
        assert single == " and ".join(ones)
        assert several == " and ".join(name for name in names if name not in ones)
        assert verb == ("is one training" if len(ones) == 1 else "are one training each")


@statement(
    r"Worst 20 %: mean over the 20 % of classes with the lowest accuracy\. MCD: maximum class discrepancy, highest "
    r"minus lowest class accuracy, in percentage points\. CV: class-wise variance of the accuracy, in percent "
    r"squared\. NRR: harmonic mean of clean and robust accuracy\. HMW: harmonic mean of overall and worst-class "
    r"accuracy\. With several seeds: mean ± standard deviation over seeds; the worst class is the class with the "
    r"lowest mean \(the first one if several are equal\)\."
)
def columns(made: Compared, found: re.Match[str]) -> None:
    del made, found  # the cells are recomputed by these definitions


@statement(r"The highest worst-class accuracy is in bold, whether or not the difference is significant\.")
def in_bold(made: Compared, found: re.Match[str]) -> None:
    del found
    assert len(made.correct) > 1


@statement(r"No audit records these fields, so their agreement was not checked: (.+?)\.(?= |$)")
def unchecked(made: Compared, found: re.Match[str]) -> None:
    meta = next(iter(made.comparison.audits.values()))[0].outcomes.meta
    stated = {"threat": meta.threat, "early stop": meta.early_stop} if made.attack != "clean" else {}
    expected = ["data hash", *(field for field, value in stated.items() if value is None)]
    expected += ["attacks"] * (made.attacked and made.attack != "clean")
    assert found[1] == ", ".join(expected)
    assert sum(len(right) for right in made.correct.values()) > 1


@statement(r"p: (.+?); (.+)$")
def pair_note(made: Compared, found: re.Match[str]) -> None:
    assert found[1] == how_tested(made, made.comparison.names[PAIR[0]], made.comparison.names[0])
    check(made, found[2][0].upper() + found[2][1:])


@statement(r"With several seeds: mean ± standard deviation over seeds\.")
def several_seeds(made: Compared, found: re.Match[str]) -> None:
    del found
    assert any(len(right) > 1 for right in made.correct.values())


@statement(r"Generated by classwise [\w.+]+\.")
def foot(made: Compared, found: re.Match[str]) -> None:
    del made, found


@statement(r"Accuracies are in percent, class-wise variances in percent squared\. Hover over a mark for its values\.$")
def units(made: Compared, found: re.Match[str]) -> None:
    del made, found


@statement(
    rf"({NAME}(?: class)?), ({NAME}): (?:({SHARE}) of ([\d,]+)|([+−]?\d+\.\d) percentage points on ([\d,]+) (images?)) "
    rf"\((?:([\d.]+) % interval )?({SPAN}|{SIGNED})\)$"
)
def mark(made: Compared, found: re.Match[str]) -> None:
    """Hover text of a dot: a method overall or on its worst class, a class, or a difference on a class."""
    row, name, share, images, points, paired_images, noun, percents, ends = found.groups()
    assert percents == (None if ends == "no interval" else level(made))
    if points is not None:
        difference = made.difference(name, made.comparison.names[0], row)
        assert near(points, 100 * difference.value)
        assert ends == "no interval" if math.isnan(difference.low) else is_signed(ends, difference.low, difference.high)
        assert (int(paired_images), noun == "image") == (made.images(row), made.images(row) == 1)
        return
    measure = {"Overall": "overall", "Worst class": "worst"}.get(row)
    value = made.of_class(name, row) if measure is None else made.rows[name][measure]
    assert int(images.replace(",", "")) == (len(made.ids) if measure else made.images(row))
    assert is_share(share, value.value)
    assert is_span(ends, value)


@statement(
    rf"({NAME}): overall accuracy ({SHARE}) of ([\d,]+) \(([\d.]+) % interval ({SPAN})\), "
    rf"worst-class accuracy ({SHARE}) of ([\d,]+) \(([\d.]+) % interval ({SPAN})\)$"
)
def point(made: Compared, found: re.Match[str]) -> None:
    """Hover text of a dot of both accuracies."""
    name, *texts = found.groups()
    assert len(made.correct) >= 3
    for measure, (share, images, percents, ends) in (("overall", texts[:4]), ("worst", texts[4:])):
        value = made.rows[name][measure]
        assert int(images.replace(",", "")) == len(made.ids)
        assert percents == level(made)
        assert is_share(share, value.value)
        assert is_span(ends, value)


@statement(
    r"Dark: no other method is higher in both accuracies on these images, whether or not the differences are "
    r"significant\."
)
def dark(made: Compared, found: re.Match[str]) -> None:
    del found
    assert len(made.correct) >= 3


@statement(r"(.*?) ?(Half of the gradients are zero|A class has 3 images)\. (zero-gradients|few-images)$")
def warning(made: Compared, found: re.Match[str]) -> None:
    start, sentence, name = found.groups()
    assert {each.name: each.sentence for each in WARNINGS}[name] == f"{sentence}."
    names = []
    for method, raised in made.warnings.items():
        which = [number for number, each in enumerate(raised) if name in each]
        whole = [method] if len(which) == len(raised) else []
        names += whole or [f"{method}, run {number + 1} of {len(raised)}" for number in which]
    everywhere = all(name in each for raised in made.warnings.values() for each in raised)
    assert start == ("" if everywhere else f"{join_names(names)}:")


PAIR = [0]
"""Index of the first method of the pair whose section is parsed; 0 outside of these sections."""
SEEN: set[str] = set()


def sections(page: str) -> Iterator[tuple[int, str]]:
    """Sections of a page, each with the index of its pair."""
    start, *pairs = re.split(r"(?=<h2>\w+ minus \w+</h2>)", page)
    yield 0, start
    for place, part in enumerate(pairs, 1):
        pair, every, end = part.partition("<h2>Results per class</h2>")
        yield place, pair
        if every:
            yield 0, every + end


@pytest.mark.slow
@QUICK
@given(comparisons())
def test_every_text_of_the_page_follows_from_the_answers(made: Compared) -> None:
    page = render("compare.html", comparison_context(made.comparison))
    names, tables = made.comparison.names, list[list[list[str]]]()
    assert re.findall(r"<h2>(\w+ minus \w+)</h2>", page) == [f"{name} minus {names[0]}" for name in names[1:]]
    for place, part in sections(page):
        PAIR[0] = place
        texts = Texts(part)
        _inert_texts(made, texts)
        for text in texts.of("h1", "p", "figcaption", "li", "title"):
            if text == f"Comparison: {join_names(list(names))}" or text.startswith("classwise comparison"):
                assert text.startswith("Comparison") or text == _over(made)
            else:
                SEEN.update(check(made, text))
        tables += texts.rows
    hovers = re.findall(r"<title>(\w+(?: class)?), (\w+): ", page)
    assert sorted(hovers) == sorted(
        [(row, name) for row in ("Overall", "Worst class", *made.present) for name in names]
        + [(unit, name) for unit in made.present for name in names[1:]]
    )
    methods, *pairs, classes = tables
    good = re.findall(r'<tr class="good"><th scope="row">(\w+)', page)
    assert good == (made.best if len(names) > 1 else [])
    _methods(made, methods)
    _classes(made, classes)
    for name, rows in zip(names[1:], pairs, strict=True):
        _differences(made, name, rows)


def _over(made: Compared) -> str:
    meta = next(iter(made.comparison.audits.values()))[0].outcomes.meta
    count = f"{len(made.ids):,} image{'s' * (len(made.ids) != 1)}"
    return f"classwise comparison{meta.data}{(meta.threat or '') * made.attacked}{count}{conditions(made)}"


def _inert_texts(made: Compared, texts: Texts) -> None:
    """Check names, axis numbers, headings and settings."""
    names = list(made.comparison.names)
    allowed = {*names, *made.present, "Overall", "Worst class", f"Accuracy {conditions(made)}, percent"}
    allowed |= {f"Accuracy per {made.kind} {conditions(made)}, percent"}
    allowed |= {f"Worst-class and overall accuracy {conditions(made)}, percent"}
    allowed |= {"overall accuracy", "worst-class accuracy"}
    allowed |= {f"{name} minus {names[0]}, percentage points" for name in names[1:]}
    titles = [f" {title} " for title in allowed]
    for text in texts.of("text"):  # a title may take several lines
        allows = text in allowed or any(f" {text} " in title for title in titles)
        assert allows or re.fullmatch(r"[+−]?\d+(\.\d)?", text), text
    headings = {"Comparison", "Results per class", "Settings", "Warnings"}
    for text in texts.of("h2", "h3"):
        assert text in headings or " minus " in text
    of_runs = [name if number == 1 else f"{name}, run {run + 1} of {number}" for name in names
               for number in [runs(made, name)] for run in range(number)]  # fmt: skip
    tables = ("percentage points [", f"Accuracy per {made.kind}, percent [")
    assert [text for text in texts.of("summary") if not any(part in text for part in tables)] in ([], of_runs)
    meta = made.comparison.audits[names[0]][0].outcomes.meta
    size = f"{len(made.ids):,} images, {len(meta.class_names)} classes"
    stated = {"Data": f"{meta.data}: {size}" if meta.data else size, "Model": "net", "Threat": meta.threat}
    runs_all = "no: an attack runs all steps and returns its last iterate"
    stated |= {"Early stop": runs_all} if meta.early_stop is False else {}
    stated |= {"Predictions": "imported, not computed by classwise"}
    adds = "yes: each attack runs only on the images that survive all earlier ones, so counts are cumulative"
    stated |= {"Cascade": adds} if made.cascade else {}
    for name, value in zip(texts.of("dt"), texts.of("dd"), strict=True):
        assert stated[name] == value


def _squared(text: str, value: float) -> bool:
    """Whether a text is a variance in percent squared, rounded to integers from 100 on."""
    return near(text, 1e4 * value, 0 if value >= 0.01 else 1)


def _methods(made: Compared, rows: list[list[str]]) -> None:
    heads = [
        "method",
        "seeds",
        "n",
        "clean",
        "overall",
        "worst class",
        "worst",
        "worst 20 %",
        "MCD",
        "CV",
        "NRR",
        "HMW",
    ]
    assert rows[0] == heads
    assert [row[0] for row in rows[1:]] == list(made.correct)
    for cells in (dict(zip(heads, row, strict=True)) for row in rows[1:]):
        name = cells["method"]
        assert (cells["seeds"], cells["n"]) == (str(runs(made, name)), f"{len(made.ids):,}")
        assert cells["worst class"] == made.lowest(name)[0]
        for head in ("overall", "worst"):
            value, deviation = made.rows[name][head], made.deviation(name, head)
            text, ends = cells[head].split("|")
            mean, _, spread = text.partition(" ± ")
            assert near(mean, 100 * value.value)
            assert (spread == "") == math.isnan(deviation)
            assert not spread or near(spread, 100 * deviation)
            assert is_span(ends, value)
        for head in ("clean", "worst 20 %", "MCD", "CV", "NRR", "HMW"):
            value, deviation = made.rows[name][head], made.deviation(name, head)
            text, _, more = cells[head].partition("|")
            if math.isnan(value.value):
                assert cells[head] == "–"
            elif runs(made, name) > 1:
                assert more.startswith("± ")
                right = _squared if head == "CV" else lambda each, number: near(each, 100 * number)
                assert right(text, value.value)
                assert right(more.removeprefix("± "), deviation)
            elif head == "CV":
                assert _squared(text, value.value)
                low, high = more.split("–")
                digits = 0 if value.high >= 0.01 else 1
                assert near(low, 1e4 * value.low, digits)
                assert near(high, 1e4 * value.high, digits)
            else:
                assert near(text, 100 * value.value)
                assert is_span(more, value)


def _classes(made: Compared, rows: list[list[str]]) -> None:
    assert rows[0] == [made.kind, "n", *made.correct]
    assert [row[0] for row in rows[1:]] == made.present
    for unit, images, *cells in rows[1:]:
        assert int(images) == made.images(unit)
        for name, cell in zip(made.correct, cells, strict=True):
            text, _, ends = cell.partition("|")
            mean, _, spread = text.partition(" ± ")
            each = made.part(name, unit).mean(axis=1)
            assert near(mean, 100 * each.mean())
            assert spread == "" if len(each) == 1 else near(spread, 100 * float(np.std(each, ddof=1)))
            assert is_span(ends, made.of_class(name, unit))


def _differences(made: Compared, first: str, rows: list[list[str]]) -> None:
    second = made.comparison.names[0]
    adjusted = made.adjusted(first, second)
    assert rows[0] == [made.kind, "n", "difference", "p", "p (Holm)"]
    assert [row[0] for row in rows[1:]] == made.present
    for unit, images, cell, p, after in rows[1:]:
        difference = made.difference(first, second, unit)
        text, _, ends = cell.partition("|")
        assert int(images) == made.images(unit)
        assert near(text, 100 * difference.value)
        assert is_signed(ends, difference.low, difference.high)
        assert is_p(p, difference.p)
        assert is_p(after, adjusted[unit])


def test_the_pages_made_every_kind_of_sentence() -> None:
    """The random outcomes reach every statement of the list (run after the property above)."""
    if not SEEN:
        pytest.skip("needs the property test of this file in the same process")
    assert {checked.__name__ for _, checked in STATEMENTS} - SEEN == set()


INTERVAL = r"\[([\d.]+|–), ([\d.]+|–)\]"
SIGNED_INTERVAL = r"\[([+-][\d.]+|–), ([+-][\d.]+|–)\]"
ROW = re.compile(
    rf"(\w+) +(\d) +(\d+) +([\d.]+|–) +([\d.]+) +{INTERVAL} +([\d.]+) +{INTERVAL} +(\w+) +([\d.]+) +([\d.]+) +([\d.]+)"
)


@pytest.mark.slow
@QUICK
@given(comparisons())
def test_every_line_of_the_terminal_follows_from_the_answers(
    capsys: pytest.CaptureFixture[str], made: Compared
) -> None:
    capsys.readouterr()
    show_comparison(made.comparison)
    start, *blocks = capsys.readouterr().out.rstrip("\n").split("\n\n")
    title, heads, *lines = start.splitlines()
    assert title == f"accuracy in percent {conditions(made)}"
    percents, several = f"{level(made)} %", any(len(right) > 1 for right in made.correct.values())
    assert re.split(r"  +", heads) == [
        "method", "seeds", "n", "clean", "overall", percents, "worst", percents, "worst class", "worst 20 %", "CV",
        "MCD",
    ]  # fmt: skip
    for line, name in zip(lines, made.correct, strict=False):
        _terminal_row(made, name, line)
    explained, people, *notes = lines[len(made.correct) :]
    equal = any(len(made.lowest(name)) > 1 for name in made.correct)
    assert explained == (
        f"{percents}: interval of the preceding number"
        + "; of several seeds the means, and worst class is that of the lowest mean" * several
        + "; of equally low classes the first" * equal
    )
    PAIR[0] = 0
    assert check(made, f"{people[0].upper()}{people[1:]}.") == {"about"}
    for note in notes:
        assert check(made, note.removeprefix("note: ")) == {"unchecked"}
    assert len(blocks) == len(made.correct) - 1
    for place, block in enumerate(blocks, 1):
        PAIR[0] = place
        _terminal_pair(made, made.comparison.names[place], block)


def _terminal_row(made: Compared, name: str, line: str) -> None:
    found, row = ROW.fullmatch(line), made.rows[name]
    assert found is not None, line
    assert found.groups()[:3] == (name, str(runs(made, name)), str(len(made.ids)))
    assert found[11] == made.lowest(name)[0]
    expected = [row["clean"].value, *row["overall"], row["worst"].value, row["worst"].low]
    for text, value in zip(found.groups()[3:9], expected, strict=True):
        assert near(text, 100 * value)
    for place, head, scale in ((10, "worst", 0), (12, "worst 20 %", 100), (13, "CV", 1e4), (14, "MCD", 100)):
        assert near(found[place], 100 * row["worst"].high if not scale else scale * row[head].value)


def _terminal_pair(made: Compared, first: str, block: str) -> None:
    second = made.comparison.names[0]
    title, overall, worst, classes, people = block.splitlines()
    assert title == f"{first} minus {second}, in points, on the same images ({level(made)} %):"
    difference, least = made.difference(first, second), made.minima(first, second, made.alpha)
    found = re.fullmatch(
        rf"  overall      ([+-][\d.]+) {SIGNED_INTERVAL}, p = (\S+) \((.+), not adjusted for other comparisons\)",
        overall,
    )
    assert found is not None, overall
    for text, value in zip(found.groups()[:3], difference[:3], strict=True):
        assert near(text, 100 * value)
    assert found[4] == "–" if math.isnan(difference.p) else float(found[4]) == pytest.approx(difference.p, rel=0.0501)
    assert found[5] == how_tested(made, first, second)
    found = re.fullmatch(rf"  worst class  ([+-][\d.]+) {SIGNED_INTERVAL}", worst)
    assert found is not None, worst
    for text, value in zip(found.groups(), least, strict=True):
        assert near(text, 100 * value)
    adjusted = made.adjusted(first, second)
    tested = sum(not math.isnan(p) for p in adjusted.values())
    kinds = "classes" if made.kind == "class" else "groups"
    start = f"  {kinds} that differ (p below {made.alpha:g} after Holm over {tested}): "
    assert classes.startswith(start)
    listed = classes.removeprefix(start)
    named = {} if listed == "none" else dict(each.rsplit(" ", 1) for each in listed.split(", "))
    assert list(named) == [unit for unit, p in adjusted.items() if p < made.alpha]
    for unit, text in named.items():
        assert near(text, 100 * made.difference(first, second, unit).value)
    assert check(made, f"{people.strip()[0].upper()}{people.strip()[1:]}.") == {"about"}


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_the_bootstrap_agrees_with_one_that_draws_image_by_image(alpha: float) -> None:
    """With other random numbers and image-wise resampling, percentiles agree within the Monte Carlo error of both."""
    random = np.random.default_rng(8)
    ids = np.repeat(np.arange(3), [30, 40, 50])
    right = random.random((3, 120)) < np.array([0.5, 0.55, 0.8])[ids]
    many = 20_000
    lowest = np.full((many, 3), np.inf)
    for unit in range(3):
        images = np.flatnonzero(ids == unit)
        drawn = random.choice(images, size=(many, len(images)))
        lowest = np.minimum(lowest, right[:, drawn].mean(axis=2).T)
    runs = random.integers(3, size=(many, 3))
    means = np.take_along_axis(lowest, runs, axis=1).mean(axis=1)
    found = worst_of_seeds(right, ids, alpha)
    error = 4.5 * math.sqrt(alpha / 2 * (1 - alpha / 2)) * (1 / math.sqrt(2000) + 1 / math.sqrt(many))
    reaches = []
    for slack in (-error, error):
        low, high = np.quantile(means, (max(alpha / 2 + slack, 0), min(1 - alpha / 2 - slack, 1)))
        reaches.append(max(found.value - low, high - found.value) * math.sqrt(3 / 2))
    assert reaches[1] <= found.high - found.value <= reaches[0]
    assert resampled_minima(right, ids).mean(axis=0) == pytest.approx(lowest.mean(axis=0), abs=0.01)


def test_runs_without_a_clean_pass_leave_the_clean_accuracy_open() -> None:
    labels = np.arange(30) % 3
    audits = [Audit(Outcomes.from_predictions(labels, clean, {"pgd": labels}, CLASSES[:3])) for clean in (labels, None)]
    comparison = compare({"at": audits, "cfa": audits[0]}, attack="pgd")
    for measure in ("clean", "nrr"):
        first, second = comparison.table[measure].tolist()
        assert math.isnan(first)
        assert second == 1


def test_equally_low_classes_are_all_named(capsys: pytest.CaptureFixture[str]) -> None:
    labels = np.repeat(np.arange(3), 4)
    predictions = np.array([0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2])
    comparison = compare({"at": Audit(Outcomes.from_predictions(labels, predictions, None, CLASSES[:3]))})
    context = comparison_context(comparison)
    assert "".join(context["headline"].values()) == "Worst-class accuracy: 50.0\u00a0% (ant and bee)"
    assert context["sentences"][0].startswith(
        "at (one training run): worst-class accuracy 50.0\u00a0% (ant and bee; 95\u00a0% interval "
    )
    show_comparison(comparison)
    assert "of equally low classes the first" in capsys.readouterr().out


def test_many_methods_have_one_sentence_and_a_plot_of_both_accuracies() -> None:
    """Correct images of two classes; c has 15 of 20 and 6 of 10, d 14 and 6, a and f are exceeded by c."""
    labels = np.repeat(np.arange(2), 10)

    def audit(ants: int, bees: int) -> Audit:
        predictions = 1 - labels
        predictions[:ants], predictions[10 : 10 + bees] = 0, 1
        return Audit(Outcomes.from_predictions(labels, labels, {"pgd": predictions}, CLASSES[:2]))

    correct = {"a": (5, 5), "b": (10, 5), "c": (9, 6), "d": (8, 6), "e": (7, 7), "f": (5, 9)}
    audits = {name: audit(*each) for name, each in correct.items()}
    context = comparison_context(compare(audits))
    assert context["sentences"] == [
        "Of 6 methods, no other is higher in both overall and worst-class accuracy on these images than b, c, d and e."
    ]
    assert context["points"].count("m-dot-main") == 2 * 4, "wide and narrow"
    few = comparison_context(compare({name: audits[name] for name in "abc"}))
    assert len(few["sentences"]) == 3
    assert few["points"] is not None
    assert comparison_context(compare({name: audits[name] for name in "ab"}))["points"] is None


def test_methods_that_are_equal_but_for_rounding_are_equally_good() -> None:
    """Worst-class accuracies 1/10, 2/10 and 3/10 of three runs, and 2/10 of one: both means are 1/5."""
    labels = np.repeat(np.arange(2), 10)

    def audit(right: int) -> Audit:
        predictions = np.where(np.arange(20) < right, labels, (labels + 1) % 2)
        predictions[10:] = 1
        return Audit(Outcomes.from_predictions(labels, labels, {"pgd": predictions}, CLASSES[:2]))

    context = comparison_context(compare({"at": [audit(2)], "cfa": [audit(1), audit(2), audit(3)]}))
    assert [row.good for row in context["table"].rows] == [True, True]
    assert context["headline"]["after"] == " with at and cfa (mean over 3 seeds)"


def test_the_best_of_three_is_named_only_at_the_level_of_two_comparisons() -> None:
    """A difference is significant at 95 %, but not at 97.5 %, the level with two other methods."""
    labels, found = np.repeat(np.arange(2), 50), list[str]()
    for count in range(50):
        low = np.arange(100) % 50 < count
        first, second = np.ones((2, 100), bool)
        second[low] = False
        ends = [difference_of_worst(first, second, labels, alpha).low for alpha in (0.05, 0.025)]
        if ends[0] > 0 >= ends[1]:
            audits = [
                Audit(
                    Outcomes.from_predictions(labels, None, {"pgd": np.where(right, labels, 1 - labels)}, CLASSES[:2])
                )
                for right in (first, second, second)
            ]
            two, three = (dict(zip(METHODS, audits[:number], strict=False)) for number in (2, 3))
            found = [comparison_context(compare(each))["headline"]["before"] for each in (two, three)]
    assert found == [
        "at has the highest worst-class accuracy: ",
        "No worst-class accuracy is significantly above all others; the highest is ",
    ]


def _page(comparison: Comparison | Crossing) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return report(comparison, Path(folder) / "page.html").read_text(encoding="utf-8")


def _labelled(name: str, number: int, total: int) -> str:
    return f"'{name}'" if total == 1 else f"'{name}' (run {number + 1} of {total})"


@pytest.mark.slow
@settings(max_examples=10, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from(((1, 1), (1, 2), (2, 3))),
    early_stop=st.sampled_from((None, False, True)),
    cascade=st.booleans(),
    attack=st.sampled_from(("all", "pgd", "cw")),
    group=st.sampled_from((None, "site")),
    lost=st.sampled_from((0.1, 0.6, 1.0)),
)
def test_bounds_of_incomplete_audits_follow_from_the_rows(
    capsys: pytest.CaptureFixture[str], seed: int, shape: tuple[int, int], early_stop: Any, cascade: bool, attack: str,
    group: str | None, lost: float,
) -> None:  # fmt: skip
    early_stop = True if cascade else early_stop  # a cascade needs it
    random = np.random.default_rng(seed)
    order, labels, sites = ("clean", "pgd", "cw"), np.arange(40) % 3, np.arange(40) % 2
    ids = labels if group is None else sites
    needed = order if attack == "all" else ("clean", attack) if not cascade else order[: order.index(attack) + 1]
    audits: dict[str, list[Audit]] = {}
    expected: dict[str, list[tuple[float, ...]]] = {}
    gaps, judged_by_all = [], np.ones(40, bool)
    for name, runs in zip(("at", "cfa"), shape, strict=True):
        audits[name], expected[name] = [], []
        for run in range(runs):
            right = random.random((3, 40)) < 0.7
            if cascade:
                right = np.logical_and.accumulate(right)
            predictions = np.where(right, labels, (labels + 1) % 3)
            whole = Outcomes.from_predictions(
                labels, predictions[0], {"pgd": predictions[1], "cw": predictions[2]}, CLASSES[:3],
                early_stop=early_stop, cascade=cascade,
            ).add_groups("site", sites, ("north", "south"))  # fmt: skip
            gone = (random.random((3, 40)) < lost) & (np.arange(3)[:, None] > 0)
            frame = whole.frame
            rows = frame["attack"].map(order.index).to_numpy()
            part = Outcomes(frame[~gone[rows, frame["index"]]], whole.meta)
            audits[name].append(Audit(part))
            # 1: correct, 0: misclassified, 2: not judged. What is over after an earlier attack needs no row.
            verdicts = np.where(gone, 2, right)
            for place in range(1, 3):
                before = verdicts[:place] if cascade else verdicts[:1]
                over = (before == 0).any(axis=0) & bool(early_stop)
                verdicts[place] = np.where(over & gone[place], 0, verdicts[place])
            used = verdicts if attack == "all" else verdicts[[order.index(attack)]]
            wrong, known = (used == 0).any(axis=0), (used != 2).all(axis=0)
            low, high = known & ~wrong, ~wrong
            worst = [min(end[ids == unit].mean() for unit in set(ids.tolist())) for end in (low, high)]
            expected[name].append((float((known | wrong).sum()), low.mean(), high.mean(), *worst))
            each = {label: int((verdicts[order.index(label)] == 2).sum()) for label in needed}
            judged_by_all &= np.all([verdicts[order.index(label)] != 2 for label in needed], axis=0)
            if any(each.values()):
                counts = ", ".join(f"{count} under {label}" for label, count in each.items() if count)
                gaps.append(f"{_labelled(name, run, runs)} is incomplete: images not judged: {counts}")
    comparison = Comparison({name: tuple(each) for name, each in audits.items()}, attack, group, allow_incomplete=True)
    assert list(comparison.gaps) == gaps
    if not gaps:
        return
    texts = Texts(_page(comparison))
    paragraphs = [text.replace("\u00a0", " ") for text in texts.of("p")]
    assert [text.removesuffix(".") for text in paragraphs[1 : 1 + len(gaps)]] == gaps
    conditions = "under every attack together" if attack == "all" else f"under {attack}"
    conditions += ", counts cumulative over the cascade" * (cascade and attack != "all")
    assert paragraphs[0] == f"classwise comparison40 images{conditions}"
    reason = (
        f"{judged_by_all.sum()} of 40 images are judged in every audit under every compared attack. Which images "
        "are judged first depends on the outcome (successful attacks end early), so accuracies on these images "
        "alone are biased. Only bounds are reported, no accuracies, differences or tests."
    )
    assert paragraphs[1 + len(gaps)] == reason
    assert list(texts.of("h1")) == ["Incomplete audits: bounds only, no comparison"]
    capsys.readouterr()
    show_comparison(comparison)
    terminal = capsys.readouterr().out
    assert reason in terminal
    assert f"Bounds of the accuracies, percent, {conditions}" in terminal
    (rows_shown,) = texts.rows
    assert rows_shown[0] == ["method", "seeds", "n", "judged", "overall", "worst"]
    for row, (name, found) in zip(rows_shown[1:], expected.items(), strict=True):
        judged, *ends = (np.array(column) for column in zip(*found, strict=True))
        assert row[:4] == [name, str(len(found)), "40", f"{judged.min():.0f}"]
        for text, (low, high) in zip(row[4:], (ends[:2], ends[2:]), strict=True):
            assert is_span(text, (float(low.mean()), float(high.mean())))
            assert text in terminal


@pytest.mark.slow
@settings(max_examples=6, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32 - 1),
    runs=st.lists(st.integers(1, 2), min_size=4, max_size=4),
    methods=st.integers(1, 2),
    alpha=st.sampled_from((0.05, 0.1)),
    group=st.sampled_from((None, "site")),
    cascade=st.booleans(),
    attack=st.sampled_from(("all", "cw")),
)
def test_everything_on_the_page_of_a_crossing_follows_from_the_answers(
    capsys: pytest.CaptureFixture[str], seed: int, runs: list[int], methods: int, alpha: float, group: str | None,
    cascade: bool, attack: str,
) -> None:  # fmt: skip
    random = np.random.default_rng(seed)
    labels, sites = np.arange(60) % 3, np.arange(60) % 2
    ids, names = (labels, CLASSES[:3]) if group is None else (sites, ("north", "south"))
    audits: dict[str, list[Audit]] = {name: [] for name in ("at", "cfa")[:methods]}
    made: dict[tuple[str, int], Compared] = {}
    for (name, radius), number in zip(itertools.product(audits, (1, 4)), runs, strict=False):
        answers, cleans, here = [], list[Any](), []
        for _ in range(number):
            right = {each: random.random(60) < 1 - 0.1 * radius for each in ("clean", "pgd", "cw")}
            if cascade:
                right["pgd"] &= right["clean"]
                right["cw"] &= right["pgd"]
            predictions = {each: np.where(one, labels, (labels + 1) % 3) for each, one in right.items()}
            clean = predictions.pop("clean")
            meta: dict[str, Any] = {"threat": f"Linf:{radius}/255", "norm": "Linf", "cascade": cascade}
            outcomes = Outcomes.from_predictions(labels, clean, predictions, CLASSES[:3], **meta)
            here.append(Audit(outcomes.add_groups("site", sites, ("north", "south"))))
            answers.append(np.logical_and.reduce(list(right.values())) if attack == "all" else right["cw"])
            cleans.append(right["clean"])
        audits[name] += here
        single = compare({name: here}, attack=attack, group=group, confidence=1 - alpha)
        made[name, radius] = Compared(
            single, {name: np.stack(answers)}, {name: cleans}, {}, ids, names, ("clean", "pgd", "cw"), {}
        )
    crossing = compare(audits, attack=attack, group=group, confidence=1 - alpha, across="threat")
    assert isinstance(crossing, Crossing)
    text = _page(crossing)
    page = Texts(text)
    conditions = "under every attack together" if attack == "all" else "under cw"
    conditions += ", counts cumulative over the cascade" * (cascade and attack != "all")
    paragraphs = [each.replace("\u00a0", " ") for each in page.of("p")]
    assert paragraphs[0] == f"classwise comparison60 images{conditions}"
    assert paragraphs[1] == (
        "The audits differ in threat: Linf:1/255 and Linf:4/255. A difference in accuracy may be due to the threat, "
        "the model or both, so no differences are computed or tested."
    )
    numbers = [len(each.correct[name]) for (name, _), each in made.items()]
    population = {
        (True, False): "One training run of each method: intervals cover new images, not new training seeds.",
        (False, True): "Intervals cover new images and new training seeds.",
        (True, True): "Intervals cover new images; in rows of several seeds also new training seeds.",
    }[min(numbers) == 1, max(numbers) > 1]
    if methods == 1:
        population = population.replace(" of each method", "")
    assert paragraphs[2] == (
        f"{population} With several seeds: mean over seeds; the worst class is the class with the lowest mean (the "
        "first one if several are equal). No tests are computed."
    ) + " No audit records these fields, so their agreement was not checked: data hash, early stop, attacks." * (
        max(numbers) > 1 or methods > 1
    )
    assert paragraphs[3].startswith("Generated by classwise ")
    assert paragraphs[3].partition(". ")[2].startswith(population)
    assert next(page.of("h2")).replace("\u00a0", " ") == (
        f"Accuracy by threat, percent [{100 - 100 * alpha:g} % interval]"
    )
    (rows,) = page.rows
    assert rows[0] == ["method", "threat", "seeds", "n", "overall", "worst class", "worst"]
    capsys.readouterr()
    show_comparison(crossing)
    terminal = capsys.readouterr().out
    for row, ((name, radius), each) in zip(rows[1:], made.items(), strict=True):
        values = each.rows[name]
        assert row[:4] == [name, f"Linf:{radius}/255", str(len(each.correct[name])), "60"]
        assert row[5] == each.lowest(name)[0]
        for cell, head in ((row[4], "overall"), (row[6], "worst")):
            share, ends = cell.split("|")
            assert near(share, 100 * values[head].value)
            assert is_span(ends, values[head])
            assert f"{share} [{ends}]" in terminal
    lines = [found for each in page.of("title") if (found := re.fullmatch(r"(.+): from ([\d.]+) to ([\d.]+)", each))]
    wanted = [("at", "overall", "overall"), ("at", "worst", "worst class")]
    if methods > 1:
        wanted = [(name, head, name) for head in ("overall", "worst") for name in audits]
    for found, (name, head, label) in zip(lines, wanted, strict=True):
        assert found[1] == label
        for end, radius in ((2, 1), (3, 4)):
            assert near(found[end], 100 * made[name, radius].rows[name][head].value)
        assert f"{label} {found[3]}" in list(page.of("text"))
    assert not re.search(r"\bp[ =<]*0|minus|significant|McNemar", text.partition("<body>")[2])
    assert len(crossing_context(crossing)["figures"]) == (1 if methods == 1 else 2)
