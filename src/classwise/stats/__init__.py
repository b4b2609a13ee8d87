"""Class counts, metrics, confidence intervals and tests; depends on numpy and scipy only.

Accuracies are fractions. A class without images is absent: its accuracy is NaN, and every metric, interval and test
excludes it.
"""
