"""Construction of models by name: validates options, adds normalisation, and sets the model's ``spec``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from classwise.core import limits
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.registry import described, is_builtin
from classwise.models.base import Classifier, Wrapper
from classwise.models.logits import LogitsModel
from classwise.models.normalization import Normalized
from classwise.models.registry import MODELS
from classwise.models.zoo.heads import CosineHead


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
    """Build a model with random weights, from the zoo or from ``package.module:callable``.

    Args:
        name: A name in `MODELS` or an import path; a user's callable receives those of the arguments that it accepts.
        num_classes: Number of logits.
        in_channels: Number of image channels.
        width: Factor of the number of channels of every layer.
        mean: Mean of each channel; with ``std``, wraps the network in `Normalized`.
        std: Standard deviation of each channel, for images in [0, 1].
        **options: Further options of the model, such as ``depth=34`` of a wide residual network. All models of the zoo
            accept ``head="cosine"``: the outputs are then cosines between the feature and the weights of each class.

    Returns:
        The model in training mode. Its attribute ``spec`` contains the arguments to build it again.

    Raises:
        ClasswiseError: for an unknown name or option, or an invalid value.
    """
    return build(
        name, num_classes=num_classes, in_channels=in_channels, width=width, mean=mean, std=std, options=options
    )


def build(
    name: str,
    *,
    num_classes: int | None,
    in_channels: int | None,
    width: float,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    options: Mapping[str, Any],
) -> nn.Module:
    """Build a model as `build_model` does; classes or channels that are None are not passed to the callable."""
    for what, count in (("num_classes", num_classes), ("in_channels", in_channels)):
        if count is not None and (type(count) is not int or count < 1):
            raise ClasswiseError(f"model {name!r}: {what} = {count!r}: must be an integer of at least 1")
    if type(width) not in (int, float) or not 0 < width < math.inf:
        raise ClasswiseError(f"model {name!r}: width = {width!r}: must be a positive factor, such as 0.25")
    if (mean is None) != (std is None):
        raise ClasswiseError(f"model {name!r}: mean and std must be given together")
    shape = {"num_classes": num_classes, "in_channels": in_channels, "width": width}
    shape = {key: value for key, value in shape.items() if value is not None}
    inner = dict(options)
    head = inner.pop("head", "linear") if name in MODELS else "linear"
    if head not in ("linear", "cosine"):
        raise ClasswiseError(f"model {name!r}: head = {head!r}: must be linear or cosine")
    model = _called(name, shape, inner)
    if head == "cosine" and isinstance(model, Classifier):
        last = model.classifier
        setattr(model, model.last_layer, CosineHead(last.in_features, last.out_features))
    if not isinstance(model, Classifier | Wrapper):
        model = LogitsModel(model)
    spec: dict[str, Any] = {"name": name, **shape, **options}
    if mean is not None and std is not None:
        for what, values in (("mean", mean), ("std", std)):
            if in_channels is not None and len(values) not in (1, in_channels):
                raise ClasswiseError(f"model {name!r}: {what} has {len(values)} channels and the images {in_channels}")
        model = Normalized(model, mean, std)
        spec |= {"mean": [float(value) for value in mean], "std": [float(value) for value in std]}
    model.spec = spec  # type: ignore[assignment]
    return model


def _called(name: str, shape: Mapping[str, Any], options: Mapping[str, Any]) -> nn.Module:
    """Call the model's callable; it must accept every option, but not every one of classes, channels and width."""
    _calls_user_code = True
    make: Callable[..., object] = MODELS.load(name)
    if not callable(make) or is_builtin(make) or (isinstance(make, type) and not issubclass(make, nn.Module)):
        raise ClasswiseError(f"model {name!r} is {described(make)}; give a torch.nn.Module class or a Python function")
    signature = inspect.signature(make)
    accepted = signature.parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
        for option in options:
            if option not in accepted:
                raise unknown(f"model {name!r} option", option, [key for key in accepted if key not in shape])
        if shape["width"] != 1.0 and "width" not in accepted:
            raise ClasswiseError(f"model {name!r} has no parameter width; omit width = {shape['width']}")
        shape = {key: value for key, value in shape.items() if key in accepted}
    try:
        signature.bind(**shape, **options)
    except TypeError as error:
        raise ClasswiseError(f"model {name!r} cannot be built: {error}; pass it as an option") from error
    if name in MODELS:
        _check_size(name, make, shape, options)
    model = make(**shape, **options)
    if not isinstance(model, nn.Module):
        raise ClasswiseError(f"model {name!r} returns a {type(model).__name__}, not a torch.nn.Module")
    is_meta = any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    if is_meta and torch.empty(0).device.type != "meta":  # models are built there to count their parameters
        raise ClasswiseError(f"model {name!r} has tensors without data on the device 'meta'; build it on the CPU")
    return model


def _check_size(name: str, make: Callable[..., object], shape: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Check the options and the size of a network of the zoo before any memory is allocated.

    Raises:
        ClasswiseError: for an option of the wrong type or above `limits.MODEL_DEPTH`, or weights that exceed the
            memory.
    """
    for key, value in options.items():
        default = inspect.signature(make).parameters[key].default
        if type(value) is not type(default) and not (type(default) is float and type(value) is int):
            raise ClasswiseError(f"model {name!r}: {key} = {value!r}: must be of type {type(default).__name__}")
        if isinstance(value, int | float) and not abs(value) <= limits.MODEL_DEPTH:
            raise ClasswiseError(f"model {name!r}: {key} = {value}: must be at most {limits.MODEL_DEPTH}")
    if (
        not options
        and shape.get("width", 1.0) <= 1
        and max(shape.get("num_classes", 1), shape.get("in_channels", 1)) <= 1000
    ):
        return
    try:
        with torch.device("meta"):
            network = make(**shape, **options)
    except (RuntimeError, OverflowError, TypeError) as error:  # torch: sizes whose product exceeds 64 bits
        raise ClasswiseError(f"model {name!r} cannot be built with {dict(shape)}: its weights are too large") from error
    if isinstance(network, nn.Module):
        size = sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
        limits.check_size(size, f"model {name!r} with {dict(shape) | dict(options)}")
