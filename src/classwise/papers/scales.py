"""Scales of an experiment: data, network and training budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from classwise.core.compute.precision import EXACT, FAST, FLOAT32, Precision
from classwise.threat.ball import Threat

Name = Literal["smoke", "small", "reduced", "medium", "full"]
NAMES: tuple[Name, ...] = ("smoke", "small", "reduced", "medium", "full")
MODELS: dict[Name, str] = {
    "smoke": "a tiny network on digits, which is no evidence",
    "small": "a part of the training images and a small network",
    "reduced": "all training images, a quarter of the network's width, 12 epochs",
    "medium": "the data and network of the paper, 30 epochs",
    "full": "the setting of the paper",
}
"""The models of each scale in a few words."""
Entry = TypeVar("Entry")
_DTYPE = "precision.dtype"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A scale of an experiment.

    Args:
        name: name of the scale.
        about: one-sentence description.
        data: data set name.
        threat: threat spec of training and evaluation; replaces that of the recipe.
        train: largest number of training images; None for all.
        test: largest number of test images; None for all.
        few: number of test images for attacks that cost thousands of passes; None for all.
        attack_steps: PGD steps of the evaluation; None for those of the paper.
        evaluation: settings of PGD in the evaluation that the paper uses on this data set instead of those of CIFAR-10.
        superclasses: whether statements about classes are made about superclasses, since the classes have few images.
        precision: precision of the gradients in the evaluation.
        budget: budget of the recipes; None for unmodified recipes.
        overrides: dotted recipe fields to values, for every training.
        trainings: default number of independent trainings of each model.
        last_weights: whether an experiment also evaluates the weights of the last epoch where it evaluates the selected
            ones.
        repetition: number of the repetition, from 0; each has other seeds of all trainings.
        data_sets: the data sets to which an experiment on several of them is limited; empty for all.
    """

    name: Name
    about: str
    data: str
    threat: str
    train: int | None = None
    test: int | None = None
    few: int | None = None
    attack_steps: int | None = None
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    superclasses: bool = False
    precision: Precision = FAST
    budget: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    trainings: int = 1
    last_weights: bool = False
    repetition: int = 0
    data_sets: tuple[str, ...] = ()

    @property
    def as_published(self) -> bool:
        """Whether it has the data and the networks of the papers."""
        return self.name in ("medium", "full")

    def entry(self, values: Mapping[Name, Entry]) -> Entry:
        """The entry of this scale in a mapping; `medium` without its own has that of `full`, `reduced` that of `small`.

        Example:
            >>> from classwise.papers.scales import FULL, medium
            >>> medium(FULL).entry({"small": 3, "full": 5})
            5
        """
        instead: dict[Name, Name] = {"medium": "full", "reduced": "small"}
        return values[self.name if self.name in values else instead.get(self.name, self.name)]

    def with_overrides(self, **more: Any) -> Scale:
        """Copy the scale with further recipe overrides; a double underscore denotes a dot."""
        overrides = {key.replace("__", "."): value for key, value in more.items()}
        return replace(self, overrides={**self.overrides, **overrides})

    def threat_at(self, factor: float) -> str:
        """The threat with a multiple of its radius.

        Example:
            >>> from classwise.papers.scales import SMOKE
            >>> SMOKE.threat_at(2)
            'Linf:0.2'
        """
        return f"{Threat.parse(self.threat).norm}:{factor * radius(self.threat)!r}"


def radius(threat: str) -> float:
    """The radius of a threat."""
    epsilon = Threat.parse(threat).epsilon
    assert isinstance(epsilon, int | float)
    return float(epsilon)


SMOKE = Scale(
    name="smoke",
    about="8x8 digits and a tiny network near chance: checks that the experiment runs; the models are no evidence",
    data="digits",
    threat="Linf:0.1",
    train=240,
    test=100,
    few=40,
    attack_steps=2,
    precision=EXACT,
    overrides={
        "data.augment": "none",
        "data.validation": 0.2,
        "model.name": "small-cnn",
        "model.width": 0.1,
        "epochs": 3,
        "batch_size": 64,
        "optimizer.lr": 0.1,
        "attack.steps": 2,
        "attack.step_size": "0.5eps",
        "validation_attack.steps": 2,
        "validation_attack.step_size": "0.5eps",
    },
)
"""For the tests: about a second per experiment once its models are trained."""

_FAST = {_DTYPE: FAST.dtype, "precision.channels_last": FAST.channels_last}
"""Trains two to three times as fast as float32 on a processor that multiplies bfloat16, and half as fast elsewhere."""
_FLOAT32 = {_DTYPE: FLOAT32.dtype, "precision.channels_last": FLOAT32.channels_last}

SMALL = Scale(
    name="small",
    about="5,000 training images of CIFAR-10, a quarter-width PreActResNet-18, 12 epochs in float32; all test images",
    data="cifar10",
    threat="Linf:8/255",
    train=5000,
    few=1000,
    precision=FLOAT32,
    budget="short",
    overrides={"model.width": 0.25, "epochs": 12, "data.validation": 0.06, **_FLOAT32},
)
"""Less than an hour per training on two cores, in float32, so that its results do not depend on the processor."""

REDUCED = replace(
    SMALL,
    name="reduced",
    about="all training images of CIFAR-10, a quarter-width PreActResNet-18, 12 epochs in bfloat16; all test images",
    train=None,
    overrides={"model.width": 0.25, "epochs": 12, **_FAST},
)
"""Hours per training on two cores. Evaluated in float32, so that its results do not depend on the processor.
"""

FASHION = Scale(
    name="small",
    about="10,000 training images of Fashion-MNIST, Linf 0.05, the four-layer CNN, 12 epochs in float32; all test "
    "images",
    data="fashion-mnist",
    threat="Linf:0.05",  # at the usual 0.1 the weakest class has zero accuracy after so short a training
    train=10_000,
    few=1000,
    precision=FLOAT32,
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
        **_FLOAT32,
    },
)
"""Minutes per training on two cores, for experiments with many trainings that name no class of CIFAR-10."""

FULL = Scale(
    name="full", about="PreActResNet-18 on CIFAR-10, 200 epochs, as in cfa23", data="cifar10", threat="Linf:8/255"
)
"""Hours to days on a GPU."""

RESNET18 = replace(
    FULL,
    about="ResNet-18 on CIFAR-10, as in benz20, with the training of cfa23 in 200 epochs, since benz20 states none",
    overrides={"model.name": "resnet18"},
)
"""The network of the preliminary results and plans of benz20."""

TIAN = replace(
    FULL,
    about="ResNet-18 on CIFAR-10, 100 epochs, as in the appendix of kdd21",
    threat="Linf:0.031",
    overrides={
        "model.name": "resnet18",
        "optimizer.weight_decay": 2e-4,
        "lr_schedule": {"name": "step", "milestones": [0.74, 0.89], "gamma": 0.1},  # from epochs 75 and 90 on
        "epochs": 100,
        "selection": "three-quarters",
        "data.validation": 0,
        "attack.step_size": 0.007,
        "validation_attack.step_size": 0.007,
    },
)
"""The class-wise analysis of kdd21 and iclr21; evaluated by PGD-20 with step 0.007 (A.1)."""

_BUDGET = ("epochs", "lr_schedule", "selection")
"""Overrides that belong to the budget of a scale."""


def _without_budget(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides but those of the budget; nor is the validation split left out, which selects an epoch."""
    return {
        key: value for key, value in overrides.items() if key not in _BUDGET and (key, value) != ("data.validation", 0)
    }


def medium(full: Scale) -> Scale:
    """The scale between small and full: data, networks and evaluation of a full scale with short trainings.

    Each model is trained three times, for 30 epochs of a one-cycle schedule (the budget ``short`` of the recipes), in
    the precision of the evaluation. Attacks that cost thousands of passes have as few images as at
    smaller scales.

    Args:
        full: full scale of an experiment.
    """
    dtype = full.precision.dtype
    return replace(
        full,
        name="medium",
        about=f"30 epochs, one-cycle, in {dtype}, three trainings, in place of the budget of full scale: {full.about}",
        few=SMALL.few,
        budget="short",
        overrides={**_without_budget(full.overrides), **(_FAST if dtype == FAST.dtype else {})},
        trainings=3,
        last_weights=True,
    )


CIFAR = "cifar10"
"""The data set whose classes the papers name."""
MNIST = "mnist"
PAPER_DATA: Sequence[str] = (MNIST, "svhn", CIFAR, "stl10", "cifar100", "imagenet")
"""The data sets of the class-wise analysis of kdd21 and iclr21."""
OWN_DATA: Sequence[str] = ("fashion-mnist", "tiny-imagenet")
"""Further data sets, on which the analysis measures without testing a claim."""
_ATTACKS = ("attack", "validation_attack")
_PLAIN = {"data.augment": "crop"}  # house numbers are not flipped
_SLOW = {"optimizer.lr": 0.01}
_PGD_40 = {"steps": 40, "step_size": 0.01}
_PAPER_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    MNIST: {
        "threat": "Linf:0.3",
        "evaluation": _PGD_40,
        "overrides": {
            "model.name": "small-cnn",
            "data.augment": "none",
            "lr_schedule": {"name": "step", "milestones": [0.54, 0.74, 0.89], "gamma": 0.1},
            **{f"{attack}.{key}": value for attack in _ATTACKS for key, value in _PGD_40.items()},
            **_SLOW,
        },
    },
    "svhn": {"overrides": {**_PLAIN, **_SLOW}},
    "stl10": {"overrides": _SLOW},
    "imagenet": {
        "threat": "Linf:0.007",
        "evaluation": {"steps": 50, "step_size": 0.003},
        "overrides": {
            "model.name": "resnet50",
            "epochs": 15,
            "optimizer.weight_decay": 2e-4,
            "selection": "fourteen-fifteenths",
            "data.validation": 0,
        },
    },
}
"""Differences of a data set from CIFAR-10 at full scale: appendix A.1 of kdd21."""
_SMALL_RADIUS = "Linf:4/255"
_WIDE = {**FASHION.overrides, "model.width": 1}
_COLOURED = {**FASHION.overrides, "data.augment": "crop-flip"}
_FEW = {**_WIDE, "data.augment": "crop-flip", "epochs": 20, "batch_size": 64}
_SMALL_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    MNIST: {"threat": "Linf:0.3", "attack_steps": None, "evaluation": _PGD_40, "overrides": _WIDE},
    "svhn": {"threat": _SMALL_RADIUS, "overrides": {**_COLOURED, **_PLAIN}},
    "cifar100": {"threat": _SMALL_RADIUS, "train": 2000, "superclasses": True, "overrides": _FEW},
    "stl10": {"threat": _SMALL_RADIUS, "train": 1000, "overrides": {**_FEW, "batch_size": 32}},
    "tiny-imagenet": {"threat": _SMALL_RADIUS, "train": 2000, "overrides": {**_FEW, "epochs": 10}},
}
"""Differences of a data set from `FASHION` at small scale; few images need more epochs and smaller batches.

At half the width, the training on MNIST at radius 0.3 stays at chance, and so does one on 2,000 coloured images at
8/255.
"""


def on_data_set(scale: Scale, data: str) -> Scale:
    """Adapt a scale to another data set; on its own data set it is unchanged, so that models are shared.

    At full scale, the settings are those of the paper; at medium scale, these without their budget. At small scale,
    they are those of `FASHION` with the radius of the data set. ImageNet has only full settings; its trainings are
    declared in `experiments.class_wise`.
    """
    if data == scale.data:
        return scale
    if scale.as_published:
        changes = _PAPER_SETTINGS.get(data, {})
        overrides = changes["overrides"] if data == "imagenet" else {**scale.overrides, **changes.get("overrides", {})}
        overrides = overrides if scale.name == "full" else _without_budget(overrides)
        return replace(scale, data=data, **{**changes, "overrides": overrides})
    if scale.name == "small":
        own = {"threat": FASHION.threat if data == FASHION.data else scale.threat, **_SMALL_SETTINGS.get(data, {})}
        return replace(FASHION, data=data, repetition=scale.repetition, **own)
    return replace(scale, data=data)


DEFAULT_SCALES: Mapping[Name, Scale] = {"smoke": SMOKE, "small": SMALL, "reduced": REDUCED, "full": FULL}
MANY_TRAININGS: Mapping[Name, Scale] = {**DEFAULT_SCALES, "small": FASHION}
"""Scales of experiments with many trainings."""
PRELIMINARY: Mapping[Name, Scale] = {**DEFAULT_SCALES, "full": RESNET18}
"""Scales of benz20 for few trainings."""
PLANS: Mapping[Name, Scale] = {**MANY_TRAININGS, "full": RESNET18}
"""Scales of benz20 for many trainings."""
CLASSWISE: Mapping[Name, Scale] = {**DEFAULT_SCALES, "full": TIAN}
"""Scales of the class-wise analysis of kdd21 and iclr21."""
