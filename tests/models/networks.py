"""Small networks as users write them, and as published: also quantised, scripted and inside a function."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(out)) + identity)


class ResNet(nn.Module):
    mean: Tensor
    std: Tensor

    def __init__(self, classes: int = 5, width: int = 8) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.49, 0.48, 0.45]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.25, 0.24, 0.26]).view(1, 3, 1, 1))
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1), nn.BatchNorm2d(width)
        self.layer1, self.layer2 = self._layer(width, width, 1), self._layer(width, 2 * width, 2)
        self.fc = nn.Linear(2 * width, classes)

    def _layer(self, inputs: int, outputs: int, stride: int) -> nn.Sequential:
        return nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) / self.std
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer2(self.layer1(x))
        x = F.adaptive_avg_pool2d(x, 1)
        logits: Tensor = self.fc(torch.flatten(x, 1))
        return logits


class PreActBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, kernel_size=3, stride=1, padding=1, bias=False)
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        shortcut = self.shortcut(out) if hasattr(self, "shortcut") else x
        out = self.conv1(out)
        out = self.conv2(F.relu(self.bn2(out)))
        out += shortcut
        return out  # type: ignore[no-any-return]


class PreActResNet(nn.Module):
    def __init__(self, classes: int = 5, width: int = 8, blocks: tuple[int, ...] = (2, 1)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, kernel_size=3, stride=1, padding=1, bias=False)
        layers: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                layers.append(PreActBlock(inputs, width << stage, 2 if stage and not block else 1))
                inputs = width << stage
        self.layers = nn.Sequential(*layers)
        self.bn = nn.BatchNorm2d(inputs)
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn(self.layers(self.conv1(x))))
        out = F.avg_pool2d(out, out.size(-1))
        logits: Tensor = self.linear(out.view(out.size(0), -1))
        return logits


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.relu = nn.BatchNorm2d(inputs), nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        self.drop_rate = 0.1

    def forward(self, features: list[Tensor]) -> Tensor:
        out = self.conv1(self.relu(self.norm1(torch.cat(features, 1))))
        out = self.conv2(self.relu(self.norm2(out)))
        return F.dropout(out, p=self.drop_rate, training=self.training)


class DenseNet(nn.Module):
    def __init__(self, classes: int = 5, width: int = 8) -> None:
        super().__init__()
        growth = width // 2
        inner = width + 3 * growth
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.block = nn.ModuleList(DenseLayer(width + i * growth, growth) for i in range(3))
        self.transition = nn.Sequential(
            nn.BatchNorm2d(inner), nn.ReLU(inplace=True), nn.Conv2d(inner, width, 1), nn.AvgPool2d(2)
        )
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for layer in self.block:
            features.append(layer(features))
        x = self.transition(torch.cat(features, 1))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits


def conv_bn_relu6(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        self.use_res_connect = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            conv_bn_relu6(inputs, hidden, 1),
            conv_bn_relu6(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.use_res_connect else out


class MobileNet(nn.Module):
    def __init__(self, classes: int = 5, width: int = 8) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_bn_relu6(3, width, 3),
            InvertedResidual(width, width, 1, 2),
            InvertedResidual(width, 2 * width, 2, 3),
            conv_bn_relu6(2 * width, 4 * width, 1),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(0.2), nn.Linear(4 * width, 2 * width), nn.BatchNorm1d(2 * width), nn.Linear(2 * width, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).mean([2, 3]))
        return logits


class LayerNorm2d(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != len(self.weight):  # control flow that depends on the input
            raise ValueError(x.shape)
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1, self.act = nn.Linear(channels, 4 * channels), nn.GELU()
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(0.5 * torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        x = self.gamma * self.pwconv2(self.act(self.pwconv1(x)))
        return shortcut + x.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, classes: int = 5, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 2, 2), LayerNorm2d(width))
        self.stages = nn.Sequential(
            ConvNeXtBlock(width), LayerNorm2d(width), nn.Conv2d(width, 2 * width, 2, 2), ConvNeXtBlock(2 * width)
        )
        self.norm, self.head = nn.LayerNorm(2 * width, eps=1e-6), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.stem(x))
        logits: Tensor = self.head(self.norm(x.mean([-2, -1])))
        return logits


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "resnet": ResNet,
    "preactresnet": PreActResNet,
    "densenet": DenseNet,
    "mobilenet": MobileNet,
    "convnext": ConvNeXt,
}


class LeNet(nn.Module):
    """LeNet of kuangliu/pytorch-cifar."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 120), nn.Linear(120, 84), nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.max_pool2d(F.relu(self.conv1(x)), 2)
        out = F.max_pool2d(F.relu(self.conv2(out)), 2)
        out = out.view(out.size(0), -1)
        out = F.relu(self.fc2(F.relu(self.fc1(out))))
        return self.fc3(out)  # type: ignore[no-any-return]


class SmallCNN(nn.Module):
    """The network for MNIST of yaodongyu/TRADES, with an eighth of its channels."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.feature_extractor = nn.Sequential()
        for name, channels, kernel in (("1", 1, 4), ("2", 4, 4), ("3", 4, 8), ("4", 8, 8)):
            self.feature_extractor.add_module(f"conv{name}", nn.Conv2d(channels, kernel, 3))
            self.feature_extractor.add_module(f"relu{name}", nn.ReLU(inplace=True))
            if name in "24":
                self.feature_extractor.add_module(f"maxpool{name}", nn.MaxPool2d(2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(8 * 4 * 4, 24), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(24, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.feature_extractor(x).view(-1, 8 * 4 * 4))  # type: ignore[no-any-return]


class VGG(nn.Module):
    """VGG with batch normalisation of torchvision before 0.2.2: two blocks, an eighth of the channels."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 8), (8, 8), (8, 16), (16, 16)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
            layers += [nn.MaxPool2d(2, 2)] if inputs == outputs else []
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(16 * 4 * 4, 32), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(32, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = x.view(x.size(0), -1)
        return self.classifier(x)  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        count, tokens, width = x.shape
        qkv = self.qkv(x).view(count, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attention = (qkv[0] @ qkv[1].transpose(-2, -1) * self.scale).softmax(-1)
        out: Tensor = self.proj((attention @ qkv[2]).transpose(1, 2).reshape(count, tokens, width))
        return out


class Encoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """ViT of Dosovitskiy et al. (2021), with two blocks of width 16 on patches of 4x4 pixels."""

    def __init__(self, classes: int = 3, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token, self.position = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.rand(1, 17, width))
        self.blocks = nn.ModuleList(Encoder(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        x = x.view(x.size(0), x.size(1), -1).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])  # type: ignore[no-any-return]


class Perceptron(nn.Module):
    """A network for vectors."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(192, 16), nn.Tanh(), nn.Linear(16, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.view(-1, 192))  # type: ignore[no-any-return]


class QuantisedLeNet(LeNet):
    """LeNet between the conversions of eager-mode static quantisation."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        out = F.max_pool2d(F.relu(self.conv1(self.quant(x))), 2)
        out = F.max_pool2d(F.relu(self.conv2(out)), 2)
        out = out.flatten(1)  # layers in int8 always return the channels-last format
        out = F.relu(self.fc2(F.relu(self.fc1(out))))
        return self.dequant(self.fc3(out))  # type: ignore[no-any-return]


def standardised(network: nn.Module, shape: tuple[int, int, int] = (3, 32, 32)) -> nn.Module:
    """The network in evaluation mode, with logits of mean 0 and deviation 3, so that every class is predicted."""
    network.eval()
    last = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        logits = network(torch.rand(200, *shape, generator=torch.Generator().manual_seed(0)))
        last.weight.mul_((3 / logits.std(0))[:, None])
        last.bias.copy_((last.bias - logits.mean(0)) * 3 / logits.std(0))
    return network


def static_int8() -> nn.Module:
    """LeNet with weights and activations in int8."""
    quantisation: Any = torch.ao.quantization
    network: Any = standardised(QuantisedLeNet())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao.quantization is deprecated
        network.qconfig = quantisation.get_default_qconfig("x86")
        quantisation.prepare(network, inplace=True)
        network(torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
        quantised: nn.Module = quantisation.convert(network, inplace=True)
    return quantised


def dynamic_int8() -> nn.Module:
    """LeNet with linear layers in int8."""
    quantisation: Any = torch.ao.quantization
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised: nn.Module = quantisation.quantize_dynamic(standardised(LeNet()), {nn.Linear})
    return quantised


def scripted() -> nn.Module:
    """LeNet as a TorchScript program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        program: nn.Module = torch.jit.script(standardised(LeNet()))
        return program


def function() -> Callable[[Tensor], Tensor]:
    """A function that calls LeNet."""
    network = standardised(LeNet())
    return lambda x: network(x).clone()


class Public(NamedTuple):
    """A network as published, with three classes.

    Attributes:
        make: returns the network in evaluation mode, or a function, with weights from torch's generator.
        shape: of an image.
        gradients: whether it has gradients with respect to images.
        contiguous: whether it runs in the contiguous format only.
    """

    make: Callable[[], Callable[[Tensor], Tensor]]
    shape: tuple[int, int, int] = (3, 32, 32)
    gradients: bool = True
    contiguous: bool = True

    def network(self) -> Callable[[Tensor], Tensor]:
        """The network with the weights of seed 0."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.make()


PUBLIC: dict[str, Public] = {
    "lenet": Public(lambda: standardised(LeNet())),
    "small-cnn": Public(lambda: standardised(SmallCNN(), (1, 28, 28)), (1, 28, 28)),
    "vgg": Public(lambda: standardised(VGG(), (3, 16, 16)), (3, 16, 16)),
    "vit": Public(lambda: standardised(VisionTransformer(), (3, 16, 16)), (3, 16, 16), contiguous=False),
    "perceptron": Public(lambda: standardised(Perceptron(), (3, 8, 8)), (3, 8, 8)),
    "static int8": Public(static_int8, gradients=False, contiguous=False),
    "dynamic int8": Public(dynamic_int8, gradients=False),
    "scripted": Public(scripted),
    "function": Public(function),
}
