"""Which slots of a batch have ended: read from the device at once, or on a GPU one poll late."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.core.transfers import Readback


class EndedSlots:
    """The slots whose rows have ended, and an upper bound of the steps that the others have left.

    On a CPU the flags are read at once. On a GPU that would leave it without work at every poll, so there a poll reads
    the flags of the poll before it, while the GPU computes. Rows that have ended do not change, so their results do not
    depend on the time at which they are read.

    Args:
        size: number of slots.
        length: maximum number of steps of a row.
        late: whether to read one poll late.
    """

    def __init__(self, size: int, length: int, *, late: bool) -> None:
        self._length = length
        self._late = late
        self._left = torch.zeros(size, dtype=torch.int64)
        self._reading: Readback | None = None
        self._places = torch.arange(size)  # position at the time of the copy of each slot
        self._watched = torch.zeros(size, dtype=torch.bool)  # the slots whose row is that of the copy

    def steps_left(self, live: Tensor) -> int:
        """Steps that at least one live row may have left; 0 if all have ended and only remain to be read."""
        left = int(self._left[live].max())
        return left if left > 0 or bool((self._watched & live).any()) else 1

    def filled(self, slots: Tensor) -> None:
        """Note that these slots have new rows."""
        self._left[slots] = self._length

    def moved(self, places: Tensor, live: Tensor) -> None:
        """Note that slot i has the row of slot ``places[i]``, if ``live[i]``; the number of slots may change."""
        self._left, self._places = self._left[places], self._places[places]
        self._watched = self._watched[places] & live

    def poll(self, ended: Tensor, live: Tensor, steps: int) -> Tensor:
        """The live slots known to have ended, bool (slots,) on the CPU.

        Args:
            ended: whether each row has ended, bool (slots,) on the device.
            live: the slots with a row, bool (slots,) on the CPU.
            steps: steps since the last poll; 0: `ended` has not changed since.
        """
        self._left -= steps
        if not self._late:
            return live & ended.cpu()
        leaving = live & (self._left <= 0)  # these have ended for certain
        if self._reading is not None:
            leaving |= self._watched & self._reading.values()["ended"][self._places]
        self._reading = Readback({"ended": ended}) if steps else None
        self._places = torch.arange(len(live))
        self._watched = live & ~leaving if steps else torch.zeros_like(live)
        return leaving
