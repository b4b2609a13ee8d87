"""Descriptions of parts; `python -m tests.training.test_parts` generates the tables of the documents from them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from classwise.attacks import ATTACKS
from classwise.core.bibliography import PAPERS, line_of, papers_of
from classwise.core.config import make, relative_step
from classwise.core.description import CHANGES, Described, PassCounts, summary
from classwise.core.registry import Registry
from classwise.core.threat import Threat
from classwise.training import AVERAGERS, CRITERIA, OBJECTIVES, REDUCTIONS, SCHEDULES, UPDATES
from classwise.training.citations import PARTS, sources
from classwise.training.lr_schedules import MultiStep
from classwise.training.recipe import Recipe
from classwise.training.recipe_files import recipe_names

DOCS = Path(__file__).parents[2] / "docs" / "reference"
REGISTERED = [(registry, name) for registry in PARTS for name in registry]
TRAINING = [(registry, name) for registry, name in REGISTERED if registry is not ATTACKS]


def ids(value: object) -> str:
    return value.kind if isinstance(value, Registry) else str(value)


def table(*rows: tuple[object, ...]) -> str:
    """Format rows as a Markdown table; the first row is the header."""
    first, *rest = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in (first, ["---"] * len(first), *rest))


def objectives() -> str:
    rows: list[tuple[object, ...]] = [("name", "loss of an image", "passes")]
    for name in OBJECTIVES:
        passes = Recipe.read("at", {"objective": name, "attack": "pgd:steps=10"}).parts.passes
        rows.append((f"`{name}`", summary(OBJECTIVES.load(name)), plus(passes)))
    return table(*rows)


def schedules() -> str:
    rows: list[tuple[object, ...]] = [("schedule", "what it does", "changes", "reads", "example")]
    for name in SCHEDULES:
        cls = SCHEDULES.load(name)
        reads = ", ".join(f"`{signal}`" for signal in sorted(cls.reads)) or "-"
        rows.append((f"`{name}`", summary(cls), ", ".join(cls.changes), reads, f"`{cls.example}`"))
    return table(*rows)


def updates() -> str:
    rows: list[tuple[object, ...]] = [("part", "what it does", "changes", "passes (AT / TRADES)")]
    for field, registry in (("update", UPDATES), ("averaging", AVERAGERS)):
        for name in registry:
            cls = registry.load(name)
            asked = {field: name, "attack": "pgd:steps=10"}
            passes = " / ".join(plus(Recipe.read(base, asked).parts.passes) for base in ("at", "trades"))
            rows.append((f"`{field}: {name}`", summary(cls), ", ".join(cls.changes) or "-", passes))
    return table(*rows)


def plus(passes: PassCounts) -> str:
    return f"{passes.forward} + {passes.to_image + passes.to_weights}"


def listed(registry: Registry[Any], about: str) -> str:
    return table(("name", about), *((f"`{name}`", summary(registry.load(name))) for name in registry))


def recipes() -> str:
    rows: list[tuple[object, ...]] = [("recipe", "what it does", "changes", "cost", "epochs")]
    for recipe in map(Recipe.read, recipe_names()):
        if recipe.distils:
            continue
        changes = ", ".join(recipe.changes) or "-"
        cost = recipe.parts.passes.equivalents
        rows.append((f"`{recipe.name}`", recipe.description, changes, cost, recipe.epochs))
    return table(*rows)


def distillation() -> str:
    rows: list[tuple[object, ...]] = [
        ("recipe", "what it does", "changes", "cost of the student", "passes of the teacher", "epochs")
    ]
    for recipe in map(Recipe.read, recipe_names()):
        if recipe.distils:
            cost = recipe.parts.passes.equivalents
            rows.append(
                (f"`{recipe.name}`", recipe.description, ", ".join(recipe.changes), cost, "1 forward", recipe.epochs)
            )
    return table(*rows)


def published() -> str:
    rows: list[tuple[object, ...]] = [
        ("recipe", "network", "radius", "step size", "learning rate", "/ 10 from epoch", "weight decay", "epochs")
    ]
    for recipe in map(Recipe.read, recipe_names()):
        parts: Any = recipe.parts
        if parts.threat != Threat("Linf", 0.031) and not recipe.name.endswith("-code"):
            continue
        steps = parts.lr_schedule if isinstance(parts.lr_schedule, MultiStep) else None
        drops = [str(round(at * recipe.epochs) + 1) for at in steps.milestones] if steps else [str(recipe.lr_schedule)]
        rate = f"{parts.optimizer.lr:g}" + (", Nesterov" if parts.optimizer.nesterov else "")
        size, relative = relative_step(parts.attack.step_size)
        step = f"{size * (parts.threat.epsilon if relative else 1):.2g}" + (" W_c" if relative else "")
        decay = f"{parts.optimizer.weight_decay:g}"
        radius = f"{parts.threat.epsilon:.4g}"
        rows.append((f"`{recipe.name}`", recipe.model.name, radius, step, rate, ", ".join(drops), decay, recipe.epochs))
    return table(*rows)


TABLES = {
    ("objectives.md", "objectives"): objectives,
    ("objectives.md", "criteria"): lambda: listed(CRITERIA, "loss"),
    ("objectives.md", "reductions"): lambda: listed(REDUCTIONS, "from the images' losses to one number"),
    ("schedules.md", "schedules"): schedules,
    ("updates.md", "updates"): updates,
    ("methods.md", "recipes"): recipes,
    ("methods.md", "distillation"): distillation,
    ("methods.md", "published"): published,
}
"""The generated tables by page and name."""


def block(name: str) -> re.Pattern[str]:
    """A pattern for a generated table in its page."""
    return re.compile(rf"(<!-- generated: {name} -->\n)(.*?)(\n<!-- end -->)", re.DOTALL)


@pytest.mark.parametrize(("page", "name"), TABLES)
def test_the_documents_contain_the_generated_tables(page: str, name: str) -> None:
    """To regenerate them: ``python -m tests.training.test_parts``."""
    (found,) = block(name).findall((DOCS / page).read_text(encoding="utf-8"))
    assert found[1] == TABLES[page, name]()


@pytest.mark.parametrize(("registry", "name"), REGISTERED, ids=ids)
def test_the_sources_of_every_part_are_in_the_bibliography(registry: Registry[Any], name: str) -> None:
    part = registry.load(name)
    if isinstance(part, type):
        assert issubclass(part, Described)
        assert "source" in vars(part), "it is not that of its base class"
    assert len(papers_of(sources(part))) == len(sources(part))
    assert summary(part)


def test_every_paper_is_a_source_of_a_part() -> None:
    used = {source.partition(",")[0] for registry, name in REGISTERED for source in sources(registry.load(name))}
    assert used | {"carmon2019unlabeled"} == set(PAPERS)  # of unlabelled images, which are a setting of the data


def test_a_source_is_a_line() -> None:
    assert line_of("madry2018towards, eq. 2.1").endswith(", 2018, eq. 2.1")
    assert line_of("a report of our own, 2026") == "a report of our own, 2026"


@pytest.mark.parametrize(("registry", "name"), TRAINING, ids=ids)
def test_every_part_of_training_has_an_example_that_builds_it(registry: Registry[Any], name: str) -> None:
    cls: Any = registry.load(name)
    if not isinstance(cls, type):
        return  # a plain function, whose name is its example
    assert issubclass(cls, Described)
    assert set(cls.changes) <= set(CHANGES)
    assert type(make(registry, cls.example)) is cls


if __name__ == "__main__":
    for (page, name), text in TABLES.items():
        file = DOCS / page
        old = file.read_text(encoding="utf-8")
        file.write_text(block(name).sub(lambda found: found[1] + text() + found[3], old), encoding="utf-8")  # noqa: B023
