"""Catalogue of the papers: items, printed numbers, claims, and notes on inconsistencies; one ``PAPER.yaml`` each.

An installed package adds papers by an entry point of the group ``classwise.papers``, whose value is the package that
contains their YAML files.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any, Literal

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.config import build, configurable, make, read_yaml
from classwise.core.settings.registry import Registry, load_object, with_installed, yaml_files

if TYPE_CHECKING:
    from classwise.papers.experiment import Experiment
    from classwise.papers.scales import Name, Scale

Status = Literal["runnable", "covered", "missing"]
Kind = Literal[
    "data set", "network", "method", "attack", "quantity", "table", "figure", "experiment", "theorem", "plan"
]

LONGEST_TITLE = 60
"""Characters of the title of a claim."""
_EXPERIMENTS: Registry[Experiment] = Registry("experiment", {}, base="classwise.papers.experiment:Experiment")
"""Builder of experiments, which the items name by their paths."""


@configurable
class Rerun:
    """A public rerun of an item by others, or a close analogue of it, shown beside the results.

    Attributes:
        what: what was run and what was found, as its source states it.
        source: address of the source.
    """

    what: str
    source: str


@configurable
class Item:
    """An item of the inventory of the papers: one entry of the section ``items`` of ``PAPER.yaml``.

    Attributes:
        id: item id, such as ``kdd21/T1``.
        kind: kind of item.
        section: section of the paper.
        title: short description.
        parameters: settings in the paper.
        finding: expected result.
        covered_by: references to parts of the library that implement it, such as ``recipe trades``, an attack with
            its options, and the item that runs them, such as ``item cfa23/F1``; empty for experiments.
        same_as: items of another paper with the same content.
        absent: what a missing item requires; empty otherwise.
        experiment: the experiment that reproduces the item, as ``module:Class`` in `classwise.papers.experiments` or a
            path ``package.module:Class``, or as a mapping of this ``name`` and the parameters of the class; the section
            ``experiments`` has further parameters; empty if the item does not run.
        settings: the tables of settings of its trainings and of its evaluation (`classwise.papers.settings`), or the id
            of an item with the same settings.
        no_settings: why the paper states no settings; empty if it does.
        printed: the table or figure as printed, misprints included, or the id of an entry of the section ``printed``.
        reruns: public reruns by others.
    """

    id: str
    kind: Kind
    section: str
    title: str
    parameters: str = ""
    finding: str = ""
    covered_by: tuple[str, ...] = ()
    same_as: tuple[str, ...] = ()
    absent: str = ""
    experiment: str | dict[str, Any] = ""
    settings: str | dict[str, Any] = ""
    no_settings: str = ""
    printed: str | dict[str, Any] = ""
    reruns: tuple[Rerun, ...] = ()

    @property
    def paper(self) -> str:
        """Name of the paper, the first part of the id."""
        return self.id.partition("/")[0]

    @property
    def scales(self) -> Mapping[Name, Scale]:
        """Scales of the experiment by name; empty for an item that does not run."""
        return experiment(self.id).scales if self.experiment else {}

    @property
    def status(self) -> Status:
        """Whether the item is an experiment (runnable), part of the library (covered), or missing."""
        if self.experiment:
            return "runnable"
        return "missing" if self.missing else "covered"

    @property
    def missing(self) -> str:
        """What a missing item requires; empty for other items."""
        if self.experiment:
            return ""
        lacking = [reference for reference in self.covered_by if not present(reference)]
        if lacking:
            return f"not in this version: {', '.join(lacking)}"
        waiting = [other for other in self.same_as if find(other).status == "missing"]
        if waiting:
            return f"requires {', '.join(waiting)}"
        return f"not in this version: {self.absent}" if self.absent else ""

    @property
    def command(self) -> str:
        """Command that runs the item or shows the part that covers it; empty for a missing item."""
        if self.status == "runnable":
            return f"classwise papers run {self.id}"
        if self.same_as:
            return f"classwise papers run {' '.join(self.same_as)}" if not self.missing else ""
        for reference in () if self.missing else self.covered_by:
            kind, _, name = reference.partition(" ")
            if kind in COMMANDS:
                return COMMANDS[kind].format(name.partition(":")[0])
        return ""

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes on inconsistencies of the item, those that name it first before those of other items."""
        own = [note for note in notes() if self.id in note.items]
        return tuple(sorted(own, key=lambda note: note.items[0] != self.id))


COMMANDS: Mapping[str, str] = {
    "attack": "classwise attacks {}",
    "data": "classwise data {}",
    "item": "classwise papers run {}",
    "model": "classwise models",
    "recipe": "classwise recipes show {}",
    "suite": "classwise attacks {}",
}
"""Command that shows a part, by kind of reference."""


@configurable
class Note:
    """An inconsistency of a paper, or the interpretation of an ambiguity.

    Attributes:
        id: number of the note, in the numbering of all papers.
        kind: misprint, doubtful, extraction, versions, ambiguity, paper and code, unavailable, derived or measured.
        items: ids of the affected items, of any paper.
        text: text of the note.
    """

    id: str
    kind: str
    items: tuple[str, ...]
    text: str


@configurable
class Claim:
    """A claim of a paper.

    Attributes:
        id: claim id, such as ``kdd21/C8``.
        claim: the statement.
        quantity: the quantity that is measured for it.
        paper: the result of the paper.
        parts: parts that must be tested before the claim gets a verdict; empty if it has only one. Parts that no test
            covers state what the tests leave out: other data sets, sizes as printed, words such as "much".
        untestable: what no training can test, to the reason; it has no part in the verdict, and pages state it.
        missing: what a test needs that is not cheap: a number of test images, or an item, its scale and its cost. Pages
            state it as long as no result tests the claim.
        default_part: the part that a test covers if it names none.
        same_as: equivalent claims of other papers, as ``kdd21/C1``, or ``kdd21/C1: part`` for a part of one.
        question: whether it asks rather than states; items report measurements for it, without verdicts.
        main: whether it is a main statement of the paper, which pages show first.
        title: the statement in a few words, of at most `LONGEST_TITLE` characters; by default the statement.
        number: the result of the paper in a few words; by default what it states before a semicolon.
    """

    id: str
    claim: str
    quantity: str
    paper: str
    parts: tuple[str, ...] = ()
    untestable: dict[str, str] = dataclasses.field(default_factory=dict)
    missing: str = ""
    default_part: str = ""
    same_as: tuple[str, ...] = ()
    question: bool = False
    main: bool = False
    title: str = ""
    number: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.claim)
        object.__setattr__(self, "number", self.number or self.paper.partition("; ")[0])


@configurable
class Paper:
    """A paper: the content of ``PAPER.yaml``.

    Attributes:
        schema_version: version of the format.
        id: name of the paper.
        bibliography: title, venue, and further facts such as the authors.
        items: items in order.
        claims: claims in order.
        experiments: parameters of the experiments by item: methods, and tests of claims
            (`classwise.papers.declared`).
        settings: tables of the settings that the paper states (`classwise.papers.settings`).
        printed: tables and figures that have several items, or none; the others are those of their items.
        notes: notes whose first item is of this paper.
        conventions: conventions of the printed numbers.
        sampled_classes: classes that the paper samples from large data sets.
        superclasses: superclasses that the paper states.
    """

    schema_version: Literal[2]
    id: str
    bibliography: dict[str, Any]
    items: tuple[Item, ...]
    claims: tuple[Claim, ...]
    experiments: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    settings: dict[str, dict[str, dict[str, Any]]] = dataclasses.field(default_factory=dict)
    printed: tuple[dict[str, Any], ...] = ()
    notes: tuple[Note, ...] = ()
    conventions: dict[str, Any] = dataclasses.field(default_factory=dict)
    sampled_classes: dict[str, Any] = dataclasses.field(default_factory=dict)
    superclasses: dict[str, Any] = dataclasses.field(default_factory=dict)


@cache
def paper(name: str) -> Paper:
    """Read a paper.

    Raises:
        ClasswiseError: if the paper is unknown, or its file has an unknown or an invalid field.
    """
    if name not in paper_files():
        raise unknown("paper", name, papers())
    found = build(Paper, read_yaml(paper_files()[name].read_text(encoding="utf-8"), f"paper {name}"), f"paper {name}")
    entries: list[Item | Claim] = [*found.items, *found.claims]
    for entry in entries:
        if found.id != name or not entry.id.startswith(f"{name}/"):
            wrong, expected = (found.id, name) if found.id != name else (entry.id, f"{name}/ID")
            raise ClasswiseError(f"paper {name}: id {wrong!r}; in the file {name}.yaml it must be {expected}")
    for key in ("title", "venue"):
        if key not in found.bibliography:
            raise ClasswiseError(f"paper {name}: bibliography.{key} is missing")
    return found


OWN = ("kdd21", "iclr21", "benz20", "cfa23")
"""The papers of this package, in the order of lists and pages."""


@cache
def paper_files() -> Mapping[str, Traversable]:
    """The files of the papers by name: those of this package, and of installed packages in alphabetical order."""
    own = yaml_files(resources.files("classwise.papers"))
    return with_installed("paper", {name: own[name] for name in OWN}, "classwise.papers")


def papers() -> tuple[str, ...]:
    """Names of the papers of this package, followed by those of installed packages.

    Raises:
        ClasswiseError: if an installed package has no such files, or two papers have the same name.
    """
    return tuple(paper_files())


@cache
def items() -> Mapping[str, Item]:
    """All items by id, paper by paper in the order of `papers`."""
    return {item.id: item for name in papers() for item in paper(name).items}


@cache
def notes() -> tuple[Note, ...]:
    """All notes, in the order of their numbers."""
    found = [note for name in papers() for note in paper(name).notes]
    return tuple(sorted(found, key=lambda note: [part.zfill(2) for part in note.id.split(".")]))


def find(name: str) -> Item:
    """Look up an item by its id.

    Raises:
        ClasswiseError: if the id is unknown; the message names the nearest one, those of an id without its paper, or
            where the verdict on a claim is.
    """
    if name not in items():
        same = [known for known in items() if known.partition("/")[2] == name]
        if same:
            raise ClasswiseError(f"item {name!r} needs the name of its paper; write {' or '.join(same)}")
        about, _, number = name.partition("/")
        if name in papers():
            raise ClasswiseError(f"{name} is a paper, not an item; classwise papers list {name} shows its items")
        statement = next((one.claim for one in paper(about).claims if one.id == name), "") if about in papers() else ""
        if statement:
            raise ClasswiseError(
                f"{number} is a claim of {about}, not an item: {statement} classwise papers page {about} writes a page "
                "with the verdicts and the items that tested it"
            )
        if not difflib.get_close_matches(name, items(), n=1, cutoff=0.5):
            raise ClasswiseError(f"unknown item {name!r}; classwise papers list shows all items")
        raise unknown("item", name, items())
    return items()[name]


@cache
def experiment(name: str) -> Experiment:
    """Create the experiment of an item.

    Raises:
        ClasswiseError: if the id is unknown, or the item is covered or missing (the message names the alternative), or
            its experiment or a parameter of it is unknown.
    """
    item = find(name)
    if item.status == "covered":
        parts = ", ".join(item.covered_by)
        suggestion = f"see {item.command}" if item.command else f"the library implements it as {parts}"
        raise ClasswiseError(f"{name} is a {item.kind} and does not run by itself; {suggestion}")
    if item.status == "missing":
        raise ClasswiseError(f"{name} cannot run yet; {item.missing}")
    spec = {"name": item.experiment} if isinstance(item.experiment, str) else item.experiment
    path = str(spec.get("name", ""))
    own = resources.files("classwise.papers.experiments") / f"{path.partition(':')[0]}.py"
    path = f"classwise.papers.experiments.{path}" if own.is_file() else path
    parameters = paper(item.paper).experiments.get(name, {})
    return make(_EXPERIMENTS, {**parameters, **spec, "name": path, "item": name})


def runnable() -> tuple[str, ...]:
    """Ids of the items with an experiment."""
    return tuple(item.id for item in items().values() if item.experiment)


def printed_rows(item: str) -> Sequence[Mapping[str, Any]]:
    """Rows of a printed table, as printed; empty for other items."""
    return tuple(printed(item).get("rows", ()))


def printed(item: str) -> Mapping[str, Any]:
    """Facts about a table or figure; for a panel such as ``F2bc``, those of the whole figure. Empty for other items."""
    entry = find(item).printed
    if isinstance(entry, str):
        shared = {record["id"]: record for record in paper(find(item).paper).printed}
        return {key: value for key, value in shared[entry].items() if key != "id"} if entry else {}
    return entry


def claim(name: str) -> Claim:
    """Look up a claim of a paper.

    Raises:
        ClasswiseError: if the claim is unknown.
    """
    known = {entry.id: entry for entry in paper(name.partition("/")[0]).claims}
    if name not in known:
        raise unknown("claim", name, known)
    return known[name]


def _equivalent(name: str) -> list[tuple[str, str]]:
    """Equivalent claims of other papers, each with the equivalent part of it; empty for the whole claim."""
    pairs = (entry.partition(": ") for entry in claim(name).same_as)
    return [(other, part) for other, _, part in pairs]


def claim_parts(name: str) -> tuple[tuple[str, str], ...]:
    """Parts that must be tested before a claim gets a verdict: pairs of a claim and a part of it.

    The part is empty if a claim has only one. A claim with equivalent claims in another paper has their parts and its
    own, if any.
    """
    named = [(name, part) for part in claim(name).parts]
    others = [pair for other, only in _equivalent(name) for pair in ([(other, only)] if only else claim_parts(other))]
    return (*named, *others) or ((name, ""),)


def present(reference: str) -> bool:
    """Whether the target of a reference exists: ``recipe trades``, ``data svhn``, ``python module:name``.

    Raises:
        ClasswiseError: if the kind of the reference is unknown.
    """
    kind, _, name = reference.partition(" ")
    if kind == "python":
        return _importable(name)
    if kind in ("facts", "settings"):
        source, _, key = name.partition(":")
        return bool(getattr(paper(source), key)) if kind == "facts" else key in paper(source).settings["trainings"]
    if kind == "item":
        return name in runnable()
    if kind == "recipe":
        return (resources.files("classwise") / "recipes" / f"{name}.yaml").is_file()
    if kind == "theorem":
        return name in importlib.import_module("classwise.papers.theory.toy_model").STATEMENTS
    if kind not in REGISTRIES:
        raise ClasswiseError(
            f"reference {reference!r}: unknown kind {kind!r}; known are python, facts, settings, item, "
            f"recipe, theorem, {', '.join(REGISTRIES)}"
        )
    return name.partition(":")[0] in load_object(REGISTRIES[kind])


REGISTRIES: Mapping[str, str] = {
    "attack": "classwise.attacks:ATTACKS",
    "averaging": "classwise.training:AVERAGERS",
    "data": "classwise.data:DATA",
    "model": "classwise.models:MODELS",
    "schedule": "classwise.training:SCHEDULES",
    "selection": "classwise.training:SELECTIONS",
    "suite": "classwise.attacks.suites:SUITES",
}
"""Registry of each kind of reference."""


def _importable(path: str) -> bool:
    """Whether ``"module:name"`` exists."""
    try:
        load_object(path)
    except ClasswiseError:
        return False
    return True
