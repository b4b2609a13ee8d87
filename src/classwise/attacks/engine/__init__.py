"""The attack engine: runs an attack over a stream of images, on one model.

Modules: `passes` (model passes), `decisions` (whether an image is correct), `rows` (columns of images under attack),
`queue` (full device batches) and `engine` (the `Engine` class).
"""

from classwise.attacks.engine.decisions import Decision
from classwise.attacks.engine.engine import BoundAttack, Engine, perturb
from classwise.attacks.engine.passes import (
    CountedForward,
    NoGradientError,
    Passes,
    expected,
    image_gradient,
    recordable,
    value_and_gradient,
)
from classwise.attacks.engine.queue import SMALLEST_BATCH
from classwise.attacks.engine.rows import AttackInputs, Finished, Job, State, rows

__all__ = [
    "SMALLEST_BATCH",
    "AttackInputs",
    "BoundAttack",
    "CountedForward",
    "Decision",
    "Engine",
    "Finished",
    "Job",
    "NoGradientError",
    "Passes",
    "State",
    "expected",
    "image_gradient",
    "perturb",
    "recordable",
    "rows",
    "value_and_gradient",
]
