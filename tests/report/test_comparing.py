"""Each statement of a comparison, on the page and on the terminal, recomputed from the raw answers."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from classwise.auditing.compare import Comparison, compare
from classwise.auditing.outcomes import Outcomes
from classwise.auditing.result import Audit, Caution
from classwise.cli.comparing import show_comparison
from classwise.report import compare_page
from classwise.report.comparing import comparison_context
from classwise.report.untested import bounds_context, crossing_context

NAMES = ("cat", "dog", "elk")
NUMBER = r"[+−-]?\d+\.\d"


class Generated(NamedTuple):
    comparison: Comparison
    correct: dict[str, np.ndarray]  # (S, N) answers by method
    labels: np.ndarray


@st.composite
def comparisons(draw: st.DrawFn) -> Generated:
    """Two or three methods of one to three seeds on a few images, alike or far apart."""
    classes = draw(st.integers(2, 3))
    labels = np.repeat(np.arange(classes), draw(st.sampled_from([4, 15, 60])))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    correct: dict[str, np.ndarray] = {}
    audits: dict[str, list[Audit]] = {}
    for method in ("at", "cfa", "dafa")[: draw(st.integers(2, 3))]:
        rates = np.array(draw(st.lists(st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]), min_size=classes, max_size=classes)))
        seeds = draw(st.integers(1, 3))
        answers = random.random((seeds, len(labels))) < rates[labels]
        correct[method] = answers
        audits[method] = [
            Audit(
                Outcomes.from_predictions(
                    labels, labels, {"pgd": np.where(right, labels, (labels + 1) % classes)}, NAMES[:classes]
                )
            )
            for right in answers
        ]
    return Generated(compare(audits), correct, labels)


def numbers(text: str) -> list[float]:
    return [float(each.replace("−", "-")) for each in re.findall(NUMBER, text)]


def class_means(correct: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(S, C) accuracies."""
    return np.stack([correct[:, labels == label].mean(axis=1) for label in np.unique(labels)], axis=1)


def mcnemar_of(first: np.ndarray, second: np.ndarray) -> float:
    up, down = int((first & ~second).sum()), int((~first & second).sum())
    return float(stats.binomtest(up, up + down, 0.5).pvalue) if up + down else 1.0


def holm_of(p_values: list[float]) -> list[float]:
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def check_methods(made: Generated, sentences: list[str]) -> None:
    for (name, correct), sentence in zip(made.correct.items(), sentences, strict=True):
        accuracies, seeds = class_means(correct, made.labels), len(correct)
        assert sentence.startswith(f"{name} (one training)" if seeds == 1 else f"{name} (mean over {seeds} seeds)")
        worst, overall = 100 * accuracies.min(axis=1).mean(), 100 * correct.mean()
        found = [float(each) for each in re.findall(r"(\d+\.\d)\u00a0% \(", sentence)]
        assert found == [pytest.approx(worst, abs=0.051), pytest.approx(overall, abs=0.051)]
        lowest = {NAMES[label] for label in np.flatnonzero(accuracies.mean(0) <= accuracies.mean(0).min() + 1e-12)}
        named = re.search(r"worst class (\w+) with" if seeds == 1 else r"; (\w+) has the lowest mean", sentence)
        assert named is not None
        assert named[1] in lowest
        for low, high in re.findall(r"(\d+\.\d)–(\d+\.\d)", sentence):
            assert 0 <= float(low) <= float(high) <= 100


def check_headline(made: Generated, headline: dict[str, str]) -> None:
    """A best method is named only where its worst class is above each other's at the corrected level."""
    worst = {name: class_means(correct, made.labels).min(axis=1).mean() for name, correct in made.correct.items()}
    text = "".join(headline.values())
    best = [name for name in worst if worst[name] >= max(worst.values()) - 1e-12]
    assert any(re.search(rf"\b{name}\b", text) for name in best)
    assert f"{100 * max(worst.values()):.1f}\u00a0%" in text
    level = 0.05 / (len(worst) - 1)
    pairs = [made.comparison.pair(best[0], name, level).minima for name in worst if name != best[0]]
    claims = "has the best" in text
    assert claims == all(pair.low > 0 for pair in pairs)
    assert claims != ("No clear difference" in text)


def check_pair(made: Generated, title: str, sentences: list[str], rows: list[tuple[str, list[str]]]) -> None:
    first, second = title.split(" minus ")
    mine, theirs = made.correct[first], made.correct[second]
    single = len(mine) == len(theirs) == 1
    differences = class_means(mine, made.labels).mean(axis=0) - class_means(theirs, made.labels).mean(axis=0)
    minima = class_means(mine, made.labels).min(axis=1).mean() - class_means(theirs, made.labels).min(axis=1).mean()
    worst, low, high, overall, overall_low, overall_high = numbers(sentences[0].replace("95\u00a0%", ""))[:6]
    assert worst == pytest.approx(100 * minima, abs=0.051)
    assert overall == pytest.approx(100 * (mine.mean() - theirs.mean()), abs=0.051)
    assert low <= worst <= high
    assert overall_low <= overall <= overall_high
    assert f"on {len(made.labels)} images" in sentences[0]
    assert ("exact McNemar test" in sentences[0]) == single
    assert ("t test over seeds and images, not paired" in sentences[0]) == (not single)
    assert "not adjusted for other comparisons" in sentences[0]
    assert [name for name, _ in rows] == list(NAMES[: len(differences)])
    for (_, cells), difference in zip(rows, differences, strict=True):
        assert numbers(cells[1]) == [pytest.approx(100 * difference, abs=0.051)]
    if single:
        exact = [mcnemar_of(mine[0][made.labels == c], theirs[0][made.labels == c]) for c in range(len(differences))]
        check_p(sentences[0], mcnemar_of(mine[0], theirs[0]))
        for (_, cells), raw, adjusted in zip(rows, exact, holm_of(exact), strict=True):
            check_p(f"p {cells[2]}", raw)
            check_p(f"p {cells[3]}", adjusted)
        significant = [NAMES[c] for c, p in enumerate(holm_of(exact)) if p < 0.05]
        assert sentences[1].endswith(
            f": {' and '.join([', '.join(significant[:-1])] * (len(significant) > 1) + significant[-1:]) or 'none'}."
        )
    assert f"correction over {len(differences)}" in sentences[1]
    trained = {len(mine), len(theirs)}
    assert ("not about another training" in sentences[2]) == (trained == {1})
    assert ("new training seeds" in sentences[2]) == (trained != {1})
    for name, runs in ((first, mine), (second, theirs)):
        assert (f"{name} is one training" in sentences[2]) == (len(runs) == 1 and trained != {1})


def check_p(text: str, value: float) -> None:
    found = re.search(r"p (< )?(\d\.\d{3})", text)
    assert found is not None
    if found[1]:
        assert value < 0.001
    else:
        assert float(found[2]) == pytest.approx(value, abs=0.00051)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=comparisons())
def test_every_statement_of_the_page_is_true(made: Generated) -> None:
    context: dict[str, Any] = comparison_context(made.comparison)
    check_headline(made, context["headline"])
    check_methods(made, context["sentences"])
    first, *others = made.correct
    assert [pair["title"] for pair in context["pairs"]] == [f"{name} minus {first}" for name in others]
    for pair in context["pairs"]:
        rows = [(row.name, [cell.text for cell in row.cells]) for row in pair["table"].rows]
        check_pair(made, pair["title"], pair["sentences"], rows)
    worst = {name: class_means(correct, made.labels).min(axis=1).mean() for name, correct in made.correct.items()}
    for row in context["table"].rows:
        assert row.good == (worst[row.name] >= max(worst.values()) - 1e-12)
        assert row.cells[0].text == str(len(made.correct[row.name]))
        assert numbers(row.cells[5].text)[0] == pytest.approx(100 * worst[row.name], abs=0.051)
    for row, label in zip(context["class_table"].rows, range(3), strict=False):
        for cell, correct in zip(row.cells[1:], made.correct.values(), strict=True):
            accuracies = class_means(correct, made.labels)[:, label]
            shown = numbers(cell.text)
            assert shown[0] == pytest.approx(100 * accuracies.mean(), abs=0.051)
            assert len(shown) == (1 if len(correct) == 1 else 2)
            if len(correct) > 1:
                assert shown[1] == pytest.approx(100 * accuracies.std(ddof=1), abs=0.051)
    single = {len(correct) == 1 for correct in made.correct.values()}
    assert ("not about another training" in context["population"]) == (single == {True})


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=comparisons())
def test_every_statement_of_the_terminal_is_true(made: Generated, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    show_comparison(made.comparison)
    lines = capsys.readouterr().out.splitlines()
    for line, (name, correct) in zip(lines[2:], made.correct.items(), strict=False):
        cells = line.split()
        accuracies = class_means(correct, made.labels)
        assert cells[:3] == [name, str(len(correct)), str(len(made.labels))]
        assert float(cells[3]) == 100.0
        assert float(cells[4]) == pytest.approx(100 * correct.mean(), abs=0.051)
        assert float(cells[7]) == pytest.approx(100 * accuracies.min(axis=1).mean(), abs=0.051)
    blocks = "\n".join(lines).split("\n\n")[1:]
    assert len(blocks) == len(made.correct) - 1
    for block, pair in zip(blocks, made.comparison.pairs, strict=True):
        title, overall, worst, classes, population = block.splitlines()
        mine, theirs = made.correct[pair.first], made.correct[pair.second]
        assert title.startswith(f"{pair.first} minus {pair.second}, in points")
        gap = class_means(mine, made.labels).min(axis=1).mean() - class_means(theirs, made.labels).min(axis=1).mean()
        value, low, high = numbers(overall)[:3]
        assert value == pytest.approx(100 * (mine.mean() - theirs.mean()), abs=0.051)
        assert low <= value <= high
        assert numbers(worst)[0] == pytest.approx(100 * gap, abs=0.051)
        single = len(mine) == len(theirs) == 1
        assert ("exact McNemar test" in overall) == single
        assert "not adjusted for other comparisons" in overall
        differences = class_means(mine, made.labels).mean(axis=0) - class_means(theirs, made.labels).mean(axis=0)
        for name, difference in zip(NAMES, differences, strict=False):
            listed = re.search(rf"\b{name} ({NUMBER})", classes)
            assert (listed is not None) == bool(pair.classes["adjusted"][name] < 0.05)
            if listed is not None:
                assert float(listed[1]) == pytest.approx(100 * difference, abs=0.051)
        if single:
            exact = [
                mcnemar_of(mine[0][made.labels == c], theirs[0][made.labels == c]) for c in range(len(differences))
            ]
            assert pair.classes["adjusted"].tolist() == pytest.approx(holm_of(exact))
        assert ("not about another training" in population) == single


def test_a_caution_names_the_run_that_has_it(tmp_path: Path) -> None:
    labels = np.arange(30) % 3
    caution = Caution("zero-gradients", "Half of the gradients are zero.", 0.5)

    def audit(*warnings: Caution) -> Audit:
        return Audit(Outcomes.from_predictions(labels, labels, {"pgd": labels}, NAMES), warnings)

    context = comparison_context(compare({"at": [audit(), audit(caution)], "cfa": [audit(caution), audit(caution)]}))
    (shown,) = context["warnings"]
    assert shown["sentence"] == "at, run 2 of 2 and cfa: Half of the gradients are zero."
    everywhere = comparison_context(compare({"at": audit(caution), "cfa": audit(caution)}))
    assert everywhere["warnings"][0]["sentence"] == caution.sentence


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.2, 1.0]))
def test_bounds_hold_the_truth_and_are_attained(seed: int, share: float) -> None:
    random = np.random.default_rng(seed)
    labels = np.arange(30) % 3
    answers = random.random((2, 30)) < 0.6
    predictions = {name: np.where(right, labels, (labels + 1) % 3) for name, right in zip("pc", answers, strict=True)}
    whole = Outcomes.from_predictions(labels, labels, predictions, NAMES)
    lost = (whole.frame["attack"] == "c") & whole.frame["index"].isin(np.flatnonzero(random.random(30) < share))
    part = Audit(Outcomes(whole.frame[~lost], whole.meta))
    context = bounds_context(Comparison({"a": (Audit(whole),), "b": (part,)}, allow_incomplete=True))
    rows = {row.name: [cell.text for cell in row.cells] for row in context["table"].rows}
    missing = np.isin(np.arange(30), whole.frame["index"][lost])
    ends = []
    for guess in (False, True):
        robust = answers[0] & np.where(missing, guess, answers[1])
        ends.append((robust.mean(), min(robust[labels == c].mean() for c in range(3))))
    assert rows["b"][3] == f"{100 * ends[0][0]:.1f}–{100 * ends[1][0]:.1f}"
    assert rows["b"][4] == f"{100 * ends[0][1]:.1f}–{100 * ends[1][1]:.1f}"
    assert rows["b"][2] == str(30 - int((missing & answers[0]).sum()))
    if missing.any():
        assert any(f"{30 - int(missing.sum())} of 30 images are judged" in each for each in context["sentences"])


def test_a_crossing_shows_the_accuracies_and_no_more(tmp_path: Path) -> None:
    labels = np.arange(60) % 3
    random = np.random.default_rng(0)
    audits = {}
    for name, radius in itertools.product(("at", "cfa"), (1, 2, 4)):
        right = random.random(60) < 1 - 0.2 * radius
        predictions = {"pgd": np.where(right, labels, (labels + 1) % 3)}
        meta: dict[str, Any] = {"threat": f"Linf:{radius}/255", "norm": "Linf"}
        audits[name, radius] = Audit(Outcomes.from_predictions(labels, labels, predictions, NAMES, **meta))
    crossing = compare({name: [audits[name, r] for r in (4, 1, 2)] for name in ("at", "cfa")}, across="threat")
    context = crossing_context(crossing)
    rows = [(row.name, *(cell.text for cell in row.cells)) for row in context["table"].rows]
    expected = [(name, f"Linf:{radius}/255") for name in ("at", "cfa") for radius in (1, 2, 4)]
    assert [row[:2] for row in rows] == expected
    for row, (name, threat) in zip(rows, expected, strict=True):
        summary = audits[name, int(threat[5])].summary.loc["all"]
        assert row[4:] == (f"{100 * summary['overall']:.1f}", summary["worst_class"], f"{100 * summary['worst']:.1f}")
    assert len(context["figures"]) == 2
    text = compare_page(crossing, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Accuracy across the threat, without tests" in text
    assert not re.search(r"\bp[ =<]*0|minus|significant|McNemar", text.partition("<body>")[2])
