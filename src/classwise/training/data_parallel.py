"""Data-parallel training: each process computes its rows of a batch, and gradients, terms and buffers are reduced.

The weights of all processes are bit-equal, since gradients are summed before the optimiser reads them. Reductions,
schedules and the sums of an epoch get the terms and logits of the whole batch, so they need not know of processes. The
random numbers of an image do not depend on the process that computes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from classwise.core.distributed import ProcessGroup
from classwise.core.errors import ClasswiseError
from classwise.training.objectives.base import Step, TrainingBatch


@dataclass(frozen=True)
class BatchShard:
    """The rows of a batch that one process computes.

    Args:
        team: the processes.
        count: the rows of the whole batch.
    """

    processes: ProcessGroup
    count: int

    @property
    def replicated(self) -> bool:
        """Whether every process computes all rows: with one process, or with fewer than two rows per process."""
        return self.processes.world_size == 1 or self.count < 2 * self.processes.world_size

    @property
    def rows(self) -> slice:
        """The rows of this process: a contiguous block; block lengths differ by at most one."""
        if self.replicated:
            return slice(0, self.count)
        each, more = divmod(self.count, self.processes.world_size)
        first = self.processes.rank * each + min(self.processes.rank, more)
        return slice(first, first + each + (self.processes.rank < more))

    def gather(self, local: Tensor) -> Tensor:
        """The rows of all processes in order, (count, ...); gradients flow into those of this process only."""
        if self.replicated:
            return local
        rows = self.rows
        gathered = local.new_zeros(self.count, *local.shape[1:])
        gathered[rows] = local.detach()
        self.processes.all_reduce(gathered)
        return torch.cat([gathered[: rows.start], local, gathered[rows.stop :]])

    def of_batch(self, batch: TrainingBatch) -> TrainingBatch:
        """The rows of this process of a batch."""
        if self.replicated:
            return batch
        rows = self.rows
        names = ("x", "y", "index", "step_size", "target")
        parts = {name: value[rows] for name in names if (value := getattr(batch, name)) is not None}
        epsilon = batch.threat.epsilon
        threat = batch.threat if isinstance(epsilon, float) else batch.threat.with_epsilon(epsilon[rows])
        return dataclasses.replace(batch, **parts, threat=threat, rows=rows, gather=self.gather)

    def of_step(self, local: Step) -> Step:
        """The step of the whole batch: its terms and logits, in one all-reduce."""
        if self.replicated:
            return local
        terms = torch.stack(list(local.terms.values()), 1).float()
        logits = {name: getattr(local, name) for name in ("clean_logits", "robust_logits")}
        parts = [terms, *(value for value in logits.values() if value is not None)]
        pieces = list(torch.split(self.gather(torch.cat(parts, 1)), [part.shape[1] for part in parts], 1))
        gathered = dict(zip(local.terms, pieces.pop(0).unbind(1), strict=True))
        gathered_logits = {name: None if value is None else pieces.pop(0) for name, value in logits.items()}
        return Step(gathered, **gathered_logits)

    def all_reduced(self, loss: Tensor, model: nn.Module) -> Tensor:
        """The loss, whose ``backward`` then leaves the gradient of the whole batch in each process."""
        if self.processes.world_size == 1:
            return loss

        def on_backward(gradient: Tensor) -> None:
            del gradient
            # torch has no public hook for the end of a backward pass.
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: self._sum_gradients(model))

        loss.register_hook(on_backward)  # type: ignore[no-untyped-call]  # torch does not annotate it
        return loss

    def _sum_gradients(self, model: nn.Module) -> None:
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        for gradient, total in zip(gradients, self._all_reduce(gradients), strict=True):
            gradient.copy_(total / self.processes.world_size if self.replicated else total)

    def average_buffers(self, buffers: Sequence[Tensor], before: Sequence[Tensor]) -> None:
        """Average over the processes the change of each buffer in a step.

        So the running statistics of batch normalisation include the rows of all processes, and are bit-equal in each of
        them. A buffer that no process changed keeps its bits.
        """
        changes = [now - then for now, then in zip(buffers, before, strict=True)]
        for now, then, change in zip(buffers, before, self._all_reduce(changes), strict=True):
            now.copy_(then + change / self.processes.world_size)

    def _all_reduce(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum of each tensor over the processes, in one all-reduce."""
        if not tensors:
            return []
        flat = self.processes.all_reduce(torch.cat([tensor.reshape(-1) for tensor in tensors]))
        pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


@contextmanager
def averaged_buffers(shard: BatchShard, model: nn.Module) -> Iterator[None]:
    """Average the changes of the model's buffers over the processes when the block ends."""
    if shard.processes.world_size == 1:
        yield
        return
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    before = [buffer.clone() for buffer in buffers]
    yield
    shard.average_buffers(buffers, before)


def convert_sync_batchnorm(model: nn.Module, processes: ProcessGroup, device: torch.device) -> nn.Module:
    """The model with batch normalisation over the images of all processes; with one process, the model itself."""
    if processes.world_size == 1:
        return model
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(  # type: ignore[no-untyped-call]
        model, processes.group(device)
    )
    return converted


def check_same_arguments(processes: ProcessGroup, arguments: Mapping[str, object]) -> None:
    """Check that all processes train with the same arguments.

    Raises:
        ClasswiseError: if they were not.
    """
    gathered = processes.all_gather(arguments)
    for rank, other in enumerate(gathered):
        for name, value in gathered[0].items():
            if other[name] != value:
                raise ClasswiseError(
                    f"process {rank} has another {name}; start all processes with the same arguments and files"
                )
