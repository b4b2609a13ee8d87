"""Check that no model from which a run starts was trained on the validation images of the run.

Such a model has fitted these images, so their robust accuracy is biased upwards, and with it everything that a run
derives from it: the selected epoch, class schedules, averaging thresholds, interpolations and logit adjustments.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import verify
from classwise.data import Images
from classwise.models.loading.checkpoints import read_state
from classwise.training.folder import Run
from classwise.training.recipe import Recipe, recipe_from_values
from classwise.training.recipe_files import read_values
from classwise.training.setup import split_rows, training_images


@dataclass(frozen=True)
class Start:
    """A model from which a run, or another start, was trained.

    Args:
        weights: a run folder or a file of weights.
        parent: the run that started from it, if that is itself a start; None for a start of the checked run.
    """

    weights: Path
    parent: Path | None = None

    def __str__(self) -> str:
        return str(self.weights) if self.parent is None else f"{self.weights}, from which {self.parent} started"


_IF_SEEN = "; if it was, their accuracies are too high"


def check_start_models(
    run: Run, recipe: Recipe, images: Images, held_out: Tensor, weights: Sequence[str | Path]
) -> list[str]:
    """Check that the start models of a run, and their own starts, were not trained on its validation images.

    A start with the same data is checked exactly, by its split. For a start with another subset of the same data set,
    the subset is loaded, and the pixels are compared. No code of the start is executed.

    Args:
        run: the run.
        recipe: its recipe.
        images: its training images, before the validation split.
        held_out: the rows of its validation images, int64 (N,).
        weights: its start models: run folders or files of weights.

    Returns:
        A note on each start whose training images are unknown.

    Raises:
        ClasswiseError: if a start was trained on a validation image.
    """
    notes: list[str] = []
    starts = [Start(Path(path)) for path in weights] if len(held_out) else []
    for start in starts:  # grows by the starts of the starts
        unknown = f"cannot check whether the start model {start} was trained on validation images of this run"
        folder = _run_folder(start.weights)
        if folder is None:
            notes.append(f"{unknown}: {'no run folder' if start.weights.exists() else 'it does not exist'}{_IF_SEEN}")
            continue
        try:
            own = Run.open(folder)
            verify(own.recipe_file)
            theirs = recipe_from_values(read_values(str(own.recipe_file)))
            further = [theirs.model.weights, interpolated_with(start.weights)]
            count = _trained_on(own, theirs, recipe, images, held_out)
        except ClasswiseError as error:
            notes.append(f"{unknown}: {error}{_IF_SEEN}")
            continue
        if count is None:
            notes.append(f"{unknown}: its training images differ{_IF_SEEN}")
        elif count:
            raise _seen(run, recipe, start, theirs, count, len(held_out))
        elif theirs.data.unlabelled is not None:
            notes.append(f"{unknown}: its unlabelled images are unknown{_IF_SEEN}")
        known = {other.weights for other in starts}
        starts += [Start(Path(path), folder) for path in further if path is not None and Path(path) not in known]
    return notes


def starts_of(run: Run, weights: Path) -> list[str]:
    """Return the start models of saved weights of a run: of its training, and of an interpolation."""
    return [start for start in (run.recipe.model.weights, interpolated_with(weights)) if start is not None]


def _seen(run: Run, recipe: Recipe, start: Start, theirs: Recipe, count: int, total: int) -> ClasswiseError:
    """Return the error for a start that was trained on validation images."""
    here, there = (f"data.validation={side.data.validation}, seed={side.seed}" for side in (recipe, theirs))
    change = f", or use its split here ({there})" if theirs.data.validation else ""
    return ClasswiseError(
        f"{run.path}: {count} of the {total} validation images were training images of the start model {start}; "
        f"train the start on the same data with the split of this run ({here}){change}"
    )


def _trained_on(start: Run, theirs: Recipe, recipe: Recipe, images: Images, held_out: Tensor) -> int | None:
    """Return the number of validation images that a start was trained on; None if its training images are unknown.

    Args:
        start: the start.
        theirs: its recipe.
        recipe: the recipe of the run.
        images: the training images of the run, before the validation split.
        held_out: the rows of its validation images, int64 (N,).
    """
    fingerprint = start.data["fingerprint"]
    if fingerprint == images.fingerprint():
        return int(torch.isin(held_out, split_rows(theirs, images)[0]).sum())
    if theirs.data.name != recipe.data.name:
        return None
    chosen = ("subset", "subset_seed", "imbalance")
    settings = dataclasses.replace(recipe.data, **{field: getattr(theirs.data, field) for field in chosen})
    try:
        other = training_images(settings, download=False)
    except ClasswiseError:
        return None
    hashes, known = _hashes(images), _hashes(other)
    if other.fingerprint() != fingerprint or not set(hashes) & set(known):  # perhaps the same images, transformed
        return None
    seen = {known[row] for row in split_rows(theirs, other)[0].tolist()}
    return sum(hashes[row] in seen for row in held_out.tolist())


def _hashes(images: Images) -> list[bytes]:
    """Return a hash of the pixels of each image."""
    return [hashlib.blake2b(x.numpy().tobytes(), digest_size=16).digest() for x in images.x.cpu()]


def _run_folder(weights: Path) -> Path | None:
    """Return the run folder that weights belong to; None if there is none."""
    if not weights.exists():
        return None
    folder = weights if weights.is_dir() else weights.resolve().parent
    if folder.name == "checkpoints":
        folder = folder.parent
    return folder if Run(folder).recipe_file.is_file() else None


def interpolated_with(weights: Path) -> str | None:
    """Return the initial model of interpolated weights, from the metadata of the file; None for other weights."""
    if weights.suffix != ".safetensors" or not weights.is_file():
        return None
    return read_state(weights).metadata.get("start")
