"""Every sentence and number of the page of a comparison, recomputed from the raw outcomes.

The HTML of the page is parsed, and each text is checked as a statement of `comparison_statements`.
"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given

from classwise.auditing.compare.compare import compare
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.cli.console import show_result
from classwise.reporting.pages.comparison import comparison_context
from classwise.reporting.templating import render

from .comparison_statements import (
    PAIR,
    QUICK,
    SEEN,
    STATEMENTS,
    check,
    conditions,
    is_p,
    is_signed,
    is_span,
    near,
    runs,
    sections,
)
from .comparisons import (
    METHODS,
    Compared,
    comparisons,
    difference_of_worst,
)
from .statements import CLASSES, join_names
from .test_statements import Texts


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
    differences = made.differences(first, second)
    assert rows[0] == [made.kind, "n", "difference", "p"]
    assert [row[0] for row in rows[1:]] == made.present
    for unit, images, cell, p in rows[1:]:
        difference = differences[unit]
        text, _, ends = cell.partition("|")
        assert int(images) == made.images(unit)
        assert near(text, 100 * difference.value)
        assert is_signed(ends, difference.low, difference.high)
        assert is_p(p, difference.p)


def test_the_pages_made_every_kind_of_sentence() -> None:
    """The random outcomes reach every statement of the list (run after the property above)."""
    if not SEEN:
        pytest.skip("needs the property test of this file in the same process")
    assert {checked.__name__ for _, checked in STATEMENTS} - SEEN == set()


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
    show_result(comparison)
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
