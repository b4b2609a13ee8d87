"""CFOL, class-focused online learning (Pethick et al., TMLR 2023): an adversary draws the classes by their errors."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from classwise.core.config import NonNegative, Share, configurable
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.schedules.class_weighting import apply_class_weights


@configurable
class CFOL(ClassSchedule):
    """Exp3 over the classes: p = mix U + (1 - mix) softmax(w), U uniform over the classes that have images.

    After each step every image of class y with an error adds rate / q_y to w_y, where q is the law that the image was
    drawn by: p itself when it samples, the shares of the classes in the data when it weighs.

    Args:
        gamma: gamma, the share of the uniform law.
        rate: eta, for one image; 5e-6 for CIFAR-10 in the paper.
        mode: ``"sampling"`` draws the images of a step by p, evenly within a class; ``"weights"`` draws as ever and
            multiplies losses by C p.
    """

    source = ("pethick2023revisiting",)
    changes = ("weight", "sampling")
    example = "cfol:gamma=0.5"

    gamma: Share = 0.5
    rate: NonNegative = 5e-6
    mode: Literal["sampling", "weights"] = "sampling"

    def start(self, classes: Classes) -> State:
        """All classes with images alike."""
        counts = classes.counts.float()
        return {"scores": torch.zeros_like(counts), "shares": counts / counts.sum()}

    def after_batch(self, state: State, step: Step, batch: TrainingBatch) -> State:
        """Add the errors under attack (on the clean images if the objective attacks none) to the scores."""
        logits = step.clean_logits if step.robust_logits is None else step.robust_logits
        assert logits is not None
        drawn_by = self.law(state) if self.mode == "sampling" else state["shares"]
        errors = (logits.detach().argmax(1) != batch.y).float()
        scores = state["scores"].index_add(0, batch.y, self.rate * errors / drawn_by[batch.y])
        return {**state, "scores": scores}

    def law(self, state: State) -> Tensor:
        """p, (C,); 0 for a class without images."""
        present = state["shares"] > 0
        focused = state["scores"].masked_fill(~present, -torch.inf).softmax(0)
        return self.gamma * present / present.sum() + (1 - self.gamma) * focused

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """The law of this step, as odds of an image of each class or as weights."""
        del epoch
        law = self.law(state)
        if self.mode == "weights":
            return apply_class_weights(before, law * len(law))
        odds = torch.where(law > 0, law / state["shares"], 0.0)
        return dataclasses.replace(before, sampling=odds if before.sampling is None else odds * before.sampling)
