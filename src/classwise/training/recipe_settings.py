"""The settings inside a recipe that are no parts: its data and its model."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

from pydantic import Field

from classwise.core.config import Count, Number, Seed, Share, configurable
from classwise.core.description import Described

Part = str | dict[str, Any]
"""A part as a recipe writes it: ``"pgd:steps=10"`` or ``{"name": "pgd", "steps": 10}``."""


@configurable
class UnlabelledSettings(Described):
    """Images without labels that join the training batches under a teacher's labels.

    Args:
        name: a data set's name, or a path; the labels of the set are not looked at.
        teacher: a run folder or a file of weights that names its model; its predictions are the labels.
        split: the split to take.
        fraction: the fraction of such images in a batch.
        subset: take a subset of so many images, stratified by the labels of the set; None for all.
        subset_seed: which subset.
        options: of the file format, as in `DataSettings`.
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
        """How many images of a batch they are."""
        return round(self.fraction * batch_size)


@configurable
class DataSettings:
    """The training data.

    Args:
        name: a data set's name, or a path.
        root: the data directory, if it is not one of the usual places.
        subset: train on a stratified subset of so many images; None for all.
        subset_seed: which subset.
        validation: the share of each class that is held out of training for validation.
        augment: what happens to a training image.
        unlabelled: images for self-training; None for none.
        options: of the file format, such as ``{"size": 64}``; an audit of the run reads its test images by them too.
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
        name: a name of the zoo, or ``package.module:callable``.
        width: the width factor.
        options: further arguments of the model.
        weights: a run folder or a file of weights to start from; None for random weights.
        sync_batch_norm: where several processes share a step, measure the statistics of batch normalisation over all of
            them, and not in each; on GPUs only.
    """

    name: str = "preactresnet18"
    width: float = Field(default=1.0, gt=0)
    options: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    sync_batch_norm: bool = False
