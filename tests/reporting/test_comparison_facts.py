"""The facts, tables and figures of a comparison, recomputed from the raw outcomes of random comparisons.

Sentences are functions of the facts; `test_prose` shows them.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given

from classwise.auditing.compare.compare import compare
from classwise.auditing.compare.comparison import Comparison, Pair, narrowing_notes, population
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.reporting.facts.comparison_sentences import PairFacts, comparison_warnings
from classwise.reporting.facts.comparison_tables import (
    accuracy_points,
    class_dots,
    class_table,
    difference_dots,
    exceeds_all,
    measure_dots,
    measure_table,
    methods_of,
    pair_table,
    unexceeded_methods,
)
from classwise.reporting.pages.comparison import comparison_context
from classwise.reporting.tables import Cell
from classwise.reporting.text.comparison import comparison_parts
from classwise.reporting.text.layout import TextTable
from classwise.stats.counts import PairedCounts
from classwise.stats.intervals import Estimate
from classwise.stats.paired import difference_of_minima

from .random_audits import CLASSES, join_names, percent, span
from .random_comparisons import (
    METHODS,
    QUICK,
    WARNINGS,
    Compared,
    Ends,
    comparisons,
    is_span,
    near,
)
from .test_audit_facts import hovers


@pytest.mark.slow
@QUICK
@given(comparisons())
def test_the_facts_of_a_comparison_follow_from_the_answers(made: Compared) -> None:
    comparison = made.comparison
    assert list(comparison.names) == list(made.correct)
    for name, row in methods_of(comparison).items():
        for side in ("worst", "overall"):
            found = [row[f"{side}{end}"] for end in ("", "_low", "_high")]
            assert found == pytest.approx(made.rows[name][side], abs=1e-9, nan_ok=True)
        assert row["seeds"] == made.number(name)
        assert row["worst"] == pytest.approx(float(made.worst[name]))
        assert comparison.lowest_classes[name] == tuple(made.lowest(name))
    assert comparison.best == tuple(made.best)
    assert exceeds_all(comparison, comparison.best[0], "worst") == made.decided
    points = {name: (row["overall"].value, float(made.worst[name])) for name, row in made.rows.items()}
    assert unexceeded_methods(comparison) == [
        name
        for name, (overall, worst) in points.items()
        if not any(other > overall + 1e-9 and least > worst + 1e-9 for other, least in points.values())
    ]
    _pairs(made, comparison)
    _notes(made, comparison)


def _pairs(made: Compared, comparison: Comparison) -> None:
    """Each other method against the first one."""
    first, *others = made.correct
    assert [(pair.first, pair.second) for pair in comparison.pairs] == [(name, first) for name in others]
    for name, pair in zip(others, comparison.pairs, strict=True):
        facts, difference = PairFacts.of(comparison, pair), made.difference(name, first)
        differences = made.differences(name, first)
        assert pair.minima == pytest.approx(made.minima(name, first, made.alpha), abs=1e-9, nan_ok=True)
        assert pair.minima.value == pytest.approx(float(made.worst[name] - made.worst[first]), abs=1e-9)
        assert (*pair.overall, pair.p_value) == pytest.approx(difference, abs=1e-9, nan_ok=True)
        assert (facts.alpha, facts.kind, facts.images) == (made.alpha, made.kind, len(made.ids))
        assert facts.tested == sum(not math.isnan(found.p) for found in differences.values())
        significant = {unit: found.value for unit, found in differences.items() if found.p < made.alpha}
        assert list(facts.significant) == list(significant)
        assert facts.significant == pytest.approx(significant)
        single = made.number(name) == made.number(first) == 1
        assert pair.test == ("McNemar test" if single else "test over seeds and images")
        assert pair.population == population({method: made.number(method) for method in (name, first)})
        if " would decide a difference of this size" in facts.advice:
            assert pair.minima.value
            assert pair.minima.low <= 0 <= pair.minima.high
        else:
            assert bool(facts.advice) == (not single)
            assert ("two runs" in facts.advice) == (2 in (made.number(name), made.number(first)))


@pytest.mark.parametrize(
    ("minima", "seeds", "of_images", "advice"),
    [
        ((0.05, -0.05, 0.12), (1, 1), 1.0, "; about 820 images a class would decide a difference of this size"),
        ((-0.05, -0.12, 0.05), (1, 1), 1.0, "; about 820 images a class would decide a difference of this size"),
        ((0.05, -0.05, 0.12), (3, 3), 1.0, "; about 820 images a class would decide a difference of this size"),
        ((0.05, -0.05, 0.12), (3, 3), 0.0, "; about 8 seeds would decide a difference of this size"),
        ((0.05, -0.15, 0.25), (2, 2), 0.0, "; about 5 seeds would decide a difference of this size"),
        ((0.05, -0.05, 0.12), (3, 3), 0.2, "; more runs would narrow it most"),  # the part of the images is too wide
        ((0.05, -0.05, 0.12), (3, 3), 0.8, "; more images would narrow it most"),
        ((0.05, 0.01, 0.09), (1, 1), 1.0, ""),
        ((0.05, 0.01, 0.09), (3, 3), 0.0, "; more runs would narrow it most"),
        ((0.0, -0.1, 0.1), (1, 1), 1.0, ""),
        ((0.001, -0.1, 0.1), (1, 1), 1.0, ""),
        ((0.001, -0.1, 0.1), (3, 3), 0.0, "; more runs would narrow it most"),
    ],
)
def test_an_undecided_difference_names_what_would_decide_it(
    minima: tuple[float, float, float], seeds: tuple[int, int], of_images: float, advice: str
) -> None:
    classes = pd.DataFrame({"n": [100, 200]})
    pair = Pair("a", "b", classes, Estimate(0, 0, 0), 1.0, Estimate(*minima), of_images, seeds)
    assert PairFacts(pair, 0.05, "class", 300, 2, {}).advice == advice


def _notes(made: Compared, comparison: Comparison) -> None:
    meta = comparison.audits[comparison.names[0]][0].outcomes.meta
    stated = {"threat": meta.threat, "early stop": meta.early_stop} if made.attack != "clean" else {}
    fields = ["data hash", *(field for field, value in stated.items() if value is None)]
    fields += ["attacks"] * (made.attacked and made.attack != "clean")
    runs = sum(map(made.number, made.correct))
    note = f"No audit records these fields, so their agreement was not checked: {', '.join(fields)}."
    assert list(comparison.notes) == [note] * (runs > 1)
    assert comparison.conditions == made.conditions
    numbers = [made.number(name) for name in made.correct]
    advised = " ".join(narrowing_notes(comparison.table))
    assert bool(advised) == (max(numbers) > 1)
    assert ("new training seeds are not covered" in advised) == (1 in numbers and max(numbers) > 1)
    shown = {fact["name"]: fact["sentence"] for fact in comparison_warnings(comparison.audits)}
    for warning in WARNINGS:
        names = []
        for method, raised in made.warnings.items():
            which = [number for number, found in enumerate(raised) if warning.name in found]
            whole = [method] if len(which) == len(raised) else []
            names += whole or [f"{method}, run {number + 1} of {len(raised)}" for number in which]
        everywhere = names == list(made.correct)
        start = "" if everywhere else f"{join_names(names)}: "
        assert shown.get(warning.name) == (f"{start}{warning.sentence}" if names else None)


@pytest.mark.slow
@QUICK
@given(comparisons())
def test_the_tables_and_figures_of_a_comparison_follow_from_the_answers(made: Compared) -> None:
    comparison, names = made.comparison, list(made.correct)
    measures, classes = measure_table(comparison), class_table(comparison)
    assert [row.name for row in measures.rows] == names
    assert not any(row.good or row.weak for row in measures.rows)
    columns = [measures.heads.index(head) - 1 for head in ("overall", "worst")]
    bold = {(row.name, place) for row in measures.rows for place, cell in enumerate(row.cells) if cell.good}
    decided = {(made.best[0], columns[1])} if len(names) > 1 and made.decided else set()
    assert {cell for cell in bold if cell[1] == columns[1]} == decided
    assert all(column == columns[0] for _, column in bold - decided)
    for row in measures.rows:
        _measures(made, row.name, dict(zip(measures.heads[1:], row.cells, strict=True)))
    assert classes.heads == [made.kind, "n", *names]
    assert [row.name for row in classes.rows] == made.present
    for row in classes.rows:
        assert row.cells[0].text == str(made.images(row.name))
        for name, cell in zip(names, row.cells[1:], strict=True):
            accuracies = made.part(name, row.name).mean(axis=1)
            _mean(cell, made.of_class(name, row.name), accuracies)
    for pair in comparison.pairs:
        table = pair_table(comparison, pair)
        assert table.heads == [made.kind, "n", "difference", "p"]
        assert [row.name for row in table.rows] == made.present
        for row in table.rows:
            images, difference, p = row.cells
            found = made.differences(pair.first, pair.second)[row.name]
            assert images.text == str(made.images(row.name))
            assert near(difference.text, 100 * found.value)
            assert is_span(difference.span, found[:3], " to ")
            assert found.p < 0.001 + 1e-9 if p.text == "< 0.001" else near(p.text, found.p, 3)
    _terminal(made, comparison)
    _hover_texts(made, comparison)


def _mean(cell: Cell, value: Ends, runs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    """A cell with a mean, its standard deviation over runs, and its interval."""
    mean, _, spread = cell.text.partition(" ± ")
    assert near(mean, 100 * value.value)
    assert spread == "" if len(runs) == 1 else near(spread, 100 * float(np.std(runs, ddof=1)))
    assert is_span(cell.span, value)


def _measures(made: Compared, name: str, cells: dict[str, Cell]) -> None:
    assert (cells["seeds"].text, cells["n"].text) == (str(made.number(name)), f"{len(made.ids):,}")
    assert cells["worst class" if "worst class" in cells else "worst group"].text == made.lowest(name)[0]
    for head in ("overall", "worst"):
        _mean(cells[head], made.rows[name][head], np.array([run[head].value for run in made.runs[name]]))
    for head in ("clean", "worst 20 %", "MCD", "class-wise variance", "NRR", "HMW"):
        value, cell = made.rows[name][head], cells[head]
        scale, rounded = (1e4, value.value >= 0.01) if head == "class-wise variance" else (100.0, False)
        if math.isnan(value.value):
            assert cell == Cell("–")
            continue
        assert near(cell.text, scale * value.value, int(not rounded))
        if made.number(name) > 1:
            deviation = made.deviation(name, head)
            digits = int(not (head == "class-wise variance" and deviation >= 0.01))
            assert near(cell.span.removeprefix("± "), scale * deviation, digits)
        else:
            digits = int(not (head == "class-wise variance" and value.high >= 0.01))
            assert is_span(cell.span, value, scale=scale, digits=digits)


def _terminal(made: Compared, comparison: Comparison) -> None:
    """The table of the methods on the terminal."""
    table = next(iter(comparison_parts(comparison)))
    assert isinstance(table, TextTable)
    percents = f"{100 - 100 * made.alpha:g} %"
    lowest = "worst class" if comparison.group is None else "worst group"
    heads = ["method", "seeds", "n", "clean", "overall", percents, "worst", percents, lowest]
    assert list(table.columns) == [*heads, "worst 20 %", "class-wise variance", "MCD", "asymmetry", "target share"]
    for name, line in zip(made.correct, table.rows, strict=True):
        row = made.rows[name]
        assert line[:3] == (name, made.number(name), len(made.ids))
        assert line[8] == made.lowest(name)[0]
        for place, head, scale in (
            (3, "clean", 100.0),
            (4, "overall", 100),
            (6, "worst", 100),
            (9, "worst 20 %", 100),
            (10, "class-wise variance", 1e4),
            (11, "MCD", 100),
        ):
            assert near(str(line[place]), scale * row[head].value)
        for place, head in ((5, "overall"), (7, "worst")):
            ends = str(line[place]).strip("[]").split(", ")
            assert [near(end, 100 * value) for end, value in zip(ends, row[head][1:], strict=True)] == [True, True]


def _hover_texts(made: Compared, comparison: Comparison) -> None:
    level = f"{100 - 100 * made.alpha:g} %"

    def ends(low: float, high: float) -> str:
        return "no interval" if math.isnan(low) else f"{level} interval {span(low, high)} %"

    def measured(value: Ends, images: int) -> str:
        return f"{percent(value.value)} of {images:,} ({ends(value.low, value.high)})"

    whole, rows = len(made.ids), made.rows
    lowest = "class" if comparison.group is None else "group"
    sides = (("Overall", "overall"), (f"Worst {lowest}", "worst"))
    assert set(hovers(measure_dots(comparison))) == {
        f"{title}, {name}: {measured(rows[name][side], whole if side == 'overall' else of_lowest)}"
        for name in made.correct
        for of_lowest in [made.images(made.lowest(name)[0])]
        for title, side in sides
    }
    assert set(hovers(class_dots(comparison))) == {
        f"{unit}, {name}: {measured(made.of_class(name, unit), made.images(unit))}"
        for name in made.correct
        for unit in made.present
    }
    for pair in comparison.pairs:
        texts = {text.partition(":")[0]: text for text in hovers(difference_dots(comparison, pair))}
        assert set(texts) == {f"{unit}, {pair.first}" for unit in made.present}
        for unit, found in made.differences(pair.first, pair.second).items():
            start, _, more = texts[f"{unit}, {pair.first}"].partition(" percentage points on ")
            assert near(start.partition(": ")[2], 100 * found.value)
            assert more.startswith(f"{made.images(unit):,} image{'s' * (made.images(unit) != 1)} (")
            assert ("no interval" in more) == math.isnan(found.low)
    points = accuracy_points(comparison)
    assert (points is None) == (len(made.correct) < 3)
    if points is not None:
        assert set(hovers(points)) == {
            f"{name}: overall accuracy {measured(row['overall'], whole)}, worst-{lowest} accuracy "
            f"{measured(row['worst'], made.images(made.lowest(name)[0]))}"
            for name, row in rows.items()
        }


def test_runs_without_a_clean_pass_leave_the_clean_accuracy_open() -> None:
    labels = np.arange(30) % 3
    audits = [Audit(Outcomes.from_predictions(labels, clean, {"pgd": labels}, CLASSES[:3])) for clean in (labels, None)]
    comparison = compare({"at": audits, "cfa": audits[0]}, attack="pgd")
    for measure in ("clean", "nrr"):
        first, second = comparison.table[measure].tolist()
        assert math.isnan(first)
        assert second == 1


def test_many_methods_have_one_sentence_and_a_plot_of_both_accuracies() -> None:
    """Correct images of two classes; c has 15 of 20 and 6 of 10, d 14 and 6, a and f are exceeded by c."""
    labels = np.repeat(np.arange(2), 10)

    def audit(ants: int, bees: int) -> Audit:
        predictions = 1 - labels
        predictions[:ants], predictions[10 : 10 + bees] = 0, 1
        return Audit(Outcomes.from_predictions(labels, labels, {"pgd": predictions}, CLASSES[:2]))

    correct = {"a": (5, 5), "b": (10, 5), "c": (9, 6), "d": (8, 6), "e": (7, 7), "f": (5, 9)}
    audits = {name: audit(*counts) for name, counts in correct.items()}
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
    assert not any(cell.good for row in context["table"].rows for cell in row.cells)
    assert "so none is in bold" in context["table"].note
    assert context["headline"].after == " with at and cfa (mean over 3 seeds)"


def test_only_significant_accuracies_are_in_bold() -> None:
    """Numbers of correct images of two classes of 100: worst classes at zero are a tie."""
    labels = np.repeat(np.arange(2), 100)

    def bold(**correct: tuple[int, int]) -> set[tuple[str, str]]:
        audits = {}
        for name, counts in correct.items():
            right = np.arange(200) % 100 < np.repeat(counts, 100)
            audits[name] = Audit(Outcomes.from_predictions(labels, None, {"pgd": np.where(right, labels, 1 - labels)}))
        table = measure_table(compare(audits))
        marked = {
            (row.name, head)
            for row in table.rows
            for head, cell in zip(table.heads[1:], row.cells, strict=True)
            if cell.good
        }
        assert table.latex().count(r"\textbf{") == len(marked)
        assert table.markdown().count("**") == 2 * len(marked)
        assert ("Bold: " in table.note) == bool(marked)
        return marked

    assert bold(at=(0, 100), cfa=(90, 90), ours=(100, 0)) == {("cfa", "overall"), ("cfa", "worst")}
    assert bold(at=(0, 100), cfa=(0, 50), ours=(0, 40)) == {("at", "overall")}
    assert bold(at=(50, 60), cfa=(52, 62)) == set()
    assert bold(at=(0, 0), cfa=(0, 0)) == set()


def test_the_best_of_three_is_named_only_at_the_level_of_two_comparisons() -> None:
    """A difference is significant at 95 %, but not at 97.5 %, the level with two other methods."""
    labels, found = np.repeat(np.arange(2), 50), list[str]()
    for count in range(50):
        low = np.arange(100) % 50 < count
        first, second = np.ones((2, 100), bool)
        second[low] = False
        pairs = PairedCounts.from_labels(labels, first, second, 2)
        ends = [difference_of_minima(pairs, alpha).low for alpha in (0.05, 0.025)]
        if ends[0] > 0 >= ends[1]:
            audits = [
                Audit(
                    Outcomes.from_predictions(labels, None, {"pgd": np.where(right, labels, 1 - labels)}, CLASSES[:2])
                )
                for right in (first, second, second)
            ]
            two, three = (dict(zip(METHODS, audits[:number], strict=False)) for number in (2, 3))
            found = [comparison_context(compare(methods))["headline"].before for methods in (two, three)]
            break
    assert found == [
        "at has the highest worst-class accuracy: ",
        "No worst-class accuracy is significantly above all others; the highest of 3 is ",
    ]
