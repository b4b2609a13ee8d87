"""`Shard`: one of the shards of an evaluation, without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from classwise.core.errors import ClasswiseError

MOST_SHARDS = 10_000
"""Largest number of shards."""


@dataclass(frozen=True)
class Shard:
    """One of the shards of an evaluation, each of which has its own folder and may run on another machine.

    Args:
        number: from 1 to ``count``.
        count: number of shards.

    Raises:
        ClasswiseError: if a number is out of range.

    Example:
        >>> shard = Shard.parse("7/40")
        >>> str(shard), shard.name
        ('7/40', '007-of-040')
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        check_count(self.count)
        if not 1 <= self.number <= self.count:
            raise ClasswiseError(f"shard {self}: the number must be from 1 to {self.count}")

    @classmethod
    def parse(cls, shard: str | tuple[int, int] | Shard) -> Shard:
        """Parse ``"7/40"`` or ``(7, 40)``.

        Raises:
            ClasswiseError: for anything else.
        """
        if isinstance(shard, Shard):
            return shard
        if isinstance(shard, str) and (match := re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", shard)):
            return cls(int(match[1]), int(match[2]))
        if isinstance(shard, tuple) and len(shard) == 2 and all(type(number) is int for number in shard):
            return cls(*shard)
        raise ClasswiseError(f"shard {shard!r}: must have the form NUMBER/COUNT, such as 7/40")

    @classmethod
    def all(cls, count: int) -> list[Shard]:
        """All shards of an evaluation.

        Raises:
            ClasswiseError: if their number is out of range.
        """
        check_count(count)
        return [cls(number, count) for number in range(1, count + 1)]

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def name(self) -> str:
        """Name of the shard's folder, such as ``007-of-040``."""
        width = max(len(str(self.count)), 3)
        return f"{self.number:0{width}d}-of-{self.count:0{width}d}"


def check_count(count: int) -> None:
    """Check a number of shards.

    Raises:
        ClasswiseError: if it is out of range.
    """
    if not 1 <= count <= MOST_SHARDS:
        raise ClasswiseError(f"shards = {count}: must be from 1 to {MOST_SHARDS:,}")


ShardLike = Annotated[str | tuple[int, int] | Shard, "text such as '7/40', a pair of integers, or a Shard"]
Shards = Annotated[int, Field(ge=1, le=MOST_SHARDS)]
