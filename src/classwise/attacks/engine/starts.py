"""The starts of the images under attack: which may run, and the outcome of an image from those of its starts.

A start depends only on its image and its number, so starts of one image may run side by side: later ones begin in
unused slots before the earlier ones have failed. The outcome is as if they had run one after the other: starts are
merged in their order, and those after the first success are dropped.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from classwise.attacks.engine.attack import Attack
from classwise.attacks.engine.rows import Columns, choose, join, take

_OUTCOME = ("best_x", "best_logits", "best_prediction", "best_repeats", "best_margin", "best_iteration")
"""Columns of an image verified in float32, besides ``success``."""


@dataclass
class _Image:
    """The starts of one image, numbered from 0.

    Args:
        starts: their number, up to the first known success.
        begun: number of starts that have begun.
        merged: number of starts that have ended and whose outcomes were merged.
        candidates: starts with a candidate that is not verified yet.
    """

    starts: int
    begun: int = 1
    merged: int = 0
    candidates: set[int] = field(default_factory=set)

    @property
    def allowed(self) -> int:
        """Number of starts that may run: those after a candidate wait for its verification."""
        return min(self.starts, min(self.candidates) + 1) if self.candidates else self.starts


class Starts:
    """The starts of all images under attack: a ledger on the host, and outcomes of ended starts on the device.

    A start is identified by the column ``id``: row of its image and number of the start, int64 (N, 2), on the CPU.

    Args:
        starts: maximum number of starts per image.
        attack: the attack.
        early_stop: whether an image is finished at its first success also if the attack minimises a column.
        confirms: whether the whole state of ended starts is needed, for `Attack.confirm`; else its records are.
    """

    def __init__(self, starts: int, attack: Attack, *, early_stop: bool, confirms: bool) -> None:
        self._starts = starts
        self._minimises = f"state.{attack.minimises}" if attack.minimises else ""
        self._run_all = bool(attack.minimises) and not early_stop
        self._records = {self._minimises, *(f"state.{name}" for name in attack.records)}
        self._confirms = confirms
        self._images: dict[int, _Image] = {}
        self._held: Columns = {}  # of each image the merged outcome, and those after a start that has not ended

    @property
    def held(self) -> int:
        """Number of outcomes on the device."""
        return len(self._held["id"]) if self._held else 0

    def begin(self, ids: Tensor) -> None:
        """Note that the first starts of new images have begun."""
        self._images |= {row: _Image(self._starts) for row in ids[:, 0].tolist()}

    def begin_early(self, running: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Begin up to ``count`` further starts of images with running ones, first of those with the fewest.

        Args:
            running: the ids of the running starts.
            count: maximum number of starts.

        Returns:
            For each start, the position of one of the same image in ``running``, (n,), and its id, (n, 2).
        """
        rows = running[:, 0].tolist()
        position = {row: place for place, row in enumerate(rows)}
        fewest = [(number, row) for row, number in Counter(rows).items()]
        heapq.heapify(fewest)
        begun: list[tuple[int, int]] = []
        while fewest and len(begun) < count:
            number, row = heapq.heappop(fewest)
            image = self._images[row]
            if image.begun < image.allowed:
                begun.append((row, image.begun))
                image.begun += 1
                heapq.heappush(fewest, (number + 1, row))
        return _integers([position[row] for row, _ in begun]), _integers(begun).view(-1, 2)

    def may_run(self, ids: Tensor) -> Tensor:
        """Whether no earlier start of the image has succeeded or has a candidate, bool (N,)."""
        return _mask(row in self._images and start < self._images[row].allowed for row, start in ids.tolist())

    def needed(self, ids: Tensor) -> Tensor:
        """Whether no earlier start of the image has succeeded, bool (N,)."""
        return _mask(row in self._images and start < self._images[row].starts for row, start in ids.tolist())

    def set_candidates(self, ids: Tensor) -> None:
        """Note that these starts have a candidate."""
        for row, start in ids.tolist():
            self._images[row].candidates.add(start)

    def clear_candidates(self, ids: Tensor) -> None:
        """Note that these starts have no candidate, or that it is verified."""
        for row, start in ids.tolist():
            self._images[row].candidates.discard(start)

    def end(self, rows: Columns, success: Tensor) -> Columns:
        """End starts, and merge their outcomes with those of the earlier starts of their images.

        Args:
            rows: the rows of the starts.
            success: whether each has succeeded, bool (N,) on the CPU.

        Returns:
            The rows of finished images, with their outcomes.
        """
        self.clear_candidates(rows["id"])
        place = {row: number for number, row in enumerate(rows["id"][:, 0].tolist())}
        images = {row: self._images[row] for row in place}
        if not self._run_all:
            for row, start in rows["id"][success].tolist():
                images[row].starts = min(images[row].starts, start + 1)
        names = [name for name in rows if name in self._records or (self._confirms and name.startswith("state."))]
        ended = {name: rows[name] for name in ("id", "row", "success", *_OUTCOME, "forwards", "backwards", *names)}
        self._held = join([self._held, ended]) if self._held else ended
        self._held = take(self._held, self.needed(self._held["id"]).nonzero().squeeze(1))
        self._merge(images)
        finished = [row for row, image in images.items() if image.merged == image.starts]
        outcomes = self._pop([(row, images[row].merged - 1) for row in finished])
        for row in finished:
            del self._images[row]
        return take(rows, _integers([place[row] for row in finished])) | outcomes

    def next(self, rows: Columns) -> Columns:
        """Begin the next starts of the images of ended ones that are not finished and have no start under way.

        Args:
            rows: the rows of the ended starts.

        Returns:
            Rows of these images, with the ids of the next starts.
        """
        place = {row: number for number, row in enumerate(rows["id"][:, 0].tolist()) if row in self._images}
        idle = [row for row in place if self._images[row].merged == self._images[row].begun]
        ids = [(row, self._images[row].begun) for row in idle]
        for row in idle:
            self._images[row].begun += 1
        return take(rows, _integers([place[row] for row in idle])) | {"id": _integers(ids).view(-1, 2)}

    def _merge(self, images: dict[int, _Image]) -> None:
        """Merge the outcomes held of images in the order of their starts, up to the first that has not ended."""
        while True:
            places, pairs, advanced = self._places(), list[tuple[int, int]](), False
            for row, image in images.items():
                if (row, image.merged) in places:
                    if image.merged:
                        pairs.append((places[row, image.merged - 1], places[row, image.merged]))
                    image.merged += 1
                    advanced = True
            if not advanced:
                return
            if pairs:
                first, second = (take(self._held, _integers(list(side))) for side in zip(*pairs, strict=True))
                rest = self._without({place for pair in pairs for place in pair})
                self._held = join([rest, self._merged(first, second)])

    def _merged(self, first: Columns, second: Columns) -> Columns:
        """The outcomes of earlier starts, merged with those of the next ones."""
        merged = dict(second)  # other columns, such as the state's, are those of the last start
        nearer = None
        if self._minimises:
            nearer = second[self._minimises] < first[self._minimises]
            states = [name for name in first if name.startswith("state.")]
            merged |= {name: choose(nearer, second[name], first[name]) for name in states}
        added = {"forwards", "backwards", "state.zero_gradients"} & first.keys()
        merged |= {name: first[name] + second[name] for name in added}
        return merged | better(first, second, nearer)

    def _pop(self, ids: list[tuple[int, int]]) -> Columns:
        """Remove and return outcomes."""
        places = self._places()
        chosen = [places[key] for key in ids]
        outcomes, self._held = take(self._held, _integers(chosen)), self._without(set(chosen))
        return outcomes

    def _places(self) -> dict[tuple[int, int], int]:
        """The positions of the outcomes held, by id."""
        return {(row, start): place for place, (row, start) in enumerate(self._held["id"].tolist())}

    def _without(self, places: set[int]) -> Columns:
        """The outcomes held at other positions."""
        return take(self._held, _integers([place for place in range(self.held) if place not in places]))


def better(first: Columns, second: Columns, nearer: Tensor | None = None) -> Columns:
    """The better of two outcomes of each row: a success, of two the first unless the second is nearer.

    Of two failures it is the one of lower margin, and of equal margins the first.

    Args:
        first: earlier outcomes.
        second: later outcomes.
        nearer: whether the second one is nearer, (N,); None: never.
    """
    chosen = ~first["success"] & (second["success"] | ~(first["best_margin"] <= second["best_margin"]))
    if nearer is not None:
        chosen |= first["success"] & second["success"] & nearer
    outcome = {name: choose(chosen, second[name], first[name]) for name in _OUTCOME}
    return outcome | {"success": first["success"] | second["success"]}


def _integers(values: list[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _mask(values: Iterable[bool]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.bool)
