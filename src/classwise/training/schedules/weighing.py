"""Class weights folded over the settings, for all schedules that weigh."""

from __future__ import annotations

import dataclasses
import functools
import warnings

from torch import Tensor

from classwise.training.classes import ClassSettings, Term

BOTH: tuple[Term, ...] = ("clean", "robust")


def weighed(before: ClassSettings, weights: Tensor, terms: tuple[Term, ...] = BOTH) -> ClassSettings:
    """The settings with the factors of those terms multiplied by the weights, (C,)."""
    changes = {}
    for term in terms:
        held: Tensor | None = getattr(before, f"{term}_weight")
        changes[f"{term}_weight"] = weights if held is None else held * weights
    return dataclasses.replace(before, **changes)


@functools.cache
def told_once(text: str) -> None:
    """Warn, once in a process for each text."""
    warnings.warn(text, UserWarning, stacklevel=3)
