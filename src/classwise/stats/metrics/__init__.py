"""Metrics of class accuracies and confidences, as reported in the papers.

Accuracies are fractions, so `class_variance` is a fraction squared: multiply it by 10^4 for percent squared, the unit
of the papers. The accuracy of an absent class is NaN; every metric here excludes absent classes.

Example:
    >>> from classwise import metrics
    >>> accuracy = metrics.class_accuracy([0, 0, 1, 1, 2], [True, True, True, False, False], num_classes=3)
    >>> accuracy
    array([1. , 0.5, 0. ])
    >>> metrics.worst_class(accuracy)
    LowestAccuracy(label=2, accuracy=0.0)
"""

from __future__ import annotations

from classwise.stats.confusion import (
    Leakage,
    Symmetry,
    confusion,
    confusion_rates,
    misclassified,
    superclass_leakage,
    symmetry,
)
from classwise.stats.counts import frequency_thirds
from classwise.stats.metrics.asymmetry import AsymmetricPair, asymmetry_penalty, max_asymmetry
from classwise.stats.metrics.averages import (
    class_accuracy,
    overall_macro,
    overall_micro,
    robust_classes,
    vulnerable_classes,
)
from classwise.stats.metrics.confidences import class_confidence_variance, confidence_variance
from classwise.stats.metrics.discrepancy import max_class_discrepancy
from classwise.stats.metrics.harmonic import hmw, nrr
from classwise.stats.metrics.lowest import LowestAccuracy, worst_class, worst_share
from classwise.stats.metrics.targets import target_shares
from classwise.stats.metrics.trade_off import trade
from classwise.stats.metrics.variance import class_variance

__all__ = [
    "AsymmetricPair",
    "Leakage",
    "LowestAccuracy",
    "Symmetry",
    "asymmetry_penalty",
    "class_accuracy",
    "class_confidence_variance",
    "class_variance",
    "confidence_variance",
    "confusion",
    "confusion_rates",
    "frequency_thirds",
    "hmw",
    "max_asymmetry",
    "max_class_discrepancy",
    "misclassified",
    "nrr",
    "overall_macro",
    "overall_micro",
    "robust_classes",
    "superclass_leakage",
    "symmetry",
    "target_shares",
    "trade",
    "vulnerable_classes",
    "worst_class",
    "worst_share",
]
