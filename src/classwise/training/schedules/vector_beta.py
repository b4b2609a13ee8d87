"""Constant class-wise betas (Tian et al., KDD 2021, eq. 5)."""

from __future__ import annotations

import dataclasses

import torch

from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import ClassName, NonNegative, configurable
from classwise.training.classes import ClassSettings
from classwise.training.schedules.base import Classes, ClassSchedule, State


@configurable
class VectorBeta(ClassSchedule):
    """Constant betas for some classes; the other classes use the objective's beta.

    Args:
        beta: beta by class, such as ``{"cat": 0.5}``; keys are names, or labels as text.
    """

    source = ("tian2021analysis, section 6.1",)
    changes = ("beta",)
    example = "vector-beta:beta.cat=0.5"

    beta: dict[ClassName, NonNegative]

    needs_beta = True

    def start(self, classes: Classes) -> State:
        """Return the betas, (C,); NaN for the other classes.

        Raises:
            ClasswiseError: if no class is given, or one does not exist or has no training image.
        """
        values = torch.full((len(classes),), torch.nan)
        for name, beta in self.beta.items():
            values[classes.number(name)] = beta
        if values.isnan().all():
            raise ClasswiseError("schedule 'vector-beta': beta must have at least one class, such as {cat: 0.5}")
        return {"beta": values.to(classes.device)}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the betas, which are constant."""
        del epoch
        assert before.beta is not None
        return dataclasses.replace(before, beta=torch.where(state["beta"].isnan(), before.beta, state["beta"]))
