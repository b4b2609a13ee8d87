"""Step sizes of a recipe's attacks as multiples of the recipe's own radius, which class schedules do not change."""

from __future__ import annotations

from typing import Any

from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import number, parse_spec
from classwise.threat.ball import Threat
from classwise.training.recipe_settings import Part

BASE = "base_eps"
"""The unit of such a step size: the radius of the recipe's threat."""
_LEVELS = 255


def base_step(attack: Part) -> str | None:
    """Return the step size of an attack if it is a multiple of the recipe's radius, else None.

    Example:
        >>> base_step("pgd:steps=10,step_size=0.25base_eps"), base_step("pgd:step_size=0.25eps")
        ('0.25base_eps', None)
    """
    if isinstance(attack, str) and BASE not in attack:
        return None
    step = _options(attack).get("step_size")
    return step if isinstance(step, str) and step.strip().endswith(BASE) else None


def with_absolute_step(attack: Part, threat: Threat | None) -> Part:
    """Return an attack with an absolute step size in place of a multiple of the recipe's radius; others unchanged.

    A step size of ``0.25eps`` is relative to the radius of each image, which class schedules such as CCM change;
    ``0.25base_eps`` is the same for all images: a quarter of the radius of the recipe.

    Args:
        attack: the attack, a spec or a mapping.
        threat: the threat of the recipe; None, or a radius of 0: the multiple is one of the radius of each image.

    Raises:
        ClasswiseError: if the multiple is not a positive number.

    Example:
        >>> with_absolute_step("pgd:step_size=0.25base_eps", Threat("Linf", 8 / 255))
        {'name': 'pgd', 'step_size': '2/255'}
    """
    step = base_step(attack)
    if step is None:
        return attack
    factor = number(step.strip().removesuffix(BASE) or "1")
    if not isinstance(factor, float) or factor <= 0:
        raise ClasswiseError(f"step_size = {step!r}: must be a positive multiple of the recipe's radius, as 0.25{BASE}")
    radius = None if threat is None else threat.epsilon
    absolute = f"{factor!r}eps" if not isinstance(radius, float | int) or radius == 0 else _written(factor * radius)
    return {**_options(attack), "step_size": absolute}


def _options(attack: Part) -> dict[str, Any]:
    """The attack as a mapping."""
    if not isinstance(attack, str):
        return attack
    name, options = parse_spec(attack)
    return {"name": name, **options}


def _written(step: float) -> float | str:
    """A step size as recipes state it: a multiple of 1/255 as a fraction; its value is the same."""
    levels = round(step * _LEVELS)
    return f"{levels}/{_LEVELS}" if levels and step == levels / _LEVELS else step
