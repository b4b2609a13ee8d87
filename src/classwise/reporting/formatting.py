"""Formatting of numbers and names: accuracies in percent, class-wise variances in percent squared."""

from __future__ import annotations

import math
from collections.abc import Sequence

from classwise.core.rounding import in_percent, rounded
from classwise.stats import Unit

NONE = "–"
"""Text of a missing number."""
NO_INTERVAL = "no interval"
"""Text of an interval that cannot be computed."""


def percent(share: float, digits: int = 1) -> str:
    """Format a fraction in percent, with a no-break space: ``14.2 %``.

    A fraction between 0 and 1 is never rounded to 0 or 100: ``< 0.1 %``, ``> 99.9 %``.
    """
    if math.isnan(share):
        return NONE
    text, step = f"{in_percent(share):.{digits}f}", 10.0**-digits
    if 0 < share < 1 and float(text) in {0, 100}:
        text = f"< {step:.{digits}f}" if share < 0.5 else f"> {100 - step:.{digits}f}"
    return f"{text}\u00a0%"


def bare_percent(share: float, digits: int = 1) -> str:
    """Format a fraction in percent without the percent sign."""
    return NONE if math.isnan(share) else f"{in_percent(share):.{digits}f}"


def points(share: float, *, sign: bool = False) -> str:
    """Format a difference of fractions in percentage points, with U+2212 as minus; ``sign``: also with a plus."""
    if math.isnan(share):
        return NONE
    text = f"{in_percent(share):+.1f}" if sign else f"{in_percent(share):.1f}"
    return "0.0" if text in {"-0.0", "+0.0"} else text.replace("-", "\u2212")


def squared_percent(variance: float) -> str:
    """Format a variance of fractions in percent squared, as in the papers."""
    return NONE if math.isnan(variance) else f"{rounded(1e4 * variance):.{int(variance < 0.01)}f}"


def span(low: float, high: float) -> str:
    """Format an interval of fractions in percent without the percent sign: ``12.1–16.5``."""
    return NONE if math.isnan(low) or math.isnan(high) else f"{bare_percent(low)}\u2013{bare_percent(high)}"


def bracketed(low: float, high: float) -> str:
    """Format an interval of fractions in percent, as on the terminal: ``[12.1, 16.5]``."""
    return f"[{bare_percent(low)}, {bare_percent(high)}]"


def in_unit(value: float, unit: Unit) -> str:
    """Format a metric: a fraction in percent, a squared one in percent squared, a number with three digits."""
    if unit == "number":
        return NONE if math.isnan(value) else f"{value:.3g}"
    return bare_percent(value) if unit == "fraction" else squared_percent(value)


def span_in_unit(low: float, high: float, unit: Unit) -> str:
    """Format an interval of a metric."""
    if unit == "number":
        return NONE if math.isnan(low) or math.isnan(high) else f"{low:.3g}\u2013{high:.3g}"
    return span(low, high) if unit == "fraction" else squared_span(low, high)


def signed_span(low: float, high: float) -> str:
    """Format an interval of differences in percentage points: ``−1.2 to +3.4``."""
    return NONE if math.isnan(low) or math.isnan(high) else f"{points(low, sign=True)} to {points(high, sign=True)}"


def count(number: float) -> str:
    """Format an integer with thousands separators: ``10,000``."""
    return NONE if math.isnan(number) else f"{int(number):,}"


def counted(number: float, noun: str, plural: str = "") -> str:
    """Format a count with its noun in the singular or plural: ``1 image``, ``10,000 images``."""
    return f"{count(number)} {noun if number == 1 else plural or noun + 's'}"


def probability(value: float) -> str:
    """Format a p-value with three decimals: ``0.040``, ``< 0.001``."""
    return NONE if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


def listed(names: Sequence[str], limit: int = 8) -> str:
    """Join names: ``cat, deer and dog``; two or more beyond ``limit`` are counted: ``cat, deer and 3 more``."""
    if len(names) > limit + 1:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def data_name(data: str, split: str) -> str:
    """The data set and its split: ``cifar10 test``; empty if they are unknown."""
    return " ".join(filter(None, (data, split)))


def sentence(phrase: str) -> str:
    """Make a sentence of a phrase: with a capital and a full stop."""
    return f"{phrase[:1].upper()}{phrase[1:]}."


def singular(kind: str | None) -> str:
    """Noun for a row of a grouping: ``class`` (also for None), ``group``, or ``<grouping> group``."""
    return kind or "class" if kind in {None, "class", "group"} else f"{kind} group"


def plural(kind: str | None) -> str:
    """Noun for rows of a grouping: ``classes``, ``groups``, or ``<grouping> groups``."""
    return "classes" if kind in {None, "class"} else f"{singular(kind)}s"


def level(alpha: float) -> str:
    """Format the coverage 1 - alpha: ``95 %``; ``99.997 %`` if rounding would give 100."""
    missed = 100 * alpha if alpha > 1e-4 else float(f"{100 * alpha:.1g}")
    return f"{100 - missed:.{4 if alpha > 1e-4 else 10}g}\u00a0%"


def measured(share: float, low: float, high: float, images: float, alpha: float = 0.05) -> str:
    """Format a fraction with its number of images and its interval: ``14.2 % of 1,000 (95 % interval 12.1–16.5 %)``."""
    return f"{percent(share)} of {count(images)} ({interval(low, high, alpha)})"


def interval(low: float, high: float, alpha: float = 0.05) -> str:
    """Format an interval of fractions with its coverage: ``95 % interval 12.1–16.5 %``, or ``no interval``."""
    ends = span(low, high)
    return NO_INTERVAL if ends == NONE else f"{level(alpha)} interval {ends}\u00a0%"


def lowest_interval_name(alpha: float = 0.05, kind: str | None = None) -> str:
    """Name of an interval of `classwise.stats.intervals.lowest_interval`.

    ``95 % interval of the lowest class accuracy, whichever class it is``.

    Args:
        alpha: 1 minus the coverage.
        kind: the grouping, as of `Audit.group`; None or ``"class"``: the class.
    """
    noun = singular(kind)
    level_text = level(alpha).replace("\u00a0", " ")
    return f"{level_text} interval of the lowest {noun} accuracy, whichever {noun} it is"


def squared_span(low: float, high: float) -> str:
    """Format an interval of variances in percent squared; the upper limit determines the number of digits."""
    if math.isnan(low) or math.isnan(high):
        return NONE
    digits = int(high < 0.01)
    return f"{rounded(1e4 * low):.{digits}f}\u2013{rounded(1e4 * high):.{digits}f}"
