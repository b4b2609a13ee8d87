"""Training steps as CUDA graphs: attack, loss and gradients are launched at once instead of kernel by kernel.

A graph is captured in each epoch, from the step after a few that are computed kernel by kernel. So everything that is
fixed within an epoch may be a Python value: the epoch of the random numbers, and which class settings are set. What
differs between the steps of an epoch is in tensors that each step copies into the graph's own (images, labels, indices,
radii, step sizes and targets), in the memory of the objective, which steps change in place, or remains outside of the
graph: the learning rate and the optimiser step, the seed of torch's generators, the number of the step, what the
objective does before it, and weight averaging. The fraction of training completed may only be
compared (`Compared`); where a comparison changes, another graph is captured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from classwise.core.compute.distributed import ProcessGroup
from classwise.core.compute.graphs import WARM_UP, Captured, Compared, SideStream, first_line, waits_noted
from classwise.training.objectives.base import TrainingBatch
from classwise.training.recipe import Recipe
from classwise.training.schedules.base import ClassSchedule
from classwise.training.step import StepInputs, StepResult, TrainingStep

VERIFIED = 2
"""Steps of a run that are computed both ways and compared, before the graph is trusted."""
MEASURED = 5000
"""Steps of a training from which it saves time to measure algorithms.

With PreActResNet-18 in batches of 128 on an H100 that takes 5 s and saves 1.2 ms a step.
"""
LOSS_TOLERANCE = 0.02
"""Largest difference of a loss, as a fraction of the loss. Kernels on a GPU may round differently from call to call."""
GRADIENT_TOLERANCE = 0.1
"""Largest norm of the difference of the gradients of all weights, as a fraction of the gradient's norm."""

_TINY = 1e-30


def unsuitable(recipe: Recipe, device: torch.device, processes: ProcessGroup) -> str:
    """Why the steps of a run cannot be captured; empty if they may be.

    Args:
        recipe: the complete recipe.
        device: where the run is.
        processes: the processes that share each batch.
    """
    parts = recipe.parts
    if device.type != "cuda":
        return f"device {device.type!r} is not a GPU"
    if processes.world_size > 1:
        return "several processes share each batch"
    for schedule in parts.schedules:
        if type(schedule).after_batch is not ClassSchedule.after_batch:
            return f"the schedule {type(schedule).__name__} reads each batch"
    if not parts.update.steps_last:
        return f"the update {type(parts.update).__name__} does not declare that the optimiser step is its last action"
    return ""


class GraphedStep:
    """Training steps of one model, as CUDA graphs where possible.

    Batches of other sizes than the usual one are computed kernel by kernel.

    Args:
        step: the training steps.
        device: the GPU.
        decided: called with an empty text after `VERIFIED` steps, or with the reason why steps cannot be captured.
        steps: number of steps of the training; from `MEASURED` on, cuDNN measures which of its algorithms are fastest.
    """

    def __init__(
        self, step: TrainingStep, device: torch.device, decided: Callable[[str], None], steps: int = 0
    ) -> None:
        self._step = step
        self._device = device
        self._decided = decided
        self._side = SideStream(device)
        self._capture: _Capture | None = None
        self._to_warm_up = WARM_UP
        self._to_verify = VERIFIED
        self._refused = False
        self._measures = steps >= MEASURED

    def __call__(self, inputs: StepInputs) -> StepResult:
        """Compute the gradients of a batch and update the weights."""
        self._step.prepare(inputs)
        if self._refused or len(inputs.batch.x) != self._step.recipe.batch_size:
            return self._kernel_by_kernel(inputs)
        if not self._measures or torch.are_deterministic_algorithms_enabled():
            return self._computed(inputs)
        cudnn = torch.backends.cudnn
        before, cudnn.benchmark = cudnn.benchmark, True
        try:
            return self._computed(inputs)
        finally:
            cudnn.benchmark = before

    def _kernel_by_kernel(self, inputs: StepInputs) -> StepResult:
        """Compute a prepared step without a graph."""
        return self._step.compute(inputs, self._step.optimizer)

    def _computed(self, inputs: StepInputs) -> StepResult:
        """Compute a step of the usual batch size."""
        if self._capture is not None and not self._capture.fits(inputs):
            self._capture = None
            self._to_warm_up = 1
        if self._capture is None and self._to_warm_up:
            self._to_warm_up -= 1
            return self._warmed_up(inputs)
        try:
            if self._capture is None:
                self._capture = _Capture(self._step, inputs, self._side)
            if not self._to_verify:
                return self._capture.run(inputs)
            reason = self._verified(self._capture, inputs)
        except Exception as error:  # noqa: BLE001  # user code, and errors of CUDA for what cannot be captured
            reason = first_line(error)
        if reason or self._capture is None:
            return self._refuse(reason, inputs)
        self._to_verify -= 1
        if not self._to_verify:
            self._decided("")
        self._step.optimizer.step()
        return self._capture.result

    def _warmed_up(self, inputs: StepInputs) -> StepResult:
        """Compute a step before a capture; the last one before the first capture is checked for waits.

        The optimiser, which is not captured, is not checked. Nor are later epochs, in which other threads write files.
        """
        optimizer = self._step.optimizer
        with self._side.used():
            if self._to_warm_up or not self._to_verify:
                return self._kernel_by_kernel(inputs)
            with waits_noted() as waits:
                result = self._step.compute(inputs, _Deferred(optimizer))
            optimizer.step()
        if waits:
            self._give_up(waits[0])
        return result

    def _refuse(self, reason: str, inputs: StepInputs) -> StepResult:
        """Compute this and all further steps kernel by kernel."""
        self._step.optimizer.zero_grad(set_to_none=True)
        self._give_up(reason)
        return self._kernel_by_kernel(inputs)

    def _give_up(self, reason: str) -> None:
        """Compute all further steps kernel by kernel."""
        self._capture = None
        self._refused = True
        self._decided(reason)

    def _verified(self, capture: _Capture, inputs: StepInputs) -> str:
        """Compute the gradients by the graph and kernel by kernel, and return how they differ; empty if they do not.

        All buffers, sums and memories are those of one step afterwards, or unchanged if the results differ.
        """
        model = self._step.model
        changed = [*model.buffers(), *inputs.sums.sums.values(), *inputs.batch.memory.values()]
        before, generator = [tensor.clone() for tensor in changed], torch.cuda.get_rng_state(self._device)

        def restore() -> None:
            for tensor, value in zip(changed, before, strict=True):
                tensor.copy_(value)
            torch.cuda.set_rng_state(generator, self._device)

        reason = "it was not computed"
        try:
            expected = self._step.compute(inputs, _Deferred(self._step.optimizer))
            gradients = _gradients(model)
            restore()
            found = capture.compute(inputs)
            reason = _difference(expected, gradients, found, _gradients(model))
        finally:
            if reason:
                restore()
        return reason


class _Capture:
    """The graph of a step, with the tensors that it reads and writes."""

    def __init__(self, step: TrainingStep, inputs: StepInputs, side: SideStream) -> None:
        self._step = step
        self._fixed = inputs
        self._progress = Compared(inputs.batch.progress)
        batch = inputs.batch
        copies: dict[str, Any] = {name: tensor.clone() for name, tensor in _tensors(batch)}
        epsilon = copies.pop("epsilon", batch.threat.epsilon)
        progress: Any = self._progress
        self._batch = dataclasses.replace(batch, **copies, threat=batch.threat.with_epsilon(epsilon), progress=progress)
        own = inputs._replace(batch=self._batch)
        optimizer = _Deferred(step.optimizer)
        optimizer.zero_grad(set_to_none=True)  # the gradients are then tensors of the graph
        self._graph = Captured(lambda: step.compute(own, optimizer), side)
        self._gradients = _gradients(step.model)

    @property
    def result(self) -> StepResult:
        """The result of the last replay."""
        return self._graph.result

    def fits(self, inputs: StepInputs) -> bool:
        """Whether a replay computes this step."""
        fixed = self._fixed
        same = fixed.settings is inputs.settings and fixed.sums is inputs.sums and fixed.epoch == inputs.epoch
        shapes = [
            {name: (tensor.shape, tensor.dtype) for name, tensor in _tensors(b)} for b in (fixed.batch, inputs.batch)
        ]
        return same and shapes[0] == shapes[1] and self._progress.holds(inputs.batch.progress)

    def compute(self, inputs: StepInputs) -> StepResult:
        """Compute the gradients of a batch."""
        for (_, own), (_, tensor) in zip(_tensors(self._batch), _tensors(inputs.batch), strict=True):
            own.copy_(tensor)
        self._graph.replay()
        for weight, gradient in zip(self._step.model.parameters(), self._gradients, strict=True):
            weight.grad = gradient  # a step that was computed kernel by kernel has others
        return self._graph.result

    def run(self, inputs: StepInputs) -> StepResult:
        """Compute the gradients of a batch and update the weights."""
        result = self.compute(inputs)
        self._step.optimizer.step()
        return result


class _Deferred(Optimizer):
    """An optimiser whose step is left to the caller."""

    def __init__(self, optimizer: Optimizer) -> None:  # without the state of the base class
        self._optimizer = optimizer
        self.param_groups = optimizer.param_groups
        self.state = optimizer.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the gradients."""
        self._optimizer.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing."""


def _tensors(batch: TrainingBatch) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch by name, those that are set."""
    fields = {name: getattr(batch, name) for name in ("x", "y", "index", "step_size", "target", "memory_rows")}
    for name, value in (fields | {"epsilon": batch.threat.epsilon}).items():
        if isinstance(value, Tensor):
            yield name, value


def _gradients(model: nn.Module) -> list[Tensor | None]:
    return [weight.grad for weight in model.parameters()]


def _difference(
    expected: StepResult, gradients: list[Tensor | None], found: StepResult, found_gradients: list[Tensor | None]
) -> str:
    """How two results of one step differ; empty if only by rounding. Synchronises with the device."""
    for loss, other in zip(expected.losses, found.losses, strict=True):
        error = float((loss - other).abs() / loss.abs().clamp_min(_TINY))
        if not error <= LOSS_TOLERANCE and bool(loss.isfinite()):
            return f"the loss of the graph differs by {error:.1e} of the loss"
    if [gradient is None for gradient in gradients] != [gradient is None for gradient in found_gradients]:
        return "the graph computes the gradients of other weights"
    pairs = [
        (gradient, other) for gradient, other in zip(gradients, found_gradients, strict=True) if gradient is not None
    ]
    if not pairs:
        return ""
    size = torch.stack([gradient.float().norm() for gradient, _ in pairs]).norm()
    distance = torch.stack(
        [(gradient.float() - other.float()).norm() for gradient, other in pairs if other is not None]
    ).norm()
    error = float(distance / size.clamp_min(_TINY))
    differs = not error <= GRADIENT_TOLERANCE and bool(size.isfinite())
    return f"the gradient of the graph differs by {error:.1e} of its norm" if differs else ""
