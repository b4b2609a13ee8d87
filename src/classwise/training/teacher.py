"""The teacher of a distillation."""

from __future__ import annotations

from torch import nn

from classwise.core.errors import ClasswiseError
from classwise.data import Images
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
