"""Evaluation on the validation split: outputs under attack, and their per-class means."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine, Job
from classwise.attacks.losses import cross_entropy, divergence, margin
from classwise.core.compute.distributed import ProcessGroup
from classwise.data import Images
from classwise.models.modes import evaluating
from classwise.threat.ball import Threat
from classwise.training.data_parallel import BatchShard
from classwise.training.recipe import Recipe

BATCH_ON_A_GPU = 1024
"""Images of a batch of small images on a GPU, which a batch of the recipe's size would not keep busy."""
SMALL_PIXELS = 64 * 64
"""Images of at most this many pixels are small."""


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model on clean and attacked images.

    Args:
        clean: logits on the clean images, (N, C).
        attacked: logits at the last point of the attack, (N, C).
        robust: whether the last point is classified correctly, bool (N,).
        soft: sigmoid((p_y - max other p) / 0.1) at the last point, (N,).
    """

    clean: Tensor
    attacked: Tensor
    robust: Tensor
    soft: Tensor


class Evaluation:
    """Evaluation of one model on one split after each epoch: its outputs on clean and on attacked images.

    One engine and its fused copy of the model serve all calls; each call reads the present weights of the model.

    Args:
        model: the model, evaluated in evaluation mode.
        images: N images, on the device of the model.
        attack: the attack; it runs all steps, with the same random initialisation in each call.
        threat: the threat of the attack.
        recipe: provides the batch size, the precision and the seed.
        processes: the processes that share the images; None for this process only.
    """

    def __init__(
        self,
        model: nn.Module,
        images: Images,
        attack: Attack,
        threat: Threat,
        recipe: Recipe,
        processes: ProcessGroup | None = None,
    ) -> None:
        self.model = model
        self._shard = BatchShard(processes or ProcessGroup(), len(images))
        self._images = images if self._shard.replicated else images.take(torch.arange(len(images))[self._shard.rows])
        self._attack = attack
        self._threat = threat
        size = validation_batch(self._images, recipe.batch_size)
        self._engine = Engine(model, precision=recipe.precision, batch_size=size, early_stop=False, seed=recipe.seed)

    def __call__(self, callback: Callable[[], None] = lambda: None) -> Outputs:
        """Compute the outputs; each process returns those on all images.

        Args:
            callback: called after each batch; it may raise.
        """
        with evaluating(self._engine.model):
            local = self._local(callback)
        values = {field.name: getattr(local, field.name) for field in dataclasses.fields(local)}
        return Outputs(**{name: self._shard.gather(value.float()).to(value.dtype) for name, value in values.items()})

    def _local(self, callback: Callable[[], None]) -> Outputs:
        """The outputs on the images of this process."""
        engine, images = self._engine, self._images
        batches = list(images.batches(engine.batch_size))
        clean_logits = []
        with closing(engine.predict(batch.x for batch in batches)) as blocks:
            for logits in blocks:
                clean_logits.append(logits)
                callback()
        clean = torch.cat(clean_logits)
        attacked = torch.zeros_like(clean)
        robust = torch.zeros(len(images), dtype=torch.bool, device=images.device)
        soft = torch.zeros(len(images), device=images.device)
        jobs = [Job(batch.index, batch.x, batch.y) for batch in batches]
        with closing(engine.attack(self._attack, self._threat, jobs, images=len(images))) as results:
            for done in results:
                robust[done.row] = ~done.success
                attacked[done.row] = done.logits
                soft[done.row] = torch.sigmoid(margin(done.logits.softmax(1), done.y) / 0.1)
                callback()
        return Outputs(clean, attacked, robust, soft)


def validation_batch(images: Images, batch_size: int) -> int:
    """The batch size of validation, at least 32: that of training, or on a GPU more small images, if there are as many.

    Args:
        images: the images, on the device.
        batch_size: the batch size of training.
    """
    usual = max(32, batch_size)
    if images.device.type == "cpu" or images.shape[1] * images.shape[2] > SMALL_PIXELS:
        return usual
    return max(usual, min(BATCH_ON_A_GPU, -(-len(images) // 32) * 32))


def class_means(outputs: Outputs, y: Tensor, classes: int, reads: AbstractSet[str]) -> dict[str, Tensor]:
    """Compute per-class means: ``count``, ``clean`` and ``robust`` accuracy, and the ``valid.*`` signals in ``reads``.

    Args:
        outputs: the outputs of the model on the validation split.
        y: labels, int64 (N,).
        classes: the number of classes C.
        reads: the signals that schedules and averaging read.

    Returns:
        Tensors (C,) by name, NaN for a class without images; ``confidence`` is (C, C).
    """
    count = torch.bincount(y, minlength=classes).float()
    measured = {
        "clean": (outputs.clean.argmax(1) == y).float(),
        "robust": outputs.robust.float(),
        "loss": cross_entropy(outputs.clean, y),
        "divergence": divergence(outputs.clean, outputs.attacked),
        "soft": outputs.soft,
    }
    selected = {
        name: value for name, value in measured.items() if name in ("clean", "robust") or f"valid.{name}" in reads
    }
    if "valid.average_confidence" in reads:
        selected["confidence"] = outputs.attacked.float().softmax(1)
    means = {"count": count}
    for name, value in selected.items():
        total = torch.zeros(classes, *value.shape[1:], device=y.device).index_add_(0, y, value)
        counts = count.view(-1, *[1] * (value.ndim - 1))
        means[name] = torch.where(counts > 0, total / counts, torch.nan)
    return means
