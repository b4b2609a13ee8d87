"""Parity, tests and benchmarks of one GPU: ``python -m benchmarks.gpu``.

A stage is made of cells: checks, tests or measurements. A finished cell is written at once into ``results.json`` and
``results.md`` and not repeated, so that the work may be done in several calls, each on a machine of its own.
"""
