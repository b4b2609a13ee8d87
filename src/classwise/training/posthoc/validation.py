"""The validation split of a finished run, and the robust accuracy of a model on it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import pydantic
import torch
from torch import nn
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine, Job
from classwise.core.errors import ClasswiseError
from classwise.core.files.ownership import owned
from classwise.core.files.storage import read_json
from classwise.core.progress.listener import NullProgress, Progress
from classwise.data import Images
from classwise.models.logits import are_valid
from classwise.stats.counts import ClassCounts
from classwise.threat.ball import Threat
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from classwise.training.setup import training_images
from classwise.training.start_models import check_start_models


def validation_split(
    run: Run, data: Images | None = None, starts: Sequence[str | Path] = (), progress: Progress | None = None
) -> Images:
    """Return the validation split of a run.

    Args:
        run: the run.
        data: its training images; None to load those of its recipe.
        starts: models that must not have been trained on the split, see `check_start_models`.
        progress: receives notes on starts that cannot be checked.

    Raises:
        ClasswiseError: if the run has no validation split, the images differ from those of the run, or a start was
            trained on the split.
    """
    index = read_json(run.path / "validation.json", kind=_Validation)["index"]
    if not index:
        raise ClasswiseError(f"{run.path} has no validation split; train with data.validation = 0.02 or more")
    images = training_images(run.recipe.data) if data is None else data
    if images.fingerprint() != run.data["fingerprint"]:
        raise ClasswiseError(f"{run.path} was trained on other images; pass them as data=")
    rows = torch.isin(images.index.cpu(), torch.tensor(index)).nonzero().flatten()
    for note in check_start_models(run, run.recipe, images, rows, list(dict.fromkeys(starts))):
        (progress or NullProgress()).log(note)
    return images.take(rows)


class _Validation(TypedDict):
    index: list[Annotated[int, pydantic.Field(ge=0)]]


def writing_into(run: Run, path: Path) -> AbstractContextManager[None]:
    """Lock the run folder while a file is written into it; no lock for a file elsewhere.

    Raises:
        ClasswiseError: on entry, if another process uses the folder.
    """
    return owned(run.path) if path.resolve().is_relative_to(run.path.resolve()) else nullcontext()


def check_predictions(model: nn.Module, images: Images, recipe: Recipe) -> None:
    """Check that a model predicts a class of every image.

    Raises:
        ClasswiseError: if its logits are not finite, as of weights that overflow.
    """
    engine = Engine(model, precision=recipe.precision, batch_size=max(32, recipe.batch_size))
    valid = [
        are_valid(logits).all() for logits in engine.predict(batch.x for batch in images.batches(engine.batch_size))
    ]
    if not all(valid):
        raise ClasswiseError("the logits of the model are NaN or infinite on validation images; use other weights")


def robust_counts(model: nn.Module, images: Images, attack: Attack, threat: Threat, recipe: Recipe) -> ClassCounts:
    """Count the images of each class, and those that are correctly classified under the attack.

    Args:
        model: the model, on the device of the images.
        images: the images.
        attack: the attack.
        threat: the threat of the attack.
        recipe: provides the batch size, the precision and the seed.
    """
    engine = Engine(
        model, precision=recipe.precision, batch_size=max(32, recipe.batch_size), early_stop=False, seed=recipe.seed
    )
    count = images.class_counts()
    correct = torch.zeros_like(count)
    jobs = [Job(batch.index, batch.x, batch.y) for batch in images.batches(engine.batch_size)]
    for done in engine.attack(attack, threat, jobs, images=len(images)):
        correct.index_add_(0, done.y, (~done.success).to(correct.dtype))
    return ClassCounts(count.cpu().numpy(), correct.cpu().numpy())
