"""The binary version of CIFAR-10 and CIFAR-100: records of label bytes and pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import configurable
from classwise.data.formats.base import Format, read_bytes, split_of_file, words_of
from classwise.data.images import Column, Images

_PIXELS = 3 * 32 * 32
_TEN = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
_HUNDRED = {"train": ["train.bin"], "test": ["test.bin"]}


@configurable
class CifarBinary(Format):
    """The folder ``cifar-10-batches-bin`` or ``cifar-100-binary``, or one of their image files.

    A record of CIFAR-10 is a label and 3,072 pixels; in CIFAR-100 the superclass precedes the label.
    """

    def accepts(self, path: Path) -> bool:
        """Whether the path is a folder with the official files, or a file whose length is that of complete records."""
        if path.is_dir():
            return bool(_layout(path))
        return path.suffix == ".bin" and path.is_file() and _label_bytes(path) > 0

    def read(self, path: Path, split: str) -> Images:
        """Read the records of the split.

        Raises:
            ClasswiseError: if a file is missing or truncated.
        """
        files = [path]
        if path.is_dir():
            layout = _layout(path) or _TEN
            if split not in layout:
                raise ClasswiseError(f"{path} has no split {split!r}; it has train and test")
            files = [path / name for name in layout[split]]
        folder = files[0].parent
        records = [_records(file) for file in files]
        if len({part.shape[1] for part in records}) > 1:
            raise ClasswiseError(f"{path} has files of CIFAR-10 and of CIFAR-100; use one folder per data set")
        values = np.concatenate(records)
        labels = values[:, :-_PIXELS].astype(np.int64)
        hundred = labels.shape[1] == 2
        columns = {}
        if hundred:
            names = words_of(folder / "coarse_label_names.txt")
            numbers = tuple(str(number) for number in range(int(labels[:, 0].max()) + 1))
            columns["coarse_label"] = Column(torch.from_numpy(labels[:, 0].copy()), tuple(names or numbers))
        return Images(
            torch.from_numpy(values[:, -_PIXELS:].reshape(-1, 3, 32, 32).copy()),
            torch.from_numpy(labels[:, -1].copy()),
            words_of(folder / ("fine_label_names.txt" if hundred else "batches.meta.txt")),
            name=path.stem,
            split=split if path.is_dir() else split_of_file(path),
            columns=columns,
        )


def _layout(folder: Path) -> dict[str, list[str]] | None:
    return next((known for known in (_TEN, _HUNDRED) if any((folder / n[0]).is_file() for n in known.values())), None)


def _label_bytes(file: Path) -> int:
    """Number of label bytes per record, 1 or 2; 0 if the file does not consist of complete records."""
    size = file.stat().st_size
    return next((count for count in (1, 2) if size and size % (count + _PIXELS) == 0), 0)


def _records(file: Path) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """The records of a file, (N, label bytes + 3072)."""
    values = read_bytes(file)
    count = _label_bytes(file)
    if not count:
        raise ClasswiseError(
            f"{file} has {values.size} bytes, not complete records of CIFAR-10 or CIFAR-100; download it again"
        )
    return values.reshape(-1, count + _PIXELS)
