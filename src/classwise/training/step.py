"""A training step up to the update of the weights: inner maximisation, loss, gradients and per-class sums."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from classwise.core.compute.compilation import Compiling
from classwise.core.compute.distributed import ProcessGroup
from classwise.core.compute.rng import CounterRNG
from classwise.models.affine import AffineNorms
from classwise.models.modes import frozen
from classwise.training.classes.signals import ClassSettings, ClassSums
from classwise.training.data_parallel import BatchShard, averaged_buffers
from classwise.training.objectives.base import Objective, Step, TrainingBatch
from classwise.training.recipe import Recipe
from classwise.training.reductions.base import per_image


class StepInputs(NamedTuple):
    """The inputs of a training step.

    Attributes:
        batch: the images, with the threat of each.
        settings: the class settings of the step.
        epoch: from 0.
        sums: the per-class sums of the epoch, to which the step is added.
        step: number of earlier steps of the run.
    """

    batch: TrainingBatch
    settings: ClassSettings
    epoch: int
    sums: ClassSums
    step: int = 0


class StepResult(NamedTuple):
    """The result of a training step.

    Attributes:
        step: terms and logits at the weights before the update, detached.
        losses: the loss of each evaluation, (), detached.
    """

    step: Step
    losses: Sequence[Tensor]


class TrainingStep:
    """Training steps of one model.

    Args:
        recipe: the complete recipe.
        model: the model.
        optimizer: its optimiser.
        processes: the processes that share each batch.
        rng: the random numbers of the run.
        reads: the signals that are measured.
        teacher: the teacher of the objective, in evaluation mode and frozen; None for objectives without one.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        optimizer: Optimizer,
        processes: ProcessGroup,
        rng: CounterRNG,
        reads: frozenset[str],
        teacher: nn.Module | None = None,
    ) -> None:
        self.recipe = recipe
        self.model = model
        self.optimizer = optimizer
        self._processes = processes
        self._rng = rng.child("craft")
        self._measures_loss = "train.loss" in reads
        self._forward = recipe.precision.forward(model)
        self._norms = AffineNorms(model)
        self._teacher = None if teacher is None else recipe.precision.forward(teacher)

    def compile(self, compiling: Callable[[], Compiling | None]) -> None:
        """Compile the passes of batches that each network's result of ``compiling`` asks for."""
        for forward in filter(None, (self._forward, self._teacher)):
            forward.compile(compiling())

    def __call__(self, inputs: StepInputs) -> StepResult:
        """Compute the gradients of a batch and update the weights."""
        self.prepare(inputs)
        return self.compute(inputs, self.optimizer)

    def prepare(self, inputs: StepInputs) -> None:
        """Let the objective set its memory before the step (`Objective.before_step`)."""
        objective = self.recipe.parts.objective
        if type(objective).before_step is not Objective.before_step:
            rng = self._rng.at(inputs.epoch)
            self.model.eval()
            with frozen(self.model):
                objective.before_step(self._forward, inputs.batch, inputs.settings, inputs.step, rng)

    def compute(self, inputs: StepInputs, optimizer: Optimizer) -> StepResult:
        """Compute the gradients of a batch and step the optimiser, which may be another than that of the model."""
        (batch, settings, epoch, sums, _), parts, model = inputs, self.recipe.parts, self.model
        shard = BatchShard(self._processes, len(batch.x))
        local = shard.of_batch(batch)
        if self._teacher is not None:
            with torch.no_grad():
                local = dataclasses.replace(local, teacher_logits=self._teacher(local.x))
        steps: list[Step] = []
        losses: list[Tensor] = []
        with averaged_buffers(shard, model):
            model.train(self.recipe.attack_mode == "train")
            with frozen(model), self._fixed_norms():
                points = parts.objective.points(self._forward, local, parts.attack, settings, self._rng.at(epoch))
            model.train()

            def loss() -> Tensor:
                steps.append(shard.of_step(parts.objective.step(self._forward, local, points, settings)))
                losses.append(parts.reduction(steps[-1], batch, settings))
                return shard.all_reduced(losses[-1], model)

            parts.update(model, optimizer, loss, batch.progress)
        step = steps[0]  # at the weights before the update; the second pass of AWP is at perturbed ones
        per_row = per_image(step, batch, settings) if self._measures_loss else None
        sums.add(batch.y, step.clean_logits, step.robust_logits, per_row, step.steps)
        return StepResult(step.detached(), [tensor.detach() for tensor in losses])

    def _fixed_norms(self) -> AbstractContextManager[object]:
        """Replace normalisation layers by constant ones for an inner attack in lower precision, unless compiled."""
        in_float32 = self.recipe.precision.dtype == "float32"
        return nullcontext() if in_float32 or self._forward.compiles else self._norms.replaced()
