"""Class weights folded over the settings, for all schedules that weigh."""

from __future__ import annotations

import dataclasses
from typing import Literal

from torch import Tensor

from classwise.training.classes import ClassSettings

Term = Literal["clean", "robust"]
"""A term that class weights multiply: TRADES has both, AT only the robust one, standard training only the clean."""

BOTH: tuple[Term, ...] = ("clean", "robust")


def weighed(before: ClassSettings, weights: Tensor, terms: tuple[Term, ...] = BOTH) -> ClassSettings:
    """The settings with the factors of those terms multiplied by the weights, (C,)."""
    changes = {}
    for term in terms:
        held: Tensor | None = getattr(before, f"{term}_weight")
        changes[f"{term}_weight"] = weights if held is None else held * weights
    return dataclasses.replace(before, **changes)
