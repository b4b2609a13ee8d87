"""The attack engine: runs an attack over a stream of images, on one model.

Modules: `passes` (model passes), `decisions` (whether an image is correct), `rows` (columns of images under attack),
`starts` (starts of an image side by side), `steps` (what is left to do), `queue` (full device batches) and `engine`
(the `Engine` class).
"""

from classwise.attacks.engine.attack import AttackInputs, State
from classwise.attacks.engine.decisions import Decision
from classwise.attacks.engine.engine import Engine
from classwise.attacks.engine.passes import (
    NARROWEST,
    CountedForward,
    ImageGradients,
    NoGradientError,
    Passes,
    expected,
    recordable,
    value_and_gradient,
)
from classwise.attacks.engine.queue import SMALLEST_BATCH
from classwise.attacks.engine.rows import Finished, Job, rows
from classwise.attacks.engine.steps import StepsLeft

__all__ = [
    "NARROWEST",
    "SMALLEST_BATCH",
    "AttackInputs",
    "CountedForward",
    "Decision",
    "Engine",
    "Finished",
    "ImageGradients",
    "Job",
    "NoGradientError",
    "Passes",
    "State",
    "StepsLeft",
    "expected",
    "recordable",
    "rows",
    "value_and_gradient",
]
