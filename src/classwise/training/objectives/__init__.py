"""Objectives: the loss of a training batch and its inner maximisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.core.settings.registry import Registry

if TYPE_CHECKING:
    from classwise.training.objectives.base import Objective

OBJECTIVES: Registry[Objective] = Registry(
    "objective",
    {
        "standard": "classwise.training.objectives.adversarial:Standard",
        "at": "classwise.training.objectives.adversarial:AdversarialTraining",
        "mixed": "classwise.training.objectives.adversarial:MixedAdversarialTraining",
        "trades": "classwise.training.objectives.trades:Trades",
        "trix": "classwise.training.objectives.trades:Trix",
        "mart": "classwise.training.objectives.adversarial:Mart",
        "fat": "classwise.training.objectives.boundary:Friendly",
        "fat-trades": "classwise.training.objectives.boundary:FriendlyTrades",
        "csr": "classwise.training.objectives.trades:ConfusionWeighted",
        "bat": "classwise.training.objectives.boundary:Balanced",
        "nuat": "classwise.training.objectives.single_step:NuclearNorm",
        "fgsm-pgi": "classwise.training.objectives.single_step:PriorGuided",
        "liet": "classwise.training.objectives.single_step:LabelInformation",
        "ard": "classwise.training.objectives.distillation:ARD",
        "rslad": "classwise.training.objectives.distillation:RSLAD",
    },
    base="classwise.training.objectives.base:Objective",
    group="classwise.objectives",
)
