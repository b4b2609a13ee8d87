"""CFOL, class-focused online learning (Pethick et al., TMLR 2023): Exp3 samples the classes by their errors."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from classwise.core.settings.config import NonNegative, Share, configurable
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.schedules.class_weighting import apply_class_weights


@configurable
class CFOL(ClassSchedule):
    """Exp3 over the classes: p = gamma U + (1 - gamma) softmax(w), U uniform over the classes with images.

    After each step, every misclassified image of class y adds rate / q_y to w_y. Here q is the class distribution of
    the batch: p if ``mode`` is ``"sampling"``, the class frequencies of the data otherwise.

    Args:
        gamma: the weight of the uniform distribution.
        rate: the step size eta per image; 5e-6 for CIFAR-10 in the paper.
        mode: ``"sampling"``: sample the classes of a batch from p, and images uniformly within a class; ``"weights"``:
            shuffle as usual and multiply the losses by C p.
    """

    source = ("pethick2023revisiting",)
    changes = ("weight", "sampling")
    example = "cfol:gamma=0.5"

    gamma: Share = 0.5
    rate: NonNegative = 5e-6
    mode: Literal["sampling", "weights"] = "sampling"

    def start(self, classes: Classes) -> State:
        """Return equal scores, and the class frequencies."""
        counts = classes.counts.float()
        return {"scores": torch.zeros_like(counts), "shares": counts / counts.sum()}

    def after_batch(self, state: State, step: Step, batch: TrainingBatch) -> State:
        """Add the errors under attack (clean errors if the objective has no attack) to the scores."""
        sampled_from = self.distribution(state) if self.mode == "sampling" else state["shares"]
        errors = (step.logits.detach().argmax(1) != batch.y).float()
        scores = state["scores"].index_add(0, batch.y, self.rate * errors / sampled_from[batch.y])
        return {**state, "scores": scores}

    def distribution(self, state: State) -> Tensor:
        """Return p, (C,); 0 for a class without images."""
        present = state["shares"] > 0
        focused = state["scores"].masked_fill(~present, -torch.inf).softmax(0)
        return self.gamma * present / present.sum() + (1 - self.gamma) * focused

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the class weights, or the sampling odds of an image of each class, of the step."""
        p = self.distribution(state)
        if self.mode == "weights":
            return apply_class_weights(before, p * len(p))
        odds = torch.where(p > 0, p / state["shares"], 0.0)
        return dataclasses.replace(before, sampling=odds if before.sampling is None else odds * before.sampling)
