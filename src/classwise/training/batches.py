"""The batches of a training run: shuffled or sampled images, augmented, with the threat and the target of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from classwise.core.compute.rng import CounterRNG
from classwise.data import Images
from classwise.data.augment import Augmentation
from classwise.data.image_names import joined
from classwise.data.images import to_unit
from classwise.threat.ball import Threat
from classwise.training.classes.signals import ClassSettings
from classwise.training.objectives.base import TrainingBatch

_POSITION_SHIFT = 32
"""Bits of a random-number index for the index of the image; the higher bits are its position in the epoch."""


@dataclass(frozen=True)
class Batches:
    """The batches of every epoch.

    A batch is a function of the epoch and the step, so a resumed run has the same batches.

    Args:
        images: the labelled images; an epoch is one pass over them.
        extra: pseudo-labelled images, sampled uniformly with replacement, or None.
        labelled: the number of labelled images in a full batch.
        unlabelled: the number of pseudo-labelled images in a full batch.
        augment: the augmentation.
        threat: the threat of the run; schedules may change the radius per class.
        rng: the random numbers of the run.
    """

    images: Images
    extra: Images | None
    labelled: int
    unlabelled: int
    augment: Augmentation
    threat: Threat
    rng: CounterRNG

    @cached_property
    def pool(self) -> Images:
        """The images that rows refer to: the labelled ones, then the pseudo-labelled ones."""
        return self.images if self.extra is None else concatenated(self.images, self.extra)

    @property
    def steps(self) -> int:
        """Number of steps per epoch."""
        return steps_of(len(self.images), self.labelled)

    def order(self, epoch: int) -> Tensor:
        """Return the order of the labelled images in an epoch, a permutation (N,)."""
        return self.rng.child("order").at(epoch).permutation(len(self.images), self.images.device)

    def rows(self, order: Tensor, epoch: int, step: int, settings: ClassSettings) -> Tensor:
        """Return the rows of a step, int64 (N,): labelled images, then pseudo-labelled images.

        The labelled images follow ``order``, or are sampled if the class setting ``sampling`` is set.
        """
        first = step * self.labelled
        rows = order[first : first + self.labelled]
        if settings.sampling is not None:
            cumulative = settings.sampling[self.images.y].double().cumsum(0)
            positions = torch.arange(len(rows), device=rows.device)
            rng = self.rng.child("sampling").at(epoch).uniform(positions, counter=step)
            rows = torch.searchsorted(cumulative, rng * cumulative[-1], right=True).clamp_max(len(self.images) - 1)
        if self.extra is None:
            return rows
        count = round(len(rows) * self.unlabelled / self.labelled)
        positions = torch.arange(count, device=rows.device)
        sampled = self.rng.child("unlabelled").at(epoch).integers(positions, (), len(self.extra), counter=step)
        return torch.cat([rows, len(self.images) + sampled])

    def batch(self, rows: Tensor, epoch: int, step: int, settings: ClassSettings, progress: float) -> TrainingBatch:
        """Return the augmented images of ``rows``, with the radius and the target of each.

        Args:
            rows: int64 (N,), as `rows` returns them.
            epoch: from 0.
            step: of the epoch, from 0.
            settings: the class settings of the step.
            progress: the fraction of training completed, in [0, 1].
        """
        index, y = self._index(rows, step, settings), self.pool.y[rows]
        x = self.augment(self.pool.x[rows], index, self.rng.child("augment").at(epoch))
        x = (to_unit(x) if x.dtype == torch.uint8 else x).contiguous()
        return with_settings(x, y, index, self.threat, settings, self.rng.child("target").at(epoch), progress)

    def _index(self, rows: Tensor, step: int, settings: ClassSettings) -> Tensor:
        """Return the random-number index of each row, (N,).

        For a sampled image, it includes the position in the epoch: repeated images are augmented and attacked with
        different random numbers.
        """
        index = self.pool.index[rows]
        if settings.sampling is None and self.extra is None:
            return index
        positions = torch.arange(len(rows), device=rows.device) + (step * (self.labelled + self.unlabelled) + 1)
        sampled = rows >= (0 if settings.sampling is not None else len(self.images))
        return torch.where(sampled, index + (positions << _POSITION_SHIFT), index)


def steps_of(images: int, batch_size: int) -> int:
    """Return the number of batches; a last batch of a single image is dropped, since it has no batch statistics."""
    full, rest = divmod(images, batch_size)
    return full + (rest > 1)


def with_settings(
    x: Tensor, y: Tensor, index: Tensor, threat: Threat, settings: ClassSettings, rng: CounterRNG, progress: float
) -> TrainingBatch:
    """Return a batch with the radius, the step size and the target of each image; ``rng`` samples the targets."""
    epsilon = settings.of("epsilon", y)
    assert epsilon is not None
    target = sampled_targets(index, y, rng, settings)
    return TrainingBatch(
        x, y, index, threat.with_epsilon(epsilon), settings.of("step_size", y), target, progress=progress
    )


def sampled_targets(index: Tensor, y: Tensor, rng: CounterRNG, settings: ClassSettings) -> Tensor | None:
    """Sample a target per image from the distribution of its class, (N,); -1 for a zero row; None without targets."""
    probabilities = settings.of("target", y)
    if probabilities is None:
        return None
    cumulative = _cumulative(probabilities.double())
    uniform = rng.uniform(index, (1,))
    chosen = (
        torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
        .squeeze(1)
        .clamp_max(probabilities.shape[1] - 1)
    )
    return torch.where(cumulative[:, -1] > 0, chosen, -1)


def _cumulative(rows: Tensor) -> Tensor:
    """The cumulative sums of each row. In deterministic mode on a GPU, which has none, a product with a matrix."""
    if rows.is_cuda and torch.are_deterministic_algorithms_enabled():
        return rows @ rows.new_ones(rows.shape[1], rows.shape[1]).triu()
    return rows.cumsum(1)


def concatenated(images: Images, extra: Images) -> Images:
    """Concatenate the labelled images and the others, whose indices follow those of the labelled images."""
    same = images.x.dtype == extra.x.dtype
    x = torch.cat([images.x, extra.x] if same else [images.pixels(), extra.pixels()])
    index = torch.cat([images.index, int(images.index.max()) + 1 + torch.arange(len(extra), device=images.device)])
    names = joined((part.image_names, len(part)) for part in (images, extra))
    y = torch.cat([images.y, extra.y])
    return Images(x, y, images.class_names, images.name, images.split, index=index, image_names=names)
