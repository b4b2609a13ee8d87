"""Numbers and names as people read them: accuracies in percent, class variance in percent squared."""

from __future__ import annotations

import math
from collections.abc import Sequence

NONE = "–"
"""Stands for a number that is not there."""
NO_INTERVAL = "no interval"
"""In place of an interval, where too little is known for one."""


def percent(share: float, digits: int = 1) -> str:
    """A fraction in percent, with a no-break space: ``14.2 %``.

    What is neither 0 nor 1 is not printed as 0 or 100: ``< 0.1 %``, ``> 99.9 %``.
    """
    if math.isnan(share):
        return NONE
    text, step = f"{100 * share:.{digits}f}", 10.0**-digits
    if 0 < share < 1 and float(text) in {0, 100}:
        text = f"< {step:.{digits}f}" if share < 0.5 else f"> {100 - step:.{digits}f}"
    return f"{text}\u00a0%"


def bare_percent(share: float, digits: int = 1) -> str:
    """A fraction in percent without the sign, for columns that name the unit."""
    return NONE if math.isnan(share) else f"{100 * share:.{digits}f}"


def points(share: float, *, sign: bool = False) -> str:
    """A difference of fractions in points; ``sign`` asks for the plus too. The minus is a real one."""
    if math.isnan(share):
        return NONE
    text = f"{100 * share:+.1f}" if sign else f"{100 * share:.1f}"
    return "0.0" if text in {"-0.0", "+0.0"} else text.replace("-", "\u2212")


def squared_percent(variance: float) -> str:
    """A variance of fractions in percent squared, as the papers print it."""
    return NONE if math.isnan(variance) else f"{1e4 * variance:.0f}" if variance >= 0.01 else f"{1e4 * variance:.1f}"


def span(low: float, high: float) -> str:
    """Two ends of an interval of fractions: ``12.1–16.5``, in percent without the sign."""
    return NONE if math.isnan(low) or math.isnan(high) else f"{100 * low:.1f}\u2013{100 * high:.1f}"


def signed_span(low: float, high: float) -> str:
    """Two ends of an interval of differences, in points: ``−1.2 to +3.4``."""
    return NONE if math.isnan(low) or math.isnan(high) else f"{points(low, sign=True)} to {points(high, sign=True)}"


def count(number: float) -> str:
    """A whole number with thousands set off: ``10,000``."""
    return NONE if math.isnan(number) else f"{int(number):,}"


def counted(number: float, noun: str, plural: str = "") -> str:
    """A count with its noun in the singular or plural: ``1 image``, ``10,000 images``."""
    return f"{count(number)} {noun if number == 1 else plural or noun + 's'}"


def probability(value: float) -> str:
    """A p value: three decimals, and no more certainty than that."""
    return NONE if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


def listed(names: Sequence[str], limit: int = 8) -> str:
    """Names in a sentence: ``cat, deer and dog``; beyond ``limit`` the rest is counted."""
    if len(names) > limit:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def level(alpha: float) -> str:
    """The coverage of intervals: ``95 %``, and ``99.997 %`` where rounding would make it 100."""
    missed = 100 * alpha if alpha > 1e-4 else float(f"{100 * alpha:.1g}")
    return f"{100 - missed:.{4 if alpha > 1e-4 else 10}g}\u00a0%"


def measured(share: float, low: float, high: float, images: float, alpha: float = 0.05) -> str:
    """A share with its count and its interval, in a phrase."""
    return f"{percent(share)} of {count(images)} ({interval(low, high, alpha)})"


def interval(low: float, high: float, alpha: float = 0.05) -> str:
    """An interval of fractions in a phrase: ``95 % interval 12.1–16.5 %``, or that there is none."""
    ends = span(low, high)
    return NO_INTERVAL if ends == NONE else f"{level(alpha)} interval {ends}\u00a0%"


def squared_span(low: float, high: float) -> str:
    """Two ends of an interval of variances, in percent squared, with as many digits as the upper one needs."""
    if math.isnan(low) or math.isnan(high):
        return NONE
    return f"{1e4 * low:.0f}\u2013{1e4 * high:.0f}" if high >= 0.01 else f"{1e4 * low:.1f}\u2013{1e4 * high:.1f}"
