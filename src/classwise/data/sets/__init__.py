"""Registry of named data sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.core.errors import unknown
from classwise.core.settings.registry import Registry

if TYPE_CHECKING:
    from classwise.data.sets.base import DataSet

DATA: Registry[DataSet] = Registry(
    "data set",
    {
        "digits": "classwise.data.sets.digits:Digits",
        "mnist": "classwise.data.sets.mnist:Mnist",
        "fashion-mnist": "classwise.data.sets.mnist:FashionMnist",
        "cifar10": "classwise.data.sets.cifar:Cifar10",
        "cifar100": "classwise.data.sets.cifar:Cifar100",
        "cifar10.1": "classwise.data.sets.cifar:Cifar101",
        "cifar10.2": "classwise.data.sets.cifar:Cifar102",
        "cifar10-c": "classwise.data.sets.corrupted:Cifar10C",
        "cifar100-c": "classwise.data.sets.corrupted:Cifar100C",
        "svhn": "classwise.data.sets.svhn:Svhn",
        "stl10": "classwise.data.sets.stl10:Stl10",
        "tiny-imagenet": "classwise.data.sets.imagenet:TinyImageNet",
        "imagenet": "classwise.data.sets.imagenet:ImageNet",
        "imagenet-v2": "classwise.data.sets.imagenet:ImageNetV2",
        "imagenet-a": "classwise.data.sets.imagenet:ImageNetA",
        "imagenet-r": "classwise.data.sets.imagenet:ImageNetR",
        "imagenet-c": "classwise.data.sets.imagenet:ImageNetC",
    },
    base="classwise.data.sets.base:DataSet",
    group="classwise.datasets",
)
"""Data sets by name; each class has the class names, channel statistics and usual threat of its data set."""


def usual_threat(name: str) -> str:
    """The usual threat of a data set, or one of its other threats, such as ``cifar10-l2``.

    Raises:
        ClasswiseError: for an unknown name.
    """
    threats: dict[str, str] = {}
    for known in DATA.keys() & {name, name.rpartition("-")[0]}:
        cls = DATA.load(known)
        threats |= {known: cls.threat, **{f"{known}-{suffix}": other for suffix, other in cls.other_threats.items()}}
    if name not in threats:
        raise unknown("threat", name, {*DATA, *threats, "Linf:8/255", "L2:0.5"})
    return threats[name]
