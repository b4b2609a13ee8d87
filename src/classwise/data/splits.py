"""Stratified splits and subsets, determined by a seed and stored as row numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import pydantic
import torch
from torch import Tensor
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError
from classwise.core.files.schema import SCHEMA_VERSIONS, check_schema_version
from classwise.core.files.storage import read_json, write_json
from classwise.core.settings.arguments import checked


@checked
def stratified_split(
    y: Tensor, share: float, seed: int = 0, *, class_names: Sequence[str] | None = None
) -> tuple[Tensor, Tensor]:
    """Hold out a fraction of every class.

    Args:
        y: labels, int64 (N,).
        share: fraction of each class to hold out, in (0, 1).
        seed: seed of the choice; the same seed gives the same rows on every machine.
        class_names: names of the classes, for errors; None for their labels.

    Returns:
        Row numbers of the remaining and of the held-out images, both ascending. Of a class with n images,
        round(share * n) are held out (halves to even), at least one.

    Raises:
        ClasswiseError: if the share is not in (0, 1), or all images of a class would be held out.
    """
    if not 0 < share < 1:
        raise ClasswiseError(f"share {share} of a split: must be between 0 and 1, such as 0.1")
    counts = torch.bincount(y.cpu())
    quota = (counts.to(torch.float64) * share).round().to(torch.int64)
    quota = quota.clamp(min=1).minimum(counts)
    emptied = (quota == counts) & (counts > 0)
    if bool(emptied.any()):
        label = int(emptied.int().argmax())
        name = str(label) if class_names is None else repr(class_names[label])
        lost = f"class {name}: all of its images ({int(counts[label])}) would be held out"
        raise ClasswiseError(f"{lost}; add images, or omit the class")
    held_out = _rank_in_class(y, seed, "split") < quota[y.cpu()]
    return torch.nonzero(~held_out).flatten(), torch.nonzero(held_out).flatten()


def stratified_subset(y: Tensor, count: int, seed: int = 0) -> Tensor:
    """Choose ``count`` images in the proportions of the classes, by the largest remainder method.

    Each class gets its proportional number rounded down; the remaining images go to the classes with the largest
    remainders, ties to the lower class.

    Args:
        y: labels, int64 (N,).
        count: number of images, 1 to N.
        seed: seed of the choice.

    Returns:
        Row numbers, ascending, int64 (count,).

    Raises:
        ClasswiseError: if ``count`` is not in 1..N.
    """
    if not 1 <= count <= len(y):
        raise ClasswiseError(f"subset of {count} images: must be 1 to {len(y)}")
    exact = torch.bincount(y.cpu()) * count
    quota = exact // len(y)
    missing = count - int(quota.sum())
    quota[torch.argsort(exact % len(y), descending=True, stable=True)[:missing]] += 1
    return torch.nonzero(_rank_in_class(y, seed, "subset") < quota[y.cpu()]).flatten()


def long_tailed_subset(y: Tensor, imbalance: float, seed: int = 0) -> Tensor:
    """Choose images so that the class counts decrease exponentially (Cao et al., NeurIPS 2019, section 4).

    Of the k-th of K classes with images, k = 0 .. K-1 in the order of their labels, floor(m imbalance^(-k/(K-1)))
    images remain, m the number of images of the smallest class. So the first class has m images, and the last one, the
    rarest, m / imbalance. The choices are nested: those of a larger imbalance are among those of a smaller one.

    Args:
        y: labels, int64 (N,).
        imbalance: the number of images of the first class relative to that of the last one, at least 1.
        seed: seed of the choice; the same seed gives the same rows on every machine.

    Returns:
        Row numbers, ascending, int64.

    Raises:
        ClasswiseError: if the imbalance is below 1, there are fewer than two classes with images, or a class would have
            no image.
    """
    counts = torch.bincount(y.cpu())
    present = torch.nonzero(counts).flatten()
    smallest = int(counts[present].min()) if len(present) else 0
    if len(present) < 2:
        raise ClasswiseError(f"imbalance {imbalance:g}: needs at least two classes with images, found {len(present)}")
    if not 1 <= imbalance <= smallest:
        raise ClasswiseError(
            f"imbalance {imbalance:g}: must be 1 to {smallest}, the number of images of the smallest class, so that "
            "the rarest class has an image"
        )
    rank = torch.arange(len(present), dtype=torch.float64) / (len(present) - 1)
    quota = torch.zeros_like(counts)
    # A whole number may be slightly smaller in floating point, as in 8^(-1/3), and must not lose an image.
    quota[present] = (smallest * imbalance**-rank + 1e-9).floor().to(torch.int64)
    return torch.nonzero(_rank_in_class(y, seed, "long tail") < quota[y.cpu()]).flatten()


def _rank_in_class(y: Tensor, seed: int, purpose: str) -> Tensor:
    """Rank of each image within its class in a random order, int64 (N,)."""
    shuffled = CounterRNG(seed, purpose).permutation(len(y)).cpu()
    labels = y.cpu()
    order = shuffled[torch.argsort(labels[shuffled], stable=True)]
    counts = torch.bincount(labels)
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order)) - starts[labels[order]]
    return rank


class _Versioned(TypedDict):
    schema_version: int


class _Split(_Versioned):
    fingerprint: str
    parts: dict[str, list[Annotated[int, pydantic.Field(ge=0)]]]


def save_split(path: str | os.PathLike[str], parts: Mapping[str, Tensor], *, fingerprint: str = "") -> None:
    """Write the row numbers of named parts of a data set as JSON.

    Args:
        path: the file to write.
        parts: row numbers by name, such as ``{"train": rest, "valid": held_out}``.
        fingerprint: `Images.fingerprint` of the data set.

    Raises:
        ClasswiseError: if the file cannot be written.
    """
    rows = {name: part.tolist() for name, part in parts.items()}
    content = {"schema_version": SCHEMA_VERSIONS["split"], "fingerprint": fingerprint, "parts": rows}
    write_json(path, content)


def load_split(path: str | os.PathLike[str], *, fingerprint: str = "") -> dict[str, Tensor]:
    """Read a file written by `save_split`.

    Args:
        path: the file to read.
        fingerprint: `Images.fingerprint` of the data set; if given, it must match the file.

    Returns:
        Row numbers by name, int64.

    Raises:
        ClasswiseError: if the file is missing, invalid, of another schema version, or for another data set.
    """
    version = read_json(Path(path), kind=_Versioned)["schema_version"]
    check_schema_version(version, SCHEMA_VERSIONS["split"], str(path))
    content = read_json(Path(path), kind=_Split)
    stored = content["fingerprint"]
    parts = {name: torch.tensor(rows, dtype=torch.int64) for name, rows in content["parts"].items()}
    if fingerprint and stored and fingerprint != stored:
        raise ClasswiseError(
            f"{path} is a split of other data (fingerprint {stored[:12]}, here {fingerprint[:12]}); create a new split"
        )
    return parts
