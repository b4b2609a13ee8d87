"""Robust and non-robust data sets against their definitions."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from classwise.analysis.feature_sets import NonRobustFeatures, RobustFeatures
from classwise.core.errors import ClasswiseError
from classwise.data import Images
from classwise.models import build_model
from classwise.models.base import Classifier


class Linear(Classifier):
    """A model whose features are the pixels of the first channel; it ignores the second channel."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 3)

    def features(self, x: Tensor) -> Tensor:
        return x[:, 0].flatten(1)


@pytest.fixture
def images() -> Images:
    generator = torch.Generator().manual_seed(0)
    return Images(0.2 + 0.6 * torch.rand(20, 2, 4, 4, generator=generator), torch.arange(20) % 3, name="some")


def linear() -> Linear:
    torch.manual_seed(0)
    return Linear()


def test_robust_features_are_those_of_the_image_and_the_rest_is_random(images: Images) -> None:
    model = linear()
    made = RobustFeatures(steps=60, step=0.05, batch_size=7)(model, images)
    assert torch.equal(made.y, images.y)
    seen, unseen = made.pixels()[:, 0], made.pixels()[:, 1]
    assert float((seen - images.pixels()[:, 0]).flatten(1).norm(dim=1).max()) <= 0.05 + 1e-5, "as near as a step"
    donors = (unseen[:, None] == images.pixels()[None, :, 1]).flatten(2).all(2)
    assert (donors.sum(1) == 1).all(), "bit for bit that of one image of the set"
    assert len(set(donors.int().argmax(1).tolist())) > 8, "of different ones"
    assert made.name == "some, robust features"
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_start_is_the_image_s_own(images: Images) -> None:
    """Whatever the batches; another seed draws others."""
    model = linear()
    first = RobustFeatures(steps=2)(model, images)
    assert torch.equal(RobustFeatures(steps=2, batch_size=3)(model, images).x, first.x)
    assert not torch.equal(RobustFeatures(steps=2)(model, images, seed=1).x, first.x)


@pytest.mark.parametrize("targets", ["random", "next"])
def test_non_robust_features(images: Images, targets: Literal["random", "next"]) -> None:
    model = linear()
    made = NonRobustFeatures(targets=targets, steps=20)(model, images)
    moved = (made.pixels() - images.pixels()).flatten(1)
    assert float(moved.norm(dim=1).max()) <= 0.5 + 1e-5
    assert torch.equal(made.columns["original"].ids, images.y)
    if targets == "next":
        assert torch.equal(made.y, (images.y + 1) % 3)
    else:
        assert len(set(made.y.tolist())) == 3
    with torch.no_grad():
        before, after = (model(x).log_softmax(1).gather(1, made.y[:, None]) for x in (images.pixels(), made.pixels()))
    assert (after > before).all()
    assert (made.pixels()[:, 1] == images.pixels()[:, 1]).all()


def test_a_step_goes_along_the_gradient(images: Images) -> None:
    """For a linear model and a step inside the ball the first step is known."""
    model = linear()
    made = NonRobustFeatures(targets="next", steps=1, step=0.1)(model, images)
    x = images.pixels()
    weight = model.linear.weight.detach()
    with torch.no_grad():
        probability = model(x).softmax(1)
    uphill = (torch.nn.functional.one_hot(made.y, 3).float() - probability) @ weight
    step = 0.1 * uphill / uphill.norm(dim=1, keepdim=True)
    assert torch.allclose(made.pixels()[:, 0].flatten(1), x[:, 0].flatten(1) + step, atol=1e-5)


def test_networks_of_the_zoo_and_others(images: Images) -> None:
    network = build_model("resnet18", num_classes=3, in_channels=2, width=0.0625, mean=(0.5,), std=(0.2,))
    made = RobustFeatures(steps=3)(network, images)
    assert made.shape == images.shape
    with pytest.raises(ClasswiseError, match=r"Flatten has no method features\(x\)"):
        RobustFeatures(steps=1)(nn.Flatten(), images)
