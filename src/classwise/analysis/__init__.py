"""Analyses of outcomes, runs and features, and the data sets that are made from a model."""
