"""The image and the label in an item of a data set: a pair, or a dict such as a row of Hugging Face `datasets`."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler, Subset

from classwise.core.compute.tensors import as_array, as_tensor
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import Count, configurable
from classwise.core.settings.names import numbered_names
from classwise.data.image_files import Decoder, stack
from classwise.data.image_names import ImageNames, image_names, names_in, text_of
from classwise.data.images import ONE_CLASS, as_pixels, several_labels
from classwise.data.labels import Classes
from classwise.data.layout import channels_first
from classwise.stats.counts import whole_numbers

IMAGES = ("image", "img", "images", "pixel_values", "x", "jpg", "jpeg", "png", "webp", "ppm")
"""Usual keys of the image in a dict, in the order in which they are tried."""
LABELS = ("label", "labels", "fine_label", "cls", "y", "target", "targets")
"""Usual keys of the label."""


@configurable
class Rows:
    """Options to read the items of a data set.

    Attributes:
        image: key of the image in items that are dicts; by default the first of `IMAGES`, or the only Pillow image.
        label: key of the label; by default the first of `LABELS`, or the only column of class labels.
        classes: the label of each class, in the order of the model's logits: text, or integers that are not
            0, 1, 2, ...
        size: resize the shorter side of encoded or Pillow images to this and crop the central square.
        resize: with ``size``, resize the shorter side to this before the crop.
    """

    image: str | None = None
    label: str | None = None
    classes: Classes | None = None
    size: Count | None = None
    resize: Count | None = None

    def read(self, item: Any, where: str) -> tuple[Tensor, Any]:
        """Read one item, an image with its label, or a batch of both.

        Returns:
            Images (N, C, H, W), uint8 or float32 in [0, 1], and labels (N,), a tensor or array of integers or text.

        Raises:
            ClasswiseError: for an item without image or label, several labels for an image, or an invalid image.
        """
        image, label = self.pair(item, where)
        y = label_array(label, where)
        single = y.ndim == 0 or _is_single(image)
        if single and y.shape not in ((), (1,)):
            raise several_labels(tuple(y.shape), where)
        x = as_pixels(self._images(image, single=single, where=where), where).cpu()
        if not single and len(y) != len(x):
            raise ClasswiseError(f"{where}: labels of shape {tuple(y.shape)}, expected ({len(x)},), one per image")
        return x, y.reshape(1) if single else y

    def names(self, item: Any, count: int, where: str) -> list[str]:
        """The names of the images in an item that `read` accepts; empty texts if there are none.

        Args:
            item: a pair, which has none, or a dict: the names are under a key of `classwise.data.image_names.KEYS`, or
                the path beside the encoded image.
            count: number of images.
            where: the prefix of an error message.
        """
        if not isinstance(item, Mapping):
            return [""] * count
        image, label = self._keys(item, where)
        names = names_in(item, count, (image, label))
        path = item[image].get("path") if isinstance(item[image], Mapping) else None
        return names if any(names) or count != 1 else [text_of(path)]

    def pair(self, item: Any, where: str) -> tuple[Any, Any]:
        """The image and the label in an item.

        Raises:
            ClasswiseError: if the item is neither a pair nor a dict, or a dict without such keys.
        """
        if isinstance(item, Mapping):
            image, label = self._keys(item, where)
            return item[image], item[label]
        if not isinstance(item, (tuple, list)) or len(item) < 2:
            raise ClasswiseError(
                f"{where}: {type(item).__name__}, expected a pair (x, y) of images and labels, or a dict of them"
            )
        return item[0], item[1]

    def _keys(self, item: Mapping[Any, Any], where: str) -> tuple[Any, Any]:
        """The keys of the image and the label in a dict.

        Raises:
            ClasswiseError: if it has none.
        """
        key = self.image or next((name for name in IMAGES if name in item), None)
        if key is None:
            pillow = [str(name) for name, value in item.items() if isinstance(value, Image.Image)]
            key = pillow[0] if len(pillow) == 1 else None
        label = self.label or next((name for name in LABELS if name in item), None)
        for option, chosen in (("image", key), ("label", label)):
            if chosen is None or chosen not in item:
                what = f"{option} {chosen!r}" if chosen else option
                keys = ", ".join(str(name) for name in item)
                raise ClasswiseError(f"{where} has no {what}; give {option}=, one of its keys: {keys}")
        return key, label

    def _images(self, x: Any, single: bool, where: str) -> Tensor:
        """The images of an item as (N, C, H, W); ``single``: the item is one image."""
        if _is_encoded(x):
            return self._stacked([x], where)
        if isinstance(x, (list, tuple)) and len(x) and all(_is_encoded(image) for image in x):
            return self._stacked(x, where)
        if self.size is not None:
            raise ClasswiseError(f"{where}: size applies to encoded and Pillow images, not to {type(x).__name__}")
        if isinstance(x, list):
            x = _array_of_lists(x, where)
        if isinstance(x, np.ndarray):
            array = as_tensor(x, where).numpy()
            return torch.from_numpy(channels_first(array[None] if single else array, where))
        if isinstance(x, Tensor):
            tensor = as_tensor(x, where)
            return tensor[None] if single else tensor
        raise ClasswiseError(
            f"{where}: images of type {type(x).__name__}, expected a tensor, an array, a Pillow image or encoded bytes"
        )

    def _stacked(self, images: Iterable[Any], where: str) -> Tensor:
        return stack((where, self._decoded(image, where)) for image in images)

    def _decoded(self, image: Any, where: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        content = image.get("bytes") if isinstance(image, Mapping) else image
        if not isinstance(content, (bytes, Image.Image)):
            raise ClasswiseError(f"{where}: the image is not in the data set, only the path {image.get('path')!r}")
        return self._decode(content, where)

    @functools.cached_property
    def _decode(self) -> Decoder:
        return Decoder(self.size, self.resize)


def label_array(label: Any, where: str) -> Any:
    """Labels as a tensor, or an array of text; the bytes of a file ``.cls`` are text or a class number.

    Raises:
        ClasswiseError: if they are neither, some are missing, or they are lists of different lengths.
    """
    if isinstance(label, bytes):
        label = label.decode("utf-8", "replace").strip()
        label = int(label) if label.isascii() and label.isdecimal() and len(label) < 19 else label
    if not isinstance(label, Tensor):
        label = as_array(label, where)
        try:
            array = np.asarray(label)
        except ValueError as error:  # lists of different lengths
            raise ClasswiseError(f"{where}: labels are lists of different lengths; {ONE_CLASS}") from error
        values = array.ravel().tolist() if array.dtype.kind == "O" else label if isinstance(label, list) else []
        other = [
            value for value in values if not isinstance(value, str | bytes)
        ]  # numpy converts NaN among text to text
        if array.dtype.kind in "US" or (array.dtype.kind == "O" and (len(other) < len(values) or not values)):
            if other or np.ma.is_masked(label):
                missing = f"the label {other[0]!r} is not text like the others" if other else "some labels are masked"
                raise ClasswiseError(f"{where}: {missing}; give one label for each image")
            return array.astype(str)
        if array.dtype.kind == "O" and array.ndim == 1:
            return torch.from_numpy(whole_numbers(label, where))
    return as_tensor(label, where).cpu()


def class_names_of(source: Any, label: str | None) -> tuple[str, ...] | None:
    """Class names of a data set: of the feature `ClassLabel` of Hugging Face, or the attribute ``classes``.

    Args:
        source: a Dataset, or a DataLoader or Subset of one.
        label: name of the label column; None: the first of `LABELS`, or the only column of class labels.

    Returns:
        The names; None if there are none, or they are not text. Names that occur twice are followed by their number.
    """
    inner, features = _inner(source)
    names = getattr(inner, "classes", None)
    if features is not None:
        column = label_column(source, label)
        names = None if column is None else getattr(features.get(column), "names", None)
    if not isinstance(names, Sequence) or isinstance(names, str) or not names:
        return None
    if all(isinstance(name, tuple) and name and all(isinstance(word, str) for word in name) for name in names):
        names = [", ".join(name) for name in names]  # the synonyms of a class in torchvision's ImageNet
    if not all(isinstance(name, str) for name in names):
        return None
    return numbered_names(names)


def names_of_source(source: Any) -> ImageNames | None:
    """The paths of the files of a data set of torchvision, such as `ImageFolder`, relative to its ``root``.

    Args:
        source: the data set, a `Subset` of it, or a DataLoader that reads one of them in order.

    Returns:
        The names in the order of the source; None for another source.
    """
    if isinstance(source, DataLoader):
        sampler = getattr(source.batch_sampler, "sampler", source.sampler)
        return names_of_source(source.dataset) if isinstance(sampler, SequentialSampler) else None
    if isinstance(source, Subset):
        inner = names_of_source(source.dataset)
        return None if inner is None else inner[np.asarray(source.indices, dtype=np.int64)]
    samples, root = getattr(source, "samples", None), getattr(source, "root", None)
    if not isinstance(samples, list) or not isinstance(root, str | os.PathLike) or not samples:
        return None
    if not hasattr(source, "__len__") or len(source) != len(samples):
        return None
    if not all(isinstance(sample, tuple) and len(sample) > 1 and isinstance(sample[0], str) for sample in samples):
        return None
    start = os.path.join(os.fspath(root), "")  # noqa: PTH118  # as torchvision joins paths
    return image_names(
        [Path(path.removeprefix(start)).as_posix() for path, *_ in samples], len(samples), type(source).__name__
    )


def label_column(source: Any, label: str | None = None) -> str | None:
    """The label column of a Hugging Face data set: the chosen one, a usual name, or the only class label.

    None if there is no such column, or the source is another data set.
    """
    _, features = _inner(source)
    if label is not None or features is None:
        return label
    usual = next((name for name in LABELS if name in features), None)
    named = [key for key, feature in features.items() if getattr(feature, "names", None)]
    return usual or (named[0] if len(named) == 1 else None)


def text_labels(splits: Mapping[str, Any], label: str | None = None) -> tuple[str, ...] | None:
    """The distinct labels of text in all splits of a Hugging Face `DatasetDict`, ascending; None if there are none."""
    found = set[object]()
    for part in splits.values():
        column, (_, features) = label_column(part, label), _inner(part)
        if features is not None and getattr(features.get(column or ""), "dtype", "") in ("string", "large_string"):
            found.update(part.unique(column) if hasattr(part, "unique") else ())
    return tuple(sorted(value for value in found if isinstance(value, str))) or None


def _inner(source: Any) -> tuple[Any, Mapping[str, Any] | None]:
    """The data set in a DataLoader or Subset, and its features if it is one of Hugging Face."""
    while isinstance(source, (DataLoader, Subset)):
        source = source.dataset
    features = getattr(source, "features", None)
    return source, features if isinstance(features, Mapping) else None


def _is_encoded(x: Any) -> bool:
    """Whether a value is one Pillow image, encoded bytes, or the dict of an image that `datasets` has not decoded."""
    return isinstance(x, (Image.Image, bytes)) or (isinstance(x, Mapping) and "bytes" in x)


def _is_single(x: Any) -> bool:
    return _is_encoded(x) or (isinstance(x, Tensor) and x.ndim == 3)


def _array_of_lists(x: list[Any], where: str) -> Any:
    """Nested lists of pixels, a row's arrays in `datasets`, or a list of tensors or arrays, as one array or tensor."""
    try:
        if x and all(isinstance(element, Tensor) for element in x):
            return torch.stack([as_tensor(element, where) for element in x])
        array = np.asarray(x)
    except (ValueError, RuntimeError) as error:
        raise ClasswiseError(f"{where}: images of different sizes; resize the images") from error
    if array.dtype.kind == "i" and array.size and array.min() >= 0 and array.max() <= 255:
        return array.astype(np.uint8)
    return array
