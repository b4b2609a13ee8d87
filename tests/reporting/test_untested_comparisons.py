"""Pages without tests, of incomplete audits and across a field, recomputed from the raw outcomes."""

from __future__ import annotations

import itertools
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from classwise.auditing.compare.compare import Crossing, compare
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.cli.console import show_result
from classwise.reporting import report
from classwise.reporting.untested import crossing_context

from .comparison_statements import is_span, lowest_name, near
from .comparisons import Compared
from .statements import CLASSES
from .test_statements import Texts


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
    show_result(comparison)
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
        f"{population} Beside worst: {lowest_name(alpha, group)}. With several seeds: mean over seeds; the worst class "
        "is the class with the lowest mean (the first one if several are equal). No tests are computed."
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
    show_result(crossing)
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
