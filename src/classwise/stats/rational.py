"""Rational numbers: exact limits, and comparisons that rounding cannot invert.

A measure that is a rational function of counts is computed as a `fractions.Fraction` and compared exactly. Any other
number, such as the end of an interval, is a float; it equals a limit if they differ by at most `TOLERANCE`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from numbers import Rational

import numpy as np

from classwise.core.errors import ClasswiseError

TOLERANCE = 1e-9
"""A float that differs from a limit by at most this is equal to it.

Rounding errors of interval ends are below 1e-12. Accuracies of fewer than 30,000 images that differ at all differ by
more than this.
"""
DECIMALS = 20
"""A number with at most this many decimals is written as a decimal, any other as a fraction."""
DENOMINATORS: Mapping[type, int] = {float: 10**7, np.float64: 10**7, np.float32: 2048, np.float16: 16}
"""The largest denominator of a fraction that a float represents: two such fractions never round to the same float."""
_DECIMAL = re.compile(
    r"(?P<digits>[+-]?(?:[0-9]{1,100}(?:\.[0-9]{0,100})?|\.[0-9]{1,100})(?:[eE][+-]?[0-9]{1,2})?)(?P<percent>\s*%)?"
)
_FRACTION = re.compile(r"(?P<numerator>[+-]?[0-9]{1,300}) ?/ ?(?P<denominator>[0-9]{1,300})")


def parse_rational(text: str) -> Fraction | None:
    """Parse a decimal such as ``-0.02``, ``1e-2`` or ``46.4%``, or a fraction such as ``1/5``; None for other text.

    Digits are those of ASCII; a fraction has no percent sign.

    Example:
        >>> from classwise.stats.rational import parse_rational
        >>> parse_rational("46.4 %"), parse_rational("1/5"), parse_rational("20%%")
        (Fraction(58, 125), Fraction(1, 5), None)
    """
    if decimal := _DECIMAL.fullmatch(text):
        return Fraction(decimal["digits"]) / (100 if decimal["percent"] else 1)
    fraction = _FRACTION.fullmatch(text)
    if fraction is None or not int(fraction["denominator"]):
        return None
    return Fraction(int(fraction["numerator"]), int(fraction["denominator"]))


def as_rational(value: Fraction | float | np.float32) -> Fraction:
    """The number as a fraction.

    A float is the fraction with a denominator of at most `DENOMINATORS` that rounds to it, such as 1/5 for 0.2 and 5/6
    for the result of ``5 / 6``; if there is none, the shortest decimal that rounds to it.

    Raises:
        ClasswiseError: if it is not a finite number.

    Example:
        >>> from classwise.stats.rational import as_rational
        >>> as_rational(0.464), as_rational(5 / 6), as_rational(0.1 + 0.2)
        (Fraction(58, 125), Fraction(5, 6), Fraction(7500000000000001, 25000000000000000))
    """
    kind = type(value)
    if kind in DENOMINATORS and math.isfinite(value):
        near = Fraction(float(value)).limit_denominator(DENOMINATORS[kind])
        return near if kind(float(near)) == value else Fraction(str(value))
    if isinstance(value, np.longdouble) and math.isfinite(value):
        return as_rational(float(value))
    if isinstance(value, Rational) and kind is not bool:
        return Fraction(value)
    raise ClasswiseError(f"number {value!r}: must be a finite number such as 0.2")


def rational_text(value: Fraction) -> str:
    """The number as text that `parse_rational` reads: a decimal of at most `DECIMALS` decimals, or a fraction.

    Raises:
        ClasswiseError: if it has more digits than `parse_rational` reads.

    Example:
        >>> from fractions import Fraction
        >>> from classwise.stats.rational import rational_text
        >>> rational_text(Fraction(-1, 50)), rational_text(Fraction(1, 3))
        ('-0.02', '1/3')
    """
    if abs(value) >= 10**100 or value.denominator >= 10**300:
        raise ClasswiseError("number: must be below 1e100, and a fraction of at most 300 digits")
    places = next((number for number in range(DECIMALS + 1) if not 10**number % value.denominator), None)
    if places is None:
        return str(value)
    whole, part = divmod(abs(value.numerator) * 10**places // value.denominator, 10**places)
    return f"{'-' if value < 0 else ''}{whole}{f'.{part:0{places}d}' if places else ''}"


def difference(value: Fraction | float, limit: Fraction | float) -> Fraction | float:
    """The value minus the limit; 0 if they are equal, so that its sign decides ``<``, ``<=``, ``>`` and ``>=``.

    Two fractions are subtracted exactly. If one number is a float, they are equal if they differ by at most
    `TOLERANCE`. NaN remains NaN.

    Example:
        >>> from fractions import Fraction
        >>> from classwise.stats.rational import difference
        >>> difference(Fraction(1, 5), Fraction(20, 100)), difference(0.1 + 0.2, 0.3), difference(0.5, 0.25)
        (Fraction(0, 1), 0.0, 0.25)
    """
    excess = value - limit
    return 0.0 if isinstance(excess, float) and abs(excess) <= TOLERANCE else excess
