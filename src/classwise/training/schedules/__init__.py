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
        "margins": "classwise.training.schedules.cfa:Margins",
        "dafa": "classwise.training.schedules.dafa:DAFA",
        "dafa-average": "classwise.training.schedules.dafa:AverageDAFA",
        "cfol": "classwise.training.schedules.online_learning:CFOL",
        "wat": "classwise.training.schedules.online_learning:WAT",
        "fair-tat": "classwise.training.schedules.targets:FairTAT",
        "class-weights": "classwise.training.schedules.long_tail:ClassWeights",
        "ldam": "classwise.training.schedules.long_tail:LDAM",
        "balanced-softmax": "classwise.training.schedules.long_tail:BalancedSoftmax",
        "robust-lt": "classwise.training.schedules.long_tail:RobustLT",
        "vector-beta": "classwise.training.schedules.beta:VectorBeta",
        "csr": "classwise.training.schedules.csr:ConfusionSpectrum",
        "auto-beta": "classwise.training.schedules.beta:AutoBeta",
        "critical-class": "classwise.training.schedules.long_tail:CriticalClass",
        "towards-class": "classwise.training.schedules.targets:TowardsClass",
        "lis": "classwise.training.schedules.temperature:LIS",
        "fair-ard": "classwise.training.schedules.distillation:FairARD",
        "absld": "classwise.training.schedules.distillation:ABSLD",
        "cmp": "classwise.training.schedules.temperature:CMP",
    },
    base="classwise.training.schedules.base:ClassSchedule",
    group="classwise.schedules",
)
