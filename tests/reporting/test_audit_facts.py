"""The facts, tables and figures of an audit's page, recomputed from the raw rows of random outcomes.

Sentences are functions of the facts; `test_prose` shows them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from classwise.auditing.run.result import Audit
from classwise.reporting.facts.audit_summary import AuditSummary
from classwise.reporting.facts.audit_tables import (
    CUMULATIVE_NOTE,
    attack_frame,
    attack_table,
    class_frame,
    class_table,
    own_intervals_note,
)
from classwise.reporting.facts.sentences import AuditFacts
from classwise.reporting.pages.audit import _bars, _confusions, _key_metrics
from classwise.reporting.svg import Drawing, Group
from classwise.reporting.text.audit import worst_line
from classwise.stats.metrics.lowest import minimum

from .random_audits import (
    CLASSES,
    Case,
    cases,
    in_percent,
    join_names,
    lowest_ends,
    pairs_inside,
    percent,
    span,
    usual,
)

RANDOM = settings(max_examples=12, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


def hovers(drawing: Drawing) -> list[str]:
    """Hover texts of a figure."""
    return [mark.title.replace("\u00a0", " ") for mark in drawing.marks if isinstance(mark, Group)]


def cumulative(case: Case, name: str) -> bool:
    return case.audit.outcomes.meta.cascade and name not in {"clean", "all"}


def clean_accuracy_of_clean_errors(case: Case) -> float | None:
    """Clean accuracy of the lowest classes if at least half of their errors are errors on clean images."""
    images = [image for image, unit in case.unit.items() if unit in case.lowest]
    errors = {image for image in images if not case.wins("all")[image]}
    already = {image for image in errors if "clean" in case.right and not case.right["clean"][image]}
    return 1 - len(already) / len(images) if case.attacked and errors and 2 * len(already) >= len(errors) else None


@pytest.mark.slow
@RANDOM
@given(cases())
def test_the_facts_of_an_audit_follow_from_its_rows(case: Case) -> None:
    facts = AuditFacts.of(AuditSummary.of(case.audit))
    wins, cells, shares = case.wins("all").values(), case.cells(), case.shares
    assert (facts.kind, facts.attacked, facts.alpha) == (case.kind, case.attacked, case.alpha)
    assert facts.classes == len(shares)
    assert facts.overall == pytest.approx(sum(wins) / len(wins))
    assert facts.lowest == tuple(case.lowest)
    assert facts.accuracy == min(shares.values())
    assert facts.correct == sum(cells[unit][0] for unit in case.lowest)
    assert facts.images == sum(cells[unit][1] for unit in case.lowest)
    assert facts.clean == pytest.approx(clean_accuracy_of_clean_errors(case))
    assert facts.interval == pytest.approx(lowest_ends(cells.values(), case.alpha))
    assert facts.split == pytest.approx(minimum(case.audit.counts("all"), case.alpha).split, nan_ok=True)
    assert facts.candidates == tuple(sorted(case.candidates, key=lambda unit: (shares[unit], case.units.index(unit))))
    rest = [unit for unit in shares if unit not in case.candidates]
    assert facts.above_candidates == all(any(case.above(unit, low) for low in case.candidates) for unit in rest)
    assert facts.wrong == sum(not right for right in wins)
    errors, inside, chance = pairs_inside(case.first_wrong(case.truth), case.audit.outcomes.class_names)
    assert facts.errors == errors
    if case.audit.outcomes.meta.superclasses is None or not errors:
        assert facts.within is None
    else:
        assert facts.within == pytest.approx((inside / errors, *usual(inside, errors, case.alpha)))
        assert facts.chance == pytest.approx(chance)
    _misclassified(case, facts)
    _asymmetry(case, facts)


def _asymmetry(case: Case, facts: AuditFacts) -> None:
    """The largest difference of two confusion rates, and the shares of the errors into each class."""
    rows, cells = case.first_wrong(case.truth), case.cells()
    if case.kind != "class" or not facts.errors:
        assert facts.asymmetry is None
        assert facts.targets is None
        return
    into = Counter(dict.fromkeys(case.audit.outcomes.class_names, 0))
    for row in rows.values():
        into.update(row)
    assert facts.targets is not None
    assert [into[name] for name in facts.targets.names] == [max(into.values()), min(into.values())]
    assert facts.targets.most.value == pytest.approx(max(into.values()) / facts.errors)
    predicted = {name: cells[name][0] + sum(rows.get(name, {}).values()) for name in cells}
    rates = {
        (one, other): rows.get(one, {}).get(other, 0) / predicted[one]
        for one, other in itertools.permutations([name for name, number in predicted.items() if number], 2)
    }
    gaps = {pair: rate - rates[pair[::-1]] for pair, rate in rates.items()}
    if not gaps or max(gaps.values()) == 0:
        assert facts.asymmetry is None
        return
    assert facts.asymmetry is not None
    assert facts.asymmetry.gap.value == pytest.approx(max(gaps.values()))
    assert gaps[facts.asymmetry.names] == pytest.approx(max(gaps.values()))
    assert facts.asymmetry.rates[0] == pytest.approx(rates[facts.asymmetry.names])


def _misclassified(case: Case, facts: AuditFacts) -> None:
    """The first wrong predictions of the worst class, most frequent first."""
    if case.kind != "class":
        assert facts.misclassified is None
        return
    assert facts.misclassified is not None
    name, (images, shown) = case.lowest[0], facts.misclassified
    row = case.first_wrong(case.truth)[name]
    assert images == case.cells()[name][1]
    assert [other for other, _ in shown] == sorted(row, key=lambda other: (-row[other], CLASSES.index(other)))
    for other, share in shown:
        assert share == pytest.approx((row[other] / images, *usual(row[other], images, case.alpha)))


@pytest.mark.slow
@RANDOM
@given(cases())
def test_the_tables_of_a_page_follow_from_the_rows(case: Case) -> None:
    summary, names = AuditSummary.of(case.audit), case.audit.names
    by_class, by_attack = class_table(summary), attack_table(summary)
    ties = list(case.shares.values()).count(min(case.shares.values()))
    heads = [name + " (cumulative)" * cumulative(case, name) for name in names]
    assert by_class.heads == [case.kind, "n", *heads]
    assert [row.name for row in by_class.rows] == sorted(
        case.shares, key=lambda unit: (case.shares[unit], case.units.index(unit))
    )
    for row in by_class.rows:
        assert row.cells[0].text == f"{case.cells()[row.name][1]:,}"
        assert row.weak == (row.name == case.lowest[0] and ties == 1)
        for name, cell in zip(names, row.cells[1:], strict=True):
            right, images = case.cells(name)[row.name]
            assert cell[:2] == (in_percent(right / images), span(*usual(right, images, case.alpha)))
    absent = [unit for unit in case.units if unit not in case.shares]
    assert (f"Without images: {join_names(absent)}." in by_class.note) == bool(absent)
    assert ("Without images" in by_class.note) == bool(absent)
    cascade = case.audit.outcomes.meta.cascade
    assert {CUMULATIVE_NOTE in table.note for table in (by_class, by_attack)} == {cascade}
    assert bool(own_intervals_note(summary)) == (len(case.shares) > 1)
    assert [row.name for row in by_attack.rows] == heads
    for name, row in zip(names, by_attack.rows, strict=True):
        _row_of_an_attack(case, name, dict(zip(by_attack.heads[1:], row.cells, strict=True)))


def _row_of_an_attack(case: Case, name: str, row: dict[str, Any]) -> None:
    counted = list(case.cells(name).values())
    shares = [right / images for right, images in counted]
    good, total = sum(cell[0] for cell in counted), sum(cell[1] for cell in counted)
    overall, lowest = good / total, min(shares)
    weakest = next(unit for unit, share in zip(case.cells(name), shares, strict=True) if share == lowest)
    clean = sum(case.right["clean"].values()) / total if "clean" in case.right and name != "clean" else None
    assert row["overall"][:2] == (in_percent(overall), span(*usual(good, total, case.alpha)))
    assert row["class mean"].text == in_percent(float(np.mean(shares)))
    assert row["worst class"][:2] == (weakest, f"n {case.cells(name)[weakest][1]}")
    assert row["worst"][:2] == (in_percent(lowest), span(*lowest_ends(counted, case.alpha)))
    assert row["worst 20 %"].text == in_percent(float(np.mean(sorted(shares)[: -(-len(shares) // 5)])))
    assert row["MCD"].text == in_percent(max(shares) - lowest)
    variance = 1e4 * float(np.var(shares))
    assert row["class-wise variance"].text == (f"{variance:.0f}" if variance >= 100 else f"{variance:.1f}")
    assert row["NRR"].text == ("–" if clean is None else in_percent(_harmonic(clean, overall)))
    assert row["HMW"].text == in_percent(_harmonic(overall, lowest))


def _harmonic(first: float, second: float) -> float:
    return 2 * first * second / (first + second) if first + second else 0.0


@pytest.mark.slow
@RANDOM
@given(cases())
def test_the_figures_and_key_metrics_follow_from_the_rows(case: Case) -> None:
    summary, level = AuditSummary.of(case.audit), f"{100 - 100 * case.alpha:g} %"
    kind = "class" if case.kind == "class" else f"{case.kind} group"

    def measured(unit: str, name: str) -> str:
        right, images = case.cells(name)[unit]
        ends = span(*usual(right, images, case.alpha))
        return f"{percent(right / images)} of {images:,} ({level} interval {ends} %)"

    low, high = lowest_ends(case.cells().values(), case.alpha)
    worst = case.lowest[0]
    right, images = case.cells()[worst]
    of_worst = f"{worst}: {percent(right / images)} of {images:,}; "
    of_worst += f"{level} interval of the lowest {kind} accuracy, whichever {kind} it is: {span(low, high)} %"
    ticks = {f"{unit}: {measured(unit, 'all')}" for unit in case.shares if unit != worst}
    assert {*hovers(summary.strip())} == {of_worst, *ticks}
    for names in (summary.main, summary.members):
        assert set(hovers(summary.bars(names)) if names else ()) == {
            f"{unit}, {name}{' (cumulative)' * cumulative(case, name)}: {measured(unit, name)}"
            for name in names
            for unit in case.shares
        }
    assert ("Coloured names" in _bars(summary)["caption"]) == (len(case.candidates) > 1)
    assert (CUMULATIVE_NOTE in _bars(summary)["caption"]) == case.audit.outcomes.meta.cascade
    numbers = {metric.name.replace("\u00a0", " "): metric for metric in _key_metrics(summary)}
    start = "Robust accuracy" if case.attacked else "Clean accuracy"
    wins, shares = case.wins("all").values(), case.shares
    ends = span(*usual(sum(wins), len(wins), case.alpha))
    assert numbers[f"{start}, overall"].value == in_percent(sum(wins) / len(wins))
    assert numbers[f"{start}, overall"].span == f"{ends}, n {len(wins):,}"
    assert numbers["Class discrepancy (MCD)"].value == in_percent(max(shares.values()) - min(shares.values()))
    (best,) = [name for name in numbers if name.startswith("Highest")]
    name, _, more = best.removeprefix(f"Highest {kind} accuracy: ").partition(" (and ")
    highest = [unit for unit in shares if shares[unit] == max(shares.values())]
    assert name in highest
    assert more == (f"{len(highest) - 1} more)" if len(highest) > 1 else "")
    low, high = lowest_ends(((n - right, n) for right, n in case.cells().values()), case.alpha)  # of the error rates
    assert numbers[best].value == in_percent(max(shares.values()))
    assert numbers[best].span == f"{span(1 - high, 1 - low)}, n {case.cells()[name][1]:,}"
    assert ("Clean accuracy, overall" in numbers) == ("clean" in case.right)


@pytest.mark.slow
@RANDOM
@given(cases())
def test_the_confusion_matrices_follow_from_the_rows(case: Case) -> None:
    summary = AuditSummary.of(case.audit)
    first = case.first_wrong(case.truth)
    for name, confusion in summary.confusions.items():
        expected = np.zeros((len(confusion.names),) * 2, int)
        for image, truth in case.truth.items():
            if name != "all" and (predicted := case.predicted[name][image]) is not None:
                expected[CLASSES.index(truth), CLASSES.index(predicted)] += 1
            expected[(CLASSES.index(truth),) * 2] += name == "all" and case.wins("all")[image]
        for truth, row in first.items() if name == "all" else ():
            for predicted, count in row.items():
                expected[CLASSES.index(truth), CLASSES.index(predicted)] += count
        assert np.asarray(confusion.matrix).tolist() == expected.tolist()
        images = [sum(truth == unit for truth in case.truth.values()) for unit in confusion.names]
        assert confusion.images.tolist() == images
        assert confusion.groups == case.audit.outcomes.meta.superclasses
        if np.any(expected):
            for row, column in np.argwhere(expected)[:5]:
                share, count = percent(expected[row, column] / images[row]), expected[row, column]
                end = "classified correctly" if row == column else f"misclassified as {CLASSES[column]}"
                text = f"{CLASSES[row]}: {count} of {images[row]} ({share}) {end}"
                assert text in hovers(summary.matrix(name, "rates"))
    shown = _confusions(case.audit, summary)
    assert len(shown) == 1 or not case.audit.outcomes.meta.cascade
    order = f"by its first incorrect prediction, in the order {join_names(case.attacks)};"
    assert (order in shown[0]["caption"]) == case.attacked
    assert {"Frames mark superclasses." in figure["caption"] for figure in shown} == {
        case.audit.outcomes.meta.superclasses is not None
    }


@pytest.mark.slow
@RANDOM
@given(cases())
def test_the_exported_tables_follow_from_the_rows(case: Case) -> None:
    summary = AuditSummary.of(case.audit)
    classes, attacks = class_frame(summary).set_index(case.kind), attack_frame(summary).set_index("attack")
    for name in case.audit.names:
        column = f"{name}_cumulative" if cumulative(case, name) else name
        assert f"{name}_cumulative" not in classes or cumulative(case, name)
        for unit, (right, images) in case.cells(name).items():
            assert classes.loc[unit, column] == right / images
            ends = tuple(float(classes[f"{column}_{end}"].to_dict()[unit]) for end in ("low", "high"))
            assert ends == pytest.approx(usual(right, images, case.alpha), abs=1e-9)
        assert attacks.loc[name, "overall"] == sum(case.wins(name).values()) / len(case.truth)
        if case.audit.outcomes.meta.cascade:
            assert bool(attacks.loc[name, "cumulative"]) == cumulative(case, name)
    assert classes.index[classes["possibly_worst"].to_numpy(dtype=bool)].tolist() == case.candidates
    assert pd.isna(classes.loc[[unit for unit in case.units if unit not in case.shares], "all"]).all()


@pytest.mark.slow
@RANDOM
@given(cases())
def test_the_line_on_the_worst_class_follows_from_the_rows(case: Case) -> None:
    name, rest = case.lowest[0], [unit for unit in case.candidates if unit not in case.lowest]
    right, images = case.cells()[name]
    low, high = lowest_ends(case.cells().values(), case.alpha)
    clean = clean_accuracy_of_clean_errors(case)
    noun = "class" if case.audit.group is None else f"{case.kind} group"
    parts = [f"worst {noun}: {name}, {in_percent(right / images)} % [{in_percent(low)}, {in_percent(high)}]"]
    parts[0] += f" of {images:,} image{'s' * (images != 1)}"
    parts += [f"tied with {join_names(case.lowest[1:])}"] * (len(case.lowest) > 1)
    of_ties = f" of these {noun}{'e' * (noun == 'class')}s" * (len(case.lowest) > 1)
    parts += [f"clean accuracy{of_ties} {in_percent(clean or 0)} %"] * (clean is not None)
    parts += [f"other candidates: {join_names(rest)}"] * bool(rest)
    assert worst_line(case.audit) == "; ".join(parts)


def test_facts_report_clean_accuracy_if_clean_errors_dominate(make_audit: Any) -> None:
    audit: Audit = make_audit(accuracy=(0.6, 0.7, 0.3, 0.03))
    frame = audit.outcomes.frame.copy()
    cats = (frame["label"] == 3) & (frame["attack"] == "clean") & (frame["index"] >= 312)
    frame.loc[cats, ["correct", "prediction"]] = [False, 0]
    changed = Audit(type(audit.outcomes)(frame, audit.outcomes.meta))
    assert AuditFacts.of(AuditSummary.of(changed)).clean == pytest.approx(0.12)
    assert AuditFacts.of(AuditSummary.of(audit)).clean is None
