"""Class counts, metrics, confidence intervals and tests; depends on numpy and scipy only.

Accuracies are fractions. A class without images is absent: its accuracy is NaN, and every metric, interval and test
excludes it.
"""

from __future__ import annotations

from typing import Any, Literal

from classwise.core.settings.registry import Registry

Unit = Literal["fraction", "fraction squared", "number"]
"""The unit of a metric; fractions are printed in percent."""
_OWN = {
    "overall": "averages:OVERALL",
    "macro": "averages:MACRO",
    "worst": "lowest:WORST",
    "worst20": "lowest:WORST20",
    "cv": "variance:CV",
    "mcd": "discrepancy:MCD",
    "nrr": "harmonic:NRR",
    "hmw": "harmonic:HMW",
    "asymmetry": "asymmetry:ASYMMETRY",
    "target_share": "targets:TARGET_SHARE",
}
OWN_METRICS = tuple(_OWN)
"""The metrics of `classwise.stats.metrics`, in the order of data frames."""
METRICS: Registry[Any] = Registry(
    "metric",
    {name: f"classwise.stats.metrics.{path}" for name, path in _OWN.items()},
    group="classwise.metrics",
)
"""Metrics by name, in the order of data frames; installed packages add theirs (`classwise.stats.registry.metric`)."""
