"""Rational measures of complete counts by their definitions, with fractions, independently of `classwise`."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from fractions import Fraction

from classwise.stats.counts import ClassCounts


def accuracies(counts: ClassCounts) -> list[Fraction]:
    """The accuracies of the classes with images."""
    pairs = zip(counts.correct.tolist(), counts.count.tolist(), strict=True)
    return [Fraction(correct, count) for correct, count in pairs if count]


def total(counts: ClassCounts) -> Fraction:
    """The accuracy over all images."""
    return Fraction(int(counts.correct.sum()), int(counts.count.sum()))


def harmonic(first: Fraction, second: Fraction) -> Fraction:
    """The harmonic mean."""
    return 2 / (1 / first + 1 / second) if first and second else Fraction(0)


EXACT: dict[str, Callable[[ClassCounts, ClassCounts], Fraction]] = {
    "overall": lambda counts, _: total(counts),
    "macro": lambda counts, _: statistics.mean(accuracies(counts)),
    "worst": lambda counts, _: min(accuracies(counts)),
    "worst20": lambda counts, _: statistics.mean(sorted(accuracies(counts))[: -(-len(accuracies(counts)) // 5)]),
    "cv": lambda counts, _: statistics.pvariance(accuracies(counts)),
    "mcd": lambda counts, _: max(accuracies(counts)) - min(accuracies(counts)),
    "nrr": lambda counts, clean: harmonic(total(clean), total(counts)),
    "hmw": lambda counts, _: harmonic(total(counts), min(accuracies(counts))),
}
"""The rational measures of complete counts and of clean counts, independently of `classwise`."""
