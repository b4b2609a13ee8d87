"""Tests of claims as the file of a paper declares them: measures of models, classes or data sets, without code."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import configurable
from classwise.papers.claims import Basis, Limits, Test, not_tested
from classwise.papers.interval_estimators import IntervalEstimator, negative, plus

Measures = Callable[..., IntervalEstimator] | Mapping[str, Callable[..., IntervalEstimator]]
"""Interval estimators by the name of the measure, as functions of what they are measured on."""
Lists = Mapping[str, Any]
"""Values of placeholders, or lists of them."""
_NUMBER = re.compile(r"[\d.]+")
_MEASURE = re.compile(r"(minus )?(.+?)(?: ([+-]) ([\d.]+))?")


@configurable
class DeclaredTest:
    """A test of a claim; its texts may contain placeholders in braces.

    Attributes:
        claim: claim id, such as ``cfa23/C11``.
        estimand: description of the estimated quantity; the claim is that it is above zero.
        parts: a measure followed by what it is measured on, such as ``[worst class, FRL, TRADES + EMA]`` for the
            difference of two models. ``minus`` before a measure changes its sign; ``+ 2`` after it adds two points.
        each: placeholder to its values, or to the name of a list of the experiment: every combination has the parts,
            the last placeholder varying fastest. Of a value that is a list, ``{pair[0]}`` is the first element.
        covers: tested parts of the claim.
        needs: what must not be excluded besides what the parts name.
        lacking: reason of no test where there is nothing to test it on; empty for what the scale does not include.
        unit: as in `classwise.papers.claims.Tested`, and so are the others.
    """

    claim: str
    estimand: str
    parts: tuple[tuple[str, ...], ...]
    each: dict[str, str | tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    covers: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    lacking: str = ""
    unit: str = "points"
    note: str = ""
    limits: Limits = None
    exact: bool = False
    basis: Basis = "experiment"
    cifar10: bool = False

    def combinations(self, lists: Lists) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Each part with the covered parts of the claim, for every combination of the values."""
        values = [lists[value] if isinstance(value, str) else value for value in self.each.values()]
        found = []
        for chosen in itertools.product(*values):
            words = {**lists, **dict(zip(self.each, chosen, strict=True))}
            covers = tuple(text.format(**words) for text in self.covers)
            found += [(tuple(text.format(**words) for text in part), covers) for part in self.parts]
        return found

    def test(self, parts: Sequence[tuple[str, ...]], covers: Sequence[str], measures: Measures, lists: Lists) -> Test:
        """The test of some of the parts."""
        return Test(
            claim=self.claim,
            estimand=self.estimand.format(**lists),
            estimators=[_estimator(measures, *part) for part in parts],
            covers=covers,
            unit=self.unit,
            note=self.note.format(**lists).removeprefix("; "),
            limits=self.limits,
            exact=self.exact,
            basis=self.basis,
            cifar10=self.cifar10,
        )


def declared_tests(
    declared: Sequence[DeclaredTest],
    measures: Measures,
    *,
    lists: Lists | None = None,
    known: Collection[str] | None = None,
    excluded: Mapping[str, str] | None = None,
) -> list[Test]:
    """Tests of the claims, and the claims that are not tested.

    Args:
        declared: the tests.
        measures: interval estimators.
        lists: values of placeholders.
        known: what this scale has, besides numbers; parts on others are left out. None if it has everything.
        excluded: what no test uses, to the reason; parts on it are left out, and the reasons are stated.
    """
    tests, untested, lacking = list[Test](), list[Test](), list[Test]()
    values, no = lists or {}, excluded or {}
    for one in declared:
        found = one.combinations(values)
        named = dict.fromkeys(name for part, _ in found for name in part[1:])
        absent = [name for name in named if known is not None and name not in known and not _NUMBER.fullmatch(name)]
        out = [name for name in dict.fromkeys((*named, *one.needs)) if name in no]
        kept = [pair for pair in found if not {*pair[0][1:]} & {*absent, *out} and not {*one.needs} & {*out}]
        left = dict.fromkeys(part for pair in found if pair not in kept for part in pair[1])
        if kept:
            covers = tuple(dict.fromkeys(part for _, covered in kept for part in covered))
            tests.append(one.test([part for part, _ in kept], covers, measures, values))
        if out:
            reason = "; ".join(dict.fromkeys(no[name].format(", ".join(out)) for name in out))
            untested.append(not_tested(one.claim, reason, covers=left))
        elif not kept:
            reason = one.lacking.format(**values) or f"this scale does not include {', '.join(absent)}"
            lacking.append(not_tested(one.claim, reason, covers=left))
    tested = {test.claim for test in tests}
    return [*tests, *untested, *(test for test in lacking if test.claim not in tested)]


def _estimator(measures: Measures, measure: str, *names: str) -> IntervalEstimator:
    """The estimator of a part; a measure may have a sign and an added number."""
    found = _MEASURE.fullmatch(measure)
    if found is None:
        raise ClasswiseError(
            f"measure {measure!r}: must be the name of a measure, with 'minus' before it or a number of points after "
            "it, such as 'minus gap' or 'gap - 5'"
        )
    minus, plain, sign, points = found.groups()
    estimator = measures(plain, *names) if callable(measures) else measures[plain](*names)
    signed = negative(estimator) if minus else estimator
    return plus(signed, float(sign + points)) if points else signed
