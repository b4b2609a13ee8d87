"""Data-parallel training: each process computes its rows of a batch; gradients, terms and buffers are all-reduced.

The weights are bit-equal in all processes, since gradients are summed before the optimiser step. Reductions, schedules
and the sums of an epoch receive the terms and logits of the full batch, so they are independent of the number of
processes. The random numbers of an image do not depend on its process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from classwise.core.compute.distributed import ProcessGroup
from classwise.core.errors import ClasswiseError
from classwise.training.objectives.base import Step, TrainingBatch


@dataclass(frozen=True)
class BatchShard:
    """The rows of a batch that this process computes.

    Args:
        processes: the process group.
        count: the number of rows of the full batch.
    """

    processes: ProcessGroup
    count: int

    @property
    def replicated(self) -> bool:
        """Whether every process computes all rows: one process, or fewer than two rows per process."""
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
        """Gather the rows of all processes in order, (count, ...); only those of this process have gradients."""
        if self.replicated:
            return local
        rows = self.rows
        gathered = local.new_zeros(self.count, *local.shape[1:])
        gathered[rows] = local.detach()
        self.processes.all_reduce(gathered)
        return torch.cat([gathered[: rows.start], local, gathered[rows.stop :]])

    def of_batch(self, batch: TrainingBatch) -> TrainingBatch:
        """Return the rows of this process of a batch."""
        if self.replicated:
            return batch
        rows = self.rows
        names = ("x", "y", "index", "step_size", "target", "teacher_logits", "memory_rows")
        parts = {name: value[rows] for name in names if (value := getattr(batch, name)) is not None}
        return dataclasses.replace(batch, **parts, threat=batch.threat.of(rows), rows=rows, gather=self.gather)

    def of_step(self, local: Step) -> Step:
        """Gather the terms and logits of the full batch in one all-reduce."""
        if self.replicated:
            return local
        terms = torch.stack(list(local.terms.values()), 1).float()
        logits = {name: getattr(local, name) for name in ("clean_logits", "robust_logits")}
        logits["steps"] = None if local.steps is None else local.steps[:, None].float()
        parts = [terms, *(value for value in logits.values() if value is not None)]
        pieces = list(torch.split(self.gather(torch.cat(parts, 1)), [part.shape[1] for part in parts], 1))
        gathered = dict(zip(local.terms, pieces.pop(0).unbind(1), strict=True))
        gathered_logits = {name: None if value is None else pieces.pop(0) for name, value in logits.items()}
        steps = gathered_logits.pop("steps")
        return Step(gathered, **gathered_logits, steps=None if steps is None else steps.squeeze(1))

    def all_reduced(self, loss: Tensor, model: nn.Module) -> Tensor:
        """Return the loss with a hook: ``backward`` then computes the gradient of the full batch in each process."""
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
        """Average the change of each buffer in a step over the processes.

        The running statistics of batch normalisation then include the rows of all processes, and are bit-equal in all
        of them. A buffer that no process changed is unchanged bit for bit.
        """
        changes = [now - then for now, then in zip(buffers, before, strict=True)]
        for now, then, change in zip(buffers, before, self._all_reduce(changes), strict=True):
            now.copy_(then + change / self.processes.world_size)

    def _all_reduce(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sum each tensor over the processes in one all-reduce."""
        if not tensors:
            return []
        flat = self.processes.all_reduce(torch.cat([tensor.reshape(-1) for tensor in tensors]))
        pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


@contextmanager
def averaged_buffers(shard: BatchShard, model: nn.Module) -> Iterator[None]:
    """Average the changes of the model's buffers over the processes at the end of the block."""
    if shard.processes.world_size == 1:
        yield
        return
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    before = [buffer.clone() for buffer in buffers]
    yield
    shard.average_buffers(buffers, before)


def check_same_arguments(processes: ProcessGroup, arguments: Mapping[str, object]) -> None:
    """Check that all processes have the same arguments.

    Raises:
        ClasswiseError: if they differ.
    """
    gathered = processes.all_gather(arguments)
    for rank, other in enumerate(gathered):
        for name, value in gathered[0].items():
            if other[name] != value:
                raise ClasswiseError(
                    f"process {rank} has a different {name}; start all processes with the same arguments and files"
                )
