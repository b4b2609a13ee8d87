"""Conditions that fail a build."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classwise.auditing.compare.thresholds import Threshold, met
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError

AUDIT = Audit(
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
    ],
)
def test_conditions(text: str, holds: bool) -> None:
    assert Threshold.parse(text).holds(AUDIT) is holds
    assert list(met(AUDIT, [text])) == ([Threshold.parse(text)] if holds else [])


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
    with pytest.raises(ClasswiseError, match=message):
        Threshold.parse(text)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
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
def test_conditions_on_a_class(text: str, holds: bool) -> None:
    assert Threshold.parse(text).holds(AUDIT) is holds


@pytest.mark.parametrize("name", ["cat", "African crane (bird)", "worst", "'quoted'", "it's", "x.low", "cv(all)"])
def test_a_class_of_any_name(name: str) -> None:
    audit = Audit(Outcomes.from_predictions([0, 0, 1], attacks={"pgd": [0, 1, 1]}, class_names=[name, "dog"]))
    threshold = Threshold("accuracy", "pgd", "<", Fraction(51, 100), name)
    assert Threshold.parse(str(threshold)) == threshold
    assert threshold.holds(audit)
    assert not Threshold("accuracy", "pgd", "<", Fraction(1, 2), name).holds(audit)


def test_an_unknown_class_is_refused_with_the_nearest_name() -> None:
    for text, near in (("wurst(all) < 0.2", "worst"), ("cats(all) < 0.2", "cat"), ("__import__('ls') < 1", "known:")):
        with pytest.raises(ClasswiseError, match=rf"unknown measure or class .*{near}"):
            Threshold.parse(text).holds(AUDIT)


def test_a_class_without_images_does_not_pass_a_build() -> None:
    audit = Audit(Outcomes.from_predictions([0, 1], attacks={"pgd": [0, 1]}, class_names=["cat", "dog", "owl"]))
    for text in ("owl(pgd) < 0.2", "owl(pgd).low < 0.2"):
        with pytest.raises(ClasswiseError, match="0 images of this class"):
            Threshold.parse(text).holds(audit)


def test_an_attack_that_was_not_run_does_not_pass_a_build() -> None:
    with pytest.raises(ClasswiseError, match="unknown attack in condition"):
        Threshold.parse("worst(autoattack) < 0.2").holds(AUDIT)


def test_what_is_not_defined_does_not_pass_a_build() -> None:
    bare = Audit(Outcomes.from_predictions([0, 1], attacks={"pgd": [0, 1]}))
    with pytest.raises(ClasswiseError, match="not defined"):
        Threshold.parse("nrr(pgd) < 0.2").holds(bare)


@given(
    st.sampled_from(sorted(Threshold.measures())),
    st.sampled_from(["all", "tpgd[5]", "tpgd-best"]),
    st.sampled_from(["<", "<=", ">", ">="]),
    st.integers(0, 64),
)
def test_a_condition_parses_its_own_text(measure: str, attack: str, comparison: str, limit: int) -> None:
    threshold = Threshold(measure, attack, comparison, Fraction(limit, 64))
    assert Threshold.parse(str(threshold)) == threshold
