"""Stratified splits and subsets: chosen by seed alone, kept as row numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError
from classwise.core.rng import CounterRNG
from classwise.core.schema import check_schema_version
from classwise.core.storage import write_text

SCHEMA_VERSION = 1


def stratified_split(y: Tensor, share: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Hold a share of every class out.

    Args:
        y: (N,) int64 labels.
        share: the fraction of each class to hold out, in (0, 1).
        seed: names the choice; the same seed gives the same rows on every machine.

    Returns:
        The row numbers of the rest and of the held-out images, both ascending. Of a class with n images
        round(share * n) are held out (halves to even), at least one.

    Raises:
        ClasswiseError: if the share is not in (0, 1), or a class would have no image left.
    """
    if not 0 < share < 1:
        raise ClasswiseError(f"share {share} of a split should be between 0 and 1, for example 0.1")
    counts = torch.bincount(y.cpu())
    quota = (counts.to(torch.float64) * share).round().to(torch.int64)
    quota = quota.clamp(min=1).minimum(counts)
    emptied = (quota == counts) & (counts > 0)
    if bool(emptied.any()):
        label = int(emptied.int().argmax())
        raise ClasswiseError(f"class {label} has {int(counts[label])} images: too few to hold out a share of {share}")
    held = _rank_in_class(y, seed, "split") < quota[y.cpu()]
    return torch.nonzero(~held).flatten(), torch.nonzero(held).flatten()


def stratified_subset(y: Tensor, count: int, seed: int = 0) -> Tensor:
    """Choose ``count`` images with the classes in their proportions.

    Each class gets its proportional part rounded down; what is then missing goes to the largest remainders,
    ties to the lower class.

    Args:
        y: (N,) int64 labels.
        count: how many images, 1 to N.
        seed: names the choice.

    Returns:
        ``count`` ascending row numbers.

    Raises:
        ClasswiseError: if ``count`` is not in 1..N.
    """
    if not 1 <= count <= len(y):
        raise ClasswiseError(f"a subset of {count} images cannot be taken from {len(y)}; give 1 to {len(y)}")
    exact = torch.bincount(y.cpu()) * count
    quota = exact // len(y)
    missing = count - int(quota.sum())
    quota[torch.argsort(exact % len(y), descending=True, stable=True)[:missing]] += 1
    return torch.nonzero(_rank_in_class(y, seed, "subset") < quota[y.cpu()]).flatten()


def _rank_in_class(y: Tensor, seed: int, purpose: str) -> Tensor:
    """(N,) int64: the place of each image among its class in a random order."""
    shuffled = CounterRNG(seed, purpose).permutation(len(y)).cpu()
    labels = y.cpu()
    order = shuffled[torch.argsort(labels[shuffled], stable=True)]
    counts = torch.bincount(labels)
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order)) - starts[labels[order]]
    return rank


def save_split(path: str | os.PathLike[str], parts: Mapping[str, Tensor], *, fingerprint: str = "") -> None:
    """Write named parts of a data set as row numbers (JSON).

    Args:
        path: the file to write.
        parts: row numbers by name, such as ``{"train": rest, "valid": held}``.
        fingerprint: `Images.fingerprint` of the data that the rows belong to.

    Raises:
        ClasswiseError: if the file cannot be written.
    """
    rows = {name: part.tolist() for name, part in parts.items()}
    content = {"schema_version": SCHEMA_VERSION, "fingerprint": fingerprint, "parts": rows}
    write_text(path, json.dumps(content) + "\n")


def load_split(path: str | os.PathLike[str], *, fingerprint: str = "") -> dict[str, Tensor]:
    """Read what `save_split` wrote.

    Args:
        path: the file to read.
        fingerprint: if given, the split must have been made for these data.

    Returns:
        int64 row numbers by name.

    Raises:
        ClasswiseError: if the file is missing, of a newer schema, no split, or made for other data.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        version = int(content["schema_version"])
        if version <= SCHEMA_VERSION:
            made_for = str(content["fingerprint"])
            parts = {str(name): torch.tensor(rows, dtype=torch.int64) for name, rows in content["parts"].items()}
    except OSError as error:
        raise ClasswiseError(f"cannot read the split {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClasswiseError(f"{path} is not a split that classwise wrote") from error
    check_schema_version(version, SCHEMA_VERSION, str(path))
    if fingerprint and made_for and fingerprint != made_for:
        raise ClasswiseError(
            f"{path} was made for other data ({made_for[:12]}, here {fingerprint[:12]}); make a new split"
        )
    return parts
