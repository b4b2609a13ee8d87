"""Harmonic means of two accuracies: NRR of clean and robust accuracy, HMW of overall and worst-class accuracy."""

from __future__ import annotations

from fractions import Fraction
from typing import TypeVar

from classwise.core.settings.arguments import checked
from classwise.stats.bounds import BoundedCounts, Bounds
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import Estimate, sidak
from classwise.stats.metrics.averages import overall_bounds, overall_estimate, overall_micro
from classwise.stats.metrics.lowest import worst_bounds, worst_class, worst_estimate
from classwise.stats.registry import Metric

Number = TypeVar("Number", Fraction, float)


@checked
def harmonic_mean(first: Number, second: Number) -> Number:
    """The harmonic mean of two numbers of at least 0; 0 if either is 0."""
    total = first + second
    return 2 * first * second / total if total else total


@checked
def nrr(clean: float, robust: float) -> float:
    """NRR: the harmonic mean of clean and robust accuracy; 0 if either is 0.

    Example:
        >>> from classwise import metrics
        >>> round(metrics.nrr(clean=0.8, robust=0.4), 3)
        0.533
    """
    return harmonic_mean(clean, robust)


@checked
def hmw(overall: float, worst: float) -> float:
    """HMW: the harmonic mean of overall and worst-class accuracy; 0 if either is 0.

    Example:
        >>> from classwise import metrics
        >>> round(metrics.hmw(overall=0.5, worst=0.2), 3)
        0.286
    """
    return harmonic_mean(overall, worst)


def nrr_estimate(clean: ClassCounts, robust: ClassCounts, alpha: float = 0.05) -> Estimate:
    """NRR: the harmonic mean of clean and robust overall accuracy, from simultaneous intervals."""
    level = sidak(alpha, 2)
    return Estimate(*map(harmonic_mean, overall_estimate(clean, level), overall_estimate(robust, level)))


def nrr_bounds(clean: BoundedCounts, robust: BoundedCounts) -> Bounds[Fraction]:
    """Bounds of the harmonic mean of clean and robust overall accuracy."""
    return Bounds(*map(harmonic_mean, overall_bounds(clean), overall_bounds(robust)))


NRR = Metric(
    "nrr",
    lambda clean, robust: nrr(overall_micro(clean), overall_micro(robust)),
    title="NRR",
    about="harmonic mean of clean and robust accuracy",
    reads="clean and counts",
    rational=True,
    interval=nrr_estimate,
    bounds=nrr_bounds,
)


def hmw_estimate(counts: ClassCounts, alpha: float = 0.05) -> Estimate:
    """HMW: the harmonic mean of overall and worst-class accuracy, from simultaneous intervals."""
    level = sidak(alpha, 2)
    return Estimate(*map(harmonic_mean, overall_estimate(counts, level), worst_estimate(counts, level)))


def hmw_bounds(counts: BoundedCounts) -> Bounds[Fraction]:
    """Bounds of the harmonic mean of overall and worst-class accuracy."""
    return Bounds(*map(harmonic_mean, overall_bounds(counts), worst_bounds(counts)))


HMW = Metric(
    "hmw",
    lambda counts: hmw(overall_micro(counts), worst_class(counts.accuracy).accuracy),
    title="HMW",
    about="harmonic mean of overall and worst-class accuracy",
    rational=True,
    interval=hmw_estimate,
    bounds=hmw_bounds,
)
