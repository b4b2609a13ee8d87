"""Teachers, of distillations and of robust self-training (Carmon et al., 2019), which label unlabelled images."""

from __future__ import annotations

from typing import Annotated

import pydantic
import torch
from torch import Tensor, nn
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.attacks.engine import Engine
from classwise.core.errors import ClasswiseError
from classwise.core.files.reading import damaged
from classwise.core.files.storage import read_json, write_json
from classwise.core.settings import limits
from classwise.data import Images, load_data
from classwise.models import load_model
from classwise.models.weights import fingerprint
from classwise.training.folder import Run
from classwise.training.objectives.distillation import Distillation
from classwise.training.recipe import Recipe


def load_teacher(recipe: Recipe, images: Images, device: str) -> nn.Module | None:
    """Load the teacher of a recipe, in evaluation mode and frozen; None for a recipe without one.

    Args:
        recipe: the recipe.
        images: the training images, whose classes and channels the teacher must have.
        device: the device of the teacher.

    Raises:
        ClasswiseError: if the recipe needs a teacher and names none, or it cannot be loaded, does not fit the data, or
            has random weights.
    """
    objective = recipe.parts.objective
    if not isinstance(objective, Distillation):
        return None
    if not objective.teacher:
        raise ClasswiseError(f"recipe {recipe.name!r} needs a teacher: set objective.teacher, as in runs/teacher")
    teacher = load_model(objective.teacher, objective.teacher_weights, data=images, device=device)
    if getattr(teacher, "fresh", None) is not None:
        raise ClasswiseError(
            f"objective.teacher = {objective.teacher!r} has random weights; set objective.teacher_weights, or give a "
            "run folder"
        )
    recipe.precision.prepare(teacher)
    return teacher.requires_grad_(False)


def check_teacher(run: Run, teacher: nn.Module) -> None:
    """Record the teacher's fingerprint in a new run; in a resumed run, check that it is the same.

    Raises:
        ClasswiseError: if the run was started with another teacher.
    """
    found, known = fingerprint(teacher), run.environment.get("teacher")
    if known is None:
        run.note_environment(teacher=found)
    elif known != found:
        raise ClasswiseError(f"{run.path} was started with a teacher of other weights; use the same, or another folder")


def pseudo_labelled(
    recipe: Recipe, images: Images, run: Run, device: str, given: Images | None = None
) -> Images | None:
    """Label the unlabelled images of a recipe by its teacher; None if the recipe has no unlabelled images.

    A resumed run reads the pseudo-labels from its folder.

    Args:
        recipe: the recipe, with unlabelled images and a teacher.
        images: the labelled images, which define the shape and the classes.
        run: the run folder.
        device: the device of the teacher.
        given: unlabelled images to use instead of the recipe's.

    Raises:
        ClasswiseError: if the images have another shape, the teacher cannot be loaded or does not fit, or the run was
            started with other unlabelled images.
    """
    settings = recipe.data.unlabelled
    if settings is None:
        if given is not None:
            raise ClasswiseError(
                "unlabelled images need a recipe with data.unlabelled, such as rst; this recipe has no teacher"
            )
        return None
    resumed = run.pseudo_labels_file.is_file()
    teacher = None if resumed else load_model(settings.teacher, data=images, device=device)
    unlabelled = given or load_data(
        settings.name,
        split=settings.split,
        root=recipe.data.root,
        subset=settings.subset,
        seed=settings.subset_seed,
        **settings.options,
    )
    if unlabelled.shape != images.shape:
        here, there = ("x".join(str(side) for side in tensor.shape) for tensor in (unlabelled, images))
        raise ClasswiseError(
            f"unlabelled images of {unlabelled.name!r} have shape {here}, expected {there} as {images.name!r}"
        )
    if teacher is None:
        labels = _load_labels(run, unlabelled)
    else:
        engine = Engine(teacher, precision=recipe.precision, batch_size=max(32, recipe.batch_size))
        outputs = engine.predict(batch.x for batch in unlabelled.batches(engine.batch_size))
        labels = torch.cat([logits.argmax(1) for logits in outputs]).cpu()
    names = unlabelled.image_names
    return Images(unlabelled.x, labels, images.class_names, unlabelled.name, unlabelled.split, image_names=names)


def save_pseudo_labels(run: Run, images: Images) -> None:
    """Save the pseudo-labels in the run folder, so that a resumed run does not need the teacher."""
    content = {"images": _fingerprint(images), "labels": images.y.tolist()}
    write_json(run.pseudo_labels_file, content, checksum=True)


class _PseudoLabels(TypedDict):
    images: str
    labels: list[Annotated[int, pydantic.Field(ge=0, lt=limits.CLASSES)]]


def _load_labels(run: Run, unlabelled: Images) -> Tensor:
    content = read_json(run.pseudo_labels_file, kind=_PseudoLabels)
    if content["images"] != _fingerprint(unlabelled):
        raise ClasswiseError(f"{run.path} was started with other unlabelled images; use another folder")
    if len(content["labels"]) != len(unlabelled):
        raise damaged(str(run.pseudo_labels_file), f"{len(content['labels'])} labels of {len(unlabelled)} images")
    return torch.tensor(content["labels"], dtype=torch.int64)


def _fingerprint(images: Images) -> str:
    """Return the hash of the pixels, independent of labels and class names."""
    return Images(images.x, torch.zeros_like(images.y), ["any"]).fingerprint()
