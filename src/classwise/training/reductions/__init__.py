"""Reductions of the terms of a training step to a scalar loss."""

from __future__ import annotations

from classwise.core.settings.registry import Registry

REDUCTIONS: Registry[object] = Registry(
    "reduction",
    {
        "mean": "classwise.training.reductions.base:mean",
        "normalised": "classwise.training.reductions.base:normalised",
        "faal": "classwise.training.reductions.worst_case:FAAL",
        "codat": "classwise.training.reductions.worst_case:Codat",
        "logit-similarity": "classwise.training.reductions.penalties:LogitSimilarity",
        "asymmetry": "classwise.training.reductions.penalties:Asymmetry",
    },
    arguments=3,
)
