"""benz20 section 3.1 and 3.2: are the weak classes the same whatever the network?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from classwise.compute import EXACT
from classwise.papers.benz20.plans import Grid, WeakClasses
from classwise.papers.scales import FASHION, FULL, SMOKE, Name, Scale

WIDTHS: Mapping[str, float] = {
    "lenet": 1,
    "vgg16": 0.125,
    "vgg19": 0.125,
    "resnet18": 0.125,
    "resnet50": 0.125,
    "densenet121": 0.125,
    "densenet169": 0.125,
    "googlenet": 0.125,
    "inception-v3": 0.125,
}
"""The plan's networks, and what share of their channels two cores can pay at laptop scale."""
STAND_IN = "lenet"
"""For all of them at smoke scale: deep networks are left with a pixel or two of an image of 8x8."""
SCALES: Mapping[Name, Scale] = {
    "smoke": replace(SMOKE, about=f"{SMOKE.about}; {STAND_IN} stands in for every network"),
    "laptop": replace(
        FASHION,
        about="4,000 images of Fashion-MNIST, Linf 0.05, networks of an eighth of their width (LeNet and the reference "
        "whole), 6 epochs, PGD-3 in training: tendencies, with wide intervals",
        train=4000,
        test=1000,
        compute=EXACT,  # VGG and Inception-v3 lose the gradient of the image in bfloat16
        changes={
            **FASHION.changes,
            "compute.dtype": EXACT.dtype,
            "epochs": 6,
            "batch_size": 64,
            "attack.steps": 3,
            "attack.step_size": "0.5eps",
            "validation_attack.steps": 3,
            "validation_attack.step_size": "0.5eps",
        },
    ),
    "full": replace(FULL, about="CIFAR-10, each network at its own width", compute=EXACT),
}


class _Networks(WeakClasses):
    """Some networks and the one that other experiments train: do their class rankings agree?"""

    networks: ClassVar[Sequence[str]]
    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def covers(self, scale: Scale) -> Sequence[str]:
        """The networks, or the one that stands in for them."""
        return (STAND_IN,) if scale.name == "smoke" else self.varied

    def grid(self, scale: Scale) -> Grid:
        """Adversarial training of each."""
        return self._each(scale, "at")

    def standard(self, scale: Scale) -> Grid:
        """Standard training of each, where the numbers of a network can mean anything."""
        return {} if scale.name == "smoke" else self._each(scale, "standard")

    def _each(self, scale: Scale, recipe: str) -> Grid:
        """The usual network is not changed in, so that its run is shared."""
        reference = str(scale.changes.get("model.name", "preactresnet18"))
        chosen = (STAND_IN,) if scale.name == "smoke" else self.networks
        width = (lambda name: WIDTHS[name]) if scale.name == "laptop" else (lambda _: 1)
        own = {name: (recipe, {"model.name": name, "model.width": width(name)}) for name in chosen}
        shared = {"seed": 1} if recipe == "standard" else {}  # as other experiments train it
        return {f"{reference} (reference)": (recipe, shared), **own}


class LeNets(_Networks):
    """benz20 plan: LeNet."""

    item = "benz20/P1.3"
    varied = ("LeNet",)
    networks = ("lenet",)


class VGGs(_Networks):
    """benz20 plan: VGG-16 and VGG-19."""

    item = "benz20/P1.4"
    varied = ("VGG",)
    networks = ("vgg16", "vgg19")


class ResNets(_Networks):
    """benz20 plan: ResNet-18 and ResNet-50."""

    item = "benz20/P1.5"
    varied = ("ResNet",)
    networks = ("resnet18", "resnet50")


class DenseNets(_Networks):
    """benz20 plan: DenseNet-121 and DenseNet-169."""

    item = "benz20/P1.6"
    varied = ("DenseNet",)
    networks = ("densenet121", "densenet169")


class Inceptions(_Networks):
    """benz20 plan: GoogLeNet and Inception-v3, which here takes small images."""

    item = "benz20/P1.7"
    varied = ("Inception",)
    networks = ("googlenet", "inception-v3")


class AllNetworks(_Networks):
    """benz20 plan: weak classes over all of these networks."""

    item = "benz20/P2.1"
    varied = ("LeNet", "VGG", "ResNet", "DenseNet", "Inception")
    networks = tuple(WIDTHS)
