"""Utilities of every layer: errors, random numbers, threats, precision, registries, storage, distributed processes."""
