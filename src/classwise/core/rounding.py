"""Numbers whose halves are rounded away from zero when they are formatted."""

from __future__ import annotations

import math


def rounded(number: float) -> float:
    """A number without the errors of its floating point, for formatting with at most eight decimals.

    Python formats 11.25 as 11.2 and 31.25, if it was computed as 31.250000000000004, as 31.3. Here both are rounded
    away from zero, so that one number has one text.

    Example:
        >>> from classwise.core.rounding import rounded
        >>> f"{11.25:.1f}", f"{rounded(11.25):.1f}", f"{rounded(-0.35):.1f}"
        ('11.2', '11.3', '-0.4')
    """
    return round(number, 9) + math.copysign(1e-10, number)


def in_percent(share: float) -> float:
    """A fraction in percent, `rounded`."""
    return rounded(100 * share)
