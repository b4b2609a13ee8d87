"""Attacks that minimise the distance to a misclassified image: FAB, Carlini and Wagner."""
