"""Experiments, one module for each subject; the catalogue maps items to them."""
