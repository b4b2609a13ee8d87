"""Checks that the loss and the weights are finite, and the likely cause if they are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError, unknown
from classwise.training.classes.signals import ClassSettings
from classwise.training.folder import Run
from classwise.training.recipe import Parts, Recipe

OnNan = Literal["stop", "continue"]
"""The policy if the loss or the weights are not finite: stop with an error, or log an event and continue."""

STEPS_BETWEEN_CHECKS = 50
"""Steps between checks of the loss on a GPU, which also happen at the end of an epoch and before a checkpoint.

On a CPU the loss is checked in each step.
"""

_SMALLEST_EPS = 1e-12


def parse_on_nan(name: str) -> OnNan:
    """Return the policy with this name.

    Raises:
        ClasswiseError: if the name is unknown.
    """
    for policy in get_args(OnNan):
        if name == policy:
            chosen: OnNan = policy
            return chosen
    raise unknown("on_nan", name, get_args(OnNan))


class FiniteLossCheck:
    """Find the first step with a non-finite loss, without synchronising with the device in each step.

    Args:
        device: the device of the losses.
    """

    def __init__(self, device: torch.device) -> None:
        self._every = 1 if device.type == "cpu" else STEPS_BETWEEN_CHECKS
        self._first = torch.full((), -1, dtype=torch.int64, device=device)

    def add(self, losses: Sequence[Tensor], step: int) -> None:
        """Add the losses () of a step, on the device."""
        bad = ~torch.stack([loss.detach().isfinite().all() for loss in losses]).all()
        self._first.masked_fill_(bad & (self._first < 0), step)

    def due(self, step: int) -> bool:
        """Return whether `first` must be called after this step."""
        return (step + 1) % self._every == 0

    def first(self) -> int | None:
        """Return the first step with a non-finite loss since the last call, or None. Synchronises with the device."""
        step = int(self._first)
        self._first.fill_(-1)
        return None if step < 0 else step


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all values are finite. Synchronises with the device once."""
    flags = [tensor.isfinite().all() for tensor in tensors if tensor.is_floating_point()]
    return not flags or bool(torch.stack(flags).all())


def likely_cause(recipe: Recipe, parts: Parts, settings: ClassSettings) -> str:
    """Return the likely cause as text: a non-finite class setting, Adam's eps, the learning rate or the precision."""
    for field in dataclasses.fields(settings):
        value: Tensor | None = getattr(settings, field.name)
        if value is not None and not all_finite([value]):
            return f"the class setting {field.name} is not finite; check the schedules and the threat"
    eps = getattr(parts.optimizer, "eps", None)
    if eps is not None and eps < _SMALLEST_EPS:
        return f"the likely cause is optimizer.eps = {eps:g}, which is too small for float32"
    rate = f"the likely cause is the learning rate, optimizer.lr = {parts.optimizer.lr:g}"
    if recipe.precision.dtype != "float32":
        return f"{rate}, or an overflow in {recipe.precision.dtype} (precision.dtype = float32 avoids it)"
    return rate


def not_finite_error(what: str, place: str, cause: str, run: Run) -> ClasswiseError:
    """Return the error for a non-finite loss or non-finite weights.

    Args:
        what: ``"loss"`` or ``"weights"``.
        place: the epoch and the step, as text.
        cause: the likely cause, see `likely_cause`.
        run: the run.
    """
    verb = "is" if what == "loss" else "are"
    saved = "no checkpoint was written"
    if run.state_file.is_file():
        saved = f"the last finite checkpoint is in {run.path}"
    advice = "change the settings and use a new folder, or set on-nan to continue"
    return ClasswiseError(f"the {what} {verb} not finite at {place}; {cause}; {saved}; {advice}")
