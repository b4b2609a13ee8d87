"""Verdicts on claims by confidence intervals, corrected for multiple testing, and measurements without a verdict.

A test is conclusive at an error level if its interval excludes zero. Holm's procedure (1979) orders the tests by their
p-values: the i-th of m gets the level alpha / (m - i + 1), and after the first inconclusive test all others are
inconclusive. A claim about printed numbers, or a computation without sampling, is exact and does not count among the m.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from classwise.papers.interval_estimators import IntervalEstimator
from classwise.stats.intervals import Estimate, two_sided_z
from classwise.stats.paired import holm
from classwise.stats.rational import difference

Answer = Literal["supported", "contradicted", "inconclusive", "not tested"]
"""Verdicts on a claim; `classwise.papers.result` adds the level at which it was obtained."""
Basis = Literal["experiment", "computation", "printed numbers"]
"""What a test uses: trained models, a computation without models such as a closed form, or the paper's own numbers."""
Limits = tuple[float, float] | None
CORRELATION = (-1.0, 1.0)
"""The range of a correlation."""
ALPHA = 0.05
_HALVINGS = 30
_LEAST_LEVEL = 1e-9


@dataclass(frozen=True, kw_only=True)
class Tested:
    """What a test and its verdict share.

    Attributes:
        claim: claim id, such as ``kdd21/C8``.
        estimand: description of the estimated quantity; the claim is that it is above zero. Empty if the claim is not
            tested; the note is then the reason.
        unit: unit of the estimate: ``points``, ``%²`` or empty.
        exact: whether there is no sampling error; the interval is then the value itself.
        limits: range of the estimate, such as -1 and 1 for a correlation; intervals are clipped to it.
        note: remark shown with the verdict.
        covers: the tested parts of the claim, named as in `catalogue.claim_parts`, or those that the reason of an
            untested claim is about; empty if the claim has one part.
        basis: what the test uses. A computation and the printed numbers are exact.
        trainings: number of independent trainings (seeds) of each model that the intervals cover, such as those of
            `classwise.stats.seeds`; 1 if the intervals are for fixed models.
    """

    claim: str
    estimand: str
    unit: str = ""
    exact: bool = False
    limits: Limits = None
    note: str = ""
    covers: Sequence[str] = ()
    basis: Basis = "experiment"
    trainings: int = 1


@dataclass(frozen=True, kw_only=True)
class Test(Tested):
    """A test of one claim, or the reason why an experiment does not test it.

    Args:
        estimators: functions from an error level to an estimate with its interval; the claim is that all are above
            zero. "supported" requires all intervals above zero, each at the full level; "contradicted" requires one
            interval below zero, each at its share of the level. Empty if the claim is not tested.
        cifar10: whether the claim names classes of CIFAR-10; on other data it is not tested.

    Example:
        >>> from classwise.papers.claims import Test, evaluate
        >>> from classwise.papers.interval_estimators import interval
        >>> from classwise.stats.intervals import Estimate
        >>> gain = interval(Estimate(2.4, 1.4, 3.4))
        >>> evaluate([Test(claim="cfa23/C11", estimand="gain of the worst class", estimators=[gain])])[0].answer
        'supported'
    """

    __test__ = False  # not a pytest class

    estimators: Sequence[IntervalEstimator] = ()
    unit: str = "points"
    cifar10: bool = False

    def __post_init__(self) -> None:
        if not (self.exact or self.basis == "experiment"):
            raise AssertionError(f"{self.claim}: a computation has no sampling error")
        if not (self.trainings == 1 or (self.trainings > 1 and not self.exact)):
            raise AssertionError(f"{self.claim}: exact tests are for fixed models")

    def decide(self, level: float) -> tuple[Answer, int, int]:
        """Decide the claim at an error level.

        Returns:
            The answer, the index of the deciding estimator, and the number of estimators that share the level.
        """
        full = [self.estimate(place, level) for place in range(len(self.estimators))]
        for place, estimate in enumerate(full):
            if math.isnan(estimate.low) or math.isnan(estimate.high):
                return "inconclusive", place, 1
        lowest = min(range(len(full)), key=lambda place: full[place].low)
        if full[lowest].low > 0:
            return "supported", lowest, 1
        alone = len(full) == 1
        shared = full if alone else [self.estimate(place, level / len(full)) for place in range(len(full))]
        refuting = min(range(len(full)), key=lambda place: shared[place].high)
        if shared[refuting].high < 0 or self.exact:
            return "contradicted", refuting, len(full)
        return ("inconclusive", lowest, 1) if full[lowest].high >= 0 else ("inconclusive", refuting, len(full))

    def estimate(self, place: int, level: float) -> Estimate:
        """The estimate of an estimator; an end that differs from 0 by rounding is 0, since its sign decides."""
        estimate = self.estimators[place](level)
        return estimate._replace(low=float(difference(estimate.low, 0)), high=float(difference(estimate.high, 0)))

    def p_value(self) -> float:
        """Smallest error level with a conclusive answer; 1 if there is none."""

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
class Verdict(Tested):
    """The verdict on a claim, or on parts of it.

    Attributes:
        answer: ``supported``, ``contradicted``, ``inconclusive`` or ``not tested``, by the evidence of this result;
            `classwise.papers.result.verdict_text` qualifies it by the level of the evidence.
        value: estimate, with its interval ``low`` to ``high`` at `level`; NaN if there is no estimate.
        level: error level after Holm's correction.
        shares: number of estimators that share this level.
        p_value: p-value before the correction.
        adjusted: p-value after Holm's correction; NaN without a test, or for an exact claim.
    """

    answer: Answer
    covers: tuple[str, ...] = ()
    value: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    level: float = ALPHA
    shares: int = 1
    p_value: float = float("nan")
    adjusted: float = float("nan")


def not_tested(claim: str, reason: str, *, covers: Iterable[str] = (), cifar10: bool = False) -> Test:
    """A claim that an experiment does not test, with the reason.

    Args:
        claim: claim id.
        reason: why it is not tested; the note of its verdict.
        covers: the parts of the claim that the reason is about; empty for all of them.
        cifar10: as in `Test`.
    """
    return Test(claim=claim, estimand="", note=reason, covers=tuple(covers), cifar10=cifar10)


def unless(reason: str, tests: Sequence[Test]) -> list[Test]:
    """The tests, or their claims as not tested if there is a reason.

    Args:
        reason: why they are not tested; empty if they are.
        tests: tests of claims.
    """
    untested = (not_tested(test.claim, reason, covers=test.covers, cifar10=test.cifar10) for test in tests)
    return list(untested) if reason else list(tests)


def evaluate(tests: Sequence[Test], alpha: float = ALPHA) -> tuple[Verdict, ...]:
    """Evaluate tests with Holm's correction; the family-wise error rate is about ``alpha``.

    A verdict has the interval of the estimator that decides at the p-value of the test, or at ``alpha`` if that is
    smaller; so it does not depend on the other tests.

    Args:
        tests: tests to correct jointly.
        alpha: probability of any wrong conclusive verdict, if the intervals have their nominal level.

    Returns:
        A verdict for each test, in order.
    """
    sampled = [place for place, test in enumerate(tests) if test.estimators and not test.exact]
    p_values = [tests[place].p_value() for place in sampled]
    corrected = dict(zip(sampled, zip(p_values, *_holm(p_values, alpha), strict=True), strict=True))
    exact = (0.0, math.nan, alpha)
    return tuple(_verdict(test, alpha, *corrected.get(place, exact)) for place, test in enumerate(tests))


def correct_jointly(verdicts: Sequence[Verdict], alpha: float = ALPHA) -> tuple[Verdict, ...]:
    """Correct the verdicts of several items by Holm's procedure over all of their claims.

    A test that several items repeat (the same claim, estimand, parts, estimate and p-value) counts once, and has one
    interval, the widest of its items. More tests mean a smaller level for each. An interval is rescaled to its new
    level by normal quantiles; an end at the limit of its range remains there. A verdict is conclusive if its adjusted
    p-value is at most ``alpha`` and its interval excludes zero. Correcting the result again does not change it.

    Args:
        verdicts: verdicts of `evaluate`, such as all of a paper at one scale.
        alpha: probability of any wrong conclusive verdict.
    """
    repeats: dict[tuple[object, ...], list[int]] = {}
    for index, verdict in enumerate(verdicts):
        if not verdict.exact and not math.isnan(verdict.p_value):
            key = (verdict.claim, verdict.estimand, *verdict.covers, verdict.value, verdict.p_value)
            repeats.setdefault(key, []).append(index)
    p_values = [verdicts[places[0]].p_value for places in repeats.values()]
    corrected = list(verdicts)
    for places, adjusted, level in zip(repeats.values(), *_holm(p_values, alpha), strict=True):
        same = [_rescaled(verdicts[place], level) for place in places]
        low, high = min(verdict.low for verdict in same), max(verdict.high for verdict in same)
        answer = _answer(low, high) if adjusted <= alpha else "inconclusive"
        for place, verdict in zip(places, same, strict=True):
            corrected[place] = replace(verdict, low=low, high=high, answer=answer, adjusted=adjusted)
    return tuple(corrected)


def _holm(p_values: Sequence[float], alpha: float) -> tuple[list[float], list[float]]:
    """Holm's adjusted p-values and levels; tests after the first inconclusive one have the level of that one."""
    adjusted = holm(p_values)
    ranks = np.argsort(np.argsort(p_values, kind="stable"))
    levels = alpha / (len(p_values) - np.minimum(ranks, (adjusted <= alpha).sum()))
    return adjusted.tolist(), levels.tolist()


def _answer(low: float, high: float) -> Answer:
    return "supported" if low > 0 else "contradicted" if high < 0 else "inconclusive"


def _rescaled(one: Verdict, level: float) -> Verdict:
    if level == one.level:
        return one
    factor = two_sided_z(level / one.shares) / two_sided_z(one.level / one.shares)
    low, high = one.value - factor * (one.value - one.low), one.value + factor * (one.high - one.value)
    if one.limits is not None:  # how far a clipped end would be from the value is unknown
        low = one.limits[0] if one.low == one.limits[0] else low
        high = one.limits[1] if one.high == one.limits[1] else high
    low, high = _clip(low, high, one.limits)
    return replace(one, low=float(difference(low, 0)), high=float(difference(high, 0)), level=level)


def _clip(low: float, high: float, limits: Limits) -> tuple[float, float]:
    return (low, high) if limits is None else (max(low, limits[0]), min(high, limits[1]))


def _verdict(test: Test, alpha: float, p_value: float, adjusted: float, level: float) -> Verdict:
    if not test.estimators:
        return Verdict(claim=test.claim, answer="not tested", estimand="", note=test.note, covers=tuple(test.covers))
    answer, place, shares = test.decide(level if test.exact else min(p_value, alpha))
    estimate = test.estimate(place, level / shares)
    low, high = _clip(estimate.low, estimate.high, test.limits)
    return Verdict(
        **{field.name: getattr(test, field.name) for field in fields(Tested)} | {"covers": tuple(test.covers)},
        answer=answer if test.exact else _answer(estimate.low, estimate.high),
        value=estimate.value,
        low=low,
        high=high,
        level=level,
        shares=shares,
        p_value=p_value,
        adjusted=adjusted,
    )


IMAGES = "new images of the same classes, with the trained models fixed"
"""Population of intervals over test images."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A measured quantity that informs an open question or a claim; it has no verdict.

    Attributes:
        question: id of the question or claim, such as ``benz20/C10``.
        quantity: description of the quantity.
        value: estimate, with its 95 % interval ``low`` to ``high``; NaN for an unknown end.
        unit: unit of the estimate; empty for a number without unit.
        population: what the interval covers; empty for a count without sampling error.
    """

    question: str
    quantity: str
    value: float
    low: float = math.nan
    high: float = math.nan
    unit: str = ""
    population: str = IMAGES

    @staticmethod
    def of(
        question: str,
        quantity: str,
        estimate: Estimate,
        unit: str = "points",
        population: str = IMAGES,
        limits: tuple[float, float] = (-math.inf, math.inf),
    ) -> Measurement:
        """Create a measurement from an estimate.

        Args:
            question: id of the question.
            quantity: description of the quantity.
            estimate: value with its 95 % interval, in the unit.
            unit: unit of the estimate.
            population: what the interval covers.
            limits: range of the quantity; the interval is clipped to it.

        Example:
            >>> from classwise.papers.claims import Measurement
            >>> from classwise.stats.intervals import Estimate
            >>> one = Measurement.of("benz20/C10", "rank correlation of the classes", Estimate(0.9, 0.7, 1.0), unit="")
            >>> one.value, one.population
            (0.9, 'new images of the same classes, with the trained models fixed')
        """
        value, low, high = estimate
        return Measurement(
            question=question,
            quantity=quantity,
            value=value,
            low=float(max(low, limits[0])),
            high=float(min(high, limits[1])),
            unit=unit,
            population=population,
        )
