"""Construction of models by reference: validates the shape, adds normalisation, and sets the model's ``spec``."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from classwise.core.errors import ClasswiseError
from classwise.models.base import LARGE_SIDE
from classwise.models.loading.references import parse_reference
from classwise.models.loading.sources.base import Shape, SourceModel
from classwise.models.logits import as_logits
from classwise.models.normalization import Normalized
from classwise.models.registry import MODELS
from classwise.models.resizing import Resized


def build_model(
    name: str,
    *,
    num_classes: int,
    in_channels: int,
    width: float = 1.0,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **options: Any,
) -> nn.Module:
    """Build a model with random weights, from the zoo, another source, or ``package.module:callable``.

    Args:
        name: A name in `MODELS`, an import path, or a reference such as ``timm:resnet18``; a user's callable receives
            those of the arguments that it accepts.
        num_classes: Number of logits.
        in_channels: Number of image channels.
        width: Factor of the number of channels of every layer.
        mean: Mean of each channel; with ``std``, wraps the network in `Normalized`.
        std: Standard deviation of each channel, for images in [0, 1].
        **options: Further options of the model, such as ``depth=34`` of a wide residual network, or ``stem="7x7"`` of a
            ResNet for large images (`options_for_size` has the default of an image size). All models of the zoo
            accept ``head="cosine"``: the outputs are then cosines between the feature and the weights of each class.
            Sources with trained weights accept ``pretrained=True``.

    Returns:
        The model in training mode. Its attribute ``spec`` contains the arguments to build it again.

    Raises:
        ClasswiseError: for an unknown name or option, or an invalid value.
    """
    shape = Shape(num_classes, in_channels, width)
    return build(name, shape, mean=mean, std=std, options=options)[0]


def options_for_size(name: str, shape: Sequence[int] | None) -> dict[str, Any]:
    """Options that are the default of a model for images of a shape: ``stem="7x7"`` of a ResNet for large images.

    Args:
        name: a reference of a model; only networks of the zoo have such options.
        shape: channels, height and width; None: unknown.

    Example:
        >>> options_for_size("resnet50", (3, 224, 224)), options_for_size("resnet50", (3, 32, 32))
        ({'stem': '7x7'}, {})
    """
    if name not in MODELS or shape is None or min(shape[1:]) < LARGE_SIDE:
        return {}
    make: Any = MODELS.load(name)
    network = make.func if isinstance(make, functools.partial) else make
    return dict(getattr(network, "for_large_images", {}))


def build(
    name: str,
    shape: Shape,
    *,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    options: Mapping[str, Any],
    pretrained: bool = False,
) -> tuple[nn.Module, SourceModel]:
    """Build a model as `build_model` does; classes or channels that are None are not passed to the source.

    Args:
        name: see `build_model`.
        shape: the number of classes and channels, and the width.
        mean: see `build_model`.
        std: see `build_model`.
        options: see `build_model`.
        pretrained: whether a source's trained weights are loaded unless the options decide.

    Returns:
        The model, and what its source published about the network.
    """
    for what, count in (("num_classes", shape.num_classes), ("in_channels", shape.in_channels)):
        if count is not None and (type(count) is not int or count < 1):
            raise ClasswiseError(f"model {name!r}: {what} = {count!r}: must be an integer of at least 1")
    if type(shape.width) not in (int, float) or not 0 < shape.width < math.inf:
        raise ClasswiseError(f"model {name!r}: width = {shape.width!r}: must be a positive factor, such as 0.25")
    if (mean is None) != (std is None):
        raise ClasswiseError(f"model {name!r}: mean and std must be given together")
    source, own_name = parse_reference(name)
    inner = dict(options)
    chosen = inner.pop("pretrained", pretrained) if source.has_weights else False
    built = source.build(own_name, shape, inner, pretrained=chosen)
    model = as_logits(built.network)
    spec: dict[str, Any] = {"name": name, **shape.known(), **inner}
    if mean is not None and std is not None:
        for what, values in (("mean", mean), ("std", std)):
            if shape.in_channels is not None and len(values) not in (1, shape.in_channels):
                raise ClasswiseError(
                    f"model {name!r}: {what} has {len(values)} channels and the images {shape.in_channels}"
                )
        model = Normalized(model, mean, std)
        spec |= {"mean": [float(value) for value in mean], "std": [float(value) for value in std]}
    if built.steps:
        model = Resized(model, built.steps)
    model.spec = spec  # type: ignore[assignment]
    if built.class_names is not None:
        model.class_names = built.class_names  # type: ignore[assignment]
    return model, built
