"""Data: named data sets, file formats, splits, streams, corruptions, and augmentation on the device.

The modules are imported when a name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from classwise.core.settings.registry import Registry
from classwise.data.corruptions import CORRUPTIONS
from classwise.data.formats import FORMATS
from classwise.data.sets import DATA

if TYPE_CHECKING:
    from classwise.data.augment import Augmentation as Augmentation
    from classwise.data.augment import crop_flip as crop_flip
    from classwise.data.corruptions.base import Corruption as Corruption
    from classwise.data.corruptions.corrupt import corrupt as corrupt
    from classwise.data.derived import by_superclass as by_superclass
    from classwise.data.derived import coloured_background as coloured_background
    from classwise.data.derived import long_tailed as long_tailed
    from classwise.data.derived import only_classes as only_classes
    from classwise.data.derived import superclass_of as superclass_of
    from classwise.data.derived import white_background as white_background
    from classwise.data.derived import without_class as without_class
    from classwise.data.formats.base import Format as Format
    from classwise.data.images import Batch as Batch
    from classwise.data.images import Column as Column
    from classwise.data.images import Images as Images
    from classwise.data.sets.base import DataSet as DataSet
    from classwise.data.sets.loading import load_data as load_data
    from classwise.data.sets.loading import named_set as named_set
    from classwise.data.sets.loading import stream_data as stream_data
    from classwise.data.splits import load_split as load_split
    from classwise.data.splits import save_split as save_split
    from classwise.data.splits import stratified_split as stratified_split
    from classwise.data.splits import stratified_subset as stratified_subset
    from classwise.data.stream import Stream as Stream
    from classwise.data.stream import as_data as as_data

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
"""Augmentations by name."""

_PUBLIC = {
    "Augmentation": "augment",
    "Batch": "images",
    "Column": "images",
    "Corruption": "corruptions.base",
    "DataSet": "sets.base",
    "Format": "formats.base",
    "Images": "images",
    "Stream": "stream",
    "as_data": "stream",
    "by_superclass": "derived",
    "coloured_background": "derived",
    "corrupt": "corruptions.corrupt",
    "crop_flip": "augment",
    "load_data": "sets.loading",
    "load_split": "splits",
    "long_tailed": "derived",
    "named_set": "sets.loading",
    "only_classes": "derived",
    "save_split": "splits",
    "stratified_split": "splits",
    "stratified_subset": "splits",
    "stream_data": "sets.loading",
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
