"""Comparisons of audits of the same images, and the thresholds that fail a build."""
