"""Every network of the zoo: its size against the literature, its contract at any image size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from classwise.models import MODELS, build_model, load_model
from classwise.models.base import Classifier
from classwise.models.zoo.small_cnn import SmallCNN

NARROW = {"densenet121": 1 / 16, "densenet169": 1 / 16, "wrn-28-10": 1 / 20, "wrn-34-10": 1 / 20, "wideresnet": 1 / 20}
"""At least eight channels; see `classwise.core.compute.precision` for fewer."""


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def narrow(name: str, num_classes: int = 4, in_channels: int = 2) -> Classifier:
    torch.manual_seed(0)
    model = build_model(name, num_classes=num_classes, in_channels=in_channels, width=NARROW.get(name, 1 / 8))
    assert isinstance(model, Classifier)
    return model


@pytest.mark.parametrize(
    ("name", "in_channels", "count", "options"),
    [
        ("lenet", 1, 61_706, {}),  # LeCun et al. 1998 with full connections between the maps
        ("lenet", 3, 62_006, {}),  # kuangliu/pytorch-cifar
        ("small-cnn", 1, 312_202, {}),  # TRADES, MNIST
        ("resnet18", 3, 11_173_962, {}),  # kuangliu/pytorch-cifar
        ("resnet34", 3, 21_282_122, {}),  # kuangliu/pytorch-cifar
        ("resnet50", 3, 23_520_842, {}),  # kuangliu/pytorch-cifar
        ("vgg16", 3, 14_728_266, {}),  # kuangliu/pytorch-cifar
        ("vgg19", 3, 20_040_522, {}),  # kuangliu/pytorch-cifar
        ("densenet121", 3, 6_956_298, {}),  # kuangliu/pytorch-cifar
        # torchvision's 14,149,480 with 1,000 classes, a stem of 3x3 for that of 7x7 with a norm, and 10 classes
        ("densenet169", 3, 14_149_480 - 1665 * 1000 + 1665 * 10 - (49 - 9) * 3 * 64 - 2 * 64, {}),
        ("googlenet", 3, 6_166_250, {}),  # kuangliu/pytorch-cifar
        # torchvision's 27,161,264 less its side classifier's 3,326,696, with 10 classes for 1,000
        ("inception-v3", 3, 27_161_264 - 3_326_696 - 2049 * 990, {}),
        ("preactresnet18", 3, 11_172_170, {}),  # CFA, robust_overfitting, fast_adversarial
        ("wrn-28-10", 3, 36_479_194, {}),  # Zagoruyko and Komodakis: 36.5 M
        ("wrn-34-10", 3, 46_160_474, {}),  # TRADES, less the block that is never run: 46.2 M
        ("preactresnet18", 3, 11_171_146, {"final_norm": False}),  # kuangliu/pytorch-cifar
        ("preactresnet18", 3, 701_018, {"width": 0.25}),  # about a sixteenth
        ("wideresnet", 3, 8_949_210, {"depth": 40, "widen": 4}),  # Zagoruyko and Komodakis: 8.9 M
        ("wideresnet", 3, 10_961_370, {"depth": 16, "widen": 8}),  # 11.0 M
        ("wideresnet", 3, 369_498, {"depth": 28, "widen": 1}),  # 0.37 M
    ],
)
def test_parameters_are_those_of_the_literature(
    name: str, in_channels: int, count: int, options: dict[str, Any]
) -> None:
    with torch.device("meta"):
        assert parameters(build_model(name, num_classes=10, in_channels=in_channels, **options)) == count


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [(8, 8), (28, 28), (32, 24), (40, 40)])
def test_logits_are_the_last_layer_of_the_features_at_any_size(name: str, size: tuple[int, int]) -> None:
    model = narrow(name).eval()
    x = torch.rand(3, 2, *size)
    with torch.no_grad():
        features = model.features(x)
        logits = model(x)
    assert features.shape == (3, model.classifier.in_features)
    assert logits.shape == (3, 4)
    torch.testing.assert_close(logits, features @ model.classifier.weight.T + model.classifier.bias)
    assert logits.std(dim=0).min() > 0, "the logits do not depend on the image"


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_learns_and_the_image_is_left_alone(name: str) -> None:
    """An in-place operation in the wrong spot breaks the backward pass or writes over the image."""
    model = narrow(name).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.rand(4, 2, 16, 16).to(memory_format=torch.channels_last)
    before = x.clone()
    x.requires_grad_()
    nn.functional.cross_entropy(model(x), torch.arange(4)).backward()  # type: ignore[no-untyped-call]
    assert torch.equal(x.detach(), before)
    assert x.grad is not None
    assert float(x.grad.abs().sum()) > 0
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_and_channels_last_give_nearly_the_same_logits(name: str) -> None:
    model = narrow(name).eval()
    x = torch.rand(4, 2, 16, 16)
    with torch.no_grad():
        exact = model(x)
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.autocast("cpu", torch.bfloat16):
            rough = model(x.to(memory_format=torch.channels_last))
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, atol=0.05 * float(exact.abs().max()) + 0.02, rtol=0)


@pytest.mark.parametrize(
    ("name", "size", "final"), [("vgg16", 32, 2), ("densenet121", 32, 4), ("googlenet", 32, 8), ("inception-v3", 32, 6)]
)
def test_last_feature_maps_of_small_images(name: str, size: int, final: int) -> None:
    """At 32 pixels the stages halve as in the public code; elsewhere something is left to pool."""
    seen: list[torch.Size] = []
    model = narrow(name).eval()
    last = [module for module in model.modules() if isinstance(module, nn.Conv2d)][-1]
    last.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    with torch.no_grad():
        model(torch.rand(1, 2, size, size))
    assert seen[0][-1] == final


def test_keys_are_those_of_public_code() -> None:
    """The names in kuangliu's pytorch-cifar, of one layer in each kind of block."""
    with torch.device("meta"):
        keys = {name: build_model(name, num_classes=10, in_channels=3).state_dict() for name in MODELS}
    assert keys["resnet50"]["layer2.0.conv3.weight"].shape == (512, 128, 1, 1)
    assert keys["densenet121"]["trans3.conv.weight"].shape == (512, 1024, 1, 1)
    assert keys["densenet169"]["dense3.31.conv2.weight"].shape == (32, 128, 3, 3)
    assert keys["googlenet"]["e4.b3.6.weight"].shape == (128, 128, 3, 3)
    assert keys["vgg19"]["layers.49.weight"].shape == (512, 512, 3, 3)


@pytest.mark.slow
def test_vgg_reads_the_public_code_s_checkpoints(tmp_path: Path) -> None:
    torch.manual_seed(1)
    ours = build_model("vgg16", num_classes=4, in_channels=3, width=1 / 16)
    theirs = {
        key.replace("layers.", "features.").replace("linear.", "classifier."): value
        for key, value in ours.state_dict().items()
    }
    torch.save({f"module.{key}": value for key, value in theirs.items()}, tmp_path / "vgg.pt")
    model = load_model("vgg16", weights=tmp_path / "vgg.pt", num_classes=4, in_channels=3)
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model.eval()(x), ours.eval()(x))


def test_the_four_layer_cnn_runs_28_pixels_without_padding() -> None:
    """The same layers put together by hand, as the paper lists them."""
    torch.manual_seed(0)
    model = SmallCNN()
    by_hand = nn.Sequential(
        *(model.conv1, nn.ReLU(), model.conv2, nn.ReLU(), nn.MaxPool2d(2)),
        *(model.conv3, nn.ReLU(), model.conv4, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(model.fc1, nn.ReLU(), model.fc2, nn.ReLU(), model.fc3),
    )
    x = torch.rand(2, 1, 28, 28)
    assert torch.equal(model(x), by_hand(x))


def test_dropout_is_off_unless_asked_for() -> None:
    x = torch.rand(2, 1, 28, 28)
    model = SmallCNN(width=0.25)
    assert torch.equal(model(x), model(x))
    model = SmallCNN(width=0.25, dropout=0.5)
    assert not torch.equal(model(x), model(x))
