"""Objectives: the loss of a training batch and its inner maximisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.core.settings.registry import Registry

if TYPE_CHECKING:
    from classwise.training.objectives.base import Objective

OBJECTIVES: Registry[Objective] = Registry(
    "objective",
    {
        "standard": "classwise.training.objectives.standard:Standard",
        "at": "classwise.training.objectives.adversarial:AdversarialTraining",
        "mixed": "classwise.training.objectives.adversarial:MixedAdversarialTraining",
        "trades": "classwise.training.objectives.trades:Trades",
        "trix": "classwise.training.objectives.trix:Trix",
        "mart": "classwise.training.objectives.mart:Mart",
        "fat": "classwise.training.objectives.friendly:Friendly",
        "fat-trades": "classwise.training.objectives.friendly:FriendlyTrades",
        "csr": "classwise.training.objectives.csr:ConfusionWeighted",
        "bat": "classwise.training.objectives.balanced:Balanced",
        "ard": "classwise.training.objectives.distillation:ARD",
        "rslad": "classwise.training.objectives.distillation:RSLAD",
    },
    base="classwise.training.objectives.base:Objective",
    group="classwise.objectives",
)
