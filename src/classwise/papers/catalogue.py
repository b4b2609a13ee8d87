"""Catalogue of the papers: items, printed numbers, claims, and notes on inconsistencies."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

import yaml

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.registry import Registry

if TYPE_CHECKING:
    from classwise.papers.experiment import Experiment

PAPERS = ("kdd21", "iclr21", "benz20", "cfa23")

Status = Literal["runnable", "covered", "missing"]
Kind = Literal[
    "data set", "network", "method", "attack", "quantity", "table", "figure", "experiment", "theorem", "plan"
]

EXPERIMENTS: Registry[Experiment] = Registry(
    "experiment",
    {
        "kdd21/F1": "classwise.papers.experiments.epochs:GapsOverEpochs",
        "kdd21/F2": "classwise.papers.experiments.confusion:ConfusionUnderAttack",
        "kdd21/F3a": "classwise.papers.experiments.confidence_variance:ConfidencesOfDefences",
        "kdd21/F3b-d": "classwise.papers.experiments.attack_trajectories:MartAndTemperature",
        "kdd21/F4a": "classwise.papers.experiments.homing:MisclassifiedMatrix",
        "kdd21/F4b": "classwise.papers.experiments.homing:HomingMatrix",
        "kdd21/F4c": "classwise.papers.experiments.case_study:BetaOfOneClass",
        "kdd21/F5a": "classwise.papers.experiments.coloured_background:DigitsFigure",
        "kdd21/F5bc": "classwise.papers.experiments.coloured_background:ColouredBackgrounds",
        "kdd21/F6": "classwise.papers.experiments.white_background:SingleImages",
        "kdd21/T1": "classwise.papers.experiments.defences:DefencesByAttacks",
        "kdd21/T3": "classwise.papers.experiments.temperature:Temperature",
        "kdd21/T4": "classwise.papers.experiments.white_background:WhiteBackground",
        "kdd21/E3": "classwise.papers.experiments.defences:RankConsistency",
        "kdd21/E4": "classwise.papers.experiments.attack_strength:WhiteBoxDrop",
        "kdd21/E5": "classwise.papers.experiments.attack_strength:BlackBoxDrop",
        "kdd21/E1": "classwise.papers.experiments.class_wise:LargerGaps",
        "kdd21/E2": "classwise.papers.experiments.confusion:Symmetry",
        "kdd21/E6": "classwise.papers.experiments.temperature:TemperatureGrid",
        "kdd21/E7": "classwise.papers.experiments.confidence_variance:SmoothVulnerableSensitive",
        "kdd21/E8": "classwise.papers.experiments.homing:GroupRelations",
        "kdd21/E9": "classwise.papers.experiments.case_study:SortedByConfidence",
        "kdd21/E10": "classwise.papers.experiments.coloured_background:BackgroundsAndStandardTraining",
        "iclr21/T2": "classwise.papers.experiments.defences:DefencesWithRST",
        "iclr21/T3": "classwise.papers.experiments.temperature:ChosenTemperatures",
        "iclr21/T4": "classwise.papers.experiments.temperature:TemperatureAblation",
        "iclr21/T5": "classwise.papers.experiments.hypersphere:Hypersphere",
        "iclr21/T6": "classwise.papers.experiments.hypersphere:LargeTemperatures",
        "iclr21/F4": "classwise.papers.experiments.weight_norms:NormsAndRobustness",
        "iclr21/F5a": "classwise.papers.experiments.confidence_variance:ConfidencesOfVariants",
        "iclr21/F5b-d": "classwise.papers.experiments.attack_trajectories:MadryAndMart",
        "iclr21/F5e": "classwise.papers.experiments.confidence_variance:ConfidencesOnTheSphere",
        "iclr21/F5f-h": "classwise.papers.experiments.attack_trajectories:HypersphereAndTemperature",
        "iclr21/F6": "classwise.papers.experiments.class_wise:RobustnessHistogram",
        "iclr21/F7": "classwise.papers.experiments.class_wise:StandardAgainstAdversarial",
        "iclr21/E1": "classwise.papers.experiments.weight_norms:NormsOfRobustModels",
        "iclr21/E2": "classwise.papers.experiments.weight_norms:NormsOfStandardModels",
        "iclr21/E3": "classwise.papers.experiments.class_wise:ClassOrder",
        "benz20/F1": "classwise.papers.experiments.class_wise:StandardModel",
        "iclr21/F8": "classwise.papers.experiments.embedding:FeaturesOnAPlane",
        "iclr21/F9": "classwise.papers.experiments.closed_form:Sketch",
        "iclr21/E4": "classwise.papers.experiments.closed_form:GradientOfWeights",
        "iclr21/E5": "classwise.papers.experiments.temperature:SmoothLabels",
        "iclr21/E6": "classwise.papers.experiments.attack_strength:HiddenGradients",
        "iclr21/E7": "classwise.papers.experiments.weight_norms:EqualNorms",
        "benz20/F2": "classwise.papers.experiments.class_wise:AdversarialModel",
        "benz20/P1.1": "classwise.papers.experiments.data_sets:DataSets",
        "benz20/P1.2": "classwise.papers.experiments.pretrained:PretrainedModels",
        "benz20/P1.3": "classwise.papers.experiments.weak_classes:LeNets",
        "benz20/P1.4": "classwise.papers.experiments.weak_classes:VGGs",
        "benz20/P1.5": "classwise.papers.experiments.weak_classes:ResNets",
        "benz20/P1.6": "classwise.papers.experiments.weak_classes:DenseNets",
        "benz20/P1.7": "classwise.papers.experiments.weak_classes:Inceptions",
        "benz20/P1.8": "classwise.papers.experiments.weak_classes:Optimisers",
        "benz20/P1.9": "classwise.papers.experiments.weak_classes:LearningRateSchedules",
        "benz20/P1.10": "classwise.papers.experiments.weak_classes:WeightDecays",
        "benz20/P1.11": "classwise.papers.experiments.epochs:ClassTrend",
        "benz20/P2.1": "classwise.papers.experiments.weak_classes:AllNetworks",
        "benz20/P2.2": "classwise.papers.experiments.weak_classes:Optimisation",
        "benz20/P2.3": "classwise.papers.experiments.confusion:ConfusedLabels",
        "benz20/P2.4": "classwise.papers.experiments.logit_similarity:SimilarityAndRobustness",
        "benz20/P2.5": "classwise.papers.experiments.feature_sets:NonRobust",
        "benz20/P2.6": "classwise.papers.experiments.feature_sets:Robust",
        "benz20/P3.1": "classwise.papers.experiments.long_tail:ClassWeighted",
        "benz20/P3.2": "classwise.papers.experiments.long_tail:EqualClasses",
        "benz20/P3.3": "classwise.papers.experiments.long_tail:OneClass",
        "benz20/P3.4": "classwise.papers.experiments.long_tail:EffectiveNumbers",
        "benz20/P3.5": "classwise.papers.experiments.long_tail:LargeMargins",
        "benz20/P3.6": "classwise.papers.experiments.long_tail:Resampling",
        "benz20/P3.7": "classwise.papers.experiments.long_tail:CosinePenalty",
        "benz20/P3.8": "classwise.papers.experiments.long_tail:TowardsWeakest",
        "benz20/P4.1": "classwise.papers.experiments.corruptions:ClassesUnderCorruptions",
        "benz20/P4.2": "classwise.papers.experiments.corruptions:CorruptionsAndAttacks",
        "cfa23/F1": "classwise.papers.experiments.closed_form:Toy",
        "cfa23/F2a": "classwise.papers.experiments.radius_and_beta:RadiusSweep",
        "cfa23/F2bc": "classwise.papers.experiments.radius_and_beta:RadiusSweepByClass",
        "cfa23/F3": "classwise.papers.experiments.radius_and_beta:BetaSweep",
        "cfa23/F4": "classwise.papers.experiments.adjacent_epochs:Fluctuation",
        "cfa23/F5": "classwise.papers.experiments.calibration:MarginBase",
        "cfa23/F6": "classwise.papers.experiments.fair_training:ClassesOfAverages",
        "cfa23/F7": "classwise.papers.experiments.calibration:RegularisationBase",
        "cfa23/T1": "classwise.papers.experiments.fair_training:MainTable",
        "cfa23/T2": "classwise.papers.experiments.calibration:CalibrationOnly",
        "cfa23/T3": "classwise.papers.experiments.calibration:AveragingOnly",
        "cfa23/T4": "classwise.papers.experiments.fair_training:TinyImageNet",
        "cfa23/E1": "classwise.papers.experiments.adjacent_epochs:UnfairChoice",
        "cfa23/E2": "classwise.papers.experiments.fair_training:FairnessOfFRL",
    },
)
"""Runnable experiments (tables, figures, experiments and plans) by item id."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """An item of the inventory of the papers.

    Attributes:
        id: item id, such as ``kdd21/T1``.
        paper: name of the paper, the first part of the id.
        kind: kind of item.
        section: section of the paper.
        title: short description.
        parameters: settings in the paper.
        finding: expected result.
        covered_by: references to parts of the library that implement it, such as ``recipe trades``; empty for
            experiments.
        same_as: items of another paper with the same content.
        absent: what a missing item requires; empty otherwise.
    """

    id: str
    paper: str
    kind: Kind
    section: str
    title: str
    parameters: str = ""
    finding: str = ""
    covered_by: tuple[str, ...] = ()
    same_as: tuple[str, ...] = ()
    absent: str = ""

    @property
    def status(self) -> Status:
        """Whether the item is an experiment (runnable), part of the library (covered), or missing."""
        if self.id in EXPERIMENTS:
            return "runnable"
        return "missing" if self.missing else "covered"

    @property
    def missing(self) -> str:
        """What a missing item requires; empty for other items."""
        if self.id in EXPERIMENTS:
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
                return COMMANDS[kind].format(name)
        return "" if self.missing else f"classwise papers show {self.id}"

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes on inconsistencies of the item."""
        return tuple(note for note in notes() if self.id in note.items)


COMMANDS: Mapping[str, str] = {
    "attack": "classwise attacks {}",
    "data": "classwise data {}",
    "model": "classwise models",
    "recipe": "classwise recipes show {}",
    "suite": "classwise attacks {}",
}
"""Command that shows a part, by kind of reference."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """An inconsistency of a paper, or the interpretation of an ambiguity.

    Attributes:
        id: number of the note.
        kind: misprint, doubtful, extraction, versions, ambiguity, paper and code, unavailable, derived or measured.
        items: ids of the affected items.
        text: text of the note.
    """

    id: str
    kind: str
    items: tuple[str, ...]
    text: str


@cache
def items() -> Mapping[str, Item]:
    """All items by id, paper by paper in the order of `PAPERS`."""
    rows = _read("items.yaml")["items"]
    all_items = [
        Item(
            **{key: row[key] for key in ("id", "paper", "kind", "section", "title", "parameters", "finding")},
            covered_by=tuple(row.get("covered_by", ())),
            same_as=tuple(row.get("same_as", ())),
            absent=row.get("missing", ""),
        )
        for row in rows
    ]
    return {item.id: item for paper in PAPERS for item in all_items if item.paper == paper}


@cache
def notes() -> tuple[Note, ...]:
    """All notes, in order."""
    return tuple(
        Note(id=row["id"], kind=row["kind"], items=tuple(row["items"]), text=row["text"])
        for row in _read("notes.yaml")["notes"]
    )


def find(name: str) -> Item:
    """Look up an item by its id.

    Raises:
        ClasswiseError: if the id is unknown; the message names the nearest one, or those of an id without its paper.
    """
    if name not in items():
        same = [known for known in items() if known.partition("/")[2] == name]
        if same:
            raise ClasswiseError(f"item {name!r} has no paper; use {' or '.join(same)}")
        if not difflib.get_close_matches(name, items(), n=1, cutoff=0.5):
            raise ClasswiseError(f"unknown item {name!r}; classwise papers list shows all items")
        raise unknown("item", name, items())
    return items()[name]


def paper(name: str) -> str:
    """Check the name of a paper and return it.

    Raises:
        ClasswiseError: if the paper is unknown.
    """
    if name not in PAPERS:
        raise unknown("paper", name, PAPERS)
    return name


@cache
def facts(name: str) -> Mapping[str, Any]:
    """Facts of a paper: bibliography, printed tables, descriptions of figures, claims.

    Raises:
        ClasswiseError: if the paper is unknown.
    """
    return _read(f"facts/{paper(name)}.yaml")


def printed_rows(item: str) -> Sequence[Mapping[str, Any]]:
    """Rows of a printed table, as printed; empty for other items."""
    return tuple(_printed(item).get("rows", ()))


def printed(item: str) -> Mapping[str, Any]:
    """Facts about a table or figure; for a panel such as ``F2bc``, those of the whole figure. Empty for other items."""
    return {key: value for key, value in _printed(item).items() if key != "id"}


def claim(name: str) -> Mapping[str, str]:
    """Look up a claim of a paper: its statement, the measured quantity, and the result of the paper.

    Raises:
        ClasswiseError: if the claim is unknown.
    """
    known = {one["id"]: one for one in facts(name.partition("/")[0])["claims"]}
    if name not in known:
        raise unknown("claim", name, known)
    statement: Mapping[str, str] = known[name]
    return statement


def same_claims(name: str) -> tuple[str, ...]:
    """The claim itself, followed by equivalent claims of other papers."""
    return (name, *(claim for claim, _ in _equivalent(name)))


def _equivalent(name: str) -> list[tuple[str, str]]:
    """Equivalent claims of other papers, each with the equivalent part of it; empty for the whole claim."""
    pairs = (entry.partition(": ") for entry in _read("items.yaml")["same_claims"].get(name, ()))
    return [(claim, part) for claim, _, part in pairs]


def is_question(name: str) -> bool:
    """Whether a claim is an open question, for which items report measurements instead of verdicts."""
    return name in _read("items.yaml")["open_questions"]


def claim_parts(name: str) -> tuple[tuple[str, str], ...]:
    """Parts that must be tested before a claim gets a verdict: pairs of a claim and a part of it.

    The part is empty if a claim has only one. A claim with equivalent claims in another paper has their parts and its
    own, if any.
    """
    named = [(name, part) for part in _read("items.yaml")["claim_parts"].get(name, ())]
    others = [pair for other, only in _equivalent(name) for pair in ([(other, only)] if only else claim_parts(other))]
    return (*named, *others) or ((name, ""),)


def default_part(name: str) -> str:
    """The part of a claim that a test covers if it names none; empty for most claims."""
    part: str = _read("items.yaml")["default_parts"].get(name, "")
    return part


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
        return key in (facts(source) if kind == "facts" else facts(source)["settings"]["trainings"])
    if kind == "recipe":
        return (resources.files("classwise") / "recipes" / f"{name}.yaml").is_file()
    if kind == "theorem":
        return name in importlib.import_module("classwise.papers.theory.theorems").STATEMENTS
    if kind not in REGISTRIES:
        raise ClasswiseError(
            f"reference {reference!r}: unknown kind {kind!r}; known are python, facts, settings, recipe, "
            f"theorem, {', '.join(REGISTRIES)}"
        )
    module, _, attribute = REGISTRIES[kind].partition(":")
    return name in getattr(importlib.import_module(module), attribute)


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
    """Whether ``"module:name"`` exists; the module is imported only if it exists."""
    module, _, attribute = path.partition(":")
    try:
        if importlib.util.find_spec(module) is None:
            return False
    except ModuleNotFoundError:
        return False
    return hasattr(importlib.import_module(module), attribute)


def _printed(item: str) -> Mapping[str, Any]:
    entries = {one["id"]: one for key in ("tables", "figures") for one in facts(item.partition("/")[0])[key]}
    while (item not in entries and item[-1:].isalpha()) or item[-1:] == "-":
        item = item[:-1]
    entry: Mapping[str, Any] = entries.get(item, {})
    return entry


@cache
def _read(name: str) -> Mapping[str, Any]:
    text = (resources.files("classwise.papers") / name).read_text(encoding="utf-8")
    content: Mapping[str, Any] = yaml.load(text, Loader=_Loader)  # noqa: S506  # a safe loader, the fast one if there is
    return content


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
