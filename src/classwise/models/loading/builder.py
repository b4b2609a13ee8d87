"""How a named model is built: its own options checked, its normalisation put in front, its spec left on it."""

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
    """A fresh model of the zoo, or of a ``package.module:callable`` of your own.

    Args:
        name: A name of `MODELS` or a path; it is called with the classes, channels, width and options that it accepts.
        num_classes: The number of logits.
        in_channels: The number of colour channels.
        width: A factor on the number of channels of every layer.
        mean: With ``std``, puts a `Normalized` layer before the network.
        std: The deviation of each channel, in units of [0, 1] images.
        **options: Settings of that model alone, such as ``depth=34`` of a wide residual network. Every model of the zoo
            has ``head="cosine"``: it then returns the cosines between its feature and the weights of each class.

    Returns:
        The model in training mode. Its attribute ``spec`` is a mapping with which this function builds it again.

    Raises:
        ClasswiseError: for an unknown name, or an option that the model does not have.
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
    """`build_model`, but a number of classes or channels that is None is left to the callable."""
    for what, count in (("num_classes", num_classes), ("in_channels", in_channels)):
        if count is not None and (type(count) is not int or count < 1):
            raise ClasswiseError(f"model {name!r}: {what} = {count!r} should be a whole number of at least 1")
    if type(width) not in (int, float) or not 0 < width < math.inf:
        raise ClasswiseError(f"model {name!r}: width = {width!r} should be a positive factor, such as 0.25")
    if (mean is None) != (std is None):
        raise ClasswiseError(f"model {name!r}: mean and std go together; give both or neither")
    shape = {"num_classes": num_classes, "in_channels": in_channels, "width": width}
    shape = {key: value for key, value in shape.items() if value is not None}
    inner = dict(options)
    head = inner.pop("head", "linear") if name in MODELS else "linear"
    if head not in ("linear", "cosine"):
        raise ClasswiseError(f"model {name!r}: head = {head!r} should be linear or cosine")
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
    """The callable's module; a user's own need not know of width and the like, but it must know every option."""
    _calls_user_code = True
    make: Callable[..., object] = MODELS.load(name)
    if not callable(make) or is_builtin(make) or (isinstance(make, type) and not issubclass(make, nn.Module)):
        raise ClasswiseError(f"model {name!r} is {described(make)}; give a torch.nn.Module class or a Python function")
    signature = inspect.signature(make)
    known = signature.parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        for option in options:
            if option not in known:
                raise unknown(f"model {name!r} option", option, [key for key in known if key not in shape])
        if shape["width"] != 1.0 and "width" not in known:
            raise ClasswiseError(f"model {name!r} has no width factor; leave width = {shape['width']} out")
        shape = {key: value for key, value in shape.items() if key in known}
    try:
        signature.bind(**shape, **options)
    except TypeError as error:
        raise ClasswiseError(f"model {name!r} cannot be built: {error}; give it as an option") from error
    if name in MODELS:
        _check_size(name, make, shape, options)
    model = make(**shape, **options)
    if not isinstance(model, nn.Module):
        raise ClasswiseError(f"model {name!r} gives a {type(model).__name__}, not a torch.nn.Module")
    empty = any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    if empty and torch.empty(0).device.type != "meta":  # on which models are built to count their parameters
        raise ClasswiseError(
            f"model {name!r} has tensors on the device 'meta', which hold no data; build it on the CPU"
        )
    return model


def _check_size(name: str, make: Callable[..., object], shape: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """See before any memory is taken that the options of a network of the zoo are such, and that its weights fit.

    Raises:
        ClasswiseError: for an option of another type or beyond `limits.MODEL_DEPTH`, or weights larger than the memory.
    """
    for key, value in options.items():
        default = inspect.signature(make).parameters[key].default
        if type(value) is not type(default) and not (type(default) is float and type(value) is int):
            raise ClasswiseError(f"model {name!r}: {key} = {value!r} should be of type {type(default).__name__}")
        if isinstance(value, int | float) and not abs(value) <= limits.MODEL_DEPTH:
            raise ClasswiseError(
                f"model {name!r}: {key} = {value} is beyond {limits.MODEL_DEPTH}, the largest that is built"
            )
    if (
        not options
        and shape.get("width", 1.0) <= 1
        and max(shape.get("num_classes", 1), shape.get("in_channels", 1)) <= 1000
    ):
        return
    try:
        with torch.device("meta"):
            network = make(**shape, **options)
    except (RuntimeError, OverflowError, TypeError) as error:  # torch: sizes whose product is no 64-bit number
        raise ClasswiseError(f"model {name!r} cannot be built with {dict(shape)}: its weights are too large") from error
    if isinstance(network, nn.Module):
        size = sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
        limits.check_size(size, f"model {name!r} with {dict(shape) | dict(options)}")
