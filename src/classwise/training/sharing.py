"""How several processes share a step: each has its rows of the batch, and all of them see the whole of what comes out.

The weights of all processes are the same bits: their gradients are summed before the optimiser sees them. What a
reduction, a schedule or the sums of an epoch look at is the step of the whole batch, so none of them knows of
processes, and what a process draws for an image does not depend on which process does it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from classwise.errors import UserError
from classwise.team import Team
from classwise.training.objectives.base import Step, TrainingBatch


@dataclass(frozen=True)
class Share:
    """What one process does of so many rows.

    Args:
        team: the processes.
        count: the rows of all of them.
    """

    team: Team
    count: int

    @property
    def alike(self) -> bool:
        """Whether every process does all rows: one alone, and where some would have none, or one without statistics."""
        return self.team.size == 1 or self.count < 2 * self.team.size

    @property
    def rows(self) -> slice:
        """The rows of this process: a block, its length the same as that of the others or one more."""
        if self.alike:
            return slice(0, self.count)
        each, more = divmod(self.count, self.team.size)
        first = self.team.rank * each + min(self.team.rank, more)
        return slice(first, first + each + (self.team.rank < more))

    def whole(self, mine: Tensor) -> Tensor:
        """The rows of all processes in order, (count, ...), given its own, into which alone gradients flow."""
        if self.alike:
            return mine
        rows = self.rows
        found = mine.new_zeros(self.count, *mine.shape[1:])
        found[rows] = mine.detach()
        self.team.add(found)
        return torch.cat([found[: rows.start], mine, found[rows.stop :]])

    def of_batch(self, batch: TrainingBatch) -> TrainingBatch:
        """The rows of this process of a batch."""
        if self.alike:
            return batch
        rows = self.rows
        names = ("x", "y", "index", "step_size", "target")
        parts = {name: value[rows] for name in names if (value := getattr(batch, name)) is not None}
        epsilon = batch.threat.epsilon
        threat = batch.threat if isinstance(epsilon, float) else batch.threat.with_epsilon(epsilon[rows])
        return dataclasses.replace(batch, **parts, threat=threat, rows=rows, whole=self.whole)

    def of_step(self, mine: Step) -> Step:
        """The step of the whole batch: its terms and logits, in one message."""
        if self.alike:
            return mine
        terms = torch.stack(list(mine.terms.values()), 1).float()
        logits = {name: getattr(mine, name) for name in ("clean_logits", "robust_logits")}
        parts = [terms, *(value for value in logits.values() if value is not None)]
        pieces = list(torch.split(self.whole(torch.cat(parts, 1)), [part.shape[1] for part in parts], 1))
        found = dict(zip(mine.terms, pieces.pop(0).unbind(1), strict=True))
        seen = {name: None if value is None else pieces.pop(0) for name, value in logits.items()}
        return Step(found, **seen)

    def summing(self, loss: Tensor, model: nn.Module) -> Tensor:
        """The loss of the whole batch, whose ``backward`` leaves the gradient of the whole batch in each process."""
        if self.team.size == 1:
            return loss

        def begun(gradient: Tensor) -> None:
            del gradient
            # torch offers no public way to act when all of a backward pass is done.
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: self._sum_gradients(model))

        loss.register_hook(begun)  # type: ignore[no-untyped-call]  # torch does not annotate it
        return loss

    def _sum_gradients(self, model: nn.Module) -> None:
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        for gradient, total in zip(gradients, self._summed(gradients), strict=True):
            gradient.copy_(total / self.team.size if self.alike else total)

    def average_changes(self, buffers: Sequence[Tensor], before: Sequence[Tensor]) -> None:
        """Let each buffer have changed by the mean of what the processes have changed it by.

        So the running statistics of batch normalisation, which each process measures on its own rows, count all rows,
        and one process's file is everybody's. What has not changed stays as it is, to the bit.
        """
        changes = [now - then for now, then in zip(buffers, before, strict=True)]
        for now, then, change in zip(buffers, before, self._summed(changes), strict=True):
            now.copy_(then + change / self.team.size)

    def _summed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum of each tensor over the processes, in one message."""
        if not tensors:
            return []
        flat = self.team.add(torch.cat([tensor.reshape(-1) for tensor in tensors]))
        pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


@contextmanager
def sharing_buffers(share: Share, model: nn.Module) -> Iterator[None]:
    """What a step does to the model's buffers; after it all processes have the same ones."""
    if share.team.size == 1:
        yield
        return
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    before = [buffer.clone() for buffer in buffers]
    yield
    share.average_changes(buffers, before)


def synchronised(model: nn.Module, team: Team, device: torch.device) -> nn.Module:
    """The model with batch normalisation over the images of all processes; in one process it is what it was."""
    if team.size == 1:
        return model
    found: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(  # type: ignore[no-untyped-call]
        model, team.group(device)
    )
    return found


def agreed(team: Team, facts: Mapping[str, object]) -> None:
    """See that all processes were asked for the same training.

    Raises:
        UserError: if they were not.
    """
    everybody = team.all(facts)
    for rank, other in enumerate(everybody):
        for name, value in everybody[0].items():
            if other[name] != value:
                raise UserError(f"process {rank} has another {name}; start all of them with the same words and files")
