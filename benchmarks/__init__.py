"""Benchmarks: paired runs in one process against other libraries or a baseline, with medians and ratios."""
