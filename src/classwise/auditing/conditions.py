"""The text of a condition, such as ``worst(all).low < 0.2``: a name, an attack, a comparison and a limit."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from classwise.core.config import number
from classwise.core.errors import ClasswiseError

COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FORM = re.compile(
    r"\s*(?P<name>\S.*?)\s*\((?P<attack>[^()]*)\)\s*(?:\.\s*(?P<part>[a-z]+))?"
    r"\s*(?P<comparison><=|>=|<|>)\s*(?P<limit>[^<>=]+?)\s*"
)


@dataclass(frozen=True)
class Condition:
    """The parts of a condition.

    Attributes:
        text: the whole condition.
        name: the measure or the class, without quotation marks.
        quoted: whether the name is in quotation marks, so that it is a class.
        attack: the attack in parentheses.
        part: ``low``, ``high`` or another word after the full stop; may be empty.
        comparison: a key of `COMPARISONS`.
        limit: the number on the right, a fraction.
    """

    text: str
    name: str
    quoted: bool
    attack: str
    part: str
    comparison: str
    limit: float

    @staticmethod
    def parse(text: str, lowest: float = 0.0) -> Condition:
        """Parse a condition; the limit may also be ``20 %`` or ``1/5``.

        Args:
            text: such as ``worst(all) < 0.2``.
            lowest: the smallest limit that is accepted; the largest is 1.

        Raises:
            ClasswiseError: for another form, or a limit outside [lowest, 1], which would be met always or never.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise ClasswiseError(f"condition {text!r}: must have the form worst(all) < 0.2")
        name = match["name"]
        quoted = len(name) > 2 and name[0] == name[-1] and name[0] in "'\""
        percent = match["limit"].endswith("%")
        limit = number(match["limit"].rstrip("%").rstrip())
        if not isinstance(limit, float) or not math.isfinite(limit):
            raise ClasswiseError(
                f"condition {text!r}: limit {match['limit']!r} must be a number such as 0.2, 20% or 1/5"
            )
        limit = limit / 100 if percent else limit
        if not lowest <= limit <= 1:
            hint = "0.2 or 20% for 20 %" + ("; a cv of 900 in the tables is 0.09" if name == "cv" else "")
            raise ClasswiseError(
                f"condition {text!r}: limit {match['limit']} must be between {lowest:g} and 1; write {hint}"
            )
        return Condition(
            text=text,
            name=name[1:-1] if quoted else name,
            quoted=quoted,
            attack=match["attack"].strip(),
            part=match["part"] or "",
            comparison=match["comparison"],
            limit=limit,
        )


def condition_text(name: str, quoted: bool, attack: str, part: str, comparison: str, limit: float) -> str:
    """Format a condition so that `Condition.parse` returns its parts."""
    mark = '"' if "'" in name else "'"
    shown = f"{mark}{name}{mark}" if quoted else name
    return f"{shown}({attack}){'.' if part else ''}{part} {comparison} {limit!r}"
