"""Encoded images in files or archives, decoded into memory or while they are used."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError
from classwise.data.image_files import Decoder, is_coloured, size_differs, size_of, stack
from classwise.data.image_names import ImageNames, image_names
from classwise.data.images import Column, Images
from classwise.data.stream import Stream

AHEAD_BYTES = 256 << 20
"""Size of the decoded images that wait to be used."""
MOST_WORKERS = 16
"""Largest default number of threads that decode."""


class Location(NamedTuple):
    """The bytes of an encoded image.

    Attributes:
        file: the file or archive.
        name: the image's name in the archive; empty for a file.
        offset: first byte.
        length: number of bytes; None: up to the end of the file.
    """

    file: Path
    name: str = ""
    offset: int = 0
    length: int | None = None

    def __str__(self) -> str:
        return f"{self.file}, {self.name}" if self.name else str(self.file)

    def name_in(self, root: Path) -> str:
        """The path relative to a folder or, of an image in an archive, to that archive."""
        parts = [] if self.file == root else [self.file.relative_to(root).as_posix()]
        return "/".join([*parts, *filter(None, [self.name])])

    def content(self) -> bytes | Path:
        """The encoded image, or its file."""
        if self.length is None:
            return self.file
        try:
            with self.file.open("rb") as file:
                file.seek(self.offset)
                return file.read(self.length)
        except OSError as error:
            raise ClasswiseError(f"cannot read {self.file}: {error.strerror}") from error


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedImages:
    """The locations and labels of the images of a data set.

    Attributes:
        locations: where the images are.
        y: labels, int64 (N,).
        class_names: one name per class, or None if the number of classes is unknown.
        name: name of the data set in reports.
        split: "train", "test", ... or empty.
        size: resize the shorter side to this and crop the central square; None: neither.
        resize: with ``size``, resize the shorter side to this before the crop.
        columns: groupings of the images, by name; a stream has none.
        root: the folder or archive that the names of the images are relative to; None: images have no names.
    """

    locations: Sequence[Location]
    y: Tensor
    class_names: Sequence[str] | None
    name: str
    split: str
    size: int | None = None
    resize: int | None = None
    columns: Mapping[str, Column] | None = None
    root: Path | None = None
    _decode: Decoder = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Create the decoder, which all threads share.

        Raises:
            ClasswiseError: if ``resize`` is smaller than ``size``.
        """
        object.__setattr__(self, "_decode", Decoder(self.size, self.resize))

    def __len__(self) -> int:
        return len(self.locations)

    def images(self, rows: Tensor | None = None) -> Images:
        """Decode all images, or some, which equal those rows of all images.

        Args:
            rows: row numbers, int64 (M,), ascending; None: all.

        Raises:
            ClasswiseError: for a damaged image, or images of different sizes.
        """
        rows = torch.arange(len(self)) if rows is None else rows
        chosen = set(rows.tolist())
        x = self._stacked(location for row, location in enumerate(self.locations) if row in chosen)
        others = (location for row, location in enumerate(self.locations) if row not in chosen)
        if len(x[0]) == 1 and any(map(_is_coloured, others)):
            x = x.repeat(1, 3, 1, 1)
        names = self.image_names()
        return Images(
            x,
            self.y[rows],
            self.class_names or [str(number) for number in range(int(self.y.max()) + 1)],
            self.name,
            self.split,
            index=rows,
            columns={key: Column(column.ids[rows], column.names) for key, column in (self.columns or {}).items()},
            image_names=None if names is None else names[rows.numpy()],
        )

    def image_names(self) -> ImageNames | None:
        """The path of each image relative to the root; of one in an archive, its name there after the archive's."""
        if self.root is None:
            return None
        names = [location.name_in(self.root) for location in self.locations]
        return image_names(names, len(names), self.name)

    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images, from the first image and the headers of the others.

        All images have three channels if any has colours; the headers are read up to the first such image. The size is
        that of the first image.

        Raises:
            ClasswiseError: if the first image or a header is damaged.
        """
        coloured = any(map(_is_coloured, self.locations))
        if self.size is None:
            width, height = size_of(self.locations[0].content(), str(self.locations[0]))
        else:
            width = height = self.size
        return 3 if coloured else 1, height, width

    def stream(self, workers: int | None = None) -> Stream:
        """A stream whose images are decoded by threads while earlier ones are used.

        The order of the images does not depend on the number of threads. At most `AHEAD_BYTES` of images wait.

        Args:
            workers: number of threads, at least 1; None: one per CPU core, at most `MOST_WORKERS`.

        Raises:
            ClasswiseError: for a damaged header.
        """
        count = min(os.cpu_count() or 1, MOST_WORKERS) if workers is None else workers
        shape = self.shape()
        source, names = _Decoded(self, shape, count), self.image_names()
        return Stream(
            source, self.class_names, self.name, self.split, shape=shape, image_names=names, images=len(source)
        )

    def decoded(self, location: Location, shape: tuple[int, int, int]) -> Tensor:
        """One image, uint8 (C, H, W).

        Raises:
            ClasswiseError: if it is damaged, or has another size.
        """
        x = self._stacked([location])[0]
        if x.shape[1:] != shape[1:]:
            raise size_differs(str(location), x.shape[1:], shape[1:])
        return x.expand(shape) if len(x) == 1 else x

    def _stacked(self, locations: Iterable[Location]) -> Tensor:
        """Some images, uint8 (N, C, H, W)."""
        return stack((str(location), self._decode(location.content(), str(location))) for location in locations)


def _is_coloured(location: Location) -> bool:
    return is_coloured(location.content(), str(location))


class _Decoded:
    """An iterable of (x, y): x is uint8 (C, H, W), decoded by threads."""

    def __init__(self, encoded: EncodedImages, shape: tuple[int, int, int], workers: int) -> None:
        self._encoded = encoded
        self._shape = shape
        self._workers = workers
        self._ahead = max(AHEAD_BYTES // math.prod(shape), workers)

    def __len__(self) -> int:
        return len(self._encoded)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        pending: deque[Future[Tensor]] = deque()
        locations = iter(self._encoded.locations)
        with ThreadPoolExecutor(self._workers, thread_name_prefix="decode") as pool:
            try:
                for label in self._encoded.y.tolist():
                    for location in itertools.islice(locations, self._ahead - len(pending)):
                        pending.append(pool.submit(self._encoded.decoded, location, self._shape))
                    yield pending.popleft().result(), label
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
