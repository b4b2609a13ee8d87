"""Figures: pure functions from counts, matrices and tables to drawings."""
