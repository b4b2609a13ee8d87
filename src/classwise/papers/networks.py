"""Architectures of networks, as published and as built here: stem, stride, size, dropout and initialisation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn

from classwise.data import DATA
from classwise.models import MODELS, build_model
from classwise.models.base import Classifier
from classwise.models.loading.builder import options_for_size
from classwise.training.recipe_settings import ModelSettings

ARCHITECTURE = (
    "network stem",
    "network stride",
    "network parameters",
    "network GFLOP",
    "network dropout",
    "network initialisation",
)
"""Settings of an architecture.

The stem is the first convolution, and whether pooling follows. The stride is the height of the images over that of the
last feature map. An operation is a multiplication or an addition of a forward pass of one image.
"""

SMALL_STEM, LARGE_STEM = "3x3, stride 1", "7x7, stride 2, pooling"
_DEFAULT, _HE = "PyTorch's default", "convolutions: He et al., {}; linear: PyTorch's default"


@dataclass(frozen=True, kw_only=True)
class Published:
    """Architecture of a network in its public code.

    Attributes:
        source: the code.
        shape: channels, height and width of its images.
        classes: number of its classes.
        features: inputs of its last layer.
        values: settings of `ARCHITECTURE` in this order, for these images and classes.
    """

    source: str
    values: tuple[str | float, ...]
    shape: tuple[int, int, int] = (3, 32, 32)
    classes: int = 10
    features: int = 512


PUBLISHED: Mapping[str, tuple[Published, ...]] = {
    "small-cnn": (
        Published(
            source="yaodongyu/TRADES, models/small_cnn.py",
            values=("3x3, stride 1", 3.5, 312_202, 0.02, 0.5, f"{_HE.format('fan-in')}, last layer zero"),
            shape=(1, 28, 28),
            features=200,
        ),
    ),
    "resnet18": (Published(source="kuangliu/pytorch-cifar", values=(SMALL_STEM, 8, 11_173_962, 1.1, 0, _DEFAULT)),),
    "resnet50": (
        Published(source="kuangliu/pytorch-cifar", values=(SMALL_STEM, 8, 23_520_842, 2.6, 0, _DEFAULT), features=2048),
        Published(
            source="torchvision",
            values=(LARGE_STEM, 32, 25_557_032, 8.2, 0, _HE.format("fan-out")),
            shape=(3, 224, 224),
            classes=1000,
            features=2048,
        ),
    ),
    "preactresnet18": (
        Published(
            source="kuangliu/pytorch-cifar, with the final normalisation of the public code of CFA",
            values=(SMALL_STEM, 8, 11_172_170, 1.1, 0, _DEFAULT),
        ),
    ),
    "wrn-28-10": (
        Published(
            source="yaircarmon/semisup-adv",
            values=(SMALL_STEM, 4, 36_479_194, 10, 0, f"{_HE.format('fan-out')}, zero bias"),
            features=640,
        ),
    ),
    "wrn-34-10": (
        Published(
            source="yaodongyu/TRADES, models/wideresnet.py, without its unused block",
            values=(SMALL_STEM, 4, 46_160_474, 13, 0, f"{_HE.format('fan-out')}, zero bias"),
            features=640,
        ),
    ),
}
"""Published architectures by the name of the network; those of one name differ in the size of their images."""


def published_architecture(name: str, data: str) -> dict[str, str | float]:
    """Settings of a published architecture on a data set; empty if there is none for images of its shape.

    Args:
        name: name of the network in the facts of a paper.
        data: data set of the paper; the last layer has one output for each of its classes.
    """
    known = DATA.load(data)
    for published in PUBLISHED.get(name, ()):
        if published.shape == known.shape:
            values = dict(zip(ARCHITECTURE, published.values, strict=True))
            further = (len(known.class_names) - published.classes) * (published.features + 1)
            return {**values, "network parameters": int(values["network parameters"]) + further}
    return {}


def architecture(model: ModelSettings, data: str) -> Mapping[str, str | float]:
    """Settings of `ARCHITECTURE` of a recipe's network, measured without computing with its weights.

    Another last layer of a criterion, such as cosines, is part of the criterion and counted as a linear layer. Empty
    for a network that is not in the zoo.

    Args:
        model: the network of a recipe.
        data: the data set, which has the shape of the images and the number of classes.
    """
    return _measured(model.name, model.width, json.dumps(dict(model.options), sort_keys=True), data)


def network_of(model: ModelSettings, data: str) -> nn.Module:
    """Build the network that a training of a recipe has on a data set, with random weights; no image is read."""
    known = DATA.load(data)
    options = {**options_for_size(model.name, known.shape), **model.options}
    classes, channels = len(known.class_names), known.shape[0]
    return build_model(model.name, num_classes=classes, in_channels=channels, width=model.width, **options)


def on_meta(model: ModelSettings, data: str) -> tuple[nn.Module, Tensor]:
    """The network of a recipe and an image of the data set, without values; its head is a linear layer."""
    options = {key: value for key, value in model.options.items() if key != "head"}
    with torch.device("meta"):
        return network_of(replace(model, options=options), data).eval(), torch.zeros(1, *DATA.load(data).shape)


@cache
def _measured(name: str, width: float, options: str, data: str) -> Mapping[str, str | float]:
    if name not in MODELS:
        return {}
    network, image = on_meta(ModelSettings(name=name, width=width, options=json.loads(options)), data)
    if not isinstance(network, Classifier):  # of an installed package
        return {}
    maps = _maps(network, image)
    (first, seen, out), after = maps[0], maps[1][1] if len(maps) > 1 else 0
    assert isinstance(first, nn.Conv2d)
    pooling = ", pooling" if after < out else ""
    multiplications = sum(layer.weight.numel() * side**2 for layer, _, side in maps)
    last = next(side for layer, _, side in reversed(maps) if isinstance(layer, nn.Conv2d))
    values = (
        f"{first.kernel_size[0]}x{first.kernel_size[1]}, stride {first.stride[0]}{pooling}",
        float(f"{seen / last:.2g}"),
        sum(parameter.numel() for parameter in network.parameters()),
        float(f"{2 * multiplications / 1e9:.2g}"),
        max((layer.p for layer in network.modules() if isinstance(layer, nn.Dropout)), default=0),
        network.initialisation,
    )
    return dict(zip(ARCHITECTURE, values, strict=True))


def _maps(network: nn.Module, x: Tensor) -> list[tuple[nn.Conv2d | nn.Linear, int, int]]:
    """Convolutions and linear layers in the order of a forward pass, with the heights of their inputs and outputs."""
    maps = list[tuple[nn.Conv2d | nn.Linear, int, int]]()

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        heights = [int(tensor.shape[2]) if tensor.ndim == 4 else 1 for tensor in (inputs[0], output)]
        maps.append((layer, heights[0], heights[1]))

    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(note)
    with torch.no_grad():
        network(x)
    return maps
