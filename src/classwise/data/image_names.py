"""Names of images: paths relative to the folder of a data set, or ids of the rows of a table."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classwise.core.errors import ClasswiseError
from classwise.core.settings import limits
from classwise.stats.counts import is_integer

ImageNames = NDArray[Any]
"""(N,) the name of each image, text; empty for an image without one."""
KEYS = ("file_name", "filename", "file", "path", "image_path", "image_id", "id", "__key__")
"""Usual names of the column of a table, or the key of an item, with the name of the image, in the order of trial."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Characters that UTF-8 cannot represent, such as those of a file name in another encoding."""


def image_names(values: Any, count: int, where: str) -> ImageNames | None:
    """Validate the names of images.

    Args:
        values: (N,) texts; None or an empty text for an image without a name. Lone surrogates, which no file can
            represent, are replaced by their code points, as in ``⟨U+DCFF⟩.png``.
        count: number of images.
        where: the prefix of an error message.

    Returns:
        The names; None if no image has one.

    Raises:
        ClasswiseError: for another number of names, a value that is not text, or a name of more than
            `limits.IMAGE_NAME` characters.

    Example:
        >>> image_names(["cat/1.png", "cat/2.png"], 2, "photos").tolist()
        ['cat/1.png', 'cat/2.png']
        >>> image_names(["", None], 2, "photos") is None
        True
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence | np.ndarray):
        raise ClasswiseError(f"{where}: {values!r:.80} is not a list of image names, one for each image")
    given = values.tolist() if isinstance(values, np.ndarray) else values
    if len(given) != count or (isinstance(values, np.ndarray) and values.ndim != 1):
        raise ClasswiseError(f"{where}: {len(given)} image names for {count} images; give one for each image")
    names = np.empty(count, dtype=object)
    for row, value in enumerate(given):
        if not isinstance(value, str | None):
            raise ClasswiseError(f"{where}: the name {value!r:.80} of image {row} is not text")
        if value and len(value) > limits.IMAGE_NAME:
            raise ClasswiseError(
                f"{where}: the name of image {row} has {len(value):,} characters; at most {limits.IMAGE_NAME:,} are "
                "supported"
            )
        names[row] = "" if value is None else value if value.isascii() else _SURROGATE.sub(_code_point, value)
    return names if any(names) else None


def _code_point(match: re.Match[str]) -> str:
    return f"⟨U+{ord(match[0]):04X}⟩"


def or_none(names: ImageNames) -> ImageNames:
    """The names with None in place of empty texts, as in a table of outcomes."""
    return np.array([name or None for name in names], dtype=object)


def joined(parts: Iterable[tuple[ImageNames | None, int]]) -> ImageNames | None:
    """The names of several sets of images, each with its number of images; None if no image has a name."""
    given = [*parts]
    if all(names is None for names, _ in given):
        return None
    return np.concatenate([np.full(count, "", dtype=object) if names is None else names for names, count in given])


def relative_names(files: Iterable[Path], root: Path) -> list[str]:
    """The paths of files below a folder, relative to it, with ``/`` between folders."""
    return [file.relative_to(root).as_posix() for file in files]


def text_of(value: object) -> str:
    """The name in a cell of a table or an item: text, a path or an integer; empty for another value."""
    if isinstance(value, str):
        return value if len(value) <= limits.IMAGE_NAME else ""
    if isinstance(value, bytes):
        return text_of(value.decode("utf-8", "replace"))
    if isinstance(value, os.PathLike):
        return text_of(str(os.fspath(value)))
    return str(int(value)) if is_integer(value) else ""


def names_in(item: Mapping[Any, Any], count: int, used: Iterable[Any] = ()) -> list[str]:
    """The names of the images in an item that is a dict, under the first of `KEYS` that has them.

    Args:
        item: one image, or a batch of images, with one value for each under a key.
        count: number of images.
        used: keys of something else, such as the image.

    Returns:
        A name for each image; empty texts if there are none.

    Example:
        >>> names_in({"image": b"", "label": 3, "id": 17}, 1, ["image", "label"])
        ['17']
        >>> names_in({"x": b"", "path": ["a.png", "b.png"]}, 2, ["x"])
        ['a.png', 'b.png']
    """
    taken = {*used}
    for key in KEYS:
        if key not in item or key in taken:
            continue
        value = item[key].tolist() if hasattr(item[key], "tolist") else item[key]
        values = [*value] if isinstance(value, list | tuple) else [value]
        texts = [text_of(each) for each in values]
        if len(texts) == count and any(texts):
            return texts
    return [""] * count
