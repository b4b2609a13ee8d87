"""Class numbers of labels that are text, or integers that are not 0, 1, 2, ..."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pydantic
import torch
from numpy.typing import NDArray
from torch import Tensor

from classwise.core.compute.tensors import as_array
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings import limits

logger = logging.getLogger(__name__)

_RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")


def _parsed(value: object) -> object:
    """Read ``"cat,dog"`` and ``"1..10"``; pydantic checks any other value."""
    if isinstance(value, str):
        ends = _RANGE.fullmatch(value.strip())
        if ends is None:
            value = [part.strip() for part in value.split(",")]
        elif int(ends[2]) - int(ends[1]) >= limits.CLASSES:
            raise ValueError(f"more than {limits.CLASSES} classes")
        else:
            value = range(int(ends[1]), int(ends[2]) + 1)
    value = as_array(value, "classes")
    if isinstance(value, np.ndarray):
        value = value.tolist()
    labels = tuple(value) if isinstance(value, Sequence) else value
    if isinstance(labels, tuple) and (not labels or len({str(label) for label in labels}) < len(labels)):
        raise ValueError("give at least one label, and each label once")
    return labels


Classes = Annotated[tuple[int | str, ...], pydantic.BeforeValidator(_parsed)]
"""The label of each class, in the order of the model's logits; as text ``cat,dog`` or ``1..10``."""


MOST_LISTED = 20
"""The largest number of classes that a message lists."""


def classes_option(example: str = "cat,dog") -> str:
    """How to give the labels of all classes in the order of the model, for messages: on the command line, in Python."""
    option = shlex.quote(f"classes={example}")
    return f"--data-set {option} (in Python: load_data(..., classes={example!r}))"


def order_advice(labels: Sequence[str] | None, order: Sequence[int]) -> str:
    """How to bring the classes of the data and the outputs of a model into one order, with all of them if they are few.

    The text ``classes=...`` cannot hold labels with commas, with spaces at an end or with unprintable characters: these
    need a list in Python.

    Args:
        labels: the labels in the data; None: their order is fixed, as in a data set by name. Those that the data lack
            are their numbers.
        order: the output of the model that belongs to each class of the data, (C,).

    Example:
        >>> order_advice(["big cat", "dog"], [1, 0]).partition(": ")[2]
        "--data-set 'classes=dog,big cat' (in Python: load_data(..., classes='dog,big cat'))"
        >>> order_advice(None, [1, 2, 0])
        'reorder the outputs: in Python, audit the function lambda x: model(x)[:, [1, 2, 0]]'
    """
    is_long = len(order) > MOST_LISTED
    if labels is None:
        outputs = "order" if is_long else str([*order])
        return f"reorder the outputs: in Python, audit the function lambda x: model(x)[:, {outputs}]"
    known = [*labels, *map(str, range(len(labels), len(order)))]
    ordered = [known[label] for label in sorted(range(len(order)), key=order.__getitem__)]
    if is_long:
        option = f"such as {classes_option()}"
    elif any("," in label or label != label.strip() or not label.isprintable() for label in ordered):
        option = f"in Python, load_data(..., classes={ordered})"
    else:
        option = classes_option(",".join(ordered))
    return f"load the data in the order of the model's outputs: {option}"


def log_empty_classes(names: Sequence[str], counts: Sequence[int], where: str) -> None:
    """Log the classes without images, which are known from another split, an empty folder or ``classes``."""
    empty = [name for name, count in zip(names, counts, strict=True) if not count]
    if empty:
        shown = ", ".join(empty[:3]) + (", ..." if len(empty) > 3 else "")
        logger.warning("%s: no images of %d of %d classes: %s", where, len(empty), len(names), shown)


def in_order(
    classes: Sequence[int | str], names: Sequence[str], values: NDArray[Any], where: str
) -> tuple[tuple[int | str, ...], list[str]]:
    """The labels of classes in an order, and their names, of data that name integer labels in ascending order.

    Args:
        classes: the classes in the order of the model's logits: labels, or names.
        names: the name of each label; labels are 0, 1, 2, ..., or from 1 on if 0 does not occur and the last one does.
        values: the labels of the images, integers.
        where: the prefix of an error message.

    Raises:
        ClasswiseError: if there is another number of names than of classes.

    Example:
        >>> in_order(["dog", "cat"], ["cat", "dog"], np.array([1, 2, 2]), "pets.npz")
        ((2, 1), ['dog', 'cat'])
        >>> in_order([2, 1], ["cat", "dog"], np.array([1, 2, 2]), "pets.npz")
        ((2, 1), ['dog', 'cat'])
    """
    if len(classes) != len(names):
        raise ClasswiseError(
            f"{where}: {len(names)} class names, but classes= has {len(classes)} classes; give as many"
        )
    if {*map(str, classes)} == {*names}:
        first = int(values.size > 0 and values.min() > 0 and values.max() == len(names))
        return tuple(first + [*names].index(str(name)) for name in classes), [str(name) for name in classes]
    try:
        ascending = sorted(classes, key=int)
    except ValueError:
        ascending = sorted(classes, key=str)  # then `encode_labels` names a label that is none of them
    return tuple(classes), [names[ascending.index(label)] for label in classes]


def encode_labels(values: Any, classes: Sequence[int | str] | None, where: str) -> tuple[Any, tuple[str, ...] | None]:
    """Convert labels to class numbers.

    Args:
        values: labels, a tensor or array of integers or text, of any shape.
        classes: the label of each class. None: integers are class numbers, and the classes of text are its distinct
            values in ascending order.
        where: the prefix of an error message.

    Returns:
        The class numbers, and the labels of the classes as text. Integers without ``classes`` are returned unchanged,
        with None.

    Raises:
        ClasswiseError: for a label that is not one of the classes.
    """
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind == "O" and array.size and all(isinstance(element, str) for element in array.flat):
        array = array.astype(str)
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind != "U" and (classes is None or array.dtype.kind not in "iu"):
        return values, None
    kinds, ids = np.unique(array, return_inverse=True)
    labels = tuple(str(kind) for kind in kinds.tolist())
    names = labels if classes is None else tuple(str(label) for label in classes)
    limits.check_classes(len(names), array.size, where)
    numbers = {name: number for number, name in enumerate(names)}
    missing = next((label for label in labels if label not in numbers), None)
    if missing is not None:
        raise unknown(f"label in {where}:", missing, names)
    order = np.array([numbers[label] for label in labels], np.int64)
    return torch.from_numpy(order[ids].reshape(array.shape)), names
