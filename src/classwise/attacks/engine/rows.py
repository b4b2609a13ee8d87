"""Rows of images under attack: jobs, an attack's inputs and state, finished rows, columns that move together."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from classwise.core.rng import CounterRNG
from classwise.core.threat import Threat

State = dict[str, Tensor]
"""The columns of an attack in progress, each (N, ...).

Every state has ``x`` (the iterate), ``iteration`` (steps taken) and ``done``; after a step also ``seen`` (the point
whose logits the step evaluated) and ``margin`` (z_y - max other, at ``seen``). Further columns are the attack's own.
"""

Columns = dict[str, Tensor]
"""Columns by name, each (N, ...); row i of all of them is one image."""

_RESTART = 1 << 32


@dataclass(frozen=True)
class AttackInputs:
    """The rows that an attack works on.

    Args:
        x: clean images in [0, 1], (N, C, H, W).
        y: labels, int64 (N,).
        index: the number of each image in the random numbers, int64 (N,).
        threat: the ball; its radius one number or (N,).
        rng: the attack's random numbers; use `uniform` and `normal` below.
        target: the class to reach, int64 (N,); -1 for an untargeted row. None: all rows untargeted.
        step_size: a step size for each image, (N,), which overrides the attack's own.
        reference: logits on the clean images, (N, classes), for losses that compare with them.
        restart: how many starts each row has had, int64 (N,).
    """

    x: Tensor
    y: Tensor
    index: Tensor
    threat: Threat
    rng: CounterRNG
    target: Tensor | None = None
    step_size: Tensor | None = None
    reference: Tensor | None = None
    restart: Tensor | None = None

    def _counter(self, counter: int | Tensor) -> int | Tensor:
        return counter if self.restart is None else self.restart * _RESTART + counter

    def uniform(self, shape: tuple[int, ...], counter: int | Tensor = 0) -> Tensor:
        """Uniform random numbers in [0, 1) for each row, (N, *shape), fresh for every restart and counter."""
        return self.rng.uniform(self.index, shape, self._counter(counter))

    def normal(self, shape: tuple[int, ...], counter: int | Tensor = 0) -> Tensor:
        """Standard normal random numbers for each row, (N, *shape), fresh for every restart and counter."""
        return self.rng.normal(self.index, shape, self._counter(counter))

    def inside(self, counter: int | Tensor = 0) -> Tensor:
        """A uniform start in each row's ball, shaped like ``x``."""
        return self.threat.uniform(self.x, self.index, self.rng, self._counter(counter))


def rows(inputs: AttackInputs, which: Tensor) -> AttackInputs:
    """The case of some of the rows."""

    def pick(value: Tensor | None) -> Tensor | None:
        return None if value is None else value[which]

    epsilon = inputs.threat.epsilon
    threat = inputs.threat.with_epsilon(epsilon[which]) if isinstance(epsilon, Tensor) else inputs.threat
    return dataclasses.replace(
        inputs,
        x=inputs.x[which],
        y=inputs.y[which],
        index=inputs.index[which],
        threat=threat,
        target=pick(inputs.target),
        step_size=pick(inputs.step_size),
        reference=pick(inputs.reference),
        restart=pick(inputs.restart),
    )


@dataclass(frozen=True)
class Job:
    """Images to attack: the clean rows and what is known of them.

    ``columns`` may hold ``epsilon``, ``target``, ``step_size`` (each (N,)) and ``reference`` (N, classes).
    """

    index: Tensor
    x: Tensor
    y: Tensor
    columns: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Finished:
    """Attacked images, a row each, in the order in which they finished.

    Args:
        row: place in the stream of jobs, int64 (N,).
        index: the image's number in the random numbers, int64 (N,).
        y: labels, int64 (N,).
        x0: the clean images, (N, C, H, W).
        x: the images that the attack found, (N, C, H, W).
        logits: float32 logits on the found images, (N, classes).
        success: whether the found image is misclassified, bool (N,).
        iterations: steps taken up to the found image, int64 (N,).
        forwards: forward passes spent, verification included, int64 (N,).
        backwards: backward passes spent, int64 (N,).
        records: the attack's own columns, each (N,).
    """

    row: Tensor
    index: Tensor
    y: Tensor
    x0: Tensor
    x: Tensor
    logits: Tensor
    success: Tensor
    iterations: Tensor
    forwards: Tensor
    backwards: Tensor
    records: Columns


class Buffer:
    """Waiting rows: blocks of columns, taken out in any number."""

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
    """An attack's state as columns of a row, without ``seen`` and ``margin``, which are of one step alone."""
    return {f"state.{name}": value for name, value in state.items() if name not in ("seen", "margin")}


def unprefixed(columns: Columns) -> State:
    """The attack's state back from its columns."""
    return {name.removeprefix("state."): value for name, value in columns.items() if name.startswith("state.")}


def take(columns: Columns, places: Tensor) -> Columns:
    """Some rows, by place."""
    return {name: value[places.to(value.device)] for name, value in columns.items()}


def masked(columns: Columns, mask: Tensor) -> Columns:
    """The rows where the mask is true."""
    return take(columns, mask.nonzero().squeeze(1))


def put(columns: Columns, places: Tensor, values: Columns) -> None:
    """Write rows into places of the columns, each of which is replaced by a copy."""
    for name, value in columns.items():
        columns[name] = value.index_copy(0, places.to(value.device), values[name].to(value.dtype))


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
