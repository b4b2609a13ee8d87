"""A recipe: the complete configuration of a training run, which is read from and written to YAML."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import yaml
from pydantic import BeforeValidator

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.core.compute.precision import Precision
from classwise.core.errors import ClasswiseError, first_line
from classwise.core.settings.arguments import checked
from classwise.core.settings.config import Count, Seed, build, configurable, describe, make, parse_spec
from classwise.core.settings.description import CHANGES, Described, PassCounts
from classwise.data import AUGMENTATIONS
from classwise.data.augment import Augmentation
from classwise.models import MODELS
from classwise.models.loading.references import parse_reference
from classwise.threat.ball import Threat
from classwise.threat.text import written
from classwise.training import (
    AVERAGERS,
    CRITERIA,
    LR_SCHEDULES,
    OBJECTIVES,
    OPTIMISERS,
    REDUCTIONS,
    SCHEDULES,
    UPDATES,
)
from classwise.training.averaging import Averager
from classwise.training.classes.signals import ALWAYS, ATTACKED, OPTIONAL, ClassSettings
from classwise.training.criteria.base import Criterion
from classwise.training.criteria.softmax import Softmax
from classwise.training.lr_schedules import LRSchedule
from classwise.training.objectives.base import Objective
from classwise.training.recipe_files import apply_budget, override_all, read_values, recipe_names, take_budgets
from classwise.training.recipe_settings import (
    DataSettings,
    EpochNumbers,
    ModelSettings,
    Part,
    UnlabelledSettings,
    Validation,
)
from classwise.training.reductions.base import Reduction, make_reduction
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.selection import AtFraction, Selection, load_selection, resolve_selection
from classwise.training.step_sizes import with_absolute_step
from classwise.training.updates import Optimiser, Update

logger = logging.getLogger(__name__)

_LATER: dict[str, Any] = {
    "checkpoint_epochs": (),
    "data.imbalance": None,
    "data.options": {},
    "data.unlabelled.options": {},
    "data.unlabelled": None,
    "model.weights": None,
    "model.normalization": "auto",
    "model.mean": None,
    "model.std": None,
    "model.sync_batch_norm": False,
    "precision.deterministic": False,
    "precision.search": "auto",
    "objective.scaled": False,
}
"""Fields that are omitted from the digest at these defaults, since older recipes do not have them."""
_OF_ATTACKS = frozenset({"epsilon", "target"})
"""The class settings that an objective uses by its inner attack."""
_USING = {"beta": "trades", "clean_temperature": "rslad", "robust_temperature": "rslad", "pair_weight": "csr"}
"""An objective that uses a class setting; `at` uses the others."""
EPOCH_FIELDS = ("start_epoch", "epochs", "halve_every", "drop_epochs")
"""Fields of schedules that are numbers of epochs, or lists of them."""


@configurable
class Recipe:
    """The complete configuration of a training run.

    Args:
        name: the name of the recipe.
        description: a one-sentence description.
        source: the source of the settings.
        data: the training data; `read` also accepts text such as ``"cifar10:subset=5000"``.
        model: the model; `read` also accepts text such as ``"small-cnn:width=0.5"``.
        threat: the threat model of training, such as ``"Linf:8/255"``; None for the default of the data set.
        objective: the loss.
        attack: the attack of the inner maximisation; the objective may set its loss and random initialisation. A step
            size such as ``"0.25eps"`` is relative to the radius of each image, ``"0.25base_eps"`` to that of
            ``threat``, and ``"2/255"`` is absolute.
        attack_mode: the mode of the model during the inner attack; ``"train"`` only to reproduce code that does so.
        schedules: the class schedules, in the order in which they are applied.
        reduction: the reduction of the images' losses to a scalar.
        update: the update of the weights.
        optimizer: the optimiser and its peak learning rate.
        lr_schedule: the learning-rate schedule.
        averaging: the weight averaging.
        selection: the rule that selects the best epoch on the validation split; ``"auto"`` is ``"overall+worst"`` for
            at most 20 classes and ``"overall+worst-fifth"`` for more; or ``"last"``, if initial weights may have been
            trained on the validation images.
        validation_attack: the attack on the validation split, with the radius of the recipe.
        epochs: the number of passes over the training split.
        checkpoint_epochs: the epochs, from 1, after which the weights are also saved as ``epoch-N``, and those of the
            average as ``average-epoch-N``.
        batch_size: the number of images per step.
        seed: the seed of the initial weights, the split, the order, the augmentation and the attacks.
        precision: precision and memory format.

    Example:
        >>> import classwise as cw
        >>> recipe = cw.Recipe.read("cfa-at", {"optimizer.lr": 0.05}, budget="short")
        >>> recipe.name, recipe.epochs, recipe.optimizer["lr"]
        ('cfa-at-short', 30, 0.05)
    """

    name: str = "custom"
    description: str = ""
    source: str = ""
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    threat: Annotated[str | None, BeforeValidator(written)] = None
    objective: Part = "at"
    attack: Part = "pgd:steps=10,step_size=0.25eps"
    attack_mode: Literal["eval", "train"] = "eval"
    schedules: tuple[Part, ...] = ()
    reduction: Part = "mean"
    update: Part = "plain"
    optimizer: Part = "sgd"
    lr_schedule: Part = "step"
    averaging: Part = "none"
    selection: str = "auto"
    validation_attack: Part = "pgd:steps=10,step_size=0.25eps"
    epochs: Count = 200
    checkpoint_epochs: EpochNumbers = ()
    batch_size: Count = 128
    seed: Seed = 0
    precision: Precision = Precision()

    @cached_property
    def parts(self) -> Parts:
        """The parts, built once.

        Raises:
            ClasswiseError: if a name or field is unknown, a value is out of range, or parts are incompatible.
        """
        return build_parts(self)

    @checked
    def epoch_overrides(self, epochs: int) -> dict[str, Any]:
        """Return overrides for another number of epochs, with all numbers of epochs scaled in proportion."""
        scale = epochs / self.epochs
        overrides: dict[str, Any] = {"epochs": epochs}
        if self.checkpoint_epochs:
            scaled = {min(epochs, max(1, round(scale * at))) for at in self.checkpoint_epochs}
            overrides["checkpoint_epochs"] = sorted(scaled)
        for index, schedule in enumerate(self.parts.schedules):
            numbers = {name: getattr(schedule, name, 0) for name in EPOCH_FIELDS}
            for name, at in numbers.items():
                if at:
                    many = [max(1, round(scale * epoch)) for epoch in (at if isinstance(at, tuple) else (at,))]
                    overrides[f"schedules.{index}.{name}"] = many if isinstance(at, tuple) else many[0]
        return overrides

    def fine_tuning(self) -> list[str]:
        """Return the names of the parts whose papers start from a robust model."""
        parts = self.parts
        candidates = [*zip(self.schedules, parts.schedules, strict=True), (self.reduction, parts.reduction)]
        specs = [spec for spec, part in candidates if getattr(part, "fine_tunes", False)]
        return [parse_spec(spec)[0] if isinstance(spec, str) else spec["name"] for spec in specs]

    @property
    def distils(self) -> bool:
        """Whether the objective distils a teacher; such methods are listed apart, as the teacher is usually larger."""
        return self.parts.objective.distils

    @property
    def described_parts(self) -> list[Described]:
        """The parts with a description, in the order of the fields; without the attack if the objective has none."""
        parts = self.parts
        attack = [parts.attack] if parts.objective.attacks else []
        first = (parts.objective, parts.objective.criterion, *attack, self.data.unlabelled, *parts.schedules)
        rest = (parts.reduction, parts.update, parts.optimizer, parts.lr_schedule, parts.averaging, parts.augment)
        return [part for part in (*first, *rest) if isinstance(part, Described)]

    @property
    def changes(self) -> list[str]:
        """What its parts change in comparison with plain training (`classwise.core.settings.description.CHANGES`)."""
        changed = {word for part in self.described_parts for word in part.changes}
        return [word for word in CHANGES if word in changed]

    @checked
    def completed(self, threat: Threat, classes: int | None = None) -> Recipe:
        """Return the recipe with all defaults of its parts and the threat of the run.

        Args:
            threat: the threat model of training.
            classes: the number of classes with training images, which resolves the selection ``"auto"`` and the
                settings of weight averaging that depend on it; None: they stay.

        Raises:
            ClasswiseError: if the objective or an attack does not support the threat.
        """
        attack, validation_attack = _attacks(self, self.parts.objective, threat)
        parts = dataclasses.replace(self.parts, threat=threat, attack=attack, validation_attack=validation_attack)
        selection = self.selection
        parts.objective.supported(threat)
        for attack in (parts.attack, parts.validation_attack):
            attack.supported(threat)
        if classes is not None:
            selection = resolve_selection(selection, classes)
            averaging = parts.averaging.for_classes(classes)
            parts = dataclasses.replace(parts, averaging=averaging, selection=load_selection(selection))
        complete = dataclasses.replace(
            self,
            threat=str(threat),
            objective=describe(OBJECTIVES, parts.objective),
            attack=describe(ATTACKS, make(ATTACKS, with_absolute_step(self.attack, threat))),
            schedules=tuple(describe(SCHEDULES, schedule) for schedule in parts.schedules),
            reduction=(  # a plain function has no settings
                describe(REDUCTIONS, parts.reduction) if dataclasses.is_dataclass(parts.reduction) else self.reduction
            ),
            update=describe(UPDATES, parts.update),
            optimizer=describe(OPTIMISERS, parts.optimizer),
            lr_schedule=describe(LR_SCHEDULES, parts.lr_schedule),
            averaging=describe(AVERAGERS, parts.averaging),
            selection=selection,
            validation_attack=describe(ATTACKS, parts.validation_attack),
            data=dataclasses.replace(self.data, augment=describe(AUGMENTATIONS, parts.augment)),
        )
        return recipe_from_values(complete._plain())._with_parts(parts)

    def on(self, device: torch.device | str, resumed: Recipe | None = None) -> Recipe:
        """Return the recipe without the dtype ``"auto"``: as it runs on a device, or as in the run that it resumes."""
        if self.precision.dtype != "auto":
            return self
        precision = self.precision.on(torch.device(device))
        if resumed is not None:
            dtype, channels_last = resumed.precision.dtype, resumed.precision.channels_last
            precision = dataclasses.replace(precision, dtype=dtype, channels_last=channels_last)
        return dataclasses.replace(self, precision=precision)._with_parts(self.parts)

    @checked
    def times_batch(self, factor: int) -> Recipe:
        """Return the recipe with ``factor`` times the batch size, and the same parts."""
        if factor == 1:
            return self
        return dataclasses.replace(self, batch_size=factor * self.batch_size)._with_parts(self.parts)

    def _with_parts(self, parts: Parts) -> Recipe:
        """Set the parts of this new recipe to those built for an equal one, and return it."""
        self.__dict__["parts"] = parts
        return self

    def yaml(self) -> str:
        """Return the recipe as YAML, which `Recipe.read` accepts."""
        return str(yaml.safe_dump(self._plain(), sort_keys=False, allow_unicode=True, width=120))

    def _plain(self) -> dict[str, Any]:
        """Return the fields as JSON values, with lists for tuples."""
        return dict(json.loads(self._text()))

    def _text(self) -> str:
        """Return the fields as JSON, in which 1 and 1.0 differ."""
        return json.dumps(dataclasses.asdict(self))

    def digest(self) -> str:
        """Return the SHA-256 of the fields that affect results: not name, description, source, data.root and graphs."""
        plain = dataclasses.asdict(self)
        for key in ("attack", "validation_attack"):
            plain[key] = with_absolute_step(plain[key], None if self.threat is None else Threat.parse(self.threat))
        for key in ("name", "description", "source"):
            del plain[key]
        del plain["data"]["root"]  # the same data may be elsewhere
        precision = plain["precision"]
        del precision["graphs"]  # another way to launch the same work
        precision["compile"] = precision["compile"] == "on"  # as in older recipes; "auto" changes rounding only
        for path, default in _LATER.items():
            *within, key = path.split(".")
            holder = functools.reduce(lambda node, part: node[part] or {}, within, plain)
            if isinstance(holder, dict) and holder.get(key) == default:
                holder.pop(key, None)
        for part in (plain["objective"], *plain["schedules"]):
            if isinstance(part, dict) and part.get("variant") == "paper":
                del part["variant"]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    @staticmethod
    @checked
    def read(
        source: str | Path | Mapping[str, Any] | Recipe,
        overrides: Mapping[str, Any] | None = None,
        *,
        budget: str | None = None,
    ) -> Recipe:
        """Read a recipe by name, from a YAML file, a mapping or a recipe, with a budget and overrides.

        The parts are built, so every error in the recipe is raised here. If the result equals a `Recipe` given as
        ``source``, that object is returned.

        Args:
            source: a recipe's name, a YAML file, a mapping or a `Recipe`.
            overrides: values by dotted field, such as ``{"optimizer.lr": 0.05}``; text is parsed as YAML. Applied
                after the budget. Unless they change only the data, the seed or the precision, the description becomes
                "Based on NAME, with other settings." or "Based on NAME with budget BUDGET, with other settings.", and
                the source is empty.
            budget: one of the recipe's budgets, such as ``"short"``; None for the full recipe.

        Raises:
            ClasswiseError: if the recipe, the budget or a field is unknown (with the nearest known name), or a value is
                invalid.
        """
        if isinstance(source, Recipe):
            values: dict[str, Any] = dataclasses.asdict(source)
        elif isinstance(source, Mapping):
            values = dict(source)
        else:
            values = read_values(str(source))
        budgets, base = take_budgets(values), str(values.get("name", "custom"))
        if budget is not None:
            apply_budget(values, budget, budgets, Recipe)
            base = f"{base} with budget {budget}"
        override_all(values, overrides or {}, Recipe, base)
        recipe = recipe_from_values(values)
        if isinstance(source, Recipe) and recipe._text() == source._text():
            recipe = source
        _ = recipe.parts
        return recipe


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
    lr_schedule: LRSchedule
    averaging: Averager
    selection: Selection
    validation_attack: Attack
    augment: Augmentation

    @property
    def passes(self) -> PassCounts:
        """The passes per image and step with all parts active: the steps of the attack, and the cost of each part."""
        objective = self.objective
        attack_passes = objective.attack_overhead + PassCounts(1, 1) * (self.attack.length if objective.attacks else 0)
        total = attack_passes + objective.cost * self.update.evaluations
        others = (*self.schedules, self.reduction, self.update, self.averaging, self.augment)
        return sum((part.cost for part in others if isinstance(part, Described)), total)

    @property
    def reads(self) -> frozenset[str]:
        """The signals that are measured: those of every training, and those that a schedule or the averaging reads."""
        return ALWAYS.union(self.averaging.reads, *(schedule.signals for schedule in self.schedules))

    def class_settings(self, classes: Classes, states: Sequence[State], epoch: int) -> ClassSettings:
        """Return the class settings of an epoch: the constants, modified by each schedule, with its state, in order."""
        assert self.threat is not None
        ones = torch.ones(len(classes), device=classes.device)
        settings = ClassSettings(epsilon=ones * self.threat.epsilon)
        if "beta" in self.objective.uses:
            settings = dataclasses.replace(settings, beta=ones * self.objective.beta)  # type: ignore[attr-defined]
        for schedule, state in zip(self.schedules, states, strict=True):
            settings = schedule.settings(state, settings, epoch)
        return settings


def build_parts(recipe: Recipe) -> Parts:
    """Build the parts of a recipe.

    Raises:
        ClasswiseError: if a name or field is unknown, a value is out of range, or parts are incompatible.
    """
    parse_reference(recipe.model.name)
    objective = make(OBJECTIVES, recipe.objective)
    threat = None if recipe.threat is None else Threat.parse(recipe.threat)
    attack, validation_attack = _attacks(recipe, objective, threat)
    zoo = recipe.model.name in MODELS and recipe.model.options.get("head") != "cosine"
    if objective.criterion.cosines and zoo:
        criterion = CRITERIA.name_of(type(objective.criterion))
        raise ClasswiseError(
            f"criterion {criterion!r} needs a model that returns cosines; set model.options = {{head: cosine}}"
        )
    if objective.criterion.attack_smoothing and not (objective.attacks and attack.smooths_labels):
        raise ClasswiseError(
            "criterion.attack = true: smooths the cross-entropy of the inner attack, which this recipe does not "
            "maximise; omit it, or use an objective and an attack that do, such as at and pgd"
        )
    if "logit_margin" not in objective.uses and not _only_scales(objective.criterion):
        name = CRITERIA.name_of(type(objective.criterion))
        raise ClasswiseError(f"criterion {name!r}: this objective has no loss of the labels; use at, or ard:alpha=0.5")
    schedules = tuple(make(SCHEDULES, part) for part in recipe.schedules)
    if sum(schedule.sets_scale for schedule in schedules) > 1:
        raise ClasswiseError("more than one schedule sets the scale of the logits; use one of cmp, ldam and lis")
    for part, schedule in zip(recipe.schedules, schedules, strict=True):
        name = part if isinstance(part, str) else str(part.get("name"))
        _check_schedule(name, schedule, objective, recipe.data.validation)
    if recipe.checkpoint_epochs[-1:] > (recipe.epochs,):
        raise ClasswiseError(
            f"checkpoint_epochs contains {recipe.checkpoint_epochs[-1]}; it must contain numbers from 1 to the number "
            f"of epochs, {recipe.epochs}"
        )
    if threat is not None:
        objective.supported(threat)
    for chosen in (attack, validation_attack):
        chosen.check()
        if threat is not None:
            chosen.supported(threat)
    extra = recipe.data.unlabelled
    if extra is not None and not 0 < extra.of(recipe.batch_size) < recipe.batch_size:
        raise ClasswiseError(
            f"batch_size = {recipe.batch_size} is too small for a fraction of {extra.fraction:g} of unlabelled images; "
            "increase batch_size"
        )
    averaging = make(AVERAGERS, recipe.averaging)
    if "valid.average_confidence" in averaging.reads:
        raise ClasswiseError("an averaging cannot read valid.average_confidence, which is measured after it")
    gated = any(name.startswith("valid") for name in averaging.reads)
    selection = load_selection(recipe.selection)
    measured = recipe.selection != "last" and not isinstance(selection, AtFraction)
    if recipe.data.validation == 0 and (measured or gated):
        raise ClasswiseError(
            "data.validation = 0: selection and averaging need a validation split; set 0.02, or selection = last "
            "and averaging = none"
        )
    return Parts(
        threat=threat,
        objective=objective,
        attack=attack,
        schedules=schedules,
        reduction=make_reduction(recipe.reduction),
        update=make(UPDATES, recipe.update),
        optimizer=make(OPTIMISERS, recipe.optimizer),
        lr_schedule=make(LR_SCHEDULES, recipe.lr_schedule),
        averaging=averaging,
        selection=selection,
        validation_attack=validation_attack,
        augment=make(AUGMENTATIONS, recipe.data.augment),
    )


def _attacks(recipe: Recipe, objective: Objective, threat: Threat | None) -> tuple[Attack, Attack]:
    """The inner attack of an objective and the validation attack, with the step sizes of a threat."""
    inner, validation = (with_absolute_step(part, threat) for part in (recipe.attack, recipe.validation_attack))
    return objective.inner(make(ATTACKS, inner)), make(ATTACKS, validation)


@functools.cache
def all_recipes() -> Mapping[str, Recipe]:
    """Return the recipes of the package and of installed packages by name.

    A recipe that cannot be read is left out, with a line in the log, so that it does not hide the others.
    """
    recipes = {}
    for name in recipe_names():
        try:
            recipes[name] = Recipe.read(name)
        except Exception as error:  # noqa: BLE001  # the code of a part may raise any error
            logger.warning("recipe %r is left out: %s", name, first_line(error))
    return recipes


def _as_mapping(value: object) -> object:
    """Text such as ``small-cnn:width=0.5`` as a mapping; any other value unchanged."""
    if not isinstance(value, str):
        return value
    name, options = parse_spec(value)
    return {"name": name, **options}


def recipe_from_values(values: Mapping[str, Any]) -> Recipe:
    """Build a recipe, but not its parts, from plain values; errors in nested settings name the nested field."""
    plain = dict(values)
    plain |= {key: _as_mapping(plain[key]) for key in ("data", "model") if key in plain}
    data = plain.get("data")
    if isinstance(data, Mapping) and isinstance(data.get("unlabelled"), Mapping):
        unlabelled = build(UnlabelledSettings, data["unlabelled"], "recipe", "data.unlabelled")
        plain["data"] = {**data, "unlabelled": unlabelled}
    for key, kind in (("data", DataSettings), ("model", ModelSettings), ("precision", Precision)):
        if isinstance(plain.get(key), Mapping):
            plain[key] = build(kind, plain[key], "recipe", key)
    recipe: Recipe = build(Recipe, plain, "recipe")
    return recipe


def _only_scales(criterion: Criterion) -> bool:
    """Whether a criterion is the cross-entropy of scaled logits, without a margin."""
    return type(criterion) is Softmax and criterion.margin == 0


def _check_schedule(name: str, schedule: ClassSchedule, objective: Objective, validation: Validation) -> None:
    """Check that the objective and the data have what a schedule sets and reads.

    Args:
        name: the name of the schedule, for the error.
        schedule: the schedule.
        objective: the objective of the recipe.
        validation: the fraction or the name of the validation split.

    Raises:
        ClasswiseError: if they do not.
    """
    used = objective.uses | (_OF_ATTACKS if objective.attacks else frozenset())
    if unused := sorted(schedule.needs - used):
        raise ClasswiseError(
            f"schedule {name!r} needs {unused[0]}, which this objective does not use; use {_USING.get(unused[0], 'at')}"
        )
    if missing := sorted(schedule.signals & OPTIONAL - objective.measures):
        raise ClasswiseError(
            f"schedule {name!r} reads {missing[0]}, which this objective does not measure; use ard or rslad"
        )
    if (missing := sorted(schedule.signals & ATTACKED)) and not objective.attacks:
        raise ClasswiseError(
            f"schedule {name!r} reads {missing[0]}, which needs an inner attack; this objective has none, use at"
        )
    if schedule.divides_by_beta and objective.divides_by_beta:
        raise ClasswiseError(
            f"schedule {name!r} divides the loss by 1 + beta, and so does objective.scaled = true; set it to false"
        )
    if schedule.weighted_terms and not schedule.weighted_terms & objective.weighted_terms:
        raise ClasswiseError(
            f"schedule {name!r} sets weights of the term {' and '.join(sorted(schedule.weighted_terms))}, but this "
            f"objective has the term {' and '.join(sorted(objective.weighted_terms))} only"
        )
    held_out = sorted(signal for signal in schedule.signals if signal.startswith("valid."))
    if held_out and validation == 0:
        raise ClasswiseError(
            f"schedule {name!r} reads {held_out[0]}, which needs a validation split; set data.validation = 0.02"
        )
