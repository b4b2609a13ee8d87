"""What to cite: the papers behind a recipe, a part, an attack or a suite, and their BibTeX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import yaml

from classwise.attacks import ATTACKS
from classwise.attacks.suites import SUITES, members
from classwise.data import AUGMENTATIONS
from classwise.errors import unknown
from classwise.settings import parse_spec
from classwise.training import AVERAGERS, CRITERIA, OBJECTIVES, OPTIMISERS, RATES, REDUCTIONS, SCHEDULES, UPDATES
from classwise.training.recipe import Part, Recipe
from classwise.training.recipe_files import recipe_names


@dataclass(frozen=True)
class Paper:
    """A paper.

    Args:
        key: its BibTeX key.
        authors: family name first, joined by "and".
        title: the title.
        venue: the proceedings or the journal.
        year: when it appeared.
        kind: the BibTeX kind of entry.
    """

    key: str
    authors: str
    title: str
    venue: str
    year: int
    kind: str = "inproceedings"

    def bibtex(self) -> str:
        """The entry."""
        place = {"inproceedings": "booktitle", "article": "journal"}[self.kind]
        fields = {"author": self.authors, "title": f"{{{self.title}}}", place: self.venue, "year": str(self.year)}
        lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
        return f"@{self.kind}{{{self.key},\n{lines}\n}}"

    def line(self) -> str:
        """The paper in a line of text, authors by their family names."""
        names = [author.partition(",")[0] for author in self.authors.split(" and ")]
        authors = " and ".join(names) if len(names) < 3 else f"{names[0]} et al."
        return f"{authors}, {self.title}, {self.venue}, {self.year}"


_REFERENCES = yaml.safe_load((resources.files("classwise.training") / "references.yaml").read_text(encoding="utf-8"))
PAPERS: Mapping[str, Paper] = {
    key: Paper(key, **{**fields, "venue": _REFERENCES["venues"].get(fields["venue"], fields["venue"])})
    for key, fields in _REFERENCES["papers"].items()
}
"""Every paper by its key."""
SOURCES: Mapping[str, tuple[str, ...]] = {name: tuple(keys) for name, keys in _REFERENCES["sources"].items()}
"""The papers behind each part that a recipe names and each attack; those of none are our own, common property, or not
published."""


def papers(name: str) -> list[Paper]:
    """The papers behind a recipe, a part, an attack or a suite, each once, in the order of the recipe's fields.

    Raises:
        UserError: if there is nothing of that name.
    """
    if name in recipe_names():
        parts = _parts(Recipe.read(name))
    elif name in SUITES:
        parts = [parse_spec(spec)[0] for spec in members(name)]
    elif name in SOURCES:
        parts = [name]
    else:
        raise unknown("recipe, part or attack", name, {*recipe_names(), *SUITES, *SOURCES})
    keys = [key for part in parts for key in SOURCES.get(part, ())]
    return [PAPERS[key] for key in dict.fromkeys(keys)]


def _parts(recipe: Recipe) -> list[str]:
    """The names of the parts that decide the recipe's numbers, the single-step attack's rate after it."""
    objective = recipe.objective
    criterion = [objective["criterion"]] if isinstance(objective, Mapping) and "criterion" in objective else []
    parts = (objective, *criterion, *([] if objective == "standard" else [recipe.attack]))
    extra = [] if recipe.data.unlabelled is None else ["unlabelled"]
    rest = (*extra, *recipe.schedules, recipe.reduction, recipe.update, recipe.optimizer, recipe.rate, recipe.averaging)
    return [name for part in (*parts, *rest, recipe.data.augment) for name in _names(part)]


def _names(part: Part) -> list[str]:
    """What a part is called, and which kind of it is meant where it has kinds of other sources."""
    if isinstance(part, str):
        return [part.partition(":")[0]]
    return [str(part[key]) for key in ("name", "kind") if key in part]


PARTS = (OBJECTIVES, CRITERIA, SCHEDULES, REDUCTIONS, UPDATES, OPTIMISERS, RATES, AVERAGERS, AUGMENTATIONS, ATTACKS)
"""The tables whose every name has its line in `SOURCES`."""
