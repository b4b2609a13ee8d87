"""Settings of trainings and evaluations as run, by the names of `classwise.papers.settings`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.core.config import Spec, describe, parse_spec, relative_step
from classwise.core.threat import Threat
from classwise.data import DATA
from classwise.papers.scales import Scale
from classwise.papers.settings import DATA_SET, EPOCHS, Value, read
from classwise.training import AVERAGERS, CRITERIA, LR_SCHEDULES, OBJECTIVES, OPTIMISERS, SCHEDULES, UPDATES
from classwise.training.averaging import FAWA
from classwise.training.lr_schedules import MultiStep, OneCycle, PiecewiseLinear
from classwise.training.recipe import Recipe
from classwise.training.selection import resolve_selection

NONE = "none"
ALL = "all"
NOT_STATED = "not stated"
_THREE_QUARTERS = 0.75
"""The fraction of the epochs at which the selection ``three-quarters`` takes the weights."""
_LEVELS, _DIGITS = 255, 6
"""A value with more digits is written as a multiple of 1/255 if it is one."""


def training_settings(recipe: Recipe, scale: Scale) -> dict[str, Value]:
    """Settings of a training.

    Args:
        recipe: recipe of the training at the scale.
        scale: scale adapted to the data set of the training.
    """
    parts = recipe.parts
    optimiser = describe(OPTIMISERS, parts.optimizer)
    classes = len(DATA.load(scale.data).class_names)
    here: dict[str, Value] = {
        DATA_SET: scale.data,
        "training images": _count(scale.train),
        "validation share": recipe.data.validation,
        "augmentation": _name(recipe.data.augment),
        "network": recipe.model.name,
        "network width": recipe.model.width,
        "loss": OBJECTIVES.name_of(type(parts.objective)),
        "attack": NONE,
        "class schedules": ", ".join(SCHEDULES.name_of(type(one)) for one in parts.schedules) or NONE,
        "reduction": _name(recipe.reduction),
        "update": UPDATES.name_of(type(parts.update)),
        "averaging": AVERAGERS.name_of(type(parts.averaging)),
        "epochs": recipe.epochs,
        "batch size": recipe.batch_size,
        "optimiser": _optimiser(optimiser),
        "learning rate": parts.optimizer.lr,
        "learning-rate schedule": _schedule(recipe),
        "selection": _selection(recipe, classes),
        "precision": recipe.precision.dtype,
    }
    here |= {name: optimiser[key] for name, key in _OF_OPTIMISER.items() if key in optimiser}
    if parts.objective.attacks:
        here |= _attack_settings(recipe)
    if recipe.selection not in ("last", "three-quarters"):
        steps, size = getattr(parts.validation_attack, "steps", 1), _step(parts.validation_attack, recipe)
        name = ATTACKS.name_of(type(parts.validation_attack))
        here["validation attack"] = f"{name}, {steps} steps of {number_text(size)}"
    if recipe.checkpoint_epochs:
        here[EPOCHS] = epoch_ranges(recipe.checkpoint_epochs)
    if recipe.data.unlabelled is not None and scale.train is not None:
        here["unlabelled images"] = scale.train
    return here | dict(_parameters(recipe, classes))


def evaluation_settings(scale: Scale, attacks: Mapping[str, Spec] | None = None) -> dict[str, Value]:
    """Settings of the evaluation at a scale; those of the attack only if they are declared, or set by the scale.

    Args:
        scale: scale adapted to the data set.
        attacks: the declared attacks by label; None for PGD with the settings of the paper.
    """
    here: dict[str, Value] = {
        "test images": _count(scale.test),
        "images of costly attacks": _count(scale.few),
        "threat": _threat(scale.threat),
        "precision": scale.precision.dtype,
    }
    named = [parse_spec(spec) if isinstance(spec, str) else (spec["name"], spec) for spec in (attacks or {}).values()]
    if named:
        here["attacks"] = ", ".join(name for name, _ in named)
    own = named[0][1] if len(named) == 1 else scale.evaluation
    if "steps" in own:
        here["steps"] = read(own["steps"])
    if "step_size" in own:
        here["step size"] = _absolute(own["step_size"], scale.threat)
    if scale.attack_steps is not None and not named:
        here["steps"] = scale.attack_steps
        here["step size"] = 2 / scale.attack_steps * _radius(scale.threat)
    return here


def text(*values: Value | None) -> str:
    """Text of the equivalent values of a setting; "not stated" without values."""
    return " or ".join(NONE if value is None else number_text(value) for value in values) or NOT_STATED


def number_text(value: Value) -> str:
    """Text of a value; multiples of 1/255 as fractions."""
    if not isinstance(value, int | float):
        return str(value)
    decimal = f"{value:,.10g}"
    levels = round(value * _LEVELS)
    return decimal if len(decimal) <= _DIGITS or value != levels / _LEVELS else f"{levels}/{_LEVELS}"


_OF_OPTIMISER = {"momentum": "momentum", "weight decay": "weight_decay"}


def _count(images: int | None) -> Value:
    return ALL if images is None else images


def _name(part: str | Mapping[str, Any]) -> str:
    return part.partition(":")[0] if isinstance(part, str) else str(part["name"])


def _optimiser(described: Mapping[str, Any]) -> str:
    return f"{described['name']}, Nesterov" if described.get("nesterov") else str(described["name"])


def _threat(spec: str) -> str:
    threat = Threat.parse(spec)
    return f"{threat.norm}:{number_text(_radius(spec))}"


def _radius(spec: str) -> float:
    epsilon = Threat.parse(spec).epsilon
    assert isinstance(epsilon, int | float)
    return float(epsilon)


def _step(attack: Attack, recipe: Recipe) -> float:
    """Absolute step size of an attack in the radius of a recipe."""
    assert recipe.threat is not None, "set by the scale"
    return _absolute(getattr(attack, "step_size", "1eps"), recipe.threat)


def _absolute(step_size: float | str, threat: str) -> float:
    """A step size in the radius of a threat."""
    number = read(step_size)
    factor, relative = relative_step(number)
    return factor * _radius(threat) if relative else factor


def _attack_settings(recipe: Recipe) -> dict[str, Value]:
    assert recipe.threat is not None, "set by the scale"
    attack = recipe.parts.attack
    described = describe(ATTACKS, attack)
    return {
        "threat": _threat(recipe.threat),
        "attack": described["name"],
        "attack steps": described.get("steps", 1),
        "attack step size": _step(attack, recipe),
        "attack initialisation": described.get("random_init", NONE),
        "attack loss": described.get("objective", "ce"),
        "attack mode": recipe.attack_mode,
    }


def _schedule(recipe: Recipe) -> str:
    """Learning-rate schedule in epochs."""
    schedule, epochs = recipe.parts.lr_schedule, recipe.epochs
    if isinstance(schedule, MultiStep):
        milestones = sorted({round(at * epochs) for at in schedule.milestones} - {epochs})
        return f"x{schedule.gamma:g} at epochs {', '.join(map(str, milestones))}" if milestones else "constant"
    if isinstance(schedule, OneCycle):
        return f"one-cycle, peak at epoch {schedule.peak * epochs:.3g}"
    if isinstance(schedule, PiecewiseLinear):
        rate = recipe.parts.optimizer.lr
        points = (f"{rate * factor:.3g} at epoch {at * epochs:.3g}" for at, factor in schedule.points)
        return f"linear between {', '.join(points)}"
    described = describe(LR_SCHEDULES, schedule)
    options = [f"{key} {value}" for key, value in described.items() if key != "name"]
    return ", ".join([described["name"], *options])


def _selection(recipe: Recipe, classes: int) -> str:
    """The evaluated epoch, or the rule that selects it."""
    if recipe.selection == "three-quarters":
        return f"epoch {round(_THREE_QUARTERS * recipe.epochs)}"
    return "last epoch" if recipe.selection == "last" else resolve_selection(recipe.selection, classes)


def epoch_ranges(numbers: Sequence[int]) -> str:
    """Epochs in increasing order as ranges: ``101-120, 181-200``, ``5-50 in steps of 5``."""
    runs = list[list[int]]()
    for number in sorted(numbers):
        if runs and (len(runs[-1]) == 1 or number - runs[-1][-1] == runs[-1][1] - runs[-1][0]):
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(_run_text(run) for run in runs)


def _run_text(run: Sequence[int]) -> str:
    """Equally spaced numbers as a range."""
    step = run[1] - run[0] if len(run) > 1 else 1
    return f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" + (f" in steps of {step}" if step > 1 else "")


def _parameters(recipe: Recipe, classes: int) -> Iterator[tuple[str, Value]]:
    """Parameters of the loss, the class schedules, the update and the averaging."""
    parts = recipe.parts
    objective = describe(OBJECTIVES, parts.objective)
    objective.pop("criterion", None)
    criterion = describe(CRITERIA, parts.objective.criterion)
    yield "criterion", criterion["name"]
    yield from _flat("loss", objective, recipe.epochs).items()
    yield from _flat("criterion", criterion, recipe.epochs).items()
    for schedule in parts.schedules:
        described = describe(SCHEDULES, schedule)
        yield from _flat(described["name"], described, recipe.epochs).items()
    yield from _flat("update", describe(UPDATES, parts.update), recipe.epochs).items()
    averaging = parts.averaging.for_classes(classes) if isinstance(parts.averaging, FAWA) else parts.averaging
    yield from _flat("averaging", describe(AVERAGERS, averaging), recipe.epochs).items()


def _flat(prefix: str, described: Mapping[str, Any], epochs: int) -> dict[str, Value]:
    """Options of a part as settings; a fraction of training becomes an epoch, and None is left out."""
    flat: dict[str, Value] = {}
    for key, value in described.items():
        if key == "name" or value is None:
            continue
        if key == "start_fraction":
            flat[f"{prefix} start epoch"] = round(value * epochs)
        elif isinstance(value, list | tuple):
            flat[f"{prefix} {key}".replace("_", " ")] = ", ".join(map(str, value)) or NONE
        else:
            flat[f"{prefix} {key}".replace("_", " ")] = read(value)
    return flat
