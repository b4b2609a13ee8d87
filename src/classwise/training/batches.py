"""The batches of a training run: shuffled or sampled rows, augmented, with the threat and the target of each image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from classwise.core.rng import CounterRNG
from classwise.core.threat import Threat
from classwise.data import Images
from classwise.data.augment import Augmentation
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import TrainingBatch
from classwise.training.pseudo_labels import concatenated

_POSITION_SHIFT = 32
"""The bits of a random-number index that hold the image's index; those above hold its position in the epoch."""


@dataclass(frozen=True)
class Batches:
    """The batches of every epoch; each is a function of its epoch and step, so a resumed run gets the same ones.

    Args:
        images: the labelled images; an epoch is one pass over them.
        extra: pseudo-labelled images, sampled uniformly with replacement, or None.
        labelled: labelled images in a full batch.
        unlabelled: pseudo-labelled images in a full batch.
        augment: the augmentation.
        threat: the threat of classes without a radius of their own.
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
        """The images that rows index: the labelled ones, then the pseudo-labelled ones."""
        return self.images if self.extra is None else concatenated(self.images, self.extra)

    @property
    def steps(self) -> int:
        """Steps per epoch; a last batch of a single image is dropped, since it has no batch statistics."""
        full, rest = divmod(len(self.images), self.labelled)
        return full + (rest > 1)

    def order(self, epoch: int) -> Tensor:
        """The labelled images in the order of an epoch, (N,)."""
        return self.rng.child("order").at(epoch).permutation(len(self.images), self.images.device)

    def rows(self, order: Tensor, epoch: int, step: int, settings: ClassSettings) -> Tensor:
        """The rows of a step: the next of the order, or, if the class setting ``sampling`` is set, sampled by it.

        The rows of the pseudo-labelled images follow them.
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
        """The images of rows, augmented, with the radius and the target of each.

        Args:
            rows: int64 (N,), as `rows` returns them.
            epoch: from 0.
            step: of the epoch, from 0.
            settings: the class settings of the step.
            progress: the share of training that is done, in [0, 1].
        """
        index, y = self._index(rows, step, settings), self.pool.y[rows]
        x = self.augment(self.pool.x[rows], index, self.rng.child("augment").at(epoch))
        x = (x.float().div_(255) if x.dtype == torch.uint8 else x).contiguous()
        epsilon = settings.of("epsilon", y)
        assert epsilon is not None
        threat = self.threat.with_epsilon(epsilon)
        target = self._targets(index, y, epoch, settings)
        return TrainingBatch(x, y, index, threat, settings.of("step_size", y), target, progress=progress)

    def _index(self, rows: Tensor, step: int, settings: ClassSettings) -> Tensor:
        """The random-number index of each row, (N,): its image's, and its position in the epoch if it was sampled.

        So an image that is sampled twice is augmented and attacked with different random numbers.
        """
        index = self.pool.index[rows]
        if settings.sampling is None and self.extra is None:
            return index
        positions = torch.arange(len(rows), device=rows.device) + (step * (self.labelled + self.unlabelled) + 1)
        sampled = rows >= (0 if settings.sampling is not None else len(self.images))
        return torch.where(sampled, index + (positions << _POSITION_SHIFT), index)

    def _targets(self, index: Tensor, y: Tensor, epoch: int, settings: ClassSettings) -> Tensor | None:
        """A target per image, sampled from the distribution of its class; -1 where that is a zero row."""
        probabilities = settings.of("target", y)
        if probabilities is None:
            return None
        cumulative = probabilities.double().cumsum(1)
        rng = self.rng.child("target").at(epoch).uniform(index, (1,))
        chosen = (
            torch.searchsorted(cumulative, rng * cumulative[:, -1:], right=True)
            .squeeze(1)
            .clamp_max(probabilities.shape[1] - 1)
        )
        return torch.where(cumulative[:, -1] > 0, chosen, -1)
