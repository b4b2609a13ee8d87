"""What a run begins with: data that fit, a radius, a network sized for the data; and whether a folder is that run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from classwise.attacks.base import Attack
from classwise.data import Images, load_data, named_set
from classwise.errors import UserError
from classwise.settings import relative_step
from classwise.storage import check_writable, is_unused
from classwise.team import Team
from classwise.threat import Threat
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from classwise.training.recipe_settings import DataSettings

GREY = 0.5
"""An Linf radius from which on every image can become the grey one."""


def check_folder(run: Run, *, resume: bool) -> None:
    """Refuse a folder that a run must not be written into.

    Raises:
        UserError: if it is a file, holds another run (unless that is to be resumed) or something else, or cannot be
            written.
    """
    out = run.path
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give a folder for the run")
    if run.recipe_file.is_file() and not resume:
        raise UserError(f"{out} holds another run; give another folder, or --resume to go on with it")
    early = (run.environment_file.name, "validation.json", run.pseudo_labels_file.name)  # written before the recipe
    if not run.recipe_file.is_file() and not is_unused(out, early):
        raise UserError(f"{out} is not empty and holds no run; give a new folder")
    for file in (run.recipe_file, run.state_file):
        check_writable(file)


def training_images(settings: DataSettings) -> Images:
    """The training images that a recipe names."""
    return load_data(
        settings.name,
        split="train",
        root=settings.root,
        subset=settings.subset,
        seed=settings.subset_seed,
        **settings.options,
    )


def usual_threat(images: Images) -> Threat:
    """The radius that the field uses for a data set known by name.

    Raises:
        UserError: for other data.
    """
    known = named_set(images)
    if known is not None:
        return Threat.parse(known.threat)
    raise UserError(f"no radius is usual for {images.name!r}; give one, such as threat = 'Linf:8/255'")


def doubts(images: Images, threat: Threat, attacks: Mapping[str, Attack]) -> list[str]:
    """What is odd about a radius and the attacks inside it, a line each; nothing of it is wrong for certain.

    Args:
        images: the training images.
        threat: the ball that training defends.
        attacks: the attacks of training and of validation, by the field of the recipe.
    """
    assert isinstance(threat.epsilon, float)
    known, found = named_set(images), []
    if threat.norm == "Linf" and threat.epsilon >= GREY:
        found.append(f"a radius of {threat.epsilon:g} reaches the grey image; it is in units of [0, 1], as in 8/255")
    elif known is not None and Threat.parse(known.threat) != threat:
        found.append(f"the radius is {threat}; usual for {images.name} is {known.threat}")
    for field, attack in attacks.items():
        size, steps = getattr(attack, "step_size", None), getattr(attack, "steps", 1)
        if size is None:
            continue
        factor, relative = relative_step(size)
        reach = steps * factor * (threat.epsilon if relative else 1)
        if reach < threat.epsilon * (1 - 1e-6):
            moved = f"{steps} steps of {size if relative else f'{size:.3g}'} reach {reach:.3g}"
            found.append(f"{field}: {moved} of the radius {threat.epsilon:.3g}; set the step_size to 0.25eps")
    return found


def check_same(run: Run, plan: Recipe, images: Images, team: Team) -> None:
    """Refuse to resume a run with another recipe or other data."""
    if run.recipe.digest() != plan.digest():
        before, now = dataclasses.asdict(run.recipe), dataclasses.asdict(plan)
        field = next(key for key in now if json.dumps(before[key]) != json.dumps(now[key]) and key != "name")
        remedy = "resume with the same, or give another folder"
        if field == "batch_size":
            each, left = divmod(before[field], team.size)
            remedy += f"; in {team.size} processes --set batch_size={each}" if team.size > 1 and not left else ""
        raise UserError(
            f"{run.path} was begun with another recipe: {field} was {json.dumps(before[field])}, "
            f"now {json.dumps(now[field])}; {remedy}"
        )
    if run.environment_file.is_file() and run.data["fingerprint"] != images.fingerprint():
        raise UserError(f"{run.path} was begun on other images than these; give another folder")


def model_spec(recipe: Recipe, images: Images) -> dict[str, Any]:
    """What `build_model` needs: the recipe's model, sized for the data, with the data's normalisation inside."""
    mean, std = _normalisation(images)
    for key in recipe.model.options:
        if key in ("name", "num_classes", "in_channels", "width", "mean", "std"):
            raise UserError(f"model.options holds {key!r}, which the data or model.{key} decide; leave it out")
    return {
        "name": recipe.model.name,
        "num_classes": images.num_classes,
        "in_channels": images.shape[0],
        "width": recipe.model.width,
        "mean": mean,
        "std": std,
        **recipe.model.options,
    }


def _normalisation(images: Images) -> tuple[list[float], list[float]]:
    """The named set's usual constants; for other data, what these images have, measured on up to 10,000 of them."""
    known = named_set(images)
    if known is not None:
        return list(known.mean), list(known.std)
    part = images.pixels(slice(0, 10_000)).cpu()
    std = part.std((0, 2, 3)).clamp_min(1e-3)
    return [round(value, 4) for value in part.mean((0, 2, 3)).tolist()], [round(value, 4) for value in std.tolist()]
