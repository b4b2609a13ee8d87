"""Benchmarks of one GPU in three stages: parity with the CPU, ceilings of the device, and speed.

``python -m benchmarks gpu`` writes ``{parity,ceilings,speed}.{md,json}`` into ``docs/results/gpu``. A stage is made of
cells of at most `cells.SECONDS` each. A finished cell is saved and not repeated, so an interrupted run is resumed.
"""
