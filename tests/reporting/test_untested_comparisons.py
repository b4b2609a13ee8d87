"""Pages without tests, of incomplete audits and across a field, recomputed from the raw outcomes."""

from __future__ import annotations

import itertools
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
from classwise.reporting.facts.untested import crossing_figures, crossing_reason
from classwise.reporting.pages.comparison import _untested

from .random_audits import CLASSES
from .random_comparisons import Compared, is_span, near
from .test_audit_facts import hovers


def _labelled(name: str, number: int, total: int) -> str:
    return f"'{name}'" if total == 1 else f"'{name}' (run {number + 1} of {total})"


@pytest.mark.slow
@settings(max_examples=6, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))
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
            audits[name].append(Audit(Outcomes(frame[~gone[rows, frame["index"]]], whole.meta)))
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
    comparison = Comparison(
        {name: tuple(seeds) for name, seeds in audits.items()}, attack, group, allow_incomplete=True
    )
    assert list(comparison.gaps) == gaps
    if not gaps:
        return
    context = _untested(comparison)
    conditions = "under every attack together" if attack == "all" else f"under {attack}"
    conditions += ", counts cumulative over the cascade" * (cascade and attack != "all")
    assert context["over"] == ["classwise comparison", "40 images", conditions]
    *incomplete, reason = context["sentences"]
    assert [sentence.removesuffix(".") for sentence in incomplete] == gaps
    assert reason.startswith(f"{judged_by_all.sum()} of 40 images are judged in every audit under every compared")
    capsys.readouterr()
    show_result(comparison)
    terminal = capsys.readouterr().out
    assert reason in terminal
    assert f"Bounds of the accuracies, percent, {conditions}" in terminal
    table = context["table"]
    assert table.heads == ["method", "seeds", "n", "judged", "overall", "worst"]
    assert [row.name for row in table.rows] == list(expected)
    for row in table.rows:
        judged, *ends = (np.array(column) for column in zip(*expected[row.name], strict=True))
        texts = [cell.text for cell in row.cells]
        assert texts[:3] == [str(len(expected[row.name])), "40", f"{judged.min():.0f}"]
        for text, (low, high) in zip(texts[3:], (ends[:2], ends[2:]), strict=True):
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
def test_the_page_of_a_crossing_follows_from_the_answers(
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
            right = {attack_name: random.random(60) < 1 - 0.1 * radius for attack_name in ("clean", "pgd", "cw")}
            if cascade:
                right["pgd"] &= right["clean"]
                right["cw"] &= right["pgd"]
            predictions = {
                attack_name: np.where(correct, labels, (labels + 1) % 3) for attack_name, correct in right.items()
            }
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
    context = _untested(crossing)
    conditions = "under every attack together" if attack == "all" else "under cw"
    conditions += ", counts cumulative over the cascade" * (cascade and attack != "all")
    assert context["over"] == ["classwise comparison", "60 images", conditions]
    assert context["sentences"] == [crossing_reason(crossing)]
    assert list(crossing.levels) == ["Linf:1/255", "Linf:4/255"]
    numbers = [len(compared.correct[name]) for (name, _), compared in made.items()]
    assert crossing.population == {
        (True, False): "one training run of each method: intervals cover new images, not new training seeds",
        (False, True): "intervals cover new images and new training seeds",
        (True, True): "intervals cover new images; in rows of several seeds also new training seeds",
    }[min(numbers) == 1, max(numbers) > 1].replace(" of each method" if methods == 1 else "nothing", "")
    table = context["table"]
    noun = "class" if group is None else "site group"
    assert f"{100 - 100 * alpha:g} % interval of the lowest {noun} accuracy, whichever {noun} it is" in table.note
    lowest = "worst class" if group is None else "worst group"
    assert table.heads == ["method", "threat", "seeds", "n", "overall", lowest, "worst"]
    capsys.readouterr()
    show_result(crossing)
    terminal = capsys.readouterr().out
    for row, ((name, radius), compared) in zip(table.rows, made.items(), strict=True):
        values = compared.rows[name]
        level, seeds, images, overall, worst_class, worst = row.cells
        assert (row.name, level.text, seeds.text, images.text) == (
            name,
            f"Linf:{radius}/255",
            str(len(compared.correct[name])),
            "60",
        )
        assert worst_class.text == compared.lowest(name)[0]
        for cell, head in ((overall, "overall"), (worst, "worst")):
            assert near(cell.text, 100 * values[head].value)
            assert is_span(cell.span, values[head])
            assert f"{cell.text} [{cell.span}]" in terminal
    wanted = [("at", "overall", "overall"), ("at", "worst", lowest)]
    if methods > 1:
        wanted = [(name, head, name) for head in ("overall", "worst") for name in audits]
    figures = crossing_figures(crossing)
    assert len(figures) == (1 if methods == 1 else 2)
    lines = [text for figure in figures for text in hovers(figure) if " to " in text]
    for text, (name, head, label) in zip(lines, wanted, strict=True):
        start, _, ends = text.partition(": from ")
        assert start == label
        for end, radius in zip(ends.split(" to "), (1, 4), strict=True):
            assert near(end, 100 * made[name, radius].rows[name][head].value)
