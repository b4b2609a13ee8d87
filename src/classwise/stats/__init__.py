"""Class counts, metrics, confidence intervals and tests; depends on numpy and scipy only.

Accuracies are fractions. A class without images is absent: its accuracy is NaN, and every metric, interval and test
excludes it.
"""

from __future__ import annotations

from typing import Literal

Unit = Literal["fraction", "fraction squared", "number"]
"""The unit of a metric; fractions are printed in percent."""
OWN_METRICS = ("overall", "macro", "worst", "worst20", "cv", "mcd", "nrr", "hmw", "asymmetry", "target_share")
"""The metrics that `classwise.stats.metric` defines, in the order of data frames."""
