"""Architectures of the papers' networks beside those of the zoo."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from classwise.models import MODELS, build_model
from classwise.models.base import Classifier
from classwise.papers.networks import ARCHITECTURE, PUBLISHED, architecture, published_architecture
from classwise.papers.settings import compare, deviation_lines
from classwise.training.recipe_settings import ModelSettings


def deviating(name: str, data: str, **options: Any) -> dict[str, tuple[object, object]]:
    """Published and measured values that differ."""
    published, here = published_architecture(name, data), architecture(ModelSettings(name=name, options=options), data)
    assert tuple(published) == tuple(here) == ARCHITECTURE
    return {key: (published[key], here[key]) for key in ARCHITECTURE if published[key] != here[key]}


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "svhn"])
@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() - {"small-cnn"}))
def test_networks_for_small_images_are_as_published(name: str, data: str) -> None:
    assert deviating(name, data) == {}


def test_the_network_of_trades_has_dropout_and_a_last_layer_of_zeros() -> None:
    different = deviating("small-cnn", "mnist")
    assert different.pop("network dropout") == (0.5, 0)
    published, here = different.pop("network initialisation")
    assert published == f"{here}, last layer zero"
    assert different == {}
    assert set(deviating("small-cnn", "mnist", dropout=0.5)) == {"network initialisation"}


def test_resnet50_on_imagenet_is_as_published_and_its_small_stem_is_not() -> None:
    assert deviating("resnet50", "imagenet") == {}
    different = deviating("resnet50", "imagenet", stem="3x3")
    assert different.pop("network GFLOP") == (8.2, 130)
    assert different.pop("network stem") == ("7x7, stride 2, pooling", "3x3, stride 1")
    assert different.pop("network stride") == (32, 8)
    assert different.pop("network parameters") == (25_557_032, 25_549_352)
    assert set(different) == {"network initialisation"}


def test_no_architecture_is_stated_for_images_of_other_sizes() -> None:
    assert published_architecture("resnet18", "stl10") == {}
    assert published_architecture("vgg16", "cifar10") == {}
    assert architecture(ModelSettings(name="resnet18"), "stl10")["network stride"] == 8
    assert architecture(ModelSettings(name="torch.nn:Identity"), "cifar10") == {}


def test_another_last_layer_belongs_to_the_criterion() -> None:
    assert deviating("wrn-34-10", "cifar10", head="cosine") == {}


@pytest.mark.parametrize("name", ["small-cnn", "preactresnet18", "googlenet"])
def test_operations_are_those_that_torch_counts(name: str) -> None:
    with torch.device("meta"):
        model = build_model(name, num_classes=10, in_channels=3, width=0.5).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.empty(1, 3, 32, 32))
    measured = architecture(ModelSettings(name=name, width=0.5), "cifar10")["network GFLOP"]
    assert measured == float(f"{counter.get_total_flops() / 1e9:.2g}")


@pytest.mark.parametrize("name", [*MODELS, "resnet18 7x7"])
def test_initialisation_is_as_described(name: str) -> None:
    """The root mean square of each convolution, over that of the description."""
    torch.manual_seed(0)
    name, _, stem = name.partition(" ")
    options: dict[str, Any] = {"stem": stem} if stem else {}
    model = build_model(name, num_classes=10, in_channels=3, width=0.25, **options)
    assert isinstance(model, Classifier)
    ratios, weights = list[float](), list[int]()
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            fans = nn.init._calculate_fan_in_and_fan_out(layer.weight)
            scales = {
                "fan-in": math.sqrt(2 / fans[0]),
                "fan-out": math.sqrt(2 / fans[1]),
                "default": 1 / math.sqrt(3 * fans[0]),
            }
            described = model.initialisation.partition(";")[0]
            scale = next(value for key, value in scales.items() if described.endswith(key))
            ratios.append(float(layer.weight.detach().square().mean()) / scale**2)
            weights.append(layer.weight.numel())
    mean = sum(ratio * count for ratio, count in zip(ratios, weights, strict=True)) / sum(weights)
    assert mean == pytest.approx(1, abs=0.05)
    assert (not model.classifier.bias.any()) == model.initialisation.endswith("zero bias")
    assert model.classifier.weight.any()


def test_deviations_compare_architectures() -> None:
    """At full scale, only the network of TRADES differs from its public code."""
    found = [line.split(": ")[:2] for line in deviation_lines(compare("kdd21/F2", "full")) if "network" in line]
    assert found == [["adversarial, mnist", name] for name in ("network dropout", "network initialisation")]
