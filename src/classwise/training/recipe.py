"""A recipe: everything that decides a training run, in one frozen dataclass that YAML can write."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from classwise import limits
from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.compute import Compute
from classwise.data import AUGMENTATIONS
from classwise.data.augment import Augmentation
from classwise.errors import UserError, unknown
from classwise.models import MODELS
from classwise.settings import Count, Number, Seed, Share, build, describe, make, parse_spec, read_yaml, settings
from classwise.threat import Threat
from classwise.training import (
    AVERAGERS,
    CRITERIA,
    OBJECTIVES,
    OPTIMISERS,
    RATES,
    REDUCTIONS,
    SCHEDULES,
    SELECTIONS,
    UPDATES,
)
from classwise.training.averaging import Averager
from classwise.training.objectives.base import Objective
from classwise.training.optimisers import Optimiser
from classwise.training.rates import Rate
from classwise.training.reductions import Reduction
from classwise.training.schedules.base import ClassSchedule
from classwise.training.selection import Selection
from classwise.training.updates import Update

Part = str | dict[str, Any]
"""A part as a recipe writes it: ``"pgd:steps=10"`` or ``{"name": "pgd", "steps": 10}``."""


@settings
class UnlabelledSettings:
    """Images without labels that join the training batches under a teacher's labels.

    Args:
        name: a data set's name, or a path; the labels of the set are not looked at.
        teacher: a run folder or a file of weights that names its model; its predictions are the labels.
        split: the split to take.
        share: the share of such images in a batch.
        subset: take a subset of so many images, stratified by the labels of the set; None for all.
        subset_seed: which subset.
        options: of the file format, as in `DataSettings`.
    """

    name: str
    teacher: str
    split: str = "train"
    share: Annotated[Number, Field(gt=0, lt=1)] = 0.5
    subset: Count | None = None
    subset_seed: Seed = 0
    options: dict[str, Any] = field(default_factory=dict)

    def of(self, batch_size: int) -> int:
        """How many images of a batch they are."""
        return round(self.share * batch_size)


@settings
class DataSettings:
    """The training data.

    Args:
        name: a data set's name, or a path.
        root: the data directory, if it is not one of the usual places.
        subset: train on a stratified subset of so many images; None for all.
        subset_seed: which subset.
        validation: the share of each class that is held out of training for validation.
        augment: what happens to a training image.
        unlabelled: images for self-training; None for none.
        options: of the file format, such as ``{"size": 64}``; an audit of the run reads its test images by them too.
    """

    name: str = "digits"
    root: str | None = None
    subset: Count | None = None
    subset_seed: Seed = 0
    validation: Share = 0.02
    augment: Part = "none"
    unlabelled: UnlabelledSettings | None = None
    options: dict[str, Any] = field(default_factory=dict)


@settings
class ModelSettings:
    """The model.

    Args:
        name: a name of the zoo, or ``package.module:callable``.
        width: the width factor.
        options: further arguments of the model.
        start: a run folder or a file of weights to start from; None for random weights.
        sync_batch_norm: where several processes share a step, measure the statistics of batch normalisation over all of
            them, and not in each; on GPUs only.
    """

    name: str = "preactresnet18"
    width: float = Field(default=1.0, gt=0)
    options: dict[str, Any] = field(default_factory=dict)
    start: str | None = None
    sync_batch_norm: bool = False


_LATER = ("data.options", "data.unlabelled.options", "data.unlabelled", "model.start", "model.sync_batch_norm")
"""Fields that came after the first runs: where they say nothing, a recipe is the one from before."""
MOMENTS = ("begin", "epochs", "halve_every")
"""The fields of schedules that are numbers of epochs."""


@settings
class Recipe:
    """One training set-up, complete.

    Args:
        name: what the set-up is called.
        description: one sentence on it.
        source: where the settings come from.
        data: the training data.
        model: the model.
        threat: the ball that training defends, such as ``"Linf:8/255"``; None for the data set's own.
        objective: the loss.
        attack: the inner maximisation; the objective may set its loss and start.
        craft: the mode of the model while the attack runs. ``"train"`` only to redo code that does so.
        schedules: class schedules, in the order in which they fold.
        reduction: from the images' losses to one number.
        update: how a loss changes the weights.
        optimizer: the optimiser and its full learning rate.
        rate: the learning rate along the run.
        averaging: the average of weights that is kept beside the online model.
        selection: which epoch is the best, by the validation split.
        validation_attack: what the validation split is attacked with, at the recipe's radius.
        epochs: passes over the training split.
        batch_size: images a step.
        seed: the seed of the weights, the split, the order, the augmentation and the attacks.
        compute: precision and memory format.
    """

    name: str = "custom"
    description: str = ""
    source: str = ""
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    threat: str | None = None
    objective: Part = "at"
    attack: Part = "pgd:steps=10,step_size=0.25eps"
    craft: Literal["eval", "train"] = "eval"
    schedules: tuple[Part, ...] = ()
    reduction: Part = "mean"
    update: Part = "plain"
    optimizer: Part = "sgd"
    rate: Part = "step"
    averaging: Part = "none"
    selection: str = "overall+worst"
    validation_attack: Part = "pgd:steps=10,step_size=0.25eps"
    epochs: Count = 200
    batch_size: Count = 128
    seed: Seed = 0
    compute: Compute = Compute()

    def parts(self) -> Parts:
        """Build every part.

        Raises:
            UserError: for an unknown name or field, a value out of range, or parts that do not fit each other.
        """
        objective = make(OBJECTIVES, self.objective)
        attack = objective.inner(make(ATTACKS, self.attack))
        zoo = self.model.name in MODELS and self.model.options.get("head") != "cosine"
        if objective.criterion.cosines and zoo:
            asker = CRITERIA.name_of(type(objective.criterion))
            raise UserError(f"criterion {asker!r} needs a model of cosines; set model.options = {{head: cosine}}")
        schedules = tuple(make(SCHEDULES, part) for part in self.schedules)
        if sum(schedule.sets_scale for schedule in schedules) > 1:
            raise UserError("two schedules set the scale of the logits (cmp, ldam and lis do); keep one of them")
        for part, schedule in zip(self.schedules, schedules, strict=True):
            name = part if isinstance(part, str) else part.get("name")
            if schedule.needs_beta and not objective.regularised:
                raise UserError(f"schedule {name!r} sets beta, which this objective does not have; use trades")
            if schedule.weighs and not schedule.weighs & objective.weighed:
                raise UserError(
                    f"schedule {name!r} weighs the {' and '.join(sorted(schedule.weighs))} term, which this objective "
                    f"does not have; its own is the {' and '.join(sorted(objective.weighed))} one"
                )
            held_out = sorted(signal for signal in schedule.reads if signal.startswith("valid."))
            if held_out and self.data.validation == 0:
                raise UserError(
                    f"schedule {name!r} reads {held_out[0]}, and data.validation = 0 holds nothing out; set 0.02"
                )
        validation_attack = make(ATTACKS, self.validation_attack)
        for each in (attack, validation_attack):
            each.check()
        extra = self.data.unlabelled
        if extra is not None and not 0 < extra.of(self.batch_size) < self.batch_size:
            raise UserError(
                f"batch_size = {self.batch_size} holds no share of {extra.share:g} of unlabelled images beside others; "
                "give a larger batch"
            )
        averaging = make(AVERAGERS, self.averaging)
        gated = any(name.startswith("valid") for name in averaging.reads)
        if self.data.validation == 0 and (self.selection not in ("last", "three-quarters") or gated):
            raise UserError("data.validation = 0 leaves nothing to select or gate on; set 0.02, or selection to last")
        return Parts(
            threat=None if self.threat is None else Threat.parse(self.threat),
            objective=objective,
            attack=attack,
            schedules=schedules,
            reduction=_reduction(self.reduction),
            update=make(UPDATES, self.update),
            optimizer=make(OPTIMISERS, self.optimizer),
            rate=make(RATES, self.rate),
            averaging=averaging,
            selection=_selection(self.selection),
            validation_attack=validation_attack,
            augment=make(AUGMENTATIONS, self.data.augment),
        )

    def moments(self, epochs: int) -> dict[str, Any]:
        """Changes that give the recipe so many epochs, the moments of its schedules at the same shares of them."""
        share = epochs / self.epochs
        changes: dict[str, Any] = {"epochs": epochs}
        for place, schedule in enumerate(self.parts().schedules):
            held = {name: getattr(schedule, name, 0) for name in MOMENTS}
            changes |= {f"schedules.{place}.{name}": max(1, round(share * at)) for name, at in held.items() if at}
        return changes

    def fine_tuning(self) -> list[str]:
        """The names of the parts whose source starts from a robust model."""
        parts = self.parts()
        asked = [*zip(self.schedules, parts.schedules, strict=True), (self.reduction, parts.reduction)]
        specs = [spec for spec, part in asked if getattr(part, "fine_tunes", False)]
        return [parse_spec(spec)[0] if isinstance(spec, str) else spec["name"] for spec in specs]

    def completed(self, threat: Threat) -> Recipe:
        """The recipe with every default of every part written out, and the threat that holds."""
        parts = self.parts()
        complete = dataclasses.replace(
            self,
            threat=str(threat),
            objective=describe(OBJECTIVES, parts.objective),
            attack=describe(ATTACKS, make(ATTACKS, self.attack)),
            schedules=tuple(describe(SCHEDULES, schedule) for schedule in parts.schedules),
            reduction=describe(REDUCTIONS, parts.reduction) if _is_made(parts.reduction) else self.reduction,
            update=describe(UPDATES, parts.update),
            optimizer=describe(OPTIMISERS, parts.optimizer),
            rate=describe(RATES, parts.rate),
            averaging=describe(AVERAGERS, parts.averaging),
            validation_attack=describe(ATTACKS, parts.validation_attack),
            data=dataclasses.replace(self.data, augment=describe(AUGMENTATIONS, parts.augment)),
        )
        return _build(complete._plain())

    def yaml(self) -> str:
        """The recipe as YAML that `Recipe.read` takes."""
        text: str = yaml.safe_dump(self._plain(), sort_keys=False, allow_unicode=True, width=120)
        return text

    def _plain(self) -> dict[str, Any]:
        """The recipe as JSON knows it: lists for tuples."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain

    def digest(self) -> str:
        """SHA-256 of what decides the numbers; the name, the description and the source do not."""
        plain = dataclasses.asdict(self)
        for key in ("name", "description", "source"):
            del plain[key]
        del plain["data"]["root"]  # the same data may lie elsewhere
        for path in _LATER:
            *within, key = path.split(".")
            holder = functools.reduce(lambda node, each: node[each] or {}, within, plain)
            if not holder.get(key):
                holder.pop(key, None)
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    @staticmethod
    def read(source: str | Path | Mapping[str, Any] | Recipe, changes: Mapping[str, Any] | None = None) -> Recipe:
        """A recipe by name, from a YAML file, a mapping or a recipe, with some fields changed.

        Args:
            source: the recipe.
            changes: dotted fields to new values, such as ``{"optimizer.lr": 0.05}``; values are read as YAML.

        Raises:
            UserError: for an unknown recipe or field (with the nearest known one) or a bad value.
        """
        if isinstance(source, Recipe):
            values: dict[str, Any] = dataclasses.asdict(source)
        elif isinstance(source, Mapping):
            values = dict(source)
        else:
            values = _read_yaml(str(source))
        for path, value in (changes or {}).items():
            _change(values, path, value)
        return _build(values)


@dataclass(frozen=True)
class Parts:
    """The built parts of a recipe."""

    threat: Threat | None
    objective: Objective
    attack: Attack
    schedules: tuple[ClassSchedule, ...]
    reduction: Reduction
    update: Update
    optimizer: Optimiser
    rate: Rate
    averaging: Averager
    selection: Selection
    validation_attack: Attack
    augment: Augmentation


def recipe_names() -> list[str]:
    """The names of the recipes that come with the package."""
    folder = resources.files("classwise") / "recipes"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def _build(values: Mapping[str, Any]) -> Recipe:
    """A recipe from plain values; nested settings name their own fields in errors."""
    plain = dict(values)
    data = plain.get("data")
    if isinstance(data, Mapping) and isinstance(data.get("unlabelled"), Mapping):
        unlabelled = build(UnlabelledSettings, data["unlabelled"], "recipe field 'data.unlabelled'")
        plain["data"] = {**data, "unlabelled": unlabelled}
    for key, kind in (("data", DataSettings), ("model", ModelSettings), ("compute", Compute)):
        if isinstance(plain.get(key), Mapping):
            plain[key] = build(kind, plain[key], f"recipe field {key!r}")
    recipe = build(Recipe, plain, "recipe")
    recipe.parts()
    return recipe


def _read_yaml(source: str, depth: int = 0) -> dict[str, Any]:
    """A recipe's values from its name or its file; ``extends: NAME`` takes another recipe as the base."""
    if depth > limits.EXTENDS:
        raise UserError(f"recipe {source!r}: more than {limits.EXTENDS} recipes extend each other, perhaps in a circle")
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        text = _read_file(path)
    elif source in recipe_names():
        text = (resources.files("classwise") / "recipes" / f"{source}.yaml").read_text(encoding="utf-8")
    else:
        raise unknown("recipe", source, recipe_names())
    values = read_yaml(text, f"recipe {source!r}")
    if not isinstance(values, dict):
        raise UserError(f"recipe {source!r} should be a mapping of fields to values")
    base = values.pop("extends", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise UserError(f"recipe {source!r}: extends = {base!r} should be the name of a recipe or of its file")
    merged = _read_yaml(base, depth + 1)
    for key, value in values.items():
        inherited = merged.get(key)
        plain = isinstance(value, dict) and isinstance(inherited, dict) and key in ("data", "model", "compute")
        merged[key] = {**inherited, **value} if plain else value  # type: ignore[dict-item]  # both are dicts if plain
    return merged


def _read_file(path: Path) -> str:
    """The text of a recipe file of at most `limits.RECIPE_BYTES`."""
    try:
        if not path.is_file():
            raise UserError(f"there is no recipe file {str(path)!r}")
        with path.open("rb") as file:
            content = file.read(limits.RECIPE_BYTES + 1)
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        raise UserError(f"cannot read the recipe {str(path)!r}: {getattr(error, 'strerror', error)}") from error
    if len(content) > limits.RECIPE_BYTES:
        raise UserError(f"recipe {str(path)!r} is larger than {limits.RECIPE_BYTES >> 10} KiB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"recipe {str(path)!r} is not UTF-8 text (byte {error.start})") from error


def _change(values: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted field of a recipe's plain values."""
    if path.count(".") > limits.SPEC_DEPTH:
        raise UserError(f"recipe field {path!r}: more than {limits.SPEC_DEPTH} fields inside each other")
    if isinstance(value, str):
        if len(value) > limits.RECIPE_BYTES:
            raise UserError(f"--set {path}: the value has {len(value)} letters; at most {limits.RECIPE_BYTES} are read")
        value = read_yaml(value, f"--set {path}={value}")
    defaults = {item.name: item.default for item in dataclasses.fields(Recipe)}
    head, *rest = path.split(".")
    if head not in defaults:
        near = difflib.get_close_matches(head, defaults, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(defaults)}"
        raise UserError(f"unknown recipe field {path!r}; {hint}")
    default = defaults[head]
    if dataclasses.is_dataclass(default):
        held = values.get(head, {})
        node = {**dataclasses.asdict(default), **held} if isinstance(held, Mapping) else held  # type: ignore[arg-type]
    else:
        node = values.get(head, default)
    values[head] = _put(node, rest, value, path)


def _put(node: Any, keys: Sequence[str], value: Any, path: str) -> Any:
    """A copy of the node with one place inside it changed; a part written as a spec is opened."""
    if not keys:
        return value
    key, *rest = keys
    if isinstance(node, str):
        name, options = parse_spec(node)
        node = {"name": name, **options}
    if isinstance(node, Mapping):
        return {**node, key: _put(node.get(key), rest, value, path)}
    if isinstance(node, Sequence):
        if not (key.isascii() and key.isdigit() and len(key) < 10) or int(key) >= len(node):
            raise UserError(f"recipe field {path!r}: the list has no item {key}; items are 0 to {len(node) - 1}")
        items = list(node)
        items[int(key)] = _put(items[int(key)], rest, value, path)
        return items
    raise UserError(f"recipe field {path!r}: there is nothing inside {node!r}")


def _is_made(part: object) -> bool:
    """Whether the part has settings, rather than being a plain function."""
    return dataclasses.is_dataclass(part)


def _reduction(part: Part) -> Any:
    """A function by its name, or a reduction with settings."""
    name = parse_spec(part, REDUCTIONS)[0] if isinstance(part, str) else part.get("name", "")
    found: Any = REDUCTIONS.load(name)
    if isinstance(found, type):
        return make(REDUCTIONS, part)
    if part != name and part != {"name": name}:
        raise UserError(f"reduction {name!r} has no settings; write just {name!r}")
    return found


def _selection(name: str) -> Selection:
    found: Any = SELECTIONS.load(name)
    chosen: Selection = found
    return chosen
