"""Citations: the papers of a recipe, a part, an attack or a suite."""

from __future__ import annotations

from classwise.attacks import ATTACKS
from classwise.attacks.suites import SUITES, members
from classwise.core.settings.bibliography import OtherSource, Paper, papers_of
from classwise.core.settings.config import parse_spec
from classwise.data import AUGMENTATIONS
from classwise.training import AVERAGERS, CRITERIA, LR_SCHEDULES, OBJECTIVES, OPTIMISERS, REDUCTIONS, SCHEDULES, UPDATES
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


def papers(name: str) -> list[Paper | OtherSource]:
    """Return the papers of a recipe, a part, an attack or a suite, without duplicates, in the order of recipe fields.

    Raises:
        ClasswiseError: if the name is unknown.
    """
    if name in recipe_names():
        return papers_of(source for part in Recipe.read(name).described_parts for source in part.sources())
    names = [parse_spec(spec)[0] for spec in members(name)] if name in SUITES else [name]
    parts = [registry.load(name) for name in names for registry in PARTS if name in registry]
    if not parts:
        raise unknown_recipe(
            name, "recipe, part or attack", [*SUITES, *(part for registry in PARTS for part in registry)]
        )
    return papers_of(source for part in parts for source in sources(part))


def sources(part: object) -> tuple[str, ...]:
    """Return the sources of a part; none for a function without the attribute ``source``."""
    found: tuple[str, ...] = getattr(part, "source", ())
    return found
