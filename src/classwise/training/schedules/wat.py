"""WAT, worst-class adversarial training (Li and Liu, AAAI 2023): Hedge over the classes and their average."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from classwise.core.settings.config import NonNegative, configurable
from classwise.training.classes import ClassSettings, Signals
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.schedules.class_weighting import apply_class_weights


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
