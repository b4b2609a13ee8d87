"""All defences on one budget: train, audit, and write a page.

``KEEP=runs/defences SEEDS=0 OMP_NUM_THREADS=1 python -m benchmarks comparison`` skips finished runs and resumes
interrupted ones. Several processes may share the folder; each run is locked by the process that works on it.
``--report`` writes the page of the finished runs without training. METHODS=AT,TRADES selects methods,
SUITES=autoattack audits them by AutoAttack instead, and DEVICE=cuda selects the device.
"""

from benchmarks.comparison.page import report
from benchmarks.comparison.runner import run

__all__ = ["report", "run"]
