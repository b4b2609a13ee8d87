"""Data sets that have a name: one file a family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.core.registry import Registry

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
        "svhn": "classwise.data.sets.svhn:Svhn",
        "stl10": "classwise.data.sets.stl10:Stl10",
        "tiny-imagenet": "classwise.data.sets.imagenet:TinyImageNet",
        "imagenet": "classwise.data.sets.imagenet:ImageNet",
    },
    base="classwise.data.sets.base:DataSet",
    group="classwise.datasets",
)
"""The data sets that have a name; each class carries the facts (class names, mean, usual threat) of its set."""
