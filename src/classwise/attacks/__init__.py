"""Attacks: each a frozen dataclass of hyper-parameters, one line here and one class in a family's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.registry import Registry

if TYPE_CHECKING:
    from classwise.attacks.base import Attack

ATTACKS: Registry[Attack] = Registry(
    "attack",
    {
        "apgd-ce": "classwise.attacks.apgd:APGD",
        "apgd-dlr": "classwise.attacks.apgd:APGDDLR",
        "apgd-t": "classwise.attacks.apgd:APGDT",
        "cw": "classwise.attacks.cw:CarliniWagnerLinf",
        "cw-l2": "classwise.attacks.cw:CarliniWagnerL2",
        "fab": "classwise.attacks.fab:FAB",
        "fab-t": "classwise.attacks.fab:FABTargeted",
        "difgsm": "classwise.attacks.momentum:DIFGSM",
        "fgsm": "classwise.attacks.ascent:FGSM",
        "foreign": "classwise.attacks.foreign:Foreign",
        "md": "classwise.attacks.margins:MD",
        "mifgsm": "classwise.attacks.momentum:MIFGSM",
        "n-fgsm": "classwise.attacks.ascent:NFGSM",
        "nattack": "classwise.attacks.nattack:NAttack",
        "pgd": "classwise.attacks.ascent:PGD",
        "pgd-t": "classwise.attacks.ascent:PGDT",
        "pma": "classwise.attacks.margins:PMA",
        "square": "classwise.attacks.square:Square",
        "tpgd": "classwise.attacks.ascent:TemperaturePGD",
        "transfer": "classwise.attacks.transfer:Transfer",
    },
    base="classwise.attacks.base:Attack",
)
"""Every attack by name; a recipe or the command line may also say ``package.module:Class``."""
