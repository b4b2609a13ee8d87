"""Which slots of a batch have ended: read from the device at once, or on a GPU one poll late."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from classwise.core.compute.transfers import HostCopy


class EndedSlots:
    """The ids of the rows in the slots, which of them have ended, and how many steps the others have left at most.

    On a CPU the flags are read at once. On a GPU that would leave it without work at every poll, so there a poll reads
    the flags of the poll before it, while the GPU computes. Rows that have ended do not change, so their results do not
    depend on the time at which they are read.

    Args:
        size: number of slots.
        length: maximum number of steps of a row.
        late: whether to read one poll late.

    Attributes:
        ids: the column ``id`` of the rows in the slots, int64 (slots, 2).
        left: steps that the rows have left at most, int64 (slots,).
    """

    def __init__(self, size: int, length: int, *, late: bool) -> None:
        self._length = length
        self._late = late
        self.ids = torch.zeros(size, 2, dtype=torch.int64)
        self.left = torch.zeros(size, dtype=torch.int64)
        self._reading: HostCopy | None = None
        self._places = torch.arange(size)  # position at the time of the copy of each slot
        self._watched = torch.zeros(size, dtype=torch.bool)  # the slots whose row is that of the copy

    def steps_left(self, live: Tensor) -> int:
        """Steps that at least one live row may have left; 0 if all have ended and only remain to be read."""
        left = int(self.left[live].max())
        return left if left > 0 or bool((self._watched & live).any()) else 1

    def filled(self, slots: Tensor, ids: Tensor) -> None:
        """Note that these slots have new rows."""
        self.left[slots] = self._length
        self.ids[slots] = ids

    def emptied(self, slots: Tensor) -> None:
        """Note that the rows of these slots have left before they ended."""
        self._watched[slots] = False

    def moved(self, places: Tensor, live: Tensor) -> None:
        """Note that slot i has the row of slot ``places[i]``, if ``live[i]``; the number of slots may change."""
        self.ids, self.left, self._places = self.ids[places], self.left[places], self._places[places]
        self._watched = self._watched[places] & live

    def poll(self, flags: Mapping[str, Tensor], live: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """The live slots known to have ended, and those of them known to have a candidate; bool (slots,) on the CPU.

        Args:
            flags: the columns ``ended`` and ``hit`` (whether there is a candidate), bool (slots,) on the device.
            live: the slots with a row, bool (slots,) on the CPU.
            steps: steps since the last poll; 0: the flags have not changed since.
        """
        flags = {name: flags[name] for name in ("ended", "hit")}
        self.left -= steps
        if not self._late:
            leaving = live & flags["ended"].cpu()
            return leaving, leaving & flags["hit"].cpu()
        leaving, hit = live & (self.left <= 0), torch.zeros_like(live)  # these have ended for certain
        if self._reading is not None:
            read = {name: self._watched & flag[self._places] for name, flag in self._reading.content().items()}
            leaving, hit = leaving | read["ended"], read["ended"] & read["hit"]
        self._reading = HostCopy(flags) if steps else None
        self._places = torch.arange(len(live))
        self._watched = live & ~leaving if steps else torch.zeros_like(live)
        return leaving, hit
