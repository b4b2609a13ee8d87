"""Tensors saved with the outcomes: logits, features, adversarial images, and a few examples of every class.

A file of tensors belongs to the file of outcomes of the same number and is written before it. So a file of outcomes
exists only if its tensors exist.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.table import CLEAN
from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import note_missing_files, remove, verify, write_bytes
from classwise.stats.counts import BoolArray, IntArray

EXAMPLES = "examples"
"""Kind of the pairs of a clean image and its adversarial example, which are always saved."""
EXAMPLES_A_CLASS = 8
"""Number of examples of each class that are saved for a report."""
EXAMPLES_BYTES = 16 << 20
"""Largest size of all examples."""
FOLDER = "artifacts"
_ADVICE = "remove it and the file of outcomes with its number, and resume the audit"

Array = NDArray[Any]


def examples_per_class(shape: Sequence[int], num_classes: int, attacks: int) -> int:
    """Number of examples of each class that an audit saves: at most `EXAMPLES_A_CLASS`, and `EXAMPLES_BYTES` in all.

    Args:
        shape: channels, height and width of the images.
        num_classes: number of classes.
        attacks: number of attacks, each with examples of its own.
    """
    size = 4 * math.prod(shape) * max(attacks, 1)  # two images, two bytes a pixel
    return min(EXAMPLES_A_CLASS, EXAMPLES_BYTES // (size * num_classes))


class Examples:
    """The images whose examples an audit saves: the first of each class that are classified correctly without attack.

    Args:
        attacks: number of attacks, each with examples of its own.
        classes: number of classes.
        parts: number of processes that share the examples.
    """

    def __init__(self, attacks: int, classes: int, parts: int = 1) -> None:
        self.attacks, self.classes, self.parts = attacks, classes, parts
        self._earlier = pd.Series(dtype=np.int64)
        self._place = pd.Series(dtype=np.int64)

    def add(self, clean: pd.DataFrame) -> None:
        """Go on with the next images of the data, from their rows of the clean pass."""
        right = clean.loc[clean["correct"].astype(bool), ["index", "label"]].reset_index(drop=True).sort_values("index")
        place = right.groupby("label").cumcount() + right["label"].map(self._earlier).fillna(0)
        self._place = pd.Series(place.to_numpy(), right["index"].to_numpy())
        self._earlier = self._earlier.add(right["label"].value_counts(), fill_value=0)

    def among(self, index: IntArray, shape: Sequence[int]) -> BoolArray:
        """Whether each image is one of them, (N,); ``shape`` is that of one image."""
        share = -(-examples_per_class(shape, self.classes, self.attacks) // self.parts)
        chosen: BoolArray = (self._place.reindex(index) < share).to_numpy()
        return chosen


@dataclass
class Artifacts:
    """Saved tensors by kind and attack: image indices (N,) and rows (N, ...).

    Attributes:
        folder: the folder of an audit, from which tensors are read on access; None: they are in memory.
    """

    folder: Path | None = None
    _memory: dict[tuple[str, str], list[tuple[Array, Array]]] = field(default_factory=dict)

    def add(self, kind: str, attack: str, index: Array, rows: Array) -> None:
        """Add rows in memory."""
        self._memory.setdefault((kind, attack), []).append((index, rows))

    def merge(self, other: Artifacts) -> None:
        """Add the tensors that another object has in memory."""
        for key, blocks in other._memory.items():
            self._memory.setdefault(key, []).extend(blocks)

    def kinds(self) -> tuple[str, ...]:
        """The kinds that were saved."""
        if self.folder is None:
            return tuple(sorted({kind for kind, _ in self._memory}))
        return tuple(sorted({path.parent.name for path in (self.folder / FOLDER).glob("*/*.safetensors")}))

    def get(self, kind: str, attack: str) -> tuple[Array, Array]:
        """Image indices (N,), ascending, and rows (N, ...) of one kind and attack.

        ``examples`` are a few images of each class that are correctly classified without attack, in float16: under
        ``clean`` the clean images, under an attack their adversarial examples.

        Raises:
            ClasswiseError: if nothing of that kind was saved for the attack.
        """
        blocks = self._blocks_of(kind, attack)
        if not blocks:
            raise ClasswiseError(f"no {kind} of {attack!r} were saved; audit with save={kind!r} (--save {kind})")
        index, rows = (np.concatenate(columns) for columns in zip(*blocks, strict=True))
        images, first = np.unique(index, return_index=True)
        rows = rows[first]
        return images, rows if kind != EXAMPLES else rows[:, 0 if attack == CLEAN else 1]

    def _blocks_of(self, kind: str, attack: str) -> list[tuple[Array, Array]]:
        """The stored blocks; an example is a pair of clean and adversarial image, stored under the attack."""
        if kind == EXAMPLES and attack == CLEAN:
            attacks = [name for stored, name in self._listed() if stored == EXAMPLES]
            return [block for name in attacks for block in self._blocks_of(kind, name)]
        return self._memory.get((kind, attack), []) if self.folder is None else _blocks(self.folder, kind, attack)

    def _listed(self) -> list[tuple[str, str]]:
        """The stored kinds and attacks, each pair once."""
        if self.folder is None:
            return list(self._memory)
        paths = sorted((self.folder / FOLDER).glob("*/*.safetensors"))
        return list(dict.fromkeys((path.parent.name, _attack_of(path)) for path in paths))

    def save(self, folder: Path) -> None:
        """Write all tensors into an audit's folder."""
        for number, (kind, attack) in enumerate(self._listed()):
            index, rows = zip(*self._blocks_of(kind, attack), strict=True)
            write(folder, kind, attack, number, np.concatenate(index), np.concatenate(rows))


def write(folder: Path, kind: str, attack: str, number: int, index: Array, rows: Array) -> None:
    """Write one file of tensors, atomically."""
    path = folder / FOLDER / kind / outcome_files.name(number).replace(".parquet", ".safetensors")
    content = save({"index": index, kind: np.ascontiguousarray(rows)}, {"attack": attack})
    write_bytes(path, content, checksum=True)


def _blocks(folder: Path, kind: str, attack: str) -> list[tuple[Array, Array]]:
    """The blocks of one kind and attack."""
    return [
        _read(path) for path in sorted((folder / FOLDER / kind).glob("*.safetensors")) if _attack_of(path) == attack
    ]


def of_file(folder: Path, number: str) -> dict[str, tuple[Array, Array]]:
    """The tensors of one file of outcomes by kind: image indices (N,) and rows (N, ...).

    Args:
        folder: the audit's folder.
        number: name of the file of outcomes without its suffix, such as ``part-00003``.
    """
    found = {}
    for path in sorted((folder / FOLDER).glob(f"*/{number}.safetensors")):
        _attack_of(path)  # verifies the file
        found[path.parent.name] = _read(path)
    return found


def _read(path: Path) -> tuple[Array, Array]:
    """Image indices (N,) and rows (N, ...) of a verified file of tensors."""
    with safe_open(path, framework="numpy") as file:
        return file.get_tensor("index"), file.get_tensor(path.parent.name)


def remove_orphans(folder: Path) -> None:
    """Remove files of tensors without a file of outcomes, which an interrupted audit leaves behind.

    Files that somebody has removed before the audit is resumed do not count as missing.
    """
    for place in (folder / "outcomes", *(folder / FOLDER).glob("*/")):
        note_missing_files(place)
    complete = {path.stem for path in outcome_files.listed(folder / "outcomes")}
    for path in (folder / FOLDER).glob("*/*.safetensors"):
        if path.stem not in complete:
            remove(path)


def _attack_of(path: Path) -> str:
    verify(path, _ADVICE)  # here, because a file with a damaged attack name would be skipped silently
    try:
        with safe_open(path, framework="numpy") as file:
            metadata: Mapping[str, str] = file.metadata() or {}
            absent = {"index", path.parent.name}.difference(file.keys())
        if absent:
            raise ClasswiseError(f"{path} is damaged (no {absent.pop()!r}); {_ADVICE}")
    except (SafetensorError, OSError) as error:
        raise ClasswiseError(f"{path} is not a valid safetensors file; {_ADVICE}") from error
    return metadata.get("attack", "")
