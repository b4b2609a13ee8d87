"""Steps of an attack as CUDA graphs: the kernels of a step are launched at once instead of one by one.

Between two polls of the queue, the graph of one step is repeated. One graph of all these steps would launch the same
kernels, take as many times longer to capture, and not fit a last poll of fewer steps. The graph reads and writes
columns of its own, which rows enter and leave between the polls. A graph belongs to one run of the queue and one number
of slots. It is captured after some steps that are computed kernel by kernel, and compared with them before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from classwise.attacks.engine.rows import Columns
from classwise.core.compute.graphs import FEWEST_STEPS, WARM_UP, Captured, SideStream, first_line, refusal, waits_noted
from classwise.core.compute.precision import Precision

VERIFIED = 2
"""Steps with a new graph that are computed both ways and compared, before the graph is trusted."""
TOLERANCE = 0.02
"""Largest median over the rows of a column's difference, as a fraction of its values."""
CHANGE_TOLERANCE = 0.5
"""The same for columns of images, as a fraction of the change by the step.

Kernels on a GPU may round differently from call to call, and the sign of a gradient near zero then differs.
"""

_TINY = 1e-30


class GraphUse:
    """Whether one engine computes the steps of its attacks as CUDA graphs.

    Args:
        precision: ``graphs`` states whether graphs are wanted.
        device: where the engine is.

    Raises:
        ClasswiseError: with ``precision.graphs = on``, if graphs are impossible.
    """

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self.device = device
        self._required = precision.graphs == "on"
        self._reason = ""
        self._refused: dict[int, str] = {}
        self._captured: set[int] = set()
        if device.type != "cuda":
            self._reason = f"device {device.type!r} is not a GPU"
        if self._required and self._reason:
            raise refusal(self._reason)
        self._possible = precision.graphs != "off" and not self._reason

    def warm_up(self, attack: object) -> int:
        """Steps before a capture: as many as take the time of a capture; few for others of an attack, or if required.

        Other captures, of other numbers of slots, are unlikely to fail.
        """
        return WARM_UP if self._required or id(attack) in self._captured else FEWEST_STEPS

    def captured(self, attack: object) -> None:
        """Note that the steps of an attack were captured."""
        self._captured.add(id(attack))

    @cached_property
    def side(self) -> SideStream:
        """The stream of all captures."""
        return SideStream(self.device)

    def wanted(self, attack: object) -> bool:
        """Whether to capture the steps of an attack."""
        return self._possible and id(attack) not in self._refused

    def refuse(self, attack: object, reason: str) -> None:
        """Note why the steps of an attack cannot be captured.

        Raises:
            ClasswiseError: with ``precision.graphs = on``.
        """
        if self._required:
            raise refusal(reason)
        self._refused[id(attack)] = reason

    def refused(self, attack: object) -> str:
        """Why the steps of an attack were not captured; empty if they were, or no capture was tried."""
        return self._refused.get(id(attack), "")


class GraphedSteps:
    """The steps of one attack in one run of the queue, as CUDA graphs where possible.

    Args:
        advance: returns the slots after a number of steps, computed kernel by kernel; it does not modify its argument.
        attack: the attack.
        use: the CUDA graphs of the engine.
    """

    def __init__(self, advance: Callable[[Columns, int], Columns], attack: object, use: GraphUse) -> None:
        self._advance = advance
        self._attack = attack
        self._use = use
        self._capture: _Capture | None = None
        self._size = 0
        self._to_warm_up = use.warm_up(attack)
        self._to_verify = VERIFIED

    @property
    def steps_to_capture(self) -> int:
        """Steps that are computed kernel by kernel after a change of the number of slots; 0 if all are."""
        return self._use.warm_up(self._attack) if self._use.wanted(self._attack) else 0

    def release(self) -> None:
        """Free the memory of the graph."""
        self._capture = None

    def __call__(self, slots: Columns, steps: int) -> Columns:
        """The slots after some steps; they may be modified in place if this object `owns` them."""
        while steps and self._use.wanted(self._attack):
            if self._capture is not None and not self._to_verify and self._capture.fits(slots):
                return self._capture.replay(slots, steps)
            slots = self._step(slots)
            steps -= 1
        return self._advance(slots, steps) if steps else slots

    def owns(self, slots: Columns) -> bool:
        """Whether the slots are the columns of the graph, which no other columns share memory with."""
        return self._capture is not None and self._capture.owns(slots)

    def _step(self, slots: Columns) -> Columns:
        """The slots after one step, which prepares or verifies the graph."""
        if self._capture is not None and not self._capture.fits(slots):
            self._capture, self._to_warm_up, self._to_verify = None, self._use.warm_up(self._attack), VERIFIED
        if self._size != len(slots["row"]):
            self._size, self._to_warm_up = len(slots["row"]), max(self._to_warm_up, WARM_UP)
        if self._capture is None and self._to_warm_up:
            self._to_warm_up -= 1
            return self._warmed_up(slots)
        expected: Columns | None = None
        try:
            if self._capture is None:
                self._capture = _Capture(lambda columns: self._advance(columns, 1), slots, self._use.side)
            generator = torch.cuda.get_rng_state(self._use.device)
            expected = self._advance(slots, 1)
            comparison = Comparison(slots, expected)
            torch.cuda.set_rng_state(generator, self._use.device)
            found = self._capture.replay(slots, 1)
            differs = comparison.difference(found)
            reason = differs and f"the graph computes another {differs}"
        except Exception as error:  # noqa: BLE001  # user code, and errors of CUDA for what cannot be captured
            reason = first_line(error)
        else:
            if not reason:
                self._to_verify -= comparison.rows > 0
                self._use.captured(self._attack)
                return found
        self._capture = None
        self._use.refuse(self._attack, reason)
        return self._advance(slots, 1) if expected is None else expected

    def _warmed_up(self, slots: Columns) -> Columns:
        """The slots after one step before the capture; the last of them is checked for waits."""
        if self._to_warm_up >= WARM_UP:
            return self._advance(slots, 1)
        with self._use.side.used():
            if self._to_warm_up:
                return self._advance(slots, 1)
            with waits_noted() as waits:
                slots = self._advance(slots, 1)
        if waits:
            self._use.refuse(self._attack, waits[0])
        return slots


class _Capture:
    """The graph of one step, and the columns that it reads and writes."""

    def __init__(self, step: Callable[[Columns], Columns], slots: Columns, side: SideStream) -> None:
        self._columns = {name: value.clone() for name, value in slots.items()}
        self._graph = Captured(lambda: self._write(step(self._columns)), side)

    def _write(self, new: Columns) -> None:
        changed = [name for name, value in self._columns.items() if new[name] is not value]
        torch._foreach_copy_([self._columns[name] for name in changed], [new[name] for name in changed])

    def fits(self, slots: Columns) -> bool:
        """Whether the slots have the columns of the graph."""
        return _shapes(slots) == _shapes(self._columns)

    def owns(self, slots: Columns) -> bool:
        """Whether the slots are the columns of the graph."""
        return all(slots.get(name) is value for name, value in self._columns.items())

    def replay(self, slots: Columns, steps: int) -> Columns:
        """The slots after some steps, in the columns of the graph."""
        entering = [name for name, value in self._columns.items() if slots[name] is not value]
        if entering:
            torch._foreach_copy_([self._columns[name] for name in entering], [slots[name] for name in entering])
        for _ in range(steps):
            self._graph.replay()
        return dict(self._columns)


class Comparison:
    """Comparison of two results of one step on the rows that had not ended before it.

    Args:
        before: the slots before the step; their values are read now.
        expected: the slots after the step.

    Attributes:
        rows: number of rows that are compared.
    """

    def __init__(self, before: Columns, expected: Columns) -> None:
        self._places = (~before["ended"]).nonzero().squeeze(1)
        self.rows = len(self._places)
        self._expected = {name: value[self._places] for name, value in expected.items()}
        self._scales = {
            name: _scale(before[name][self._places], value)
            for name, value in self._expected.items()
            if value.is_floating_point()
        }

    def difference(self, found: Columns) -> str:
        """The column in which another result differs most, quoted; empty if only by rounding. Waits for the device."""
        if not self.rows:
            return ""
        errors = {}
        for name, value in self._expected.items():
            error = _error(value, found[name][self._places], self._scales.get(name))
            tolerance = CHANGE_TOLERANCE if value.ndim > 1 else TOLERANCE
            errors[name] = error.sort().values[(self.rows - 1) // 2] / tolerance
        values = dict(zip(errors, torch.stack([*errors.values()]).tolist(), strict=True))
        worst = max(values, key=lambda name: values[name])
        return repr(worst.removeprefix("state.")) if not values[worst] <= 1 else ""


def _scale(before: Tensor, after: Tensor) -> Tensor:
    """What differences of a column are compared with, (N,): the change of an image, the magnitude of a number."""
    earlier, later = (column.double().nan_to_num(0.0, 0.0, 0.0).flatten(1) for column in (_rows(before), _rows(after)))
    return (later - earlier).norm(dim=1) if after.ndim > 1 else torch.maximum(later.abs(), earlier.abs()).squeeze(1)


def _error(expected: Tensor, found: Tensor, scale: Tensor | None) -> Tensor:
    """The difference of each row as a fraction of the scale, (N,); without a scale 1 where rows differ, else 0."""
    one, other = (_rows(column).flatten(1) for column in (expected, found))
    if scale is None:
        return (one != other).any(1).double()
    same = (one == other) | (one.isnan() & other.isnan())
    distance = torch.where(same, 0, other.double() - one.double()).norm(dim=1)
    fraction: Tensor = distance / scale.clamp_min(_TINY)
    return fraction.nan_to_num(torch.inf)


def _shapes(columns: Columns) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (column.shape, column.dtype) for name, column in columns.items()}


def _rows(column: Tensor) -> Tensor:
    return column if column.ndim > 1 else column.unsqueeze(1)
