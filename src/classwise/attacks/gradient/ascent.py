"""Gradient ascent inside the ball: one loop for the family, a loss for each member.

FGSM: Goodfellow, Shlens and Szegedy, ICLR 2015. PGD: Madry et al., ICLR 2018. DLR: Croce and Hein, ICML 2020. The
targeted margin: Gowal et al. 2019 (MultiTargeted). Temperature-PGD: Tian et al., KDD 2021, eq. 4.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State, value_and_gradient
from classwise.core.config import Count, Positive, StepSize, configurable, relative_step
from classwise.core.errors import ClasswiseError
from classwise.core.precision import Forward

Start = Literal["uniform", "normal", "none"]


@configurable
class Ascent(Attack):
    """Steps along the steepest direction of a loss, each projected back into the ball.

    Args:
        steps: how many steps a start takes.
        step_size: absolute (``"2/255"``) or relative to each image's radius (``"0.25eps"``).
        random_init: ``"uniform"`` in the ball, ``"normal"`` (the image plus 0.001 N(0, 1), as TRADES does) or
            ``"none"``.
        restarts: how many starts an image gets.
    """

    steps: Count = 10
    step_size: StepSize = "0.25eps"
    random_init: Start = "uniform"
    restarts: Count = 1

    records = ("zero_gradients",)

    @property
    def length(self) -> int:
        """Steps of one start."""
        return self.steps

    @property
    def starts(self) -> int:
        """Starts of an image."""
        return self.restarts

    @abstractmethod
    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        """What to maximise, (N,), given logits (N, classes) and the label (or the target) of each row."""

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """The image itself, or a draw near it."""
        del model
        if self.random_init == "uniform":
            x = inputs.inside()
        elif self.random_init == "normal":
            x = inputs.threat.project(inputs.x + 0.001 * inputs.normal(tuple(inputs.x.shape[1:])), inputs.x)
        else:
            x = inputs.x.clone()
        count = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return {"x": x, "iteration": count, "zero_gradients": count.clone(), "done": count > 0}

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """One gradient, one step, one projection."""
        x = state["x"]
        logits, gradient = value_and_gradient(model, x, lambda logits: self._signed_loss(logits, inputs, state))
        direction, remembered = self._direction(gradient, state)
        move = self._step_of(inputs, state) * inputs.threat.steepest(direction)
        iteration = state["iteration"] + 1
        return {
            **state,
            **remembered,
            "x": self._bounded(x + move, inputs),
            "seen": x,
            "margin": losses.margin(logits, inputs.y),
            "iteration": iteration,
            "zero_gradients": state["zero_gradients"] + (gradient.flatten(1).abs().amax(1) == 0),
            "done": iteration >= self.steps,
        }

    def _bounded(self, x: Tensor, inputs: AttackInputs) -> Tensor:
        """The point brought back to where iterates may be: the ball and the box."""
        return inputs.threat.project(x, inputs.x)

    def _signed_loss(self, logits: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        """The loss against the label; for rows with a target, the negative loss against the target."""
        if inputs.target is None:
            return self._loss_at(logits, inputs.y, inputs, state)
        targeted = inputs.target >= 0
        toward = torch.where(targeted, inputs.target, inputs.y)
        return self._loss_at(logits, toward, inputs, state) * torch.where(targeted, -1.0, 1.0)

    def _loss_at(self, logits: Tensor, y: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        """The loss of this step; the same at every step unless a member says else."""
        del state
        return self.loss(logits, y, inputs)

    def _direction(self, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """What to step along, shaped like the gradient, and the columns to remember; the gradient and none."""
        del state
        return gradient, {}

    def _step_of(self, inputs: AttackInputs, state: State) -> Tensor | float:
        """The step, one number or shaped to broadcast over images."""
        del state
        if inputs.step_size is not None:
            return inputs.step_size.view(-1, *[1] * (inputs.x.ndim - 1))
        factor, relative = relative_step(self.step_size)
        return factor * inputs.threat.radius(inputs.x) if relative else factor


@configurable
class PGD(Ascent):
    """Projected gradient ascent on a loss.

    Args:
        objective: ``"ce"``, ``"margin"``, ``"dlr"`` (the difference of logits ratio; with 2 classes it is the margin,
            and a notice says so once), or ``"kl"`` (TRADES' inner maximisation).
    """

    source = ("madry2018towards",)
    example = "pgd:steps=50,restarts=5"

    objective: Literal["ce", "margin", "dlr", "kl"] = "ce"

    def check(self) -> None:
        """Refuse a start where the divergence from the clean logits has no gradient.

        Raises:
            ClasswiseError: for ``objective="kl"`` with ``random_init="none"``.
        """
        if self.objective == "kl" and self.random_init == "none":
            raise ClasswiseError(
                "pgd: objective=kl has no gradient at the clean image; use random_init=normal or random_init=uniform"
            )

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        """Cross-entropy, negative margin, DLR, or the divergence from the clean logits."""
        if self.objective == "ce":
            return losses.cross_entropy(logits, y)
        if self.objective == "margin":
            return losses.negative_margin(logits, y)
        if self.objective == "dlr":
            return losses.dlr(logits, y)
        assert inputs.reference is not None
        return losses.divergence(inputs.reference, logits)

    def _signed_loss(self, logits: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        """As for all; but the targeted DLR has a form of its own, and the divergence, which knows no class, none."""
        if self.objective not in ("dlr", "kl") or inputs.target is None:
            return super()._signed_loss(logits, inputs, state)
        targeted = inputs.target >= 0
        if self.objective == "kl":  # towards a target by the cross-entropy
            nearer = -losses.cross_entropy(logits, inputs.target.clamp_min(0))
            return torch.where(targeted, nearer, self.loss(logits, inputs.y, inputs))
        reached = losses.targeted_dlr(logits, inputs.y, torch.where(targeted, inputs.target, inputs.y))
        return torch.where(targeted, reached, self.loss(logits, inputs.y, inputs))

    @property
    def needs_reference(self) -> bool:
        """The divergence compares with the clean logits."""
        return self.objective == "kl"


@configurable
class PGDT(Ascent):
    """PGD on the margin to one other class at a time: the classes that the clean image is nearest to, a start each.

    Args:
        targets: how many classes to try, the best clean logit first. A model of C classes has C - 1 of them.
    """

    source = ("gowal2019alternative",)
    example = "pgd-t:steps=20,targets=3"

    targets: Count = 9

    needs_reference = True

    @property
    def starts(self) -> int:
        """A start for each target and restart."""
        return self.targets * self.restarts

    def starts_for(self, classes: int) -> int:
        """A start for each target that there is, and restart."""
        return min(self.targets, classes - 1) * self.restarts

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """A draw near the image, and the class to reach."""
        assert inputs.reference is not None
        restart = torch.zeros_like(inputs.y) if inputs.restart is None else inputs.restart
        rank = restart % min(self.targets, inputs.reference.shape[1] - 1)
        target = losses.nth_other(inputs.reference, inputs.y, rank)
        if inputs.target is not None:
            target = torch.where(inputs.target >= 0, inputs.target, target)
        return {**super().start(model, inputs), "target": target}

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        """z_t - z_y, where ``y`` is the class to reach."""
        return losses.towards(logits, inputs.y, y)

    def _signed_loss(self, logits: Tensor, inputs: AttackInputs, state: State) -> Tensor:
        return self.loss(logits, state["target"], inputs)


@configurable
class FGSM(Ascent):
    """One signed step of the whole radius, from the image itself unless ``begin`` says else."""

    source = ("goodfellow2015explaining",)
    example = "fgsm:random_init=uniform"

    steps: Count = 1
    step_size: StepSize = "1eps"
    random_init: Start = "none"

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        """Cross-entropy."""
        del inputs
        return losses.cross_entropy(logits, y)


@configurable
class NFGSM(FGSM):
    """N-FGSM (de Jorge et al., NeurIPS 2022): one step from a noisy image, not brought back to the ball.

    x' = clip(x + eta) + step sign(gradient there), clipped to [0, 1] again, eta uniform in a ball of ``noise`` radii.
    It is meant for training: the point may lie ``noise`` radii and a step from the image; an audit brings it back.

    Args:
        noise: the radius of the noise, in radii of the ball.
    """

    source = ("dejorge2022make",)
    example = "n-fgsm:noise=1.5"

    random_init: Start = "uniform"
    noise: Positive = 2.0

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """The image plus noise, in [0, 1]."""
        wide = inputs.threat.with_epsilon(inputs.threat.epsilon * self.noise)
        return super().start(model, dataclasses.replace(inputs, threat=wide))

    def _bounded(self, x: Tensor, inputs: AttackInputs) -> Tensor:
        """The box alone."""
        del inputs
        return x.clamp(0, 1)


@configurable
class TemperaturePGD(Ascent):
    """PGD on the cross-entropy of softmax(logits / T); the prediction that counts is the plain one.

    Args:
        inverse_temperature: 1/T; large values are steep.
        arithmetic: ``"paper"`` is float32 autograd through the tempered cross-entropy, most of whose gradients
            underflow to zero at large 1/T. ``"stable"`` ascends log sum_{k != y} exp((z_k - z_y)/T): the same
            direction, no underflow.
    """

    source = ("tian2021analysis",)
    example = "tpgd:steps=20,inverse_temperature=10"

    inverse_temperature: Positive = 5.0
    arithmetic: Literal["stable", "paper"] = "stable"

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        """The tempered loss in the chosen arithmetic."""
        del inputs
        tempered = logits * self.inverse_temperature
        if self.arithmetic == "paper":
            return losses.cross_entropy(tempered, y)
        return losses.others_against_label(tempered, y)


TEMPERATURES = (2.0, 5.0, 10.0, 50.0)
"""The grid of 1/T that the paper takes its best from."""
