"""Guards: what can be wrong with an evaluation of robustness, each a function with a name.

After Carlini et al. (2019), "On evaluating adversarial robustness", and Athalye, Carlini and Wagner (2018). A guard
that finds something says so in one sentence; it never changes a number. Images outside [0, 1] are refused by the data
layer. Each guard has a page under ``docs/guards``.
"""

from classwise.auditing.guards.evidence import SAMPLE, Evidence, Found, Guard, Probe, Scale
from classwise.auditing.guards.table import GUARDS, run_guards

__all__ = ["GUARDS", "SAMPLE", "Evidence", "Found", "Guard", "Probe", "Scale", "run_guards"]
