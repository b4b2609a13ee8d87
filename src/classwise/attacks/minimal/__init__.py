"""Minimum-norm attacks, which minimise the distance to a misclassified image: FAB, Carlini and Wagner."""
