"""How many passes of a model decide whether an image is classified correctly; more than one for random outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import pydantic

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings import limits

RepeatCount = Annotated[int, pydantic.Field(ge=1, le=limits.REPEATS)]
"""Number of passes."""
RepeatRule = Literal["majority", "all"]
"""An image is correct if more than half of the passes are correct, or if all of them are."""


@dataclass(frozen=True)
class Repeats:
    """How many passes decide whether an image is classified correctly.

    Args:
        count: number of passes, each with new random numbers of the model.
        rule: ``"majority"``: more than half of them must be correct; ``"all"``: all of them. For one pass it is
            ``"majority"``, which is then the same.

    Raises:
        ClasswiseError: for a count that is no integer from 1 to `limits.REPEATS`, or another rule.

    Example:
        >>> [Repeats(count).needed for count in (1, 2, 3, 8)], Repeats(8, "all").needed
        ([1, 2, 2, 5], 8)
    """

    count: int = 1
    rule: RepeatRule = "majority"

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or not 1 <= self.count <= limits.REPEATS:
            raise ClasswiseError(f"repeats = {self.count!r}: must be an integer from 1 to {limits.REPEATS}")
        if self.rule not in get_args(RepeatRule):
            raise unknown("repeat_rule", str(self.rule), get_args(RepeatRule))
        if self.count == 1:
            object.__setattr__(self, "rule", "majority")

    @property
    def needed(self) -> int:
        """Number of correct passes from which on an image counts as correct."""
        return self.count if self.rule == "all" else self.count // 2 + 1

    def __str__(self) -> str:
        """Such as ``more than half of 8 passes``."""
        if self.count == 1:
            return "1 pass"
        return f"{'all' if self.rule == 'all' else 'more than half'} of {self.count} passes"


ONCE = Repeats()
"""One pass decides, as for a deterministic model."""
