"""Robustness curves: the accuracy of each class as a function of the radius of the threat."""
