"""A beta for each class, fixed (Tian et al., KDD 2021, eq. 5)."""

from __future__ import annotations

import dataclasses

import torch

from classwise.core.config import ClassName, NonNegative, configurable
from classwise.core.errors import ClasswiseError
from classwise.training.classes import ClassSettings
from classwise.training.schedules.base import Classes, ClassSchedule, State


@configurable
class VectorBeta(ClassSchedule):
    """Other betas for some of the classes; the others have that of the objective.

    Args:
        beta: class (its name, or its number as text) to beta, such as ``{"cat": 0.5}``.
    """

    source = ("tian2021analysis, section 6.1",)
    changes = ("beta",)
    example = "vector-beta:beta.cat=0.5"

    beta: dict[ClassName, NonNegative]

    needs_beta = True

    def start(self, classes: Classes) -> State:
        """The given betas in class order, NaN where none is given.

        Raises:
            ClasswiseError: if a class is not known or has no training image.
        """
        values = torch.full((len(classes),), torch.nan)
        for name, beta in self.beta.items():
            values[classes.number(name)] = beta
        if values.isnan().all():
            raise ClasswiseError("schedule 'vector-beta' names no class; give beta, as in {cat: 0.5}")
        return {"beta": values.to(classes.device)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The betas, the same in every epoch."""
        del epoch
        assert before.beta is not None
        return dataclasses.replace(before, beta=torch.where(state["beta"].isnan(), before.beta, state["beta"]))
