"""Networks as published, also quantised, scripted and inside a function."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.models.networks import VGG, LeNet, Perceptron, SmallCNN, VisionTransformer


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
