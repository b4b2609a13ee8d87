"""The types of options, which `classwise.auditing.evaluation.evaluation` states as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from classwise.auditing.evaluation.evaluation import GuardMode, Tensors
from classwise.auditing.evaluation.shard import ShardLike, Shards
from classwise.core.compute.repeats import RepeatCount, RepeatRule
from classwise.core.settings.arguments import BatchSize, Distance, Seconds
from classwise.core.settings.config import Seed
from classwise.threat.text import Grid

NAMES: Mapping[str, Any] = {
    "BatchSize": BatchSize,
    "Distance": Distance,
    "Grid": Grid,
    "GuardMode": GuardMode,
    "Mapping": Mapping,
    "Path": Path,
    "RepeatCount": RepeatCount,
    "RepeatRule": RepeatRule,
    "Seconds": Seconds,
    "Seed": Seed,
    "Sequence": Sequence,
    "ShardLike": ShardLike,
    "Shards": Shards,
    "Tensors": Tensors,
}
"""The names in the texts; those that need torch are added where functions are called."""


def type_of(text: str, more: Mapping[str, Any] | None = None) -> Any:
    """The type of a text, with further names.

    Example:
        >>> type_of("RepeatRule")
        typing.Literal['majority', 'all']
    """
    return eval(text, {**NAMES, **(more or {})})  # noqa: S307  # text of this package
