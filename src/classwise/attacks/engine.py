"""The engine: any attack over any stream of images, on one model.

What an attack believes (perhaps in bfloat16) is only a suspicion: an image counts as broken when a float32 pass over
the final image says so.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from classwise.attacks.base import Attack, NoGradientError, recordable, value_and_gradient
from classwise.attacks.queue import Finished, Job, Queue, Rooms
from classwise.compute import EXACT, Compute, Forward
from classwise.errors import UserError
from classwise.models.lean import lean
from classwise.models.modes import evaluating, frozen
from classwise.threat import Threat

Stop = Literal["broken", "never"]
"""``"broken"``: keep the verified breaking image, else the iterate of lowest margin. ``"never"``: the last iterate."""


class Engine:
    """Runs any attack over any stream of images.

    Args:
        model: a classifier that maps (N, C, H, W) in [0, 1] to logits (N, classes).
        compute: how the attack's gradients are computed; success is always decided in float32.
        batch: images on the device at once, fixed; results repeat bit for bit only at one batch size of 32 or more.
        stop: see `Stop`.
        poll: steps between looks at which images have left; by default 1 on a CPU and 4 elsewhere. It never changes
            a result.
        seed: the seed of all draws.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        compute: Compute = EXACT,
        batch: int = 128,
        stop: Stop = "broken",
        poll: int | None = None,
        seed: int = 0,
    ) -> None:
        if batch < 1:
            raise UserError(f"batch = {batch}: a batch holds at least 1 image, and 32 for results that repeat")
        self.model = model
        self.device = _device_of(model)
        self.batch = batch
        self.stop = stop
        self.poll = poll or (1 if self.device.type == "cpu" else 4)
        self.seed = seed
        self._compute = compute
        self._plain = compute.forward(model)
        self._classes: int | None = None
        self._rooms: dict[int, Rooms] = {}
        self._exact = Compute(channels_last=compute.channels_last).forward(model)

    def predict(self, images: Iterable[Tensor]) -> Iterator[Tensor]:
        """Float32 logits for each block of images, at the engine's batch size."""
        with evaluating(self.model), frozen(self.model):
            for block in images:
                yield self.logits(block.to(self.device))

    def perturb(
        self,
        attack: Attack,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        *,
        index: Tensor | None = None,
        target: Tensor | None = None,
    ) -> Tensor:
        """The kept image of every row of one batch, in the batch's order."""
        with torch.inference_mode(mode=False):
            columns = {} if target is None else {"target": target}
            if isinstance(threat.epsilon, Tensor):
                columns["epsilon"] = threat.epsilon
            index = torch.arange(len(x)) if index is None else index
            result = x.clone()
            for done in self.attack(attack, threat, [Job(index, x, y, columns)]):
                result[done.row.to(x.device)] = done.x.to(x.device)
            return result

    def attack(self, attack: Attack, threat: Threat, jobs: Iterable[Job]) -> Iterator[Finished]:
        """Attack a stream of images; yields them in blocks as they finish.

        Args:
            attack: the attack.
            threat: norm and radius; a job's ``epsilon`` column overrides the radius.
            jobs: the images; every job must have the same columns.
        """
        with self.borrowed(attack) as model:
            yield from Queue(self, model, attack, threat, jobs).blocks()

    @contextmanager
    def borrowed(self, attack: Attack) -> Iterator[Counted]:
        """The model as an attack sees it, computed as `Compute` says or precisely; afterwards it is as it was found."""
        compute = self._compute
        with evaluating(self.model), frozen(self.model):
            if compute.dtype == "float32" or compute.compile:
                yield Counted(self._exact if attack.precise else self._plain, self.model)
                return
            if attack.precise:
                compute = dataclasses.replace(compute, dtype="float32")
            with lean(self.model, compute) as forward:
                yield Counted(forward, self.model)

    def rooms(self, attack: Attack) -> Rooms:
        """What is known of smaller batches for this attack: each is tried once, however many streams it sees."""
        return self._rooms.setdefault(id(attack), Rooms(attack))

    def logits(self, x: Tensor) -> Tensor:
        """Float32 logits in passes of exactly the engine's batch size, the tail padded with copies."""
        with torch.no_grad():
            passes = []
            for block in torch.split(x, self.batch):
                padded = block[torch.arange(self.batch, device=x.device) % len(block)]
                passes.append(self._exact(padded)[: len(block)])
        self._classes = passes[0].shape[1]
        return torch.cat(passes)

    @property
    def overwrites(self) -> bool:
        """Whether the model was seen to write into its input; it gets copies then."""
        return bool(self._exact.overwrites)

    def missing_gradient(self, x: Tensor) -> str:
        """Why the model's logits have no gradient at some images; empty if they have one.

        It costs a pass forward and backward over one batch.
        """
        x = recordable(x)[torch.arange(self.batch, device=x.device) % len(x)]
        try:
            with evaluating(self.model), frozen(self.model):
                value_and_gradient(self._exact, x, lambda logits: logits.sum(1))
        except torch.OutOfMemoryError:
            raise
        except NoGradientError:
            return "its logits do not depend on the images in autograd"
        except RuntimeError as error:  # it runs without gradients, as the pass before has shown
            return f"it fails where gradients are recorded ({str(error).strip().partition(chr(10))[0]})"
        return ""

    def classes(self, x: Tensor) -> int:
        """How many logits the model gives; a pass over the first of some images where none has been made yet."""
        return self._classes or self.logits(x[:1]).shape[1]


class Counted:
    """A forward pass that counts the images it passes, forward and backward; ``module`` is the model behind it."""

    def __init__(self, forward: Forward, module: nn.Module) -> None:
        self._forward = forward
        self.module = module
        self.forwards = 0
        self.backwards = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Float32 logits (N, classes)."""
        self.forwards += len(x)
        logits = self._forward(x)
        if logits.requires_grad:
            logits.register_hook(self._saw_backward)  # type: ignore[no-untyped-call]  # torch does not annotate it
        return logits

    def _saw_backward(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


def _device_of(model: nn.Module) -> torch.device:
    tensors = itertools.chain(model.parameters(), model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))
