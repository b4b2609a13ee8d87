"""Rows of the queue: every row a set of columns, kept together wherever it goes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from classwise.attacks.base import State

Columns = dict[str, Tensor]
"""Columns by name, each (N, ...); row i of all of them is one image."""


class Buffer:
    """Rows in waiting: blocks of columns, taken out in any number."""

    def __init__(self, source: Iterator[Columns] | None = None) -> None:
        self._blocks: list[Columns] = []
        self._source = source or iter(())

    def __len__(self) -> int:
        return sum(len(block["row"]) for block in self._blocks)

    def add(self, block: Columns) -> None:
        """Put rows at the end."""
        self._blocks.append(block)

    def peek(self) -> bool:
        """Whether there is a row left, here or in the source."""
        if not self._blocks:
            self._blocks.extend(itertools.islice(self._source, 1))
        return bool(self._blocks)

    def pop(self, count: int) -> Columns:
        """Up to ``count`` rows from the front."""
        taken: list[Columns] = []
        while count and self.peek():
            block = self._blocks.pop(0)
            if len(block["row"]) > count:
                self._blocks.insert(0, {name: value[count:] for name, value in block.items()})
                block = {name: value[:count] for name, value in block.items()}
            taken.append(block)
            count -= len(block["row"])
        return join(taken)


def prefixed(state: State) -> Columns:
    """An attack's state as columns of a row; what it saw in this step alone is left out."""
    return {f"state.{name}": value for name, value in state.items() if name not in ("seen", "margin")}


def unprefixed(columns: Columns) -> State:
    """The attack's state back from its columns."""
    return {name.removeprefix("state."): value for name, value in columns.items() if name.startswith("state.")}


def take(columns: Columns, rows: Tensor) -> Columns:
    """Some rows, by place."""
    return {name: value[rows.to(value.device)] for name, value in columns.items()}


def masked(columns: Columns, mask: Tensor) -> Columns:
    """The rows where the mask holds."""
    return take(columns, mask.nonzero().squeeze(1))


def put(columns: Columns, places: Tensor, rows: Columns) -> None:
    """Write rows into places of the columns, each of which is replaced by a copy."""
    for name, value in columns.items():
        columns[name] = value.index_copy(0, places.to(value.device), rows[name].to(value.dtype))


def join(blocks: list[Columns]) -> Columns:
    """Blocks of the same columns, one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}


def choose(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """``torch.where`` with a mask of rows (N,)."""
    return torch.where(mask.view(-1, *[1] * (yes.ndim - 1)), yes, no)


def same_bits(first: Columns, second: Columns) -> bool:
    """Whether all columns of two blocks are equal; a NaN equals a NaN."""
    pairs = [(value, second[name]) for name, value in first.items()]
    return all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs)
