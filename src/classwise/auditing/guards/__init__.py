"""Guards: checks of a robustness evaluation for known pitfalls, each a named function.

After Carlini et al. (2019), "On evaluating adversarial robustness", and Athalye, Carlini and Wagner (2018). A guard
returns a warning of one sentence, why it could not decide, or None; it never changes a number. Images outside [0, 1]
are refused by the data layer. Each guard has a page under ``docs/reference/guards``.
"""

from classwise.auditing.guards.budget import GuardRun, run_guards
from classwise.auditing.guards.evidence import SAMPLE, Evidence, Guard, GuardWarning, InputScale, Probe, Undecided
from classwise.auditing.guards.table import GUARDS

__all__ = [
    "GUARDS",
    "SAMPLE",
    "Evidence",
    "Guard",
    "GuardRun",
    "GuardWarning",
    "InputScale",
    "Probe",
    "Undecided",
    "run_guards",
]
