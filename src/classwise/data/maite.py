"""Data sets of image classification in the protocol of MAITE, read without importing the package."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from classwise.core.compute.tensors import as_tensor
from classwise.core.errors import ClasswiseError
from classwise.core.settings import limits
from classwise.core.settings.names import numbered_names
from classwise.data.image_names import KEYS, image_names, names_in
from classwise.data.images import Column, Images
from classwise.stats.counts import is_integer

logger = logging.getLogger(__name__)


def has_metadata(value: object) -> bool:
    """Whether an object has the ``metadata`` of MAITE's protocols: a mapping with an ``id``."""
    metadata = None if isinstance(value, type) else getattr(value, "metadata", None)
    return isinstance(metadata, Mapping) and "id" in metadata


def is_dataset(value: object) -> bool:
    """Whether an object is a data set in the protocol of MAITE."""
    return has_metadata(value) and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def class_names_of(metadata: Mapping[str, Any], where: str, classes: int | None = None) -> tuple[str, ...]:
    """The name of each class in ``index2label``; the number of a class without a name.

    Args:
        metadata: the metadata of a data set or a model.
        where: the prefix of an error message.
        classes: the number of classes; None: the largest class number plus 1.

    Raises:
        ClasswiseError: if it is no mapping from class numbers, or has a number that is no class.
    """
    given = metadata.get("index2label")
    if not given:
        return tuple(map(str, range(classes or 0)))
    try:
        names = {int(label): str(name) for label, name in given.items()}
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise ClasswiseError(f"{where}: index2label = {given!r:.80}: must map class numbers to names") from error
    classes = max(names) + 1 if classes is None else classes
    if outside := [label for label in names if not 0 <= label < classes]:
        raise ClasswiseError(f"{where}: index2label has class {outside[0]}; expected 0 to {classes - 1}")
    return numbered_names([names.get(label, str(label)) for label in range(classes)])


def label_of(target: Any, where: str) -> tuple[int, int]:
    """The class with the highest score of a target, one-hot or scores (C,), and C.

    Raises:
        ClasswiseError: for another shape, complex numbers, NaN, or several classes with the highest score.
    """
    scores = as_tensor(target, f"{where}, target")
    if scores.ndim != 1 or not len(scores) or scores.is_complex():
        form = f"shape {tuple(scores.shape)} and type {scores.dtype}"
        raise ClasswiseError(f"{where}: target of {form}, expected (C,), one score per class")
    scores = scores.double()
    highest = int((scores == scores.max()).sum())
    if highest != 1:
        what = f"{highest} classes have the highest score" if highest else "some scores are NaN"
        raise ClasswiseError(f"{where}: target {scores.tolist()!s:.80}: {what}; each image must have one class")
    return int(scores.argmax()), len(scores)


class MaiteItems:
    """The pairs (image, label) of a data set in the protocol of MAITE; `completed` adds the metadata that were read.

    The classes are those of ``index2label``. Distinct integer ids, of at least 0, are the `index` of the images; other
    ids are the column ``id``. Text, integers and booleans in the metadata of the images are columns. The name of an
    image is the first of `classwise.data.image_names.KEYS` in its metadata; an id that is its `index` is none.

    Args:
        dataset: items are an image (C, H, W), uint8 or float in [0, 1]; a target (C,); and a mapping.

    Attributes:
        name: the id of the data set.
        split: the split in its metadata, or empty.
        class_names: the name of each class.

    Raises:
        ClasswiseError: if there are no images, or the first item is not of this form.
    """

    def __init__(self, dataset: Any) -> None:
        self.name, split = str(dataset.metadata["id"]), dataset.metadata.get("split")
        self.split = split if isinstance(split, str) else ""
        if not len(dataset):
            raise ClasswiseError(f"{self.name} has no images")
        self._dataset = dataset
        self._classes = classes = label_of(self._item(0)[1], f"{self.name}, item 0")[1]
        self.class_names = class_names_of(dataset.metadata, self.name, classes)
        self._metadata: list[Mapping[str, Any]] = []

    def completed(self, images: Images) -> Images:
        """The images, which were read from these items once, with their ids and columns."""
        index, columns = images.index, _columns(self._metadata, self.name)
        ids = [datum.get("id") for datum in self._metadata]
        numbers = [int(value) for value in ids if is_integer(value) and 0 <= value <= limits.INTEGER]
        if len({*numbers}) == len(ids):
            index = torch.tensor(numbers)
            del columns["id"]
        keys = [key for key in KEYS if key != "id" or index is images.index]  # integers are the index instead
        for key in KEYS:
            if key != "id" and key in columns and len(columns[key].names) == len(ids) > 1:
                del columns[key]  # with another value for each image, it is no grouping
        found = [names_in({key: datum.get(key) for key in keys}, 1)[0] for datum in self._metadata]
        names = image_names(found, len(found), self.name)
        return dataclasses.replace(images, index=index, columns=columns, image_names=names)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        image, target, metadata = self._item(row)
        where = f"{self.name}, item {row}"
        pixels = as_tensor(image, f"{where}, image")
        if pixels.ndim != 3:
            raise ClasswiseError(f"{where}: image of shape {tuple(pixels.shape)}, expected (channels, height, width)")
        label, classes = label_of(target, where)
        if classes != self._classes:
            raise ClasswiseError(f"{where}: {classes} scores in the target, expected {self._classes} as before")
        self._metadata.append(metadata)
        return pixels, label

    def _item(self, row: int) -> tuple[Any, Any, Mapping[str, Any]]:
        item = self._dataset[row]
        if not isinstance(item, tuple) or len(item) != 3 or not isinstance(item[2], Mapping):
            raise ClasswiseError(
                f"{self.name}, item {row}: {type(item).__name__}, expected a tuple of image, target and metadata"
            )
        return item


def _columns(metadata: Sequence[Mapping[str, Any]], where: str) -> dict[str, Column]:
    """The columns of the metadata whose values are text, integers, booleans or missing."""
    columns, others = dict[str, Column](), list[str]()
    for key in dict.fromkeys(key for datum in metadata for key in datum):
        values = [datum.get(key) for datum in metadata]
        if not all(value is None or isinstance(value, str | bool | np.bool_) or is_integer(value) for value in values):
            others.append(str(key))
            continue
        texts = ["" if value is None else str(value) for value in values]
        columns[str(key)] = Column.of(texts, int if all(map(is_integer, values)) else None)
    if others:
        logger.info("%s: no groupings, since values are not text or integers: %s", where, ", ".join(others))
    return columns
