"""The attack engine: runs an attack over a stream of images, on one model.

Modules: `passes` (model passes), `rows` (columns of images under attack), `queue` (full device batches) and `engine`
(the `Engine` class).
"""

from classwise.attacks.engine.engine import BoundAttack, Engine, perturb
from classwise.attacks.engine.passes import (
    CountedForward,
    NoGradientError,
    Passes,
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
    "Engine",
    "Finished",
    "Job",
    "NoGradientError",
    "Passes",
    "State",
    "image_gradient",
    "perturb",
    "recordable",
    "rows",
    "value_and_gradient",
]
