"""Image processors of Hugging Face transformers, as normalisation and preparation of images in [0, 1].

The values are those of a processor after loading, so that keys that its file lacks have the defaults of its class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError
from classwise.core.settings.extras import reason
from classwise.models.resizing import CenterCrop, RelativeCrop, Resize, ReverseChannels, Step

Values = Mapping[str, Any]

_COMMON = ("do_resize", "size", "default_to_square", "resample", "do_center_crop", "crop_size", "do_rescale",
           "rescale_factor", "do_normalize", "image_mean", "image_std", "do_pad", "pad_size")  # fmt: skip
_OWN = {
    "ConvNext": ("crop_pct",),
    "EfficientNet": ("rescale_offset", "include_top"),
    "MobileViT": ("do_flip_channel_order",),
    "PoolFormer": ("crop_pct",),
    "TextNet": ("size_divisor",),
}
"""The keys that only these classes act on."""
_UNUSED = {
    "MobileViT": ("do_normalize",),
    "Segformer": ("do_center_crop",),
}
"""The common keys that these classes do not act on."""
_HARMLESS = ("do_convert_rgb", "do_reduce_labels")
"""Keys for images that are not RGB, and for segmentation maps."""

KEYS = (*_COMMON, *sorted({key for keys in _OWN.values() for key in keys}))
"""The keys that change pixels."""

_FILTERS = {0: "nearest", 2: "bilinear", 3: "bicubic"}
"""The filters by their numbers in Pillow."""
_TOLERANCE = 1.5 / 255
"""Largest mean difference from the processor, which rounds resized images to 8 bits, in pixel values."""


@dataclass(frozen=True)
class Preprocessing:
    """What a processor computes: the steps, then ``(x - mean) / std`` per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    steps: tuple[Step, ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        """Inputs of the network for images (N, C, H, W) in [0, 1]."""
        for step in self.steps:
            x = step(x)
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return (x - mean) / std


def preprocessing(values: Values) -> Preprocessing:
    """The preprocessing of a processor.

    Args:
        values: all attributes of the processor; ``image_processor_type`` is its class.

    Raises:
        ClasswiseError: if a key changes pixels in a way that is not supported, or a value is invalid.
    """
    kind = re.sub(r"ImageProcessor(Pil|Fast)?$", "", str(values.get("image_processor_type", "")))
    known = {*_COMMON, *_OWN.get(kind, ())} - {*_UNUSED.get(kind, ())}
    for key, value in values.items():
        if key.startswith("do_") and value and key not in {*KEYS, *_HARMLESS}:
            raise _unsupported(key, value)
    values = {key: value for key, value in values.items() if key in known}
    if values.get("do_pad") and values.get("pad_size") is not None:
        raise _unsupported("pad_size", values["pad_size"])
    try:
        return Preprocessing(*_constants(values), _steps(kind, values))
    except (TypeError, ValueError, KeyError, ZeroDivisionError) as error:
        raise ClasswiseError(f"the image processor has an invalid value: {reason(error)}") from error


def check(processor: Callable[..., Any], found: Preprocessing, values: Values) -> None:
    """Compare the preprocessing with the processor itself, on one generated image.

    Raises:
        ClasswiseError: if the processor fails or computes something else.
    """
    channels = len(found.mean) if len(found.mean) > 1 else 3
    noise = CounterRNG(0, "processor").uniform(torch.arange(1), (channels, 5, 7))
    image = F.interpolate(noise, size=(40, 56), mode="bilinear").mul(255).byte()
    try:
        output = processor([image[0].numpy()], return_tensors="np", input_data_format="channels_first")
        theirs = np.asarray(output["pixel_values"], dtype=np.float32)
    except Exception as error:  # code of transformers, which may raise any error for an invalid value
        raise ClasswiseError(f"the image processor fails on an image: {reason(error)}") from error
    ours = found(image / 255)
    if theirs.shape == tuple(ours.shape):
        errors = (torch.from_numpy(theirs) - ours).abs() * torch.tensor(found.std).view(1, -1, 1, 1)
        if float(errors.mean()) <= _TOLERANCE:
            return
    others = {
        key: value for key, value in values.items() if key not in {*KEYS, *_HARMLESS} and value not in (None, False)
    }
    shown = ", ".join(f"{key} = {other!r}" for key, other in others.items() if not key.startswith("_"))
    raise ClasswiseError(f"the image processor computes other pixels than its known keys describe; its others: {shown}")


def _unsupported(key: str, value: Any) -> ClasswiseError:
    return ClasswiseError(
        f"the image processor's {key} = {value!r} changes pixels and is not supported; prepare the images so, and set "
        f"{key} to {'false' if key.startswith('do_') else 'null'} in the file of the processor"
    )


def _constants(values: Values) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation, for images in [0, 1], of the rescaling and normalisations."""
    scale, offset = 255.0, 0.0
    if values.get("do_rescale"):
        scale = 255 * float(values.get("rescale_factor", 1 / 255))
        offset = float(bool(values.get("rescale_offset")))
    normalised, again = bool(values.get("do_normalize")), bool(values.get("include_top"))
    mean = _listed(values.get("image_mean"), 0.0) if normalised else [0.0]
    std = _listed(values.get("image_std"), 1.0) if normalised or again else [1.0]
    std = [value ** (normalised + again) for value in std] if again else std  # image_std divides once more
    count = max(len(mean), len(std))
    mean, std = (constant * count if len(constant) == 1 else constant for constant in (mean, std))
    return tuple((value + offset) / scale for value in mean), tuple(value / scale for value in std)


def _listed(values: Any, default: float) -> list[float]:
    values = default if values is None else values
    return [float(value) for value in values] if isinstance(values, list | tuple) else [float(values)]


def _steps(kind: str, values: Values) -> tuple[Step, ...]:
    """The steps before the normalisation, in the order of the class."""
    size = _sides(values.get("size"), square=values.get("default_to_square") is not False)
    crop = _sides(values.get("crop_size"), square=True)
    resized = _resized(kind, size, values) if values.get("do_resize") and size else []
    cropped: list[Step] = []
    if values.get("do_center_crop"):
        if kind == "Perceiver":
            height, width = size["height"] / crop["height"], size["width"] / crop["width"]
            return (RelativeCrop(height, width), *resized)
        cropped = [CenterCrop(crop["height"], crop["width"])]
    flipped = [ReverseChannels()] if values.get("do_flip_channel_order") else []
    return (*resized, *cropped, *flipped)


def _resized(kind: str, size: Mapping[str, int], values: Values) -> list[Step]:
    """The steps of a class's resizing."""
    resample = values.get("resample")
    name = "bilinear" if resample is None else _FILTERS.get(resample)
    if name is None:
        raise ClasswiseError(
            f"the image processor's resample = {resample!r} is not supported; accepted are "
            + ", ".join(f"{number} ({name})" for number, name in _FILTERS.items())
        )
    side = size.get("shortest_edge")
    exact = (size["height"], size["width"]) if "height" in size else None
    part = values.get("crop_pct")
    if kind == "ConvNext":
        side = size["shortest_edge"]
        if side >= 384:
            return [Resize((side, side), name)]
        return [Resize(int(side / (part or 224 / 256)), name), CenterCrop(side, side)]
    if kind == "Levit" and side:
        return [Resize(int(256 / 224 * side), name)]
    if kind == "PoolFormer" and part:
        if exact and exact[0] != exact[1]:
            return [Resize((int(exact[0] / part), int(exact[1] / part)), name)]
        return [Resize(int((side or size["height"]) / part), name)]
    if side:
        return [Resize(side, name, size.get("longest_edge"), multiple=values.get("size_divisor") or 1)]
    if "max_height" in size:
        return [Resize((size["max_height"], size["max_width"]), name, within=True)]
    if exact is None:
        raise _unsupported("size", dict(size))
    return [Resize(exact, name)]


def _sides(size: Any, *, square: bool) -> dict[str, int]:
    """A size of a processor, in any of its forms, by the names of the sides; empty if there is none."""
    if isinstance(size, int):
        size = {"height": size, "width": size} if square else {"shortest_edge": size}
    elif isinstance(size, list | tuple):
        size = dict(zip(("height", "width"), size, strict=True))
    return {key: int(side) for key, side in dict(size or {}).items() if side is not None}
