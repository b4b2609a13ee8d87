"""Every defence on one budget: trains, audits, and writes ``docs/results/defences.md``.

``KEEP=runs/defences SEEDS=0 OMP_NUM_THREADS=1 python -m benchmarks comparison``: what is finished is skipped, what was
interrupted goes on; several processes may share the folder, each takes what no other is at. ``--report`` writes the
page from what is there, without training. METHODS=AT,TRADES takes a part; AUTOATTACK=AT,TRADES audits those by
AutoAttack too; DEVICE=cuda takes another device.
"""

from benchmarks.comparison.page import report
from benchmarks.comparison.runner import run

__all__ = ["report", "run"]
