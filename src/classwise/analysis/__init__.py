"""Analyses of the papers: functions of outcomes, run folders or saved tensors. Only `homing` runs an attack.

Each module contains one analysis under its registered name: the function, its result type (a frozen
`classwise.analysis.base.AnalysisResult` with a ``table``) and the ``figure()`` of the result. Two further modules are
shared: `epochs` reads the epochs of a run as tables, and `feature_sets` generates data sets from a model.
"""

from __future__ import annotations

from classwise.core.settings.registry import Registry

ANALYSES: Registry[object] = Registry(
    "analysis",
    {
        "confusion": "classwise.analysis.confusion:confused",
        "homing": "classwise.analysis.homing:homing",
        "pairs": "classwise.analysis.pairs:pairs",
        "consistency": "classwise.analysis.consistency:ranked_alike",
        "drop": "classwise.analysis.drop:drop",
        "spread": "classwise.analysis.spread:spread",
        "gap": "classwise.analysis.gap:gap",
        "norm-link": "classwise.analysis.norm_link:norm_link",
        "smoothness": "classwise.analysis.smoothness:smoothness",
        "sensitivity": "classwise.analysis.sensitivity:sensitivity",
        "trend": "classwise.analysis.trend:trend",
        "fluctuation": "classwise.analysis.fluctuation:fluctuation",
        "sweep": "classwise.analysis.sweep:sweep",
        "ablation": "classwise.analysis.ablation:ablation",
        "steps": "classwise.analysis.steps:steps_of",
        "similarity": "classwise.analysis.similarity:similarity",
        "extremes": "classwise.analysis.extremes:extremes",
        "embedding": "classwise.analysis.embedding:embedding",
    },
)
"""Names of the analyses, in the order of the papers."""
