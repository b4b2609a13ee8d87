"""What the steps of a run are fed: rows of images in an order of the epoch's own, augmented, with the ball of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from classwise.data import Images
from classwise.data.augment import Augmentation
from classwise.draws import Draws
from classwise.threat import Threat
from classwise.training.classes import ClassSettings
from classwise.training.objectives.base import TrainingBatch
from classwise.training.unlabelled import appended

_PLACES = 32
"""The bits of a draw's index that are left to the number of the image."""


@dataclass(frozen=True)
class Feed:
    """Batches, of which each is the same whenever it is asked for: all draws belong to an image, an epoch and a step.

    Args:
        images: the labelled images, whose passes are the epochs.
        extra: pseudo-labelled images, drawn evenly with replacement, or None.
        labelled: images of a full batch that come from the labelled ones.
        unlabelled: images of a full batch that come from the others.
        augment: what is done to the images.
        threat: the ball where no class has another radius.
        draws: the run's.
    """

    images: Images
    extra: Images | None
    labelled: int
    unlabelled: int
    augment: Augmentation
    threat: Threat
    draws: Draws

    @cached_property
    def pool(self) -> Images:
        """All images that rows speak of: the labelled ones, then the others."""
        return self.images if self.extra is None else appended(self.images, self.extra)

    @property
    def steps(self) -> int:
        """Steps of an epoch; a last batch of a single image is left out, since it has no batch statistics."""
        full, rest = divmod(len(self.images), self.labelled)
        return full + (rest > 1)

    def order(self, epoch: int) -> Tensor:
        """The labelled images in the order of an epoch, (N,)."""
        return self.draws.child("order").at(epoch).permutation(len(self.images), self.images.device)

    def rows(self, order: Tensor, epoch: int, step: int, settings: ClassSettings) -> Tensor:
        """The rows of a step: the epoch's next ones, or as many drawn by class where a schedule says how often.

        Behind them come the pseudo-labelled ones.
        """
        first = step * self.labelled
        rows = order[first : first + self.labelled]
        if settings.sampling is not None:
            odds = settings.sampling[self.images.y].double().cumsum(0)
            places = torch.arange(len(rows), device=rows.device)
            draws = self.draws.child("sampling").at(epoch).uniform(places, counter=step)
            rows = torch.searchsorted(odds, draws * odds[-1], right=True).clamp_max(len(self.images) - 1)
        if self.extra is None:
            return rows
        count = round(len(rows) * self.unlabelled / self.labelled)
        places = torch.arange(count, device=rows.device)
        drawn = self.draws.child("unlabelled").at(epoch).integers(places, (), len(self.extra), counter=step)
        return torch.cat([rows, len(self.images) + drawn])

    def batch(self, rows: Tensor, epoch: int, step: int, settings: ClassSettings, progress: float) -> TrainingBatch:
        """The images of rows, augmented, with the ball and the target of each.

        Args:
            rows: what `rows` gave.
            epoch: from 0.
            step: of the epoch, from 0.
            settings: the class settings in force.
            progress: the share of the training that is done.
        """
        index, y = self._index(rows, step, settings), self.pool.y[rows]
        x = self.augment(self.pool.x[rows], index, self.draws.child("augment").at(epoch))
        x = (x.float().div_(255) if x.dtype == torch.uint8 else x).contiguous()
        epsilon = settings.of("epsilon", y)
        assert epsilon is not None
        threat = self.threat.with_epsilon(epsilon)
        target = self._targets(index, y, epoch, settings)
        return TrainingBatch(x, y, index, threat, settings.of("step_size", y), target, progress=progress)

    def _index(self, rows: Tensor, step: int, settings: ClassSettings) -> Tensor:
        """What the draws of each row hang on, (N,): its image, and its place in the epoch if it was drawn.

        So an image that is drawn twice is cropped and attacked in two ways.
        """
        index = self.pool.index[rows]
        if settings.sampling is None and self.extra is None:
            return index
        places = torch.arange(len(rows), device=rows.device) + (step * (self.labelled + self.unlabelled) + 1)
        drawn = rows >= (0 if settings.sampling is not None else len(self.images))
        return torch.where(drawn, index + (places << _PLACES), index)

    def _targets(self, index: Tensor, y: Tensor, epoch: int, settings: ClassSettings) -> Tensor | None:
        """A target for each image, drawn from its class's law; -1 where the law is a zero row."""
        law = settings.of("target", y)
        if law is None:
            return None
        odds = law.double().cumsum(1)
        draws = self.draws.child("target").at(epoch).uniform(index, (1,))
        chosen = torch.searchsorted(odds, draws * odds[:, -1:], right=True).squeeze(1).clamp_max(law.shape[1] - 1)
        return torch.where(odds[:, -1] > 0, chosen, -1)
