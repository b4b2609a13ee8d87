"""Citations: the papers of a recipe, a part, an attack or a suite."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from classwise.attacks import ATTACKS
from classwise.attacks.suites import SUITES, members
from classwise.core.settings.bibliography import OtherSource, Paper, papers_of
from classwise.core.settings.config import parse_spec
from classwise.core.settings.registry import load_object
from classwise.core.version import __version__
from classwise.data import AUGMENTATIONS
from classwise.training import AVERAGERS, CRITERIA, LR_SCHEDULES, OBJECTIVES, OPTIMISERS, REDUCTIONS, SCHEDULES, UPDATES
from classwise.training.folder import Run, runs_in
from classwise.training.recipe import Recipe
from classwise.training.recipe_files import recipe_names, unknown_recipe

PARTS = (
    OBJECTIVES,
    CRITERIA,
    SCHEDULES,
    REDUCTIONS,
    UPDATES,
    OPTIMISERS,
    LR_SCHEDULES,
    AVERAGERS,
    AUGMENTATIONS,
    ATTACKS,
)
"""The registries of parts that have sources."""
ITSELF = OtherSource(
    "classwise",
    "The classwise developers. classwise: class-wise adversarial robustness, measured and improved, "
    f"version {__version__}",
)


def recipe_of(name: str) -> Recipe | None:
    """Return the recipe of a name, a YAML file, a run folder or a folder of training seeds; None for another name.

    Raises:
        ClasswiseError: if the file or the folder has no valid recipe.
    """
    if name in recipe_names() or name.endswith((".yaml", ".yml")):
        return Recipe.read(name)
    if not _parts(name) and os.path.isdir(name):  # noqa: PTH112  # False for text that cannot be a path
        return Run.open(next(iter(runs_in(Path(name))), name)).recipe
    return None


def papers(name: str) -> list[Paper | OtherSource]:
    """Return the papers of a recipe, a run, a part, an attack or a suite, each once, in the order of recipe fields.

    Args:
        name: a name, the YAML file of a recipe, a run folder, or ``package.module:Class``; ``classwise``: this package.

    Raises:
        ClasswiseError: if the name is unknown, or the file or the folder has no valid recipe.
    """
    if name == ITSELF.key:
        return [ITSELF]
    recipe = recipe_of(name)
    if recipe is not None:
        return papers_of(source for part in recipe.described_parts for source in part.sources())
    parts = [load_object(name, "part")] if ":" in name and "=" not in name else _parts(name)
    if not parts:
        raise unknown_recipe(
            name, "recipe, part or attack", [*SUITES, *(part for registry in PARTS for part in registry)]
        )
    return papers_of(source for part in parts for source in sources(part))


def _parts(name: str) -> list[Any]:
    """The parts of a name, or the attacks of a suite; none for an unknown name."""
    names = [parse_spec(spec)[0] for spec in members(name)] if name in SUITES else [name]
    return [registry.load(name) for name in names for registry in PARTS if name in registry]


def sources(part: object) -> tuple[str, ...]:
    """Return the sources of a part; none for a function without the attribute ``source``."""
    found: tuple[str, ...] = getattr(part, "source", ())
    return found
