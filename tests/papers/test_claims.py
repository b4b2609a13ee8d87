"""Verdicts: only what an adjusted interval says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from classwise.papers.claims import Answer, Test, exactly, judge, untestable
from classwise.stats.intervals import Estimate, two_sided_z
from classwise.stats.paired import holm


def normal(value: float, error: float = 1.0) -> Callable[[float], Estimate]:
    def at(level: float) -> Estimate:
        reach = two_sided_z(level) * error
        return Estimate(value, value - reach, value + reach)

    return at


def claim(*values: float) -> Test:
    return Test(claim="kdd21/C1", estimand="a number", parts=[normal(value) for value in values])


@pytest.mark.parametrize(("value", "answer"), [(2.5, "holds"), (-2.5, "does not"), (1.5, "cannot tell")])
def test_one_claim(value: float, answer: Answer) -> None:
    (verdict,) = judge([claim(value)])
    assert verdict.answer == answer
    assert verdict.value == value
    assert (verdict.low, verdict.high) == pytest.approx((value - 1.96, value + 1.96), abs=1e-3)
    assert verdict.p_value == pytest.approx(2 * stats.norm.sf(abs(value)), rel=1e-4)


def test_holm_is_that_of_the_statistics() -> None:
    """Random families: told exactly where Holm's adjusted p-value is at most 0.05."""
    random = np.random.default_rng(0)
    for _ in range(40):
        values = random.normal(0, 2.5, size=6)
        adjusted = holm(2 * stats.norm.sf(np.abs(values)))
        verdicts = judge([claim(float(value)) for value in values])
        assert [verdict.answer != "cannot tell" for verdict in verdicts] == (adjusted <= 0.05).tolist()


def test_family_of_true_nulls_is_rarely_told() -> None:
    random = np.random.default_rng(1)
    told = [
        any(verdict.answer != "cannot tell" for verdict in judge([claim(float(v)) for v in random.normal(size=5)]))
        for _ in range(300)
    ]
    assert np.mean(told) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_several_parts_must_all_hold() -> None:
    assert judge([claim(3, 4)])[0].answer == "holds"
    verdict = judge([claim(3, 1)])[0]
    assert (verdict.answer, verdict.value) == ("cannot tell", 1)
    verdict = judge([claim(5, -3)])[0]
    assert (verdict.answer, verdict.value) == ("does not", -3)
    # -2.1 is below zero at 0.05, but not at half of that, which each of two has.
    assert judge([claim(-2.1)])[0].answer == "does not"
    assert judge([claim(5, -2.1)])[0].answer == "cannot tell"


def test_exact_claims_are_not_counted_among_the_tested() -> None:
    exact = Test(claim="cfa23/C1", estimand="a fact", parts=[exactly(1.0)], exact=True)
    false = Test(claim="cfa23/C2", estimand="a fact", parts=[exactly(0.0)], exact=True)
    verdicts = judge([exact, claim(2.0), false])
    assert [verdict.answer for verdict in verdicts] == ["holds", "holds", "does not"]
    assert verdicts[1].level == 0.05


def test_what_cannot_be_tested_says_why() -> None:
    verdict = untestable("kdd21/C8", "no cats here")
    assert (verdict.answer, verdict.note) == ("cannot tell", "no cats here")
    assert np.isnan(verdict.value)
