"""Measures of complete counts and of confusions by their definitions, with fractions, independently of `classwise`."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
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


def rates(matrix: Sequence[Sequence[int]]) -> dict[tuple[int, int], Fraction]:
    """The confusion rates of the classes with images."""
    return {
        (label, other): Fraction(cell, sum(row))
        for label, row in enumerate(matrix)
        for other, cell in enumerate(row)
        if sum(row)
    }


def gaps(matrix: Sequence[Sequence[int]]) -> list[Fraction]:
    """The differences of the two rates of each pair of classes with images."""
    found, pairs = rates(matrix), itertools.combinations(range(len(matrix)), 2)
    return [abs(found[i, j] - found[j, i]) for i, j in pairs if (i, j) in found and (j, i) in found]


def errors_into(matrix: Sequence[Sequence[int]]) -> list[int]:
    """The number of errors that are predicted as each class."""
    return [sum(row[place] for label, row in enumerate(matrix) if label != place) for place in range(len(matrix))]


EXACT_OF_CONFUSION: dict[str, Callable[[Sequence[Sequence[int]]], Fraction]] = {
    "asymmetry": lambda matrix: max(gaps(matrix)),
    "target_share": lambda matrix: Fraction(max(errors_into(matrix)), sum(errors_into(matrix))),
}
"""The measures of a confusion matrix, independently of `classwise`."""
