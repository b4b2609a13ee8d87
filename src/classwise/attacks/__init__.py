"""Attacks: each a frozen dataclass of hyper-parameters, one line here and one class in a family's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.registry import Registry

if TYPE_CHECKING:
    from classwise.attacks.base import Attack

ATTACKS: Registry[Attack] = Registry(
    "attack",
    {
        "fgsm": "classwise.attacks.ascent:FGSM",
        "nattack": "classwise.attacks.nattack:NAttack",
        "pgd": "classwise.attacks.ascent:PGD",
        "square": "classwise.attacks.square:Square",
        "tpgd": "classwise.attacks.ascent:TemperaturePGD",
    },
)
"""Every attack by name; a recipe or the command line may also say ``package.module:Class``."""
