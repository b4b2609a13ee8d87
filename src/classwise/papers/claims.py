"""Verdicts on claims by confidence intervals, corrected for multiple testing.

A test asks at an error level whether its interval lies on one side of zero. Holm's procedure (1979) orders the tests by
their p-values: the i-th of m gets the level alpha / (m - i + 1), and after the first inconclusive test all others are
inconclusive. A claim about printed numbers, or a computation without sampling, is exact and is not among the m.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from classwise.stats.interval_estimators import IntervalEstimator
from classwise.stats.intervals import Estimate, two_sided_z
from classwise.stats.paired import holm

Answer = Literal["holds", "does not hold", "inconclusive"]
Limits = tuple[float, float] | None
CORRELATION = (-1.0, 1.0)
"""The limits of a correlation."""
ALPHA = 0.05
_HALVINGS = 30
_LEAST_LEVEL = 1e-9


@dataclass(frozen=True, kw_only=True)
class Test:
    """A test of one claim.

    Args:
        claim: the claim's id.
        estimand: the estimated quantity; the claim is that it is above zero.
        unit: of the estimate: ``points``, ``%²`` or empty.
        estimators: functions from an error level to an estimate with its interval; the claim is that all are above
            zero. "holds" requires all of them, each at the full level; "does not hold" requires one, each at its share
            of the level.
        exact: there is no sampling: the ends of the interval are the value.
        limits: the range of the estimate, such as -1 and 1 for a correlation; intervals are clipped to it.
        note: a remark for the reader.
        covers: the parts of the claim under test, as `catalogue.claim_parts` names them; empty if the claim has one.
    """

    __test__ = False  # not one of pytest's

    claim: str
    estimand: str
    estimators: Sequence[IntervalEstimator]
    unit: str = "points"
    exact: bool = False
    limits: Limits = None
    note: str = ""
    covers: Sequence[str] = ()

    def decide(self, level: float) -> tuple[Answer, Estimate, int]:
        """The answer at an error level, the deciding estimate, and the number of estimators that share the level."""
        full = [estimator(level) for estimator in self.estimators]
        for estimate in full:
            if math.isnan(estimate.low) or math.isnan(estimate.high):
                return "inconclusive", estimate, 1
        lowest = min(full, key=lambda estimate: estimate.low)
        if lowest.low > 0:
            return "holds", lowest, 1
        count = len(self.estimators)
        refuting = min((estimator(level / count) for estimator in self.estimators), key=lambda estimate: estimate.high)
        not_above = self.exact and lowest.low <= 0  # known without error, and not above zero
        if refuting.high < 0 or not_above:
            return "does not hold", refuting, count
        return ("inconclusive", lowest, 1) if lowest.high >= 0 else ("inconclusive", refuting, count)

    def p_value(self) -> float:
        """The smallest error level with a conclusive answer; 1 if there is none."""

        def conclusive(level: float) -> bool:
            return self.decide(level)[0] != "inconclusive"

        if not conclusive(1 - 1e-6):
            return 1.0
        if conclusive(_LEAST_LEVEL):
            return _LEAST_LEVEL
        low, high = np.log(_LEAST_LEVEL), 0.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if conclusive(float(np.exp(middle))) else (middle, high)
        return float(np.exp(high))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a claim, or on parts of it.

    Attributes:
        claim: its id.
        answer: ``holds``, ``does not hold`` or ``inconclusive`` (at this scale).
        estimand: the estimated quantity.
        value: the estimate, with its interval ``low`` to ``high`` at `level`; NaN if there is no estimate.
        unit: of the estimate.
        limits: the range of the value and of the interval; None if unlimited.
        level: the error level after Holm's correction.
        shares: the number of estimators that share this level.
        p_value: before the correction.
        adjusted: the p-value after Holm's correction; NaN without a test, or for an exact claim.
        exact: there is no sampling.
        note: a remark for the reader.
        covers: the parts of the claim under test; empty if the claim has one, or without a test.
    """

    claim: str
    answer: Answer
    estimand: str
    value: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    unit: str = ""
    limits: Limits = None
    level: float = ALPHA
    shares: int = 1
    p_value: float = float("nan")
    adjusted: float = float("nan")
    exact: bool = False
    note: str = ""
    covers: Sequence[str] = ()


def not_tested(claim: str, reason: str) -> Verdict:
    """The verdict on a claim that a scale cannot test, with the reason."""
    return Verdict(claim=claim, answer="inconclusive", estimand="", note=reason)


def evaluate(tests: Sequence[Test], alpha: float = ALPHA) -> tuple[Verdict, ...]:
    """A verdict for each test, in order, with a family-wise error rate of about ``alpha``.

    Args:
        tests: corrected together.
        alpha: the probability that any verdict other than "inconclusive" is wrong, if the intervals have their level.
    """
    p_values = [_LEAST_LEVEL if test.exact else test.p_value() for test in tests]
    sampled = sorted((index for index, test in enumerate(tests) if not test.exact), key=lambda index: p_values[index])
    verdicts = {index: _verdict(test, alpha, 0.0) for index, test in enumerate(tests) if test.exact}
    stopped = False
    level = alpha
    adjusted = holm([p_values[index] for index in sampled]).tolist()
    for rank, index in enumerate(sampled):
        level = alpha / (len(sampled) - rank) if not stopped else level
        verdict = replace(_verdict(tests[index], level, p_values[index]), adjusted=adjusted[rank])
        verdicts[index] = replace(verdict, answer="inconclusive") if stopped else verdict
        stopped = stopped or verdict.answer == "inconclusive"
    return tuple(verdicts[index] for index in range(len(tests)))


def correct_jointly(verdicts: Sequence[Verdict], alpha: float = ALPHA) -> tuple[Verdict, ...]:
    """The verdicts of several items, corrected by Holm's procedure over all of their claims.

    More claims leave a smaller level for each: a conclusive verdict can become "inconclusive", never the other way. An
    interval is stretched to its new level by the normal quantiles. Where that interval includes zero although the
    p-value is small enough, the verdict is "inconclusive".

    Args:
        verdicts: of `evaluate`, such as all of a paper at one scale.
        alpha: the probability that any verdict other than "inconclusive" is wrong.
    """
    tested = [place for place, one in enumerate(verdicts) if not one.exact and not math.isnan(one.p_value)]
    p_values = np.array([verdicts[place].p_value for place in tested])
    adjusted = holm(p_values)
    rejected = int((adjusted <= alpha).sum())
    corrected = list(verdicts)
    for at, rank in enumerate(p_values.argsort().argsort().tolist()):
        one = verdicts[tested[at]]
        stretched = _stretched(one, alpha / (len(tested) - min(rank, rejected)))
        excludes_zero = stretched.low > 0 if one.answer == "holds" else stretched.high < 0
        answer: Answer = one.answer if adjusted[at] <= alpha and excludes_zero else "inconclusive"
        corrected[tested[at]] = replace(stretched, answer=answer, adjusted=float(adjusted[at]))
    return tuple(corrected)


@dataclass(frozen=True)
class ClaimSummary:
    """The verdicts of several items on a claim.

    Attributes:
        claim: its id.
        verdicts: pairs of item and verdict with an estimate; without any, those that give the reason.
        tested: the parts of the claim that were tested.
        untested: the parts that were not. While there are any, the claim has no verdict.
    """

    claim: str
    verdicts: Sequence[tuple[str, Verdict]]
    tested: Sequence[str]
    untested: Sequence[str]

    @property
    def partial(self) -> bool:
        """Whether some parts were tested and others were not."""
        return bool(self.tested and self.untested)

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The distinct answers of the verdicts; none while a part is untested."""
        return () if self.partial else tuple(dict.fromkeys(one.answer for _, one in self.verdicts))


def summarise_claim(
    claim: str, parts: Sequence[tuple[str, str]], verdicts: Sequence[tuple[str, Verdict]]
) -> ClaimSummary:
    """Combine the verdicts of several items on parts of a claim.

    Args:
        claim: its id.
        parts: as `catalogue.claim_parts` has them: pairs of a claim and a part of it, empty where it has only one.
        verdicts: on any claims, each with its item.
    """
    related = [(item, one) for item, one in verdicts if one.claim in {claim, *(known for known, _ in parts)}]
    tests = [(item, one) for item, one in related if one.estimand]
    covered = {(one.claim, part) for _, one in tests for part in (one.covers or ("",))}
    unlisted = [(one, part) for one, part in sorted(covered) if (one, part) not in parts]

    def named(pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
        names = (part if one == claim else f"{one}: {part}" if part else one for one, part in pairs)
        return tuple(name or "the claim" for name in names)

    return ClaimSummary(
        claim,
        _without_repeats(tests, related),
        named([*(pair for pair in parts if pair in covered), *unlisted]),
        named([pair for pair in parts if pair not in covered]),
    )


def _without_repeats(
    tests: Sequence[tuple[str, Verdict]], related: Sequence[tuple[str, Verdict]]
) -> Sequence[tuple[str, Verdict]]:
    """All verdicts of items with an estimate; those of the other items only if no item has one."""
    items = {item for item, _ in tests}
    return [(item, one) for item, one in related if item in items or not items]


def _stretched(one: Verdict, level: float) -> Verdict:
    factor = two_sided_z(level / one.shares) / two_sided_z(one.level / one.shares)
    low, high = one.value - factor * (one.value - one.low), one.value + factor * (one.high - one.value)
    low, high = _clip(low, high, one.limits)
    return replace(one, low=low, high=high, level=level)


def _clip(low: float, high: float, limits: Limits) -> tuple[float, float]:
    return (low, high) if limits is None else (max(low, limits[0]), min(high, limits[1]))


def _verdict(test: Test, level: float, p_value: float) -> Verdict:
    answer, estimate, shares = test.decide(level)
    low, high = _clip(estimate.low, estimate.high, test.limits)
    return Verdict(
        claim=test.claim,
        answer=answer,
        estimand=test.estimand,
        value=estimate.value,
        low=low,
        high=high,
        unit=test.unit,
        limits=test.limits,
        level=level,
        shares=shares,
        p_value=p_value,
        exact=test.exact,
        note=test.note,
        covers=tuple(test.covers),
    )
