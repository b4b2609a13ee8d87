"""Small inputs for results computed by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from classwise.core.compute.precision import Forward
from classwise.core.compute.rng import CounterRNG
from classwise.threat.ball import Threat
from classwise.training.averaging import Average
from classwise.training.classes.signals import ClassSettings
from classwise.training.objectives.base import Objective, TrainingBatch
from classwise.training.schedules.base import Classes

NAN = math.nan
EPSILON = 8 / 255
CONFIDENCE = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [0.1, 0.1, 0.8]])
"""The mean softmax of each of three classes."""


def classes(count: int) -> Classes:
    return Classes(tuple(f"class {label}" for label in range(count)), torch.full((count,), 5))


def constants(count: int) -> ClassSettings:
    return ClassSettings(epsilon=torch.full((count,), EPSILON), beta=torch.full((count,), 6.0))


def close(values: Tensor | None, expected: list[Any], tolerance: float = 1e-6) -> bool:
    """Whether a tensor has the expected values, which may be nested lists."""
    assert values is not None
    return torch.allclose(values.float(), torch.tensor(expected, dtype=torch.float32), atol=tolerance)


def event_of(state: Average) -> dict[str, Any]:
    """The event of the last epoch."""
    assert state.event is not None
    return state.event


def batch_of(y: Tensor) -> TrainingBatch:
    return TrainingBatch(torch.zeros(len(y), 1, 1, 1), y, torch.arange(len(y)), Threat("Linf", 0.1))


def remembering(
    objective: Objective, model: Forward, batch: TrainingBatch, count: int, settings: ClassSettings | None = None
) -> TrainingBatch:
    """The batch of all images with a new memory of the objective, before the second step of a run."""
    memory = objective.memory(len(batch.x), batch.x.shape[1:], count)
    batch = dataclasses.replace(batch, memory=memory, memory_rows=torch.arange(len(batch.x)))
    for step in range(2):
        objective.before_step(model, batch, settings or ClassSettings(), step, CounterRNG(0))
    return batch
