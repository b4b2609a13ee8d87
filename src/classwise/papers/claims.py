"""Verdicts on claims: held only where an interval says so, corrected for all the claims that are tested together.

A test is asked at a level: does its interval with that error level lie wholly on one side of zero? Holm's procedure
(1979) goes through the tests from the clearest to the least clear: the i-th of m is asked at alpha / (m - i + 1), and
after the first that cannot tell none is told. A claim that is a fact of printed numbers, or a computation without
sampling, is exact and not among the m.
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
    """One claim and what this run says about it.

    Args:
        claim: the claim's id.
        estimand: what was estimated; the claim is that it is above zero.
        unit: of the estimate: ``points``, ``%²`` or empty.
        parts: each a function from an error level to an estimate with its interval; the claim is that all are above
            zero. With several, each is asked at the whole level for "holds" (all must hold), and at its share of the
            level for "does not hold" (one is enough).
        exact: there is no sampling: the ends of the interval are the value.
        limits: what the estimate cannot leave, such as -1 and 1 for a correlation; intervals are cut there.
        note: what a reader should know.
        covers: the parts of the claim that it tests, as `catalogue.claim_parts` names them; empty: the claim has one.
    """

    __test__ = False  # not one of pytest's

    claim: str
    estimand: str
    parts: Sequence[IntervalEstimator]
    unit: str = "points"
    exact: bool = False
    limits: Limits = None
    note: str = ""
    covers: Sequence[str] = ()

    def at(self, level: float) -> tuple[Answer, Estimate, int]:
        """The answer at an error level, the estimate that decides, and over how many parts it shares the level."""
        whole = [part(level) for part in self.parts]
        for estimate in whole:
            if math.isnan(estimate.low) or math.isnan(estimate.high):
                return "inconclusive", estimate, 1
        lowest = min(whole, key=lambda estimate: estimate.low)
        if lowest.low > 0:
            return "holds", lowest, 1
        shared = [part(level / len(self.parts)) for part in self.parts]
        refuting = min(shared, key=lambda estimate: estimate.high)
        never = self.exact and lowest.low <= 0  # what is known without error and is not above zero does not hold
        if refuting.high < 0 or never:
            return "does not hold", refuting, len(self.parts)
        return ("inconclusive", lowest, 1) if lowest.high >= 0 else ("inconclusive", refuting, len(self.parts))

    def level(self) -> float:
        """The smallest error level at which it can tell: its p-value; 1 if it cannot at any."""
        if self.at(1 - 1e-6)[0] == "inconclusive":
            return 1.0
        low, high = np.log(_LEAST_LEVEL), 0.0
        if self.at(_LEAST_LEVEL)[0] != "inconclusive":
            return _LEAST_LEVEL
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.at(float(np.exp(middle)))[0] != "inconclusive" else (middle, high)
        return float(np.exp(high))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a claim.

    Attributes:
        claim: its id.
        answer: ``holds``, ``does not hold`` or ``inconclusive`` (at this scale).
        estimand: what was estimated.
        value: the estimate; with ``low`` and ``high``, its interval at `level`. NaN where nothing could be estimated.
        unit: of the estimate.
        limits: what neither the value nor the interval can leave; None where nothing limits them.
        level: the error level that Holm's procedure left for it.
        shares: over how many parts this estimate shares that level.
        p_value: before the correction.
        adjusted: the p-value after Holm's correction; NaN where nothing was tested, or the claim is exact.
        exact: there is no sampling.
        note: what a reader should know.
        covers: the parts of the claim that were tested; empty: the claim has one, or nothing was tested.
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


def untestable(claim: str, reason: str) -> Verdict:
    """A claim that a scale cannot speak about, and why."""
    return Verdict(claim=claim, answer="inconclusive", estimand="", note=reason)


def judge(tests: Sequence[Test], alpha: float = ALPHA) -> tuple[Verdict, ...]:
    """A verdict for each claim, in the order given; together they err with probability at most about ``alpha``.

    Args:
        tests: of the claims that are tested together.
        alpha: the probability that any verdict other than "inconclusive" is wrong, as far as the intervals are right.
    """
    p_values = [_LEAST_LEVEL if test.exact else test.level() for test in tests]
    sampled = sorted((index for index, test in enumerate(tests) if not test.exact), key=lambda index: p_values[index])
    verdicts = {index: _verdict(test, alpha, 0.0) for index, test in enumerate(tests) if test.exact}
    stopped = False
    level = alpha
    adjusted = holm([p_values[index] for index in sampled]).tolist()
    for rank, index in enumerate(sampled):
        level = alpha / (len(sampled) - rank) if not stopped else level
        found = replace(_verdict(tests[index], level, p_values[index]), adjusted=adjusted[rank])
        verdicts[index] = replace(found, answer="inconclusive") if stopped else found
        stopped = stopped or found.answer == "inconclusive"
    return tuple(verdicts[index] for index in range(len(tests)))


def together(verdicts: Sequence[Verdict], alpha: float = ALPHA) -> tuple[Verdict, ...]:
    """The verdicts of several items, corrected again by Holm over all of their claims.

    More claims leave each a smaller level: "holds" and "does not hold" can become "inconclusive", never the other way. An
    interval is stretched to its new level by the normal quantiles; of one that is not normal, that can say less than
    its p-value, and then the claim is not told.

    Args:
        verdicts: of `judge`, such as all of a paper at one scale.
        alpha: the probability that any verdict other than "inconclusive" is wrong.
    """
    tested = [place for place, one in enumerate(verdicts) if not one.exact and not math.isnan(one.p_value)]
    p_values = np.array([verdicts[place].p_value for place in tested])
    adjusted = holm(p_values)
    told = int((adjusted <= alpha).sum())
    found = list(verdicts)
    for at, rank in enumerate(p_values.argsort().argsort().tolist()):
        one = verdicts[tested[at]]
        fresh = _stretched(one, alpha / (len(tested) - min(rank, told)))
        said = fresh.low > 0 if one.answer == "holds" else fresh.high < 0
        answer: Answer = one.answer if adjusted[at] <= alpha and said else "inconclusive"
        found[tested[at]] = replace(fresh, answer=answer, adjusted=float(adjusted[at]))
    return tuple(found)


@dataclass(frozen=True)
class Whole:
    """What the runs of some items say about a whole claim.

    Attributes:
        claim: its id.
        asked: the verdicts that estimate something about it, each with its item; without any, those that say why not.
        tested: the parts that were tested.
        untested: the parts that were not. While there are any, the claim has no verdict.
    """

    claim: str
    asked: Sequence[tuple[str, Verdict]]
    tested: Sequence[str]
    untested: Sequence[str]

    @property
    def partly(self) -> bool:
        """Whether some parts were tested and others were not."""
        return bool(self.tested and self.untested)

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answers of the verdicts, each once; none while a part is untested."""
        return () if self.partly else tuple(dict.fromkeys(one.answer for _, one in self.asked))


def whole_claim(claim: str, parts: Sequence[tuple[str, str]], verdicts: Sequence[tuple[str, Verdict]]) -> Whole:
    """Put the verdicts of several items on parts of a claim together.

    Args:
        claim: its id.
        parts: as `catalogue.claim_parts` has them: pairs of a claim and a part of it, empty where it has only one.
        verdicts: of any claims, each with its item.
    """
    asked = [(item, one) for item, one in verdicts if one.claim in {claim, *(known for known, _ in parts)}]
    tests = [(item, one) for item, one in asked if one.estimand]
    covered = {(one.claim, part) for _, one in tests for part in (one.covers or ("",))}
    beyond = [(one, part) for one, part in sorted(covered) if (one, part) not in parts]

    def named(pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
        names = (part if one == claim else f"{one}: {part}" if part else one for one, part in pairs)
        return tuple(name or "the claim" for name in names)

    return Whole(
        claim,
        _without_repeats(tests, asked),
        named([*(pair for pair in parts if pair in covered), *beyond]),
        named([pair for pair in parts if pair not in covered]),
    )


def _without_repeats(
    tests: Sequence[tuple[str, Verdict]], asked: Sequence[tuple[str, Verdict]]
) -> Sequence[tuple[str, Verdict]]:
    """Of an item that estimates something, all verdicts; those of the others only where none estimates anything."""
    items = {item for item, _ in tests}
    return [(item, one) for item, one in asked if item in items or not items]


def _stretched(one: Verdict, level: float) -> Verdict:
    factor = two_sided_z(level / one.shares) / two_sided_z(one.level / one.shares)
    low, high = one.value - factor * (one.value - one.low), one.value + factor * (one.high - one.value)
    low, high = _cut(low, high, one.limits)
    return replace(one, low=low, high=high, level=level)


def _cut(low: float, high: float, limits: Limits) -> tuple[float, float]:
    return (low, high) if limits is None else (max(low, limits[0]), min(high, limits[1]))


def _verdict(test: Test, level: float, p_value: float) -> Verdict:
    answer, estimate, shares = test.at(level)
    low, high = _cut(estimate.low, estimate.high, test.limits)
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
