"""Rows of images under attack: jobs, finished rows, and operations on columns."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from classwise.attacks.engine.attack import AttackInputs, State
from classwise.core.compute.transfers import to_device

Columns = dict[str, Tensor]
"""Columns by name, each (N, ...); row i of all of them is one image."""


def rows(inputs: AttackInputs, indices: Tensor) -> AttackInputs:
    """The inputs of some of the rows, which may repeat."""

    def pick(value: Tensor | None) -> Tensor | None:
        return None if value is None else value[indices]

    return dataclasses.replace(
        inputs,
        x=inputs.x[indices],
        y=inputs.y[indices],
        index=inputs.index[indices],
        threat=inputs.threat.of(indices),
        target=pick(inputs.target),
        step_size=pick(inputs.step_size),
        reference=pick(inputs.reference),
        restart=pick(inputs.restart),
        target_order=pick(inputs.target_order),
    )


@dataclass(frozen=True)
class Job:
    """A block of images to attack.

    Args:
        index: index of each image in the random numbers, int64 (N,).
        x: clean images in [0, 1], (N, C, H, W).
        y: labels, int64 (N,).
        columns: optional columns ``epsilon``, ``target``, ``step_size`` (each (N,)) and ``reference`` (N, classes).
    """

    index: Tensor
    x: Tensor
    y: Tensor
    columns: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Finished:
    """Attacked images, one row each, in the order in which they finished.

    Args:
        row: position in the stream of jobs, int64 (N,).
        index: index of each image in the random numbers, int64 (N,).
        y: labels, int64 (N,).
        x0: clean images, (N, C, H, W).
        x: images returned by the attack, (N, C, H, W).
        logits: float32 logits of ``x``, (N, classes); the mean over several passes.
        prediction: the predicted class, int64 (N,); see `classwise.attacks.engine.decisions.Decision`.
        repeats: number of correct passes of ``x``, int64 (N,); of passes that no other choice depended on.
        success: whether ``x`` is misclassified, bool (N,).
        iterations: number of steps up to ``x``, int64 (N,).
        forwards: number of forward passes, verification included, int64 (N,).
        backwards: number of backward passes, int64 (N,).
        records: the columns in `Attack.records`, each (N,).
    """

    row: Tensor
    index: Tensor
    y: Tensor
    x0: Tensor
    x: Tensor
    logits: Tensor
    prediction: Tensor
    repeats: Tensor
    success: Tensor
    iterations: Tensor
    forwards: Tensor
    backwards: Tensor
    records: Columns


class Buffer:
    """A first-in, first-out buffer of rows, stored in blocks of columns."""

    def __init__(self, source: Iterator[Columns] | None = None) -> None:
        self._blocks: list[Columns] = []
        self._source = source or iter(())

    def __len__(self) -> int:
        return sum(len(block["row"]) for block in self._blocks)

    def add(self, block: Columns) -> None:
        """Append rows, if there are any."""
        if len(block["row"]):
            self._blocks.append(block)

    def peek(self) -> bool:
        """Whether a row is available, in the buffer or from the source."""
        if not self._blocks:
            self._blocks.extend(itertools.islice(self._source, 1))
        return bool(self._blocks)

    def pop(self, count: int) -> Columns:
        """Remove and return up to ``count`` rows from the front."""
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
    """The state as columns with the prefix ``state.``, without ``seen`` and ``margin``, which each step replaces."""
    return {f"state.{name}": value for name, value in state.items() if name not in ("seen", "margin")}


def unprefixed(columns: Columns) -> State:
    """The state from columns with the prefix ``state.``."""
    return {name.removeprefix("state."): value for name, value in columns.items() if name.startswith("state.")}


def wrong_state(state: object, x: Tensor, needed: Iterable[str]) -> str:
    """What is wrong with the state that an attack returned; empty for nothing.

    Args:
        state: the state.
        x: the clean images of its rows, (N, C, H, W).
        needed: names of its columns.
    """
    if not isinstance(state, dict):
        return f"a {type(state).__name__}; expected a dict of columns"
    shapes = {"x": x.shape, "seen": x.shape, "margin": x.shape[:1], "iteration": x.shape[:1], "done": x.shape[:1]}
    if missing := [name for name in needed if name not in state]:
        return f"no column {missing[0]!r}; its columns are {', '.join(map(repr, state)) or 'none'}"
    for name, value in state.items():
        if not isinstance(value, Tensor):
            return f"a {type(value).__name__} in column {name!r}; expected a tensor"
        if value.layout is not torch.strided or value.is_meta or value.device != x.device:
            kind = "a meta tensor" if value.is_meta else f"a tensor ({value.layout}, {value.device})"
            return f"{kind} in column {name!r}; expected a dense one on {x.device}"
        shape = shapes.get(name, x.shape[:1] + value.shape[1:])
        is_flag = name == "done"
        if value.shape != shape or (name in shapes and is_flag != (value.dtype is torch.bool)):
            return (
                f"{value.dtype} of shape {tuple(value.shape)} in column {name!r}; expected "
                f"{'torch.bool' if is_flag else 'numbers'} of shape {tuple(shape)}"
            )
    return ""


def take(columns: Columns, places: Tensor) -> Columns:
    """The rows at some positions, int64 (N,) on the CPU; the column ``id`` is on the CPU, too."""
    here = to_device(places, columns["row"].device)
    return {name: value[places if name == "id" else here] for name, value in columns.items()}


def put(columns: Columns, places: Tensor, values: Columns, *, in_place: bool = False) -> None:
    """Write rows at some positions of the columns; each column is replaced by a modified copy, or modified in place."""
    here = to_device(places, columns["row"].device)
    for name, value in columns.items():
        write = value.index_copy_ if in_place else value.index_copy
        columns[name] = write(0, here, values[name].to(value.dtype))


def join(blocks: list[Columns]) -> Columns:
    """Concatenate blocks of the same columns."""
    if len(blocks) == 1:
        return blocks[0]
    return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}


def choose(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """``torch.where`` with a mask of rows (N,)."""
    return torch.where(mask.view(-1, *[1] * (yes.ndim - 1)), yes, no)


def same_bits(first: Columns, second: Columns) -> bool:
    """Whether all columns of two blocks are bitwise equal, NaN being equal to NaN."""
    pairs = [(value, second[name]) for name, value in first.items()]
    return bool(torch.stack([(value.nan_to_num() == other.nan_to_num()).all() for value, other in pairs]).all())
