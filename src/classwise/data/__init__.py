"""Data: named sets, file formats, splits, streams, and augmentation on the device.

Nothing heavy is imported until a name is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from classwise.registry import Registry

if TYPE_CHECKING:
    from classwise.data.augment import Augmentation as Augmentation
    from classwise.data.augment import crop_flip as crop_flip
    from classwise.data.corruptions import Corruption as Corruption
    from classwise.data.corruptions import corrupt as corrupt
    from classwise.data.derived import by_superclass as by_superclass
    from classwise.data.derived import coloured_background as coloured_background
    from classwise.data.derived import only_classes as only_classes
    from classwise.data.derived import superclass_of as superclass_of
    from classwise.data.derived import white_background as white_background
    from classwise.data.derived import without_class as without_class
    from classwise.data.formats.base import Format as Format
    from classwise.data.images import Batch as Batch
    from classwise.data.images import Column as Column
    from classwise.data.images import Images as Images
    from classwise.data.loading import load_data as load_data
    from classwise.data.loading import named_set as named_set
    from classwise.data.sets.base import DataSet as DataSet
    from classwise.data.splits import load_split as load_split
    from classwise.data.splits import save_split as save_split
    from classwise.data.splits import stratified_split as stratified_split
    from classwise.data.splits import stratified_subset as stratified_subset
    from classwise.data.stream import Stream as Stream
    from classwise.data.stream import as_data as as_data

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
)
"""The data sets that have a name; each class carries the facts (class names, mean, usual threat) of its set."""

FORMATS: Registry[Format] = Registry(
    "data format",
    {
        "parquet": "classwise.data.formats.parquet:Parquet",
        "npz": "classwise.data.formats.npz:Npz",
        "idx": "classwise.data.formats.idx:Idx",
        "cifar": "classwise.data.formats.cifar:Cifar",
        "cifar-binary": "classwise.data.formats.cifar_binary:CifarBinary",
        "cifar-c": "classwise.data.formats.cifar_c:CifarC",
        "mat": "classwise.data.formats.mat:Mat",
        "stl10-binary": "classwise.data.formats.stl10:Stl10Binary",
        "tiny-imagenet": "classwise.data.formats.tiny_imagenet:TinyImageNetFolder",
        "folder": "classwise.data.formats.folder:Folder",
    },
    base="classwise.data.formats.base:Format",
)
"""The file formats, in the order in which a path is tried on them."""

AUGMENTATIONS: Registry[Augmentation] = Registry(
    "augmentation",
    {
        "none": "classwise.data.augment:Plain",
        "crop": "classwise.data.augment:Crop",
        "crop-flip": "classwise.data.augment:CropFlip",
        "idbh-weak": "classwise.data.idbh:IDBHWeak",
    },
    base="classwise.data.augment:Augmentation",
)
"""What a training set-up may do to its images."""

CORRUPTIONS: Registry[Corruption] = Registry(
    "corruption",
    {
        "brightness": "classwise.data.corruptions:Brightness",
        "contrast": "classwise.data.corruptions:Contrast",
        "defocus_blur": "classwise.data.corruptions:DefocusBlur",
        "elastic_transform": "classwise.data.warps:ElasticTransform",
        "fog": "classwise.data.corruptions:Fog",
        "frost": "classwise.data.weather:Frost",
        "gaussian_blur": "classwise.data.corruptions:GaussianBlur",
        "gaussian_noise": "classwise.data.corruptions:GaussianNoise",
        "glass_blur": "classwise.data.warps:GlassBlur",
        "impulse_noise": "classwise.data.corruptions:ImpulseNoise",
        "jpeg_compression": "classwise.data.corruptions:JpegCompression",
        "motion_blur": "classwise.data.warps:MotionBlur",
        "pixelate": "classwise.data.corruptions:Pixelate",
        "saturate": "classwise.data.corruptions:Saturate",
        "shot_noise": "classwise.data.corruptions:ShotNoise",
        "snow": "classwise.data.weather:Snow",
        "spatter": "classwise.data.weather:Spatter",
        "speckle_noise": "classwise.data.corruptions:SpeckleNoise",
        "zoom_blur": "classwise.data.corruptions:ZoomBlur",
    },
    base="classwise.data.corruptions:Corruption",
)
"""Common corruptions, by the names of CIFAR-10-C's files."""

_PUBLIC = {
    "Augmentation": "augment",
    "Batch": "images",
    "Column": "images",
    "Corruption": "corruptions",
    "DataSet": "sets.base",
    "Format": "formats.base",
    "Images": "images",
    "Stream": "stream",
    "as_data": "stream",
    "by_superclass": "derived",
    "coloured_background": "derived",
    "corrupt": "corruptions",
    "crop_flip": "augment",
    "load_data": "loading",
    "load_split": "splits",
    "named_set": "loading",
    "only_classes": "derived",
    "save_split": "splits",
    "stratified_split": "splits",
    "stratified_subset": "splits",
    "superclass_of": "derived",
    "white_background": "derived",
    "without_class": "derived",
}

__all__ = ["AUGMENTATIONS", "CORRUPTIONS", "DATA", "FORMATS", *_PUBLIC]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
