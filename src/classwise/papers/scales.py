"""Scales of an experiment: data, network and training budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from classwise.core.precision import EXACT, FAST, Precision

Name = Literal["smoke", "reduced", "full"]
NAMES: tuple[Name, ...] = ("smoke", "reduced", "full")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A scale of an experiment.

    Args:
        name: name of the scale.
        about: one-sentence description.
        data: data set name.
        threat: threat spec of training and evaluation; replaces that of the recipe.
        train: number of training images; None for all.
        test: number of test images; None for all.
        few: number of test images for attacks that cost thousands of passes; None for all.
        attack_steps: PGD steps of the evaluation; None for those of the paper.
        precision: precision of the gradients in the evaluation.
        budget: budget of the recipes; None for unmodified recipes.
        overrides: dotted recipe fields to values, for every training.
    """

    name: Name
    about: str
    data: str
    threat: str
    train: int | None = None
    test: int | None = None
    few: int | None = None
    attack_steps: int | None = None
    precision: Precision = FAST
    budget: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def with_overrides(self, **more: Any) -> Scale:
        """Copy the scale with further recipe overrides; a double underscore denotes a dot."""
        overrides = {key.replace("__", "."): value for key, value in more.items()}
        return replace(self, overrides={**self.overrides, **overrides})


SMOKE = Scale(
    name="smoke",
    about="8x8 digits and a tiny network near chance: checks that the experiment runs; its numbers mean nothing",
    data="digits",
    threat="Linf:0.1",
    train=300,
    test=100,
    few=40,
    attack_steps=5,
    precision=EXACT,
    overrides={
        "data.augment": "none",
        "data.validation": 0.2,
        "model.name": "small-cnn",
        "model.width": 0.1,
        "epochs": 4,
        "batch_size": 32,
        "optimizer.lr": 0.1,
        "attack.steps": 2,
        "attack.step_size": "0.5eps",
        "validation_attack.steps": 2,
        "validation_attack.step_size": "0.5eps",
    },
)
"""For the tests: about a second per experiment once its models are trained."""

_FAST = {"precision.dtype": FAST.dtype, "precision.channels_last": FAST.channels_last}
"""Two to three times as fast as float32 on a CPU that has bfloat16."""

REDUCED = Scale(
    name="reduced",
    about="5,000 images of CIFAR-10, a quarter-width ResNet-18, 12 epochs in bfloat16: indicative, with wide intervals",
    data="cifar10",
    threat="Linf:8/255",
    train=5000,
    test=1000,
    few=200,
    budget="short",
    overrides={"model.width": 0.25, "epochs": 12, "data.validation": 0.06, **_FAST},
)
"""Minutes to two hours on two cores."""

FASHION = Scale(
    name="reduced",
    about="10,000 images of Fashion-MNIST, Linf 0.05, the four-layer CNN, 12 epochs in bfloat16: indicative, with wide "
    "intervals",
    data="fashion-mnist",
    threat="Linf:0.05",  # at the usual 0.1 the weakest class has zero accuracy after so short a training
    train=10_000,
    test=2000,
    few=200,
    budget="short",
    attack_steps=20,
    overrides={
        "data.augment": "none",
        "data.validation": 0.06,
        "model.name": "small-cnn",
        "model.width": 0.5,
        "epochs": 12,
        "optimizer.lr": 0.05,
        "attack.step_size": "0.25eps",
        "validation_attack.step_size": "0.25eps",
        **_FAST,
    },
)
"""Minutes per training on two cores, for experiments with many trainings that name no class of CIFAR-10."""

FULL = Scale(
    name="full", about="PreActResNet-18 on CIFAR-10, 200 epochs, as in cfa23", data="cifar10", threat="Linf:8/255"
)
"""Hours to days on a GPU."""

TIAN = replace(
    FULL,
    about="ResNet-18 on CIFAR-10, 100 epochs, as in the appendix of kdd21",
    threat="Linf:0.031",
    overrides={
        "model.name": "resnet18",
        "optimizer.weight_decay": 2e-4,
        "lr_schedule": {"name": "step", "milestones": [0.75, 0.9], "gamma": 0.1},
        "epochs": 100,
        "selection": "three-quarters",
        "attack.step_size": 0.007,
        "validation_attack.step_size": 0.007,
    },
)
"""The class-wise analysis of kdd21 and iclr21; evaluated with the PGD steps of kdd21 Table 1."""

_DIGITS = {
    "model.name": "small-cnn",
    "data.augment": "none",
    "optimizer.lr": 0.01,
    "lr_schedule": {"name": "step", "milestones": [0.55, 0.75, 0.9], "gamma": 0.1},
    "attack.steps": 40,
    "attack.step_size": 0.01,
    "validation_attack.steps": 40,
    "validation_attack.step_size": 0.01,
}
"""Recipe overrides for MNIST, from the appendix of kdd21."""

CIFAR = "cifar10"
"""The data set whose classes the papers name."""
MNIST_RADIUS = "Linf:0.3"
DIGITS = ("mnist", "svhn")
"""Data sets without horizontal flips in augmentation."""


def on_data_set(scale: Scale, data: str) -> Scale:
    """Adapt a scale to another data set; on its own data set it is unchanged, so that models are shared."""
    if data == scale.data:
        return scale
    threat = MNIST_RADIUS if data == "mnist" else scale.threat
    if scale.name == "reduced":
        return replace(FASHION, data=data, threat=threat, test=5000)
    if scale.name == "full" and data == "mnist":
        return replace(scale, data=data, threat=threat, overrides={**scale.overrides, **_DIGITS})
    overrides = {f"{attack}.step_size": "0.25eps" for attack in ("attack", "validation_attack")}
    overrides["data.augment"] = "crop" if data in DIGITS else "crop-flip"
    return replace(scale, data=data, threat=threat, overrides={**scale.overrides, **overrides})


def other_data(claim: str, scale: Scale) -> dict[str, str]:
    """The reason why a claim about classes of CIFAR-10 is not tested on other data, by claim id."""
    return {claim: f"the claim names classes of CIFAR-10; this scale uses {scale.data}"}


DEFAULT_SCALES: Mapping[Name, Scale] = {"smoke": SMOKE, "reduced": REDUCED, "full": FULL}
MANY_TRAININGS: Mapping[Name, Scale] = {**DEFAULT_SCALES, "reduced": FASHION}
CLASSWISE: Mapping[Name, Scale] = {**DEFAULT_SCALES, "full": TIAN}
"""Scales of the class-wise analysis of kdd21 and iclr21."""
