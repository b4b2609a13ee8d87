"""Class schedules: per-class settings that vary during training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.core.settings.registry import Registry

if TYPE_CHECKING:
    from classwise.training.schedules.base import ClassSchedule

SCHEDULES: Registry[ClassSchedule] = Registry(
    "schedule",
    {
        "ccm": "classwise.training.schedules.cfa:CCM",
        "ccr": "classwise.training.schedules.cfa:CCR",
        "frl": "classwise.training.schedules.frl:FRL",
        "margins": "classwise.training.schedules.margins:Margins",
        "dafa": "classwise.training.schedules.dafa:DAFA",
        "dafa-average": "classwise.training.schedules.dafa:AverageDAFA",
        "cfol": "classwise.training.schedules.cfol:CFOL",
        "wat": "classwise.training.schedules.wat:WAT",
        "fair-tat": "classwise.training.schedules.fair_tat:FairTAT",
        "class-weights": "classwise.training.schedules.long_tail:ClassWeights",
        "ldam": "classwise.training.schedules.ldam:LDAM",
        "vector-beta": "classwise.training.schedules.vector_beta:VectorBeta",
        "csr": "classwise.training.schedules.csr:ConfusionSpectrum",
        "auto-beta": "classwise.training.schedules.auto_beta:AutoBeta",
        "critical-class": "classwise.training.schedules.critical:CriticalClass",
        "towards-class": "classwise.training.schedules.critical:TowardsClass",
        "lis": "classwise.training.schedules.temperature:LIS",
        "fair-ard": "classwise.training.schedules.fair_ard:FairARD",
        "absld": "classwise.training.schedules.absld:ABSLD",
        "cmp": "classwise.training.schedules.temperature:CMP",
    },
    base="classwise.training.schedules.base:ClassSchedule",
    group="classwise.schedules",
)
