"""Criteria: conditions that fail a build, at and beside equality, and policies that state them before an audit."""

from __future__ import annotations

import dataclasses
import re
import shutil
import statistics
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import classwise as cw
from classwise.auditing.compare.changes import ChangeThreshold
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.criteria.policy import DEFAULT_GUARDS, Policy
from classwise.auditing.criteria.thresholds import COMPARISONS, Condition, Threshold, met
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.reporting.exports.builds import checks_of
from classwise.stats.bounds import BoundedCounts
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import sidak
from classwise.stats.paired import paired_interval
from classwise.stats.rational import as_rational, rational_text
from classwise.stats.registry import MetricInputs, all_metrics
from tests.refusals import check_refused

from ..stats.exact import EXACT, accuracies

AT_EQUALITY = {"<": False, "<=": True, ">": False, ">=": True}
NAMES = ["ant", "bee", "cat", "dog", "eel"]
EPSILON = Fraction(1, 10**18)

Rows = list[tuple[int, int, int]]
"""Of each class: images that are correct under attack, further ones on clean images only, and never."""


def rows(classes: int = 5) -> st.SearchStrategy[Rows]:
    """Numbers of images of some classes, of different sizes."""
    number = st.integers(0, 60)
    sizes = st.tuples(number, number, number).filter(any)
    return st.lists(sizes, min_size=1, max_size=classes)


def audit(rows: Sequence[tuple[int, int, int]], grouped: bool = False) -> Audit:
    """An audit with these numbers of images; ``grouped``: all are of two classes, and the rows are groups."""
    right, clean_only, wrong = np.array(rows).T
    index = np.repeat(np.arange(len(rows)), right + clean_only + wrong)
    labels = index % 2 if grouped else index
    places = np.concatenate([np.arange(sum(row)) for row in rows])
    other = (labels + 1) % len(NAMES)
    attacked = np.where(places < right[index], labels, other)
    clean = np.where(places < (right + clean_only)[index], labels, other)
    outcomes = Outcomes.from_predictions(labels, clean, {"pgd": attacked}, NAMES)
    return Audit(outcomes.add_groups("animal", index, NAMES), group="animal") if grouped else Audit(outcomes)


def counts(rows: Sequence[tuple[int, int, int]], clean: bool = False) -> ClassCounts:
    """The counts of `audit`, without it."""
    table = np.array(rows)
    return ClassCounts(table.sum(axis=1), table[:, : 1 + clean].sum(axis=1))


def values(rows: Rows) -> dict[str, Fraction]:
    """Every rational measure under attack, and the accuracy of each class by its quoted name."""
    measures = {name: measure(counts(rows), counts(rows, clean=True)) for name, measure in EXACT.items()}
    return measures | {f"'{NAMES[label]}'": value for label, value in enumerate(accuracies(counts(rows)))}


def texts(limit: Fraction) -> list[str]:
    """Ways of writing a limit."""
    decimal = rational_text(limit)
    percent = [] if "/" in decimal else [f"{rational_text(100 * limit)}%", f"{rational_text(100 * limit)} %"]
    return [f"{limit.numerator}/{limit.denominator}", decimal, *percent]


@settings(max_examples=10, deadline=None)
@given(rows(), st.booleans())
def test_a_threshold_at_equality(rows: Rows, grouped: bool) -> None:
    result = audit(rows, grouped)
    for measure, value in values(rows).items():
        for comparison, holds in AT_EQUALITY.items():
            for text in texts(value):
                assert Threshold.parse(f"{measure}(pgd) {comparison} {text}").holds(result) is holds, (measure, text)


@settings(max_examples=10, deadline=None)
@given(rows())
def test_a_threshold_beside_equality(rows: Rows) -> None:
    """A limit that differs by less than the rounding of a float decides as it should."""
    result = audit(rows)
    for measure, value in values(rows).items():
        for limit in (value - EPSILON, value + EPSILON):
            if 0 <= limit <= 1:
                for comparison, compare in COMPARISONS.items():
                    condition = Threshold.parse(f"{measure}(pgd) {comparison} {limit}")
                    assert condition.holds(result) is compare(value, limit), (measure, limit)


@settings(max_examples=5, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_a_change_at_equality(data: st.DataObject, first: int, second: int, grouped: bool) -> None:
    """For one seed and for several; the mean over the seeds of each method."""
    sizes = data.draw(st.lists(st.integers(1, 60), min_size=2, max_size=5))

    def run() -> Rows:
        cuts = [sorted(data.draw(st.tuples(*[st.integers(0, size)] * 2))) for size in sizes]
        return [(low, high - low, size - high) for (low, high), size in zip(cuts, sizes, strict=True)]

    runs = {"main": [run() for _ in range(first)], "new": [run() for _ in range(second)]}
    comparison = Comparison({name: tuple(audit(rows, grouped) for rows in those) for name, those in runs.items()},
                            "pgd", "animal" if grouped else None)  # fmt: skip
    means = [
        {measure: statistics.mean(values(rows)[measure] for rows in those) for measure in values(those[0])}
        for those in runs.values()
    ]
    for measure in means[0]:
        change = means[1][measure] - means[0][measure]
        for comparator, holds in AT_EQUALITY.items():
            for text in texts(change):
                condition = ChangeThreshold.parse(f"{measure}(pgd) {comparator} {text}")
                assert condition.holds(comparison, "new") is holds, (measure, text)
        beside = ChangeThreshold.parse(f"{measure}(pgd) < {min(change + EPSILON, Fraction(1))}")
        assert beside.holds(comparison, "new") is (change < 1)


@settings(max_examples=30, deadline=None)
@given(rows(3), st.data())
def test_bounds_at_equality(rows: Rows, data: st.DataObject) -> None:
    """Of an incomplete audit: no completion is below the lower bound, or above the upper one."""
    whole = counts(rows)
    ends = zip(whole.correct.tolist(), whole.count.tolist(), strict=True)
    judged = [data.draw(st.integers(correct, count)) for correct, count in ends]
    bounded, clean = BoundedCounts(whole.count, np.array(judged), whole.correct), BoundedCounts.of(whole)
    for name, metric in all_metrics().items():
        if not metric.rational or metric.bounds is None:
            continue
        low, high = (as_rational(end) for end in metric.possible(MetricInputs(bounded, clean)))
        for comparison, holds in AT_EQUALITY.items():
            at_low, at_high = (Threshold(name, "pgd", comparison, limit) for limit in (low, high))
            if comparison in ("<", ">="):
                assert at_low.met_by(low) is at_low.met_by(high) is holds
            else:
                assert at_high.met_by(low) is at_high.met_by(high) is holds


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("46.4%", "464/1000"), ("46.4 %", "464/1000"), ("0.2", "1/5"), ("1/5", "1/5"), ("1 / 3", "1/3"),
        ("1e-2", "1/100"), ("1E-2", "1/100"), (".5", "1/2"), ("1.", "1"), ("+0.5", "1/2"), ("0", "0"),
        ("100%", "1"), ("2e1%", "1/5"),
        ("0.1000000000000000000000001", f"{10**24 + 1}/{10**25}"), ("1e-30", f"1/{10**30}"),
    ],
)  # fmt: skip
def test_a_limit_is_exact(text: str, limit: str) -> None:
    condition = Threshold.parse(f"worst(all) < {text}")
    assert condition.limit == Fraction(limit)
    assert Threshold.parse(str(condition)) == condition


@pytest.mark.parametrize(
    "text",
    [
        "20%%", "20% %", "%", "% 20", "%20", "5%/2", "1/5%", "20%5", "1/0", "0/0", "1/2/3", "1/-5", "/5", "1/", "0x1",
        "0.2_0", "0_1", "nan", "inf", "-inf", "infinity", "1e", "e1", "1e1e1", "1e999999999", "1e-999999999", "--0.1",
        "+-0.1", "- 0.1", ".", "..5", "0..5", "0. 2", "1 0%", "0,2", "٠.٢", "０.２", "²", "½", "20％", "−0.02", "0.2f",
        "True", "None", "1j", "0.2;", "0.2\0", "(0.2)", "9" * 5000, "0." + "0" * 5000 + "1", "1/" + "9" * 5000,
    ],
)  # fmt: skip
def test_a_limit_that_is_not_a_number(text: str) -> None:
    for kind in (Threshold, ChangeThreshold):
        check_refused(r"must be a number such as 0\.2, 20% or 1/5$", kind.parse, f"worst(all) < {text}")


@given(
    st.sampled_from([Threshold, ChangeThreshold]),
    st.sampled_from(sorted(Threshold.measures())),
    st.sampled_from(["all", "tpgd[5]", "tpgd-best"]),
    st.sampled_from(list(COMPARISONS)),
    st.fractions(0, 1),
)
def test_a_condition_parses_its_own_text(
    kind: type[Condition], measure: str, attack: str, comparison: str, limit: Fraction
) -> None:
    if kind is ChangeThreshold and measure not in ChangeThreshold.measures():
        return
    condition = kind(measure, attack, comparison, max(limit, Fraction(kind.lowest)))
    assert kind.parse(str(condition)) == condition


@given(st.sampled_from(list(COMPARISONS)), st.fractions(0, 1), st.fractions(0, 1))
def test_a_requirement_fails_where_its_text_is_false(comparison: str, limit: Fraction, value: Fraction) -> None:
    condition = Threshold.requirement(f"worst(all) {comparison} {rational_text(limit)}")
    assert condition.met_by(value) is not COMPARISONS[comparison](value, limit)


def compared(first: Sequence[int], second: Sequence[int], clean: Sequence[int]) -> Comparison:
    """100 images of each class, of which these numbers are robust, and those of the second model correct if clean."""
    labels = np.repeat(np.arange(len(first)), 100)

    def predicted(right: Sequence[int]) -> list[int]:
        place = np.tile(np.arange(100), len(right))
        return list(np.where(place < np.repeat(right, 100), labels, (labels + 1) % len(right)))

    names = [f"class-{label}" for label in range(len(first))]
    models = {"old": ([100] * len(first), first), "new": (clean, second)}
    return cw.compare(
        {
            name: Audit(Outcomes.from_predictions(labels, predicted(natural), {"pgd": predicted(robust)}, names))
            for name, (natural, robust) in models.items()
        },
        attack="pgd",
    )


def test_any_is_the_class_nearest_to_the_condition() -> None:
    """A class that falls by 35 points, while the weakest one rises, and another that falls by chance."""
    comparison = compared([40, 80, 70], [43, 45, 68], [100, 100, 60])
    classes = comparison.pair("new", "old").classes
    for text, wanted in {"any(pgd).high < 0": True, "any(pgd).low > 0": False, "any(clean).high < -1/5": True}.items():
        assert ChangeThreshold.parse(text).holds(comparison, "new") is wanted, text
    assert not ChangeThreshold.parse("worst(pgd) < -0.02").holds(comparison, "new")
    assert ChangeThreshold.parse("any(pgd).high < 0").value(comparison, "new") == classes["high"].min()
    assert ChangeThreshold.parse("any(pgd) <= -35%").holds(comparison, "new")
    assert not ChangeThreshold.parse("any(pgd) < -35%").holds(comparison, "new")
    assert ChangeThreshold.parse("any(pgd).high > 0").of_deciding_class(comparison, "new").group == "class-0"
    small = ChangeThreshold.parse("class-2(pgd).high < 0")
    assert not small.holds(comparison, "new")
    with pytest.raises(ClasswiseError, match=r"^condition 'any\(apgd\).high < 0': unknown attack of 'old'"):
        ChangeThreshold.parse("any(apgd).high < 0").holds(comparison, "new")


@pytest.mark.parametrize("condition", ["any(all).high < 0", "any(all).high <= -15%", "overall(all).high < -1/100"])
def test_the_smallest_loss_is_that_of_all_outcomes(condition: str) -> None:
    """Of each number of images lost and gained, the smallest difference whose interval meets the condition."""
    total, right = np.array([20, 12]), np.array([15, 11])
    labels = np.repeat([0, 1], total)
    before = np.concatenate([np.arange(size) < number for size, number in zip(total, right, strict=True)])
    audits = [Audit(Outcomes.from_predictions(labels, np.where(before, labels, 1 - labels), {}))] * 2
    comparison = Comparison({"old": (audits[0],), "new": (dataclasses.replace(audits[1]),)}, attack="clean")
    threshold = ChangeThreshold.parse(condition.replace("(all)", "(clean)"))
    overall = "overall" in condition
    sizes, correct = ([total.sum()], [right.sum()]) if overall else (total, right)
    expected = []
    for size, most in zip(sizes, correct, strict=True):
        lost, gained = (cells.ravel() for cells in np.meshgrid(np.arange(most + 1), np.arange(size - most + 1)))
        high = paired_interval(gained, lost, np.full(lost.shape, size), sidak(0.05, len(sizes))).high
        meets = np.array([threshold.met_by(value) for value in high])
        expected.append(min((lost - gained)[meets], default=np.inf) / size)
    losses = threshold.smallest_losses(comparison, "new")
    assert list(losses) == (["overall"] if overall else ["0", "1"])
    assert list(losses.values()) == pytest.approx(expected)
    assert 0 < min(expected) < 1


def test_the_smallest_loss_of_several_runs_and_of_other_conditions() -> None:
    def audits(*rights: int) -> list[Audit]:
        labels = np.repeat([0, 1], 40)
        places = np.arange(80) % 40
        return [
            Audit(Outcomes.from_predictions(labels, np.where(places < right, labels, 1 - labels), {}, ["cat", "dog"]))
            for right in rights
        ]

    same, spread = (
        cw.compare({"old": audits(*old), "new": audits(*new)}, attack="clean")
        for old, new in (((30, 31, 32), (30, 32, 33)), ((20, 30, 40), (30, 32, 33)))
    )
    for text in ("cat(clean).high < 0.3", "overall(clean).high < 0.3", "worst(clean).high < 0.3"):
        threshold = ChangeThreshold.parse(text)
        (one,), (other,) = (threshold.smallest_losses(runs, "new").values() for runs in (same, spread))
        assert 0 <= one < other <= 1, text
    assert ChangeThreshold.parse("dog(clean).high < -95%").smallest_losses(same, "new") == {"dog": np.inf}
    assert ChangeThreshold.parse("any(clean).low < -0.01").smallest_losses(same, "new") == {"cat": 0, "dog": 0}
    for text in ("any(clean).high > 0", "any(clean) < 0", "worst(clean) < 0"):
        assert ChangeThreshold.parse(text).smallest_losses(same, "new") == {}


@given(rows(), st.fractions(0, 1), st.sampled_from(["", ".low"]), st.sampled_from(["<", "<="]))
def test_a_limit_on_the_worst_class_is_one_on_each(rows: Rows, limit: Fraction, end: str, comparison: str) -> None:
    threshold = Threshold.parse(f"worst(pgd){end} {comparison} {rational_text(limit)}")
    result = audit(rows)
    parts = threshold.parts(result).values()
    assert len(parts) == sum(any(row) for row in rows)
    assert any(part.holds(result) for part in parts) == threshold.holds(result)
    assert min(part.value(result) for part in parts) == pytest.approx(threshold.value(result))


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_float_is_read_as_the_fraction_that_rounds_to_it(numerator: int, denominator: int) -> None:
    limit = Fraction(numerator, denominator)
    if limit <= 1:
        assert as_rational(float(limit)) == limit
        assert Threshold("worst", "all", "<", numerator / denominator).limit == limit  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), "0.2", None, True])
def test_a_limit_must_be_a_finite_number(limit: object) -> None:
    check_refused("must be a finite number", Threshold, "worst", "all", "<", limit)


@given(st.fractions(0, 1, max_denominator=1000), st.integers(-(10**9), 10**9))
def test_the_printed_value_is_on_the_same_side_of_the_limit(limit: Fraction, step: int) -> None:
    condition, value = Threshold("worst", "all", "<", limit), limit + Fraction(step, 10**14)
    shown = Fraction(condition.shown(value).removesuffix(" %")) / 100
    assert (shown < limit) is (value < limit) or value == limit
    assert (shown > limit) is (value > limit) or value == limit


def test_interval_ends_have_a_tolerance() -> None:
    condition = Threshold("worst.low", "all", "<", Fraction(3, 10))
    assert not condition.met_by(0.3 - 1e-13)
    assert not condition.met_by(0.1 + 0.2)
    assert condition.met_by(0.3 - 1e-7)
    result = audit([(7, 0, 13), (12, 0, 8)])
    for measure in ("overall.low", "overall.high", "worst.low", "worst.high", "worst.split"):
        name, _, end = measure.partition(".")
        value = all_metrics()[name].ends[end](result.bounds("pgd"), 0.05).low
        for comparison, holds in AT_EQUALITY.items():
            for near in (value, value * (1 + 1e-15), value * (1 - 1e-15)):
                condition = Threshold.parse(f"{name}(pgd).{end} {comparison} {near!r}")
                assert condition.holds(result) is holds, condition


def test_build_servers_see_a_pass_at_equality() -> None:
    result = audit([(58, 0, 67), (116, 0, 134)])
    conditions = ["overall(pgd) < 46.4%", "worst(pgd) < 0.464", "macro(pgd) > 58/125", "mcd(pgd) > 0"]
    checks = checks_of(result, {text: Threshold.parse(text) for text in conditions})
    assert {check.status for check in checks} == {"passed"}
    assert "is 46.4 % (375 images; 95 % interval 41.4–51.5 %); required: at least 46.4 %" in checks[0].message
    assert "is 46.4 % (" in checks[-2].message
    assert checks[-2].message.endswith("; required: at most 46.4 %")
    (check,) = checks_of(result, {"": Threshold.parse("overall(pgd) < 0.46400001")})
    assert check.status == "failed"
    assert check.message.startswith("overall under pgd is 46.4 % (")
    assert check.message.endswith("; required: at least 46.400001 %")


CATS_AND_DOGS = Audit(
    Outcomes.from_predictions(
        [0] * 10 + [1] * 40, [0] * 10 + [1] * 40, {"pgd": [0] * 3 + [1] * 7 + [1] * 20 + [0] * 20}, ["cat", "dog"]
    )
)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("worst(pgd) < 0.31", True),
        ("worst(pgd) < 0.3", False),
        ("worst(all) <= 0.3", True),
        ("worst(all) < 30 %", False),
        ("worst(all)<=3/10", True),
        ("overall(pgd) < 0.5", True),
        ("overall(clean) < 1", False),
        ("overall(pgd).low < 0.4", True),
        ("overall(pgd).high < 0.61", True),
        ("worst(all).low < 0.067", True),
        ("worst(all).low > 0.066", True),  # of 3 in 10 images; corrected for two classes it would be below 0.06
        ("worst(all).split > 0.3", True),
        (" mcd( all ) > 0.19 ", True),
        ("mcd(all) > 19%", True),
        ("cv(all) >= 0.02", False),
        ("worst20(pgd) < 0.4", True),
        ("cat(pgd) < 0.31", True),
        ("cat(pgd) < 0.3", False),
        ("'dog'(all) <= 50 %", True),
        ("dog(clean) < 1", False),
        ("cat(pgd).low < 0.1", True),  # Clopper-Pearson of 3 in 10: 0.067 to 0.652
        ("cat(pgd).low < 0.06", False),
        ("cat(pgd).high > 0.65", True),
        ("cat(pgd).high > 0.66", False),
    ],
)
def test_conditions(text: str, holds: bool) -> None:
    assert Threshold.parse(text).holds(CATS_AND_DOGS) is holds
    assert list(met(CATS_AND_DOGS, [text])) == ([Threshold.parse(text)] if holds else [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worst(all)", "must have the form"),
        ("worst < 0.2", "must have the form"),
        ("__import__('os').system('ls').x < 1", "unknown end of the interval .* 'x'; known: high, low"),
        ("(all) < 0.2", "must have the form"),
        ("mcd(all).low < 0.2", "unknown measure"),
        ("worst(all) < much", "'much' must be a number"),
        ("worst(all) < nan", "must be a number"),
        ("worst(all) < 1/0", "must be a number"),
        ("mcd(all) > 20", "limit 20 must be between 0 and 1; write 0.2 or 20%"),
        ("worst(all) < 101%", "limit 101% must be between 0 and 1"),
        ("worst(all) > -0.1", "limit -0.1 must be between 0 and 1"),
        ("cv(all) > 900", "a cv of 900 in the tables is 0.09"),
    ],
)
def test_bad_conditions_are_one_line(text: str, message: str) -> None:
    check_refused(message, Threshold.parse, text)


@pytest.mark.parametrize("name", ["cat", "African crane (bird)", "worst", "'quoted'", "it's", "x.low", "cv(all)"])
def test_a_class_of_any_name(name: str) -> None:
    audit = Audit(Outcomes.from_predictions([0, 0, 1], attacks={"pgd": [0, 1, 1]}, class_names=[name, "dog"]))
    threshold = Threshold("accuracy", "pgd", "<", Fraction(51, 100), name)
    assert Threshold.parse(str(threshold)) == threshold
    assert threshold.holds(audit)
    assert not Threshold("accuracy", "pgd", "<", Fraction(1, 2), name).holds(audit)


BARE = Audit(Outcomes.from_predictions([0, 1], attacks={"pgd": [0, 1]}, class_names=["cat", "dog", "owl"]))


@pytest.mark.parametrize(
    ("audit", "text", "message"),
    [
        (CATS_AND_DOGS, "wurst(all) < 0.2", "unknown measure or class .*worst"),
        (CATS_AND_DOGS, "cats(all) < 0.2", "unknown measure or class .*cat"),
        (CATS_AND_DOGS, "__import__('ls') < 1", "unknown measure or class .*known:"),
        (CATS_AND_DOGS, "worst(autoattack) < 0.2", "unknown attack in condition"),
        (BARE, "owl(pgd) < 0.2", "0 images of this class"),
        (BARE, "owl(pgd).low < 0.2", "0 images of this class"),
        (BARE, "nrr(pgd) < 0.2", "not defined"),
    ],
)
def test_what_an_audit_does_not_have_does_not_pass_a_build(audit: Audit, text: str, message: str) -> None:
    check_refused(message, Threshold.parse(text).holds, audit)


POLICY: dict[str, Any] = {
    "title": "Two classes",
    "intended_use": "a test",
    "operating_domain": "random images",
    "threat_model": {
        "goal": "any other class",
        "knowledge": "white-box",
        "capability": "change every pixel",
        "radius": "Linf:0.1",
        "why": "it is small",
    },
    "model": {"architecture": "linear", "size": "34 parameters", "provenance": "random weights"},
    "data": {
        "source": "generated",
        "licence": "none",
        "sampling": "uniform",
        "split": "any",
        "digest": "any",
        "images": 2,
        "images_per_class": 0,
    },
    "attacks": ["fgsm"],
    "guards": [],
    "precision": "float32",
    "fail_if": ["overall(all) < 0.9", "'1'(all).low < 1%"],
    "limits": ["Only Linf perturbations."],
    "validity": {"until": "2027-12-31", "retest_if": ["new weights"]},
}


def written(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump(POLICY | changes, sort_keys=False))
    return path


def audited_pairs(out: Path | None, policy: Path | None = None, *, resume: bool = False, **options: Any) -> cw.Audit:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    x, y = torch.rand(40, 1, 4, 4), torch.arange(40) % 2
    options = {"attacks": ["fgsm"], "guards": "off", "precision": POLICY["precision"]} | options
    return cw.audit(model, (x, y), "Linf:0.1", out=out, policy=policy, resume=resume, **options)


def test_a_criterion_names_a_group_of_the_audit(tmp_path: Path) -> None:
    sites = ["north", "south"] * 20
    file = written(tmp_path / "policy.yaml", fail_if=["north(all) < 0.1", "worst(all) < 0.1"])
    audit = audited_pairs(tmp_path / "a", file, group=sites)
    assert audit.outcomes.meta.policy == Policy.read(file).digest
    check_refused(
        r"unknown measure or class in condition .*; known: .*north",
        audited_pairs,
        None,
        written(tmp_path / "other.yaml"),
        group=sites,
    )


def test_the_digest_is_recorded_at_the_start_and_in_every_file(tmp_path: Path) -> None:
    file = written(tmp_path / "policy.yaml")
    digest = Policy.read(file).digest
    stopped = audited_pairs(tmp_path / "a", file, max_time=1e-9)
    assert not len(stopped.outcomes.frame)
    assert '"policy": "' + digest in (tmp_path / "a" / "audit.json").read_text()
    assert audited_pairs(tmp_path / "a", resume=True).outcomes.meta.policy == digest
    assert cw.Audit.load(tmp_path / "a").outcomes.meta.policy == digest
    made = audited_pairs(None, file, precision=None).outcomes.meta
    assert (made.policy, made.precision["dtype"]) == (digest, POLICY["precision"])  # on every processor


def test_a_policy_given_to_a_resumed_audit_is_not_recorded(tmp_path: Path) -> None:
    audited_pairs(tmp_path / "a", max_time=1e-9)
    resumed = audited_pairs(tmp_path / "a", written(tmp_path / "policy.yaml"), resume=True)
    assert resumed.outcomes.meta.policy is None
    first, other = written(tmp_path / "first.yaml"), written(tmp_path / "other.yaml", title="Other")
    audited_pairs(tmp_path / "deep" / "b", first, max_time=1e-9)
    resumed = audited_pairs(tmp_path / "deep" / "b", other, resume=True)
    assert resumed.outcomes.meta.policy == Policy.read(first).digest


def test_a_policy_is_not_recorded_after_another_audit_of_the_same_model(tmp_path: Path) -> None:
    file = written(tmp_path / "policy.yaml")
    audited_pairs(tmp_path / "a" / "first", file)
    assert audited_pairs(tmp_path / "a" / "second", file, seed=1).outcomes.meta.policy is not None
    audited_pairs(tmp_path / "b" / "first")
    assert audited_pairs(tmp_path / "b" / "second", file, seed=1).outcomes.meta.policy is None


def test_copied_outcomes_have_no_policy(tmp_path: Path) -> None:
    file = written(tmp_path / "policy.yaml")
    audited_pairs(tmp_path / "without")
    audited_pairs(tmp_path / "deep" / "with", file, max_time=1e-9)
    shutil.copytree(tmp_path / "without" / "outcomes", tmp_path / "deep" / "with" / "outcomes", dirs_exist_ok=True)
    assert cw.Audit.load(tmp_path / "deep" / "with").outcomes.meta.policy is None
    audited_pairs(tmp_path / "deeper" / "with", file)
    shutil.copytree(tmp_path / "deeper" / "with" / "outcomes", tmp_path / "without" / "outcomes", dirs_exist_ok=True)
    assert cw.Audit.load(tmp_path / "without").outcomes.meta.policy is None


def test_a_merge_records_the_policy_of_all_shards(tmp_path: Path) -> None:
    file = written(tmp_path / "policy.yaml")
    for folder, policies in (("same", (file, file)), ("mixed", (file, None))):
        for number, policy in enumerate(policies):
            out = tmp_path / folder / "shards" / f"00{number + 1}-of-002"
            audited_pairs(out, policy, shard=f"{number + 1}/2")
        merged = audited_pairs(tmp_path / folder, file, shards=2)
        assert (merged.outcomes.meta.policy is not None) == (folder == "same")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"titel": "x"}, "titel"),
        ({"title": " "}, "title"),
        ({"fail_if": []}, "fail_if"),
        ({"fail_if": ["worst < 2"]}, "must have the form"),
        ({"fail_if": ["worst(all) < 0.2"] * 2}, "occurs twice"),
        ({"digest": "0"}, "computed from the file"),
        ({"validity": {"until": "2027-12-31"}}, r"policy\.yaml': validity\.retest_if is missing$"),
        ({"threat_model": POLICY["threat_model"] | {"radius": "Linf:x"}}, "Linf:x"),
    ],
)
def test_invalid_policies_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    check_refused(message, Policy.read, written(tmp_path / "policy.yaml", **changes))


@pytest.mark.parametrize("content", [b"- a list", b"\xff", b"a: [", None])
def test_files_that_are_no_policy_are_refused(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "policy.yaml").write_bytes(content)
    with pytest.raises(ClasswiseError, match="policy") as caught:
        Policy.read(tmp_path / "policy.yaml")
    assert "Errno" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threat_model": POLICY["threat_model"] | {"radius": "Linf:0.2"}}, "states the threat Linf:51/255"),
        ({"fail_if": ["worst(pgd) < 0.2"]}, "unknown attack in condition"),
        ({"fail_if": ["cat(all) < 0.2"]}, "cat"),
    ],
)
def test_policies_that_do_not_fit_the_audit_are_refused_first(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = written(tmp_path / "policy.yaml", **changes)
    check_refused(message, audited_pairs, tmp_path / "a", file)
    assert not (tmp_path / "a").exists()


def test_the_page_on_policies_names_the_default_guards() -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "evidence.md").read_text(encoding="utf-8")
    (row,) = [line for line in text.splitlines() if line.startswith("| `guards` |")]
    named, _, others = row.partition("Others, such as ")
    assert {*re.findall(r"`([\w-]+)`", named)} - {"guards", "default"} == {*DEFAULT_GUARDS}
    assert {*re.findall(r"`([\w-]+)`", others)} & {*DEFAULT_GUARDS} == set()
