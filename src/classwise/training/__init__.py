"""Training: a recipe names an objective, class schedules, averaging and selection; each is a registered part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.core.settings.registry import Registry
from classwise.training.criteria import CRITERIA
from classwise.training.objectives import OBJECTIVES
from classwise.training.reductions import REDUCTIONS
from classwise.training.schedules import SCHEDULES

if TYPE_CHECKING:
    from classwise.training.averaging import Averager
    from classwise.training.lr_schedules import LRSchedule
    from classwise.training.updates import Optimiser, Update

__all__ = [
    "AVERAGERS",
    "CRITERIA",
    "LR_SCHEDULES",
    "OBJECTIVES",
    "OPTIMISERS",
    "REDUCTIONS",
    "SCHEDULES",
    "SELECTIONS",
    "UPDATES",
]

AVERAGERS: Registry[Averager] = Registry(
    "averaging",
    {
        "none": "classwise.training.averaging:NoAverage",
        "swa": "classwise.training.averaging:SWA",
        "ema": "classwise.training.averaging:EMA",
        "fawa": "classwise.training.averaging:FAWA",
        "fawa-chart": "classwise.training.averaging:ChartFAWA",
        "fawa-iut": "classwise.training.averaging:IUTFAWA",
    },
    base="classwise.training.averaging:Averager",
)
OPTIMISERS: Registry[Optimiser] = Registry(
    "optimizer",
    {
        "sgd": "classwise.training.updates:SGD",
        "adam": "classwise.training.updates:Adam",
    },
    base="classwise.training.updates:Optimiser",
)
LR_SCHEDULES: Registry[LRSchedule] = Registry(
    "learning-rate schedule",
    {
        "constant": "classwise.training.lr_schedules:Constant",
        "step": "classwise.training.lr_schedules:MultiStep",
        "one-cycle": "classwise.training.lr_schedules:OneCycle",
        "cosine": "classwise.training.lr_schedules:Cosine",
        "cyclic": "classwise.training.lr_schedules:Cyclic",
        "three-stage": "classwise.training.lr_schedules:PiecewiseLinear",
    },
    base="classwise.training.lr_schedules:LRSchedule",
)
UPDATES: Registry[Update] = Registry(
    "update",
    {
        "plain": "classwise.training.updates:Plain",
        "awp": "classwise.training.updates:AWP",
    },
    base="classwise.training.updates:Update",
)
SELECTIONS: Registry[object] = Registry(
    "selection",
    {
        "auto": "classwise.training.selection:by_number_of_classes",
        "overall+worst": "classwise.training.selection:overall_plus_worst",
        "overall+worst-fifth": "classwise.training.selection:overall_plus_worst_fifth",
        "overall": "classwise.training.selection:overall",
        "worst": "classwise.training.selection:worst",
        "last": "classwise.training.selection:last",
        "within-error": "classwise.training.selection:within_error",
        "three-quarters": "classwise.training.selection:three_quarters",
        "fourteen-fifteenths": "classwise.training.selection:fourteen_fifteenths",
    },
    arguments=2,
    instances=("classwise.training.selection:WithinError", "classwise.training.selection:AtFraction"),
)
