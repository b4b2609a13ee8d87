"""Residual networks for large images, against an independent network with torchvision's names of layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from classwise.data.images import Images
from classwise.data.sets.imagenet import ImageNet
from classwise.models import build_model, load_model, save_weights
from classwise.models.base import bare
from classwise.papers.cost import passes_per_second
from classwise.papers.user_inputs import UserInputs
from classwise.training.recipe import Recipe
from classwise.training.setup import model_spec
from tests.refusals import check_refused, refused

NETWORKS: dict[str, tuple[tuple[int, ...], int, int]] = {
    "resnet18": ((2, 2, 2, 2), 0, 11_689_512),
    "resnet34": ((3, 4, 6, 3), 0, 21_797_672),
    "resnet50": ((3, 4, 6, 3), 1, 25_557_032),
    "wrn-50-2": ((3, 4, 6, 3), 2, 68_883_240),
}
"""Blocks of each stage, factor of the channels inside bottlenecks (0: basic blocks), and torchvision's parameters."""


class Block(nn.Module):
    """A basic block, or a bottleneck with ``factor`` times the channels inside."""

    def __init__(self, inputs: int, size: int, stride: int, factor: int) -> None:
        super().__init__()
        inner = size * max(1, factor)
        sides = [(1, 1), (3, stride), (1, 1)] if factor else [(3, stride), (3, 1)]
        ends = [inputs, inner, inner, 4 * size] if factor else [inputs, size, size]
        self.count = len(sides)
        for place, (side, step) in enumerate(sides):
            layer = nn.Conv2d(ends[place], ends[place + 1], side, step, side // 2, bias=False)
            setattr(self, f"conv{place + 1}", layer)
            setattr(self, f"bn{place + 1}", nn.BatchNorm2d(ends[place + 1]))
        self.downsample: nn.Module | None = None
        if stride > 1 or inputs != ends[-1]:
            layer = nn.Conv2d(inputs, ends[-1], 1, stride, bias=False)
            self.downsample = nn.Sequential(layer, nn.BatchNorm2d(ends[-1]))

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for place in range(1, self.count + 1):
            out = getattr(self, f"bn{place}")(getattr(self, f"conv{place}")(out))
            out = out.relu() if place < self.count else out
        return (out + (x if self.downsample is None else self.downsample(x))).relu()


class TorchVision(nn.Module):
    """ResNet as in torchvision, version 1.5: the stride of a bottleneck is in its 3x3 convolution."""

    def __init__(self, name: str, classes: int, base: int = 64) -> None:
        super().__init__()
        blocks, factor, _ = NETWORKS[name]
        self.conv1 = nn.Conv2d(3, base, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(base)
        inputs = base
        for stage, count in enumerate(blocks):
            size, layers = base * 2**stage, []
            for place in range(count):
                layers.append(Block(inputs, size, 2 if stage and not place else 1, factor))
                inputs = 4 * size if factor else size
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def trained(name: str, classes: int = 3) -> TorchVision:
    """A thirty-second of the width, with random weights and statistics."""
    torch.manual_seed(0)
    network = TorchVision(name, classes, base=2).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    return network


def photographs(side: int, classes: int = 3) -> Images:
    x = torch.rand(classes, 3, side, side, generator=torch.Generator().manual_seed(1))
    return Images(x, torch.arange(classes), [f"class {label}" for label in range(classes)])


def stem(model: nn.Module) -> tuple[int, int, bool]:
    """Side and stride of the first convolution, and whether there is pooling."""
    network: Any = bare(model)
    return network.conv1.kernel_size[0], network.conv1.stride[0], network.pool is not None


SMALL, LARGE = (3, 1, False), (7, 2, True)


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_and_operations_are_those_of_torchvision(name: str) -> None:
    """Two operations for each multiplication and addition: 8.2 GFLOP of ResNet-50 are 4.1 GMAC."""
    published = {"resnet18": 1.814, "resnet34": 3.664, "resnet50": 4.089, "wrn-50-2": 11.398}  # GMAC, by torchvision
    with torch.device("meta"):
        ours = build_model(name, num_classes=1000, in_channels=3, stem="7x7")
        other = TorchVision(name, 1000)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            ours.eval()(torch.empty(1, 3, 224, 224))
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (ours, other)]
    assert counts == [NETWORKS[name][2]] * 2
    assert counter.get_total_flops() == pytest.approx(2e9 * published[name], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "prefix"),
    [("resnet18", "module."), ("resnet34", ""), ("resnet50", "module.model."), ("wrn-50-2", "")],
)
def test_weights_in_torchvisions_layout(name: str, prefix: str, tmp_path: Path) -> None:
    theirs = trained(name)
    torch.save({"state_dict": {prefix + key: value for key, value in theirs.state_dict().items()}}, tmp_path / "w.pth")
    ours = load_model(name, tmp_path / "w.pth")
    assert stem(ours) == LARGE
    assert ours.spec["stem"] == "7x7"  # type: ignore[index]
    for side in (32, 65):
        x = photographs(side).pixels()
        with torch.no_grad():
            torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_weights_decide_the_stem_and_then_the_size_of_the_images(tmp_path: Path) -> None:
    small, large = photographs(32), photographs(224)
    shape: dict[str, Any] = {"num_classes": 3, "in_channels": 3, "width": 1 / 32}
    assert stem(load_model("resnet18", width=1 / 32, data=small)) == SMALL
    assert stem(load_model("resnet18", width=1 / 32, data=large)) == LARGE
    assert stem(load_model("resnet18", width=1 / 32, data=large, stem="3x3")) == SMALL
    assert stem(load_model("resnet18", **shape)) == SMALL
    for chosen, expected in (("3x3", SMALL), ("7x7", LARGE)):
        model = build_model("resnet18", stem=chosen, **shape)
        save_weights(tmp_path / "w.safetensors", model)
        torch.save(model.state_dict(), tmp_path / "w.pt")
        for file in (tmp_path / "w.safetensors", tmp_path / "w.pt"):
            for data in (small, large, None):
                assert stem(load_model("resnet18", file, data=data)) == expected
        assert stem(load_model(tmp_path / "w.safetensors", data=large)) == expected


def test_the_stem_of_a_training_follows_the_images() -> None:
    recipe = Recipe.read("at", {"model.name": "resnet50"})
    assert "stem" not in model_spec(recipe, photographs(96))
    assert model_spec(recipe, photographs(128))["stem"] == "7x7"
    assert model_spec(Recipe.read(recipe, {"model.options": {"stem": "3x3"}}), photographs(128))["stem"] == "3x3"


def test_rates_are_those_of_the_network_that_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[dict[str, Any]] = []

    def narrow(name: str, **options: Any) -> nn.Module:
        built.append({"name": name, **options})
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 1000))

    monkeypatch.setattr("classwise.papers.networks.build_model", narrow)
    monkeypatch.setattr("classwise.papers.cost._NETWORKS", {})
    assert passes_per_second(Recipe.read("at", {"model.name": "resnet50", "batch_size": 1}), "imagenet") > 0
    assert built[0]["stem"] == "7x7"


def test_wrong_options(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"num_classes": 3, "in_channels": 3, "width": 1 / 32}
    assert "stem = '5x5' of a residual network: must be 3x3 or 7x7" in refused(
        build_model, "resnet18", stem="5x5", **shape
    )
    assert "widen = 2 of a residual network: must be 1" in refused(build_model, "resnet18", widen=2, **shape)
    torch.save(trained("resnet18").state_dict(), tmp_path / "w.pth")
    check_refused(
        r"size mismatch for conv1.weight: .* use stem=7x7$", load_model, "resnet18", tmp_path / "w.pth", stem="3x3"
    )


def test_the_example_of_benz20(tmp_path: Path) -> None:
    """Two files in torchvision's layout, as in ``--model resnet50=plain.pth --model resnet50=robust.pth``."""
    theirs = trained("resnet50", classes=1000)
    state = theirs.state_dict()
    torch.save(state, tmp_path / "plain.pth")
    robust = {f"module.model.{key}": value for key, value in state.items()}
    robust |= {f"module.attacker.model.{key}": value for key, value in state.items()}
    constants = {"new_mean": ImageNet.mean, "new_std": ImageNet.std}
    for place in ("module.normalizer.", "module.attacker.normalize."):
        robust |= {place + key: torch.tensor(value).reshape(3, 1, 1) for key, value in constants.items()}
    torch.save({"model": robust}, tmp_path / "robust.pth")
    x = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    images = Images(x, torch.arange(3), ImageNet.class_names, ImageNet.name)
    texts = [f"resnet50={tmp_path / name}.pth" for name in ("plain", "robust")]
    loaded = UserInputs(models=texts).load_models(images, "cpu")
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (ImageNet.mean, ImageNet.std))
    for model in loaded.values():
        with torch.no_grad():
            torch.testing.assert_close(model(x), theirs((x - mean) / std), rtol=1e-4, atol=1e-4)
