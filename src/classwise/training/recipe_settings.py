"""The settings of the data and the model in a recipe."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from classwise.core.settings.config import Count, Number, Seed, Share, configurable
from classwise.core.settings.description import Described

Part = str | dict[str, Any]
"""A part as a spec or a mapping: ``"pgd:steps=10"`` or ``{"name": "pgd", "steps": 10}``."""
EpochNumbers = Annotated[tuple[Count, ...], AfterValidator(lambda epochs: tuple(sorted(set(epochs))))]
"""Numbers of epochs, from 1; sorted, without duplicates."""


@configurable
class UnlabelledSettings(Described):
    """Unlabelled images for self-training, labelled by a teacher.

    Args:
        name: a data set's name, or a path; its labels are not used.
        teacher: a run folder, or a file of weights with the name of its model; it predicts the pseudo-labels.
        split: the split to use.
        fraction: the fraction of unlabelled images in a batch, in (0, 1).
        subset: the size of a subset, stratified by the labels of the set; None for all images.
        subset_seed: the seed of the subset.
        options: options of the file format, as in `DataSettings`.
    """

    source = ("carmon2019unlabeled",)
    changes = ("data",)

    name: str
    teacher: str
    split: str = "train"
    fraction: Annotated[Number, Field(gt=0, lt=1)] = 0.5
    subset: Count | None = None
    subset_seed: Seed = 0
    options: dict[str, Any] = field(default_factory=dict)

    def of(self, batch_size: int) -> int:
        """Return the number of unlabelled images in a batch."""
        return round(self.fraction * batch_size)


@configurable
class DataSettings:
    """The training data.

    Args:
        name: a data set's name, or a path.
        root: the data directory; None for the default places.
        subset: the size of a stratified subset to train on; None for all images.
        subset_seed: the seed of the subset.
        validation: the fraction of each class in the validation split.
        augment: the augmentation of training images.
        unlabelled: unlabelled images for self-training, or None.
        options: options of the file format, such as ``{"size": 64}``; an audit of the run loads test images with them.
    """

    name: str = "digits"
    root: str | None = None
    subset: Count | None = None
    subset_seed: Seed = 0
    validation: Share = 0.02
    augment: Part = "none"
    unlabelled: UnlabelledSettings | None = None
    options: dict[str, Any] = field(default_factory=dict)


@configurable
class ModelSettings:
    """The model.

    Args:
        name: the name of a model of the zoo, or ``package.module:callable``.
        width: the width factor.
        options: further arguments of the model.
        weights: the initial weights, a run folder or a file; None for random initialisation.
        sync_batch_norm: synchronise the statistics of batch normalisation over the processes of a distributed run, on
            GPUs only.
    """

    name: str = "preactresnet18"
    width: float = Field(default=1.0, gt=0)
    options: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    sync_batch_norm: bool = False
