"""Comparisons of audits of the same images, and the thresholds on their changes."""
