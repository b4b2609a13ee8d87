"""The settings of the data and the model in a recipe."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import Count, Number, Seed, Share, configurable, number
from classwise.core.settings.description import Described
from classwise.data.formats.base import SPLITS

Part = str | dict[str, Any]
"""A part as a spec or a mapping: ``"pgd:steps=10"`` or ``{"name": "pgd", "steps": 10}``."""
EpochNumbers = Annotated[tuple[Count, ...], AfterValidator(lambda epochs: tuple(sorted(set(epochs))))]
"""Numbers of epochs, from 1; sorted, without duplicates."""
PerChannel = Annotated[
    tuple[Number, ...],
    BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value),
    BeforeValidator(lambda value: [value] if isinstance(value, int | float) else value),
]
"""A number per channel: a list, or text such as ``"0.49,0.48,0.45"``; one number applies to all channels."""
_SHARE: TypeAdapter[float] = TypeAdapter(Share)


def _validation(value: object) -> object:
    if not isinstance(value, str) or isinstance(number(value), float):
        return _SHARE.validate_python(value)
    if SPLITS.get(value.lower(), value) in ("", "train", "test"):
        raise ValueError("should be a fraction, or a split that neither training nor audits read, such as val")
    return value


Validation = Annotated[float | str, BeforeValidator(_validation)]
"""The validation images: a fraction of the training images, or the name of another split of the data."""


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
        subset_seed: the seed of the subset, and of the long tail.
        imbalance: the number of images of the first class relative to that of the last one in a long tail
            (`classwise.data.derived.long_tailed`) of these images; None: all of them. Test images are unmodified.
        validation: the fraction of each class of the training images that is held out for validation; or the name of
            another split of the data, such as ``"val"``, which is read in full.
        augment: the augmentation of training images.
        unlabelled: unlabelled images for self-training, or None.
        options: options of the file format, such as ``{"size": 64}``; an audit of the run loads test images with them.
    """

    name: str = "digits"
    root: str | None = None
    subset: Count | None = None
    subset_seed: Seed = 0
    imbalance: Annotated[Number, Field(ge=1)] | None = None
    validation: Validation = 0.02
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
        normalization: the normalisation layer in front of the network. ``"data"``: the mean and standard deviation of
            the training images. ``"none"``: no layer, for a network that normalises images itself. ``"weights"``: that
            of the initial weights. ``"auto"``: without initial weights, ``"data"``, or ``"none"`` for a network that is
            a `Normalized`; with them, their own, or if the file states none, the better of ``"none"`` and ``"data"`` by
            the accuracy on images of the data, first those held out for validation.
        mean: with ``std``, the constants of the layer, for images in [0, 1], per channel.
        std: the standard deviation of each channel.
        sync_batch_norm: synchronise the statistics of batch normalisation over the processes of a distributed run, on
            GPUs only.
    """

    name: str = "preactresnet18"
    width: float = Field(default=1.0, gt=0)
    options: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    normalization: Literal["auto", "data", "none", "weights"] = "auto"
    mean: PerChannel | None = None
    std: PerChannel | None = None
    sync_batch_norm: bool = False

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ClasswiseError("model.mean and model.std must be given together")
        if self.mean is not None and self.normalization != "auto":
            raise ClasswiseError(
                f"model.normalization = {self.normalization!r}: omit it, or model.mean and model.std, which replace it"
            )
        if self.normalization == "weights" and self.weights is None:
            raise ClasswiseError("model.normalization = 'weights': needs model.weights")
