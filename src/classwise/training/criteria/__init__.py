"""Criteria: classification losses of logits and labels, used by the objectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.core.settings.registry import Registry

if TYPE_CHECKING:
    from classwise.training.criteria.base import Criterion

CRITERIA: Registry[Criterion] = Registry(
    "criterion",
    {
        "softmax": "classwise.training.criteria.softmax:Softmax",
        "he": "classwise.training.criteria.softmax:Hypersphere",
        "focal": "classwise.training.criteria.softmax:Focal",
        "label-smoothing": "classwise.training.criteria.softmax:LabelSmoothing",
        "function": "classwise.training.criteria.softmax:Function",
    },
    base="classwise.training.criteria.base:Criterion",
    arguments=2,
)
