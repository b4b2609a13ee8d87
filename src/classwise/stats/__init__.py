"""Class counts, metrics, intervals and tests: numpy and scipy only.

Accuracies are fractions. A class without images is absent: its accuracy is NaN, and every metric, interval and test
leaves it out.
"""
