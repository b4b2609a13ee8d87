"""Analyses of the papers: functions of outcomes, run folders or kept tensors. They never attack, but for homing.

Each returns a small frozen `classwise.analysis.base.Finding`, with a table of everything that it says; the figure of a
finding is drawn by `classwise.report.analyses.figure`. Beside them: `feature_sets`, data sets made from a model.
"""

from __future__ import annotations

from classwise.registry import Registry

ANALYSES: Registry[object] = Registry(
    "analysis",
    {
        "confusion": "classwise.analysis.confusion:confused",
        "homing": "classwise.analysis.homing:homing",
        "pairs": "classwise.analysis.pairs:pairs",
        "consistency": "classwise.analysis.consistency:ranked_alike",
        "drop": "classwise.analysis.strength:drop",
        "spread": "classwise.analysis.spread:spread",
        "gap": "classwise.analysis.gap:gap",
        "norm-link": "classwise.analysis.norms:norm_link",
        "smoothness": "classwise.analysis.smoothness:smoothness",
        "sensitivity": "classwise.analysis.sensitivity:sensitivity",
        "trend": "classwise.analysis.trends:trend",
        "fluctuation": "classwise.analysis.trends:fluctuation",
        "sweep": "classwise.analysis.sweeps:sweep",
        "ablation": "classwise.analysis.temperatures:ablation",
        "steps": "classwise.analysis.steps:steps_of",
        "similarity": "classwise.analysis.similarity:similarity",
        "extremes": "classwise.analysis.extremes:extremes",
        "embedding": "classwise.analysis.embedding:embedding",
    },
)
"""Names of the analyses, in the order of the papers."""
