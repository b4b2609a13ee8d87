"""Checks that loss and weights are finite, and the likely cause where they are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError, unknown
from classwise.training.classes import ClassSettings
from classwise.training.folder import Run
from classwise.training.recipe import Parts, Recipe

OnNan = Literal["stop", "continue"]
"""What a training does when its loss or weights are not finite: stop with an error, or continue and record it."""

STEPS_BETWEEN_CHECKS = 50
"""On a GPU the loss is read after so many steps, at the end of an epoch and before a checkpoint; on a CPU each step."""

_SMALLEST_EPS = 1e-12


def parse_on_nan(name: str) -> OnNan:
    """The policy of that name.

    Raises:
        ClasswiseError: if there is none.
    """
    for policy in get_args(OnNan):
        if name == policy:
            chosen: OnNan = policy
            return chosen
    raise unknown("on_nan", name, get_args(OnNan))


class FiniteLossCheck:
    """Find the first step whose loss is not finite, without a synchronisation of the device in each step.

    Args:
        device: of the losses.
    """

    def __init__(self, device: torch.device) -> None:
        self._every = 1 if device.type == "cpu" else STEPS_BETWEEN_CHECKS
        self._first = torch.full((), -1, dtype=torch.int64, device=device)

    def add(self, losses: Sequence[Tensor], step: int) -> None:
        """Look at the losses () of a step, on the device."""
        bad = ~torch.stack([loss.detach().isfinite().all() for loss in losses]).all()
        self._first.masked_fill_(bad & (self._first < 0), step)

    def due(self, step: int) -> bool:
        """Whether `first` is to be read after this step."""
        return (step + 1) % self._every == 0

    def first(self) -> int | None:
        """The first step since the last call whose loss was not finite; this waits for the device."""
        step = int(self._first)
        self._first.fill_(-1)
        return None if step < 0 else step


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every number is finite; this waits for the device."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors if tensor.is_floating_point())


def likely_cause(recipe: Recipe, parts: Parts, settings: ClassSettings) -> str:
    """What to change, in a clause: class settings that are not finite, or what makes finite ones overflow."""
    for field in dataclasses.fields(settings):
        value: Tensor | None = getattr(settings, field.name)
        if value is not None and not all_finite([value]):
            return f"the class setting {field.name} is not finite, so check the schedules and the threat"
    eps = getattr(parts.optimizer, "eps", None)
    if eps is not None and eps < _SMALLEST_EPS:
        return f"the likely cause is optimizer.eps = {eps:g}, which is too small for float32"
    rate = f"the likely cause is the learning rate, optimizer.lr = {parts.optimizer.lr:g}"
    if recipe.precision.dtype != "float32":
        return f"{rate}, or an overflow in {recipe.precision.dtype} (compute.dtype = float32 avoids it)"
    return rate


def not_finite_error(what: str, place: str, cause: str, run: Run) -> ClasswiseError:
    """The error that stops a training.

    Args:
        what: ``"loss"`` or ``"weights"``.
        place: the epoch and the step, in words.
        cause: as `likely_cause` returns it.
        run: its folder.
    """
    verb = "is" if what == "loss" else "are"
    saved = "no checkpoint was written"
    if run.state_file.is_file():
        saved = f"the last finite checkpoint is in {run.path}"
    advice = "train in another folder with other settings, or experiment with on-nan continue"
    return ClasswiseError(f"the {what} {verb} not finite at {place}; {cause}; {saved}; {advice}")
