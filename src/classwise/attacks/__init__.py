"""Registry of attacks; each attack is a frozen dataclass of hyper-parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.core.settings.registry import Registry

if TYPE_CHECKING:
    from classwise.attacks.base import Attack

ATTACKS: Registry[Attack] = Registry(
    "attack",
    {
        "apgd-ce": "classwise.attacks.gradient.apgd:APGD",
        "apgd-dlr": "classwise.attacks.gradient.apgd:APGDDLR",
        "apgd-t": "classwise.attacks.gradient.apgd:APGDT",
        "cr": "classwise.attacks.gradient.relaxation:ConstraintRelaxation",
        "cw": "classwise.attacks.minimal.cw:CarliniWagnerLinf",
        "cw-l2": "classwise.attacks.minimal.cw:CarliniWagnerL2",
        "fab": "classwise.attacks.minimal.fab:FAB",
        "fab-t": "classwise.attacks.minimal.fab:FABTargeted",
        "difgsm": "classwise.attacks.gradient.momentum:DIFGSM",
        "fgsm": "classwise.attacks.gradient.ascent:FGSM",
        "external": "classwise.attacks.external:ExternalAttack",
        "md": "classwise.attacks.gradient.margins:MD",
        "mifgsm": "classwise.attacks.gradient.momentum:MIFGSM",
        "n-fgsm": "classwise.attacks.gradient.ascent:NFGSM",
        "nattack": "classwise.attacks.blackbox.nattack:NAttack",
        "pgd": "classwise.attacks.gradient.ascent:PGD",
        "pgd-t": "classwise.attacks.gradient.ascent:PGDT",
        "pma": "classwise.attacks.gradient.margins:PMA",
        "spatial-grid": "classwise.attacks.gradient.spatial:SpatialGrid",
        "spatial-pgd": "classwise.attacks.gradient.spatial:SpatialPGD",
        "square": "classwise.attacks.blackbox.square:Square",
        "tpgd": "classwise.attacks.gradient.ascent:TemperaturePGD",
        "transfer": "classwise.attacks.blackbox.transfer:Transfer",
    },
    base="classwise.attacks.base:Attack",
    functions="external:attack={path}",
    group="classwise.attacks",
)
"""Attacks by name; recipes and the command line also accept ``package.module:Class``."""
