"""Online learning over the classes: Exp3 of CFOL (Pethick et al., 2023), and Hedge of WAT (Li and Liu, 2023)."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from classwise.core.settings.config import NonNegative, Share, configurable
from classwise.training.classes.signals import ClassSettings, Signals
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


@configurable
class WAT(ClassSchedule):
    """Class weights C w_c + w_{C+1}, where w = softmax(rate * losses of the experts summed over epochs) (Hedge).

    The experts are the C classes and the average over images. Their losses are CE(f(x), y) + beta KL(S f(x) ‖ S f(x'))
    on the validation split, after each epoch. A class without validation images has the loss of the average.

    With ``variant="code"``, as in the public code, the weights are C w_c + C w_{C+1}, and 2 in the first epoch; and the
    loss of a class is the sum over its images times C / N, which equals the mean if all classes have N / C images.

    Args:
        rate: the step size eta of Hedge.
        beta: the weight of the divergence in the losses of the experts; it may differ from the objective's.
        variant: the weights of the paper or of the public code.
    """

    source = ("li2023wat",)
    changes = ("weight",)
    example = "wat:rate=0.1"

    rate: NonNegative = 0.1
    beta: NonNegative = 6.0
    variant: Literal["paper", "code"] = "paper"

    reads = frozenset({"valid.loss", "valid.divergence", "valid.count"})

    def start(self, classes: Classes) -> State:
        """Return zero losses, hence weights of 1."""
        return {"losses": torch.zeros(len(classes) + 1, device=classes.device)}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        """Add the losses of the epoch."""
        loss = (signals["valid.loss"] + self.beta * signals["valid.divergence"]).float()
        count = signals["valid.count"]
        total = loss.nan_to_num() * count
        average = total.sum() / count.sum()
        code = self.variant == "code"
        each = len(total) * total / count.sum() if code else torch.where(loss.isnan(), average, loss)
        return {"losses": state["losses"] + torch.cat([each, average[None]])}

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        """Return the weights of the epoch."""
        experts = self.experts(state)
        classes = len(experts) - 1
        if self.variant == "paper":
            return apply_class_weights(before, classes * experts[:-1] + experts[-1])
        weights = torch.full_like(experts[:-1], 2.0) if epoch == 0 else classes * (experts[:-1] + experts[-1])
        return apply_class_weights(before, weights)

    def experts(self, state: State) -> Tensor:
        """Compute w, (C + 1,); the average is last."""
        return (self.rate * state["losses"]).softmax(0)
