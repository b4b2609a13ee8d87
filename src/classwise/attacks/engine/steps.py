"""`StepsLeft`: what an attack has left to do, estimated from the steps after which its images have ended so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from torch import Tensor

REPORT_SECONDS = 0.5
"""Seconds between two reports."""
_MEMORY = 0.02
"""Weight of a step in the mean duration of a step; verifications of images make the durations uneven."""


class StepsLeft:
    """Steps and seconds that an attack has left.

    The fraction of images that reach a step is the Kaplan-Meier estimate of those that have begun. No image may have
    reached the later steps yet: at least, images end there at the mean rate so far; at most, none does.

    Args:
        report: receives the seconds left, at least and at most, every `REPORT_SECONDS`.

    Example:
        >>> import torch
        >>> left = StepsLeft()
        >>> left.begin(images=4, starts=1, length=10, slots=2)
        >>> slots = torch.tensor([[0, 0], [1, 0]])
        >>> ended, hit = torch.tensor([True, False]), torch.tensor([True, False])
        >>> left.stepped(1, slots, torch.tensor([9, 9]), ended, hit)  # the first image has ended after one step
        >>> "from {:.2f} to {:.2f}".format(*left.of_an_image())
        'from 1.75 to 5.50'
    """

    def __init__(self, report: Callable[[float, float], None] | None = None) -> None:
        self._report = report
        self._images = 0

    def begin(self, images: int, starts: int, length: int, slots: int) -> None:
        """Begin a stream.

        Args:
            images: number of images.
            starts: maximum number of starts of each.
            length: maximum number of steps of a start.
            slots: number of starts that are computed at once.
        """
        self._images, self._starts, self._length, self._slots = images, starts, length, slots
        self._taken = np.full(images, -1)  # steps of each image; -1 before its first start
        self._ended, self._success = np.zeros((2, images), dtype=bool)
        self._last = self._reported = time.monotonic()
        self._seconds = self._steps = 0.0  # with less weight of earlier ones
        self._step_seconds = math.nan

    def stepped(self, steps: int, ids: Tensor, left: Tensor, ended: Tensor, hit: Tensor) -> None:
        """Note the steps of some starts.

        Args:
            steps: number of steps since the last call.
            ids: image and number of each start, int64 (N, 2), on the CPU.
            left: steps that each of them has left at most, (N,).
            ended: whether it has ended, bool (N,).
            hit: whether it has ended with an adversarial example, bool (N,).
        """
        now = time.monotonic()
        if steps:
            kept = (1 - _MEMORY) ** steps
            self._seconds, self._steps = kept * self._seconds + now - self._last, kept * self._steps + steps
            self._step_seconds = self._seconds / self._steps
        self._last = now
        due = self._report is not None and now - self._reported > REPORT_SECONDS and self._step_seconds >= 0  # not NaN
        if not (due or ended.any() or self._report is None):
            return
        (rows, starts), hits, ends = ids.numpy().T, hit.numpy(), ended.numpy()
        # Several starts of an image may run at once.
        np.maximum.at(self._taken, rows, (starts + 1) * self._length - np.maximum(left.numpy(), 0))
        self._success[rows[hits]] = True
        self._ended[rows[hits | (ends & (starts == self._starts - 1))]] = True
        if due and self._report is not None:
            self._reported = now
            self._report(*self.seconds())

    def of_an_image(self) -> tuple[float, float]:
        """Mean number of steps of an image, at least and at most."""
        low, high = (float(self._expected(beyond)[0]) for beyond in self._beyond())
        return low, high

    def seconds(self) -> tuple[float, float]:
        """Seconds left, at least and at most."""
        bounds = []
        running = (self._taken >= 0) & ~self._ended
        for beyond in self._beyond():
            expected = self._expected(beyond)
            active = expected[self._taken[running]]
            steps = active.sum() + (self._taken < 0).sum() * expected[0]
            bounds.append(self._step_seconds * max(steps / self._slots, active.max(initial=0.0)))
        return bounds[0], bounds[1]

    def _beyond(self) -> tuple[float, float]:
        """The fraction of images that go on at a step that no image has reached, at least and at most."""
        ended, taken = int(self._success.sum()), int(self._taken.clip(0).sum())
        return 1 - (ended + 1) / (taken + 1), 1.0

    def _expected(self, beyond: float) -> npt.NDArray[np.float64]:
        """Mean number of further steps of an image after 0, 1, ... steps.

        Args:
            beyond: fraction of images that go on at each step that no image has reached.
        """
        total = self._starts * self._length
        taken = self._taken[self._taken >= 0]
        reached = np.bincount(taken, minlength=total + 1)[::-1].cumsum()[::-1]  # at least so many steps
        ended = np.bincount(self._taken[self._success & self._ended], minlength=total + 1)
        # Of those that have reached step t + 1, the fraction that has not ended at it.
        on = np.where(reached[1:] > 0, 1 - ended[1:] / np.maximum(reached[1:], 1), beyond)
        survival = np.concatenate([[1.0], on.cumprod()])
        later = survival[:-1][::-1].cumsum()[::-1]
        expected = np.zeros(total + 1)
        np.divide(later, survival[:-1], out=expected[:-1], where=survival[:-1] > 0)
        return expected
