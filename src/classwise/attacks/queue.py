"""Evaluation is a queue, not a loop over fixed batches.

An image leaves as soon as it is broken and the next one takes its slot, so the device works on full batches of images
that still stand. Every device batch has one fixed size, padded with copies (at the end of the data a smaller one, if it
is seen to give the same bits), and every row's arithmetic sees only its own row; so an image's result does not depend
on which others are evaluated, nor on the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from classwise.attacks.base import Attack, Case, State, recordable
from classwise.attacks.columns import Buffer, Columns, choose, join, masked, prefixed, put, same_bits, take, unprefixed
from classwise.attacks.losses import margin as logit_margin
from classwise.draws import Draws
from classwise.threat import Threat

if TYPE_CHECKING:
    from classwise.attacks.engine import Counted, Engine

SMALLEST_BATCH = 32
"""Below this, libraries pick other kernels for other batch compositions, and results stop being repeatable."""

_GRAIN = 8
"""Smaller batches are of multiples of so many images."""
_MUCH = 0.75
"""A size of batch is tried if it is at most this share of the one before."""
_LONG = 8
"""From how many steps on it pays to try whether a smaller batch gives the same bits, which costs a step."""


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
        index: the image's name in draws, int64 (N,).
        y: labels, int64 (N,).
        x0: the clean images, (N, C, H, W).
        x: the kept images, (N, C, H, W).
        logits: float32 logits on the kept images, (N, classes).
        broken: whether the kept image is misclassified, bool (N,).
        iterations: steps taken up to the kept image, int64 (N,).
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
    broken: Tensor
    iterations: Tensor
    forwards: Tensor
    backwards: Tensor
    records: Columns


@dataclass
class Rooms:
    """Which sizes of batch gave the same bits as a larger one in a step of an attack."""

    attack: Attack  # held, so that its id stays its own
    proven: set[tuple[int, ...]] = field(default_factory=set)  # the size and the shape of an image
    refused: bool = False  # whether one did not


_HIT, _LAST, _LOWEST = 0, 1, 2
"""Which image of a row is to be verified: the suspicious one, the last iterate, the iterate of lowest margin."""


class Queue:
    """One attack over one stream: slots on the device, rows that wait to be verified, rows that go on.

    Every row is a set of columns: what the job gave (``x0``, ``y``, ``index``, ...), the attack's state
    (``state.x``, ...), what the queue saw on the way (``hit_x``, ``low_x``, ...), and the best image that float32 has
    judged (``kept_x``, ...). Rows move between slots and buffers whole.
    """

    def __init__(self, engine: Engine, model: Counted, attack: Attack, threat: Threat, jobs: Iterable[Job]) -> None:
        self.engine = engine
        self.model = model
        self.attack = attack
        self.threat = threat
        self.draws = Draws(engine.seed, "attack")
        self.seek = engine.stop == "broken"
        self.fresh = Buffer(self._rows_of(jobs))
        self.again = Buffer()  # rows that a verification sent back, or that begin another start
        self.suspects = Buffer()  # rows of which one image waits for float32
        self.rooms = engine.rooms(attack)

    def blocks(self) -> Iterator[Finished]:
        """Run to the end of the stream."""
        size = self.engine.batch
        slots: Columns = {}
        live = torch.zeros(size, dtype=torch.bool)
        while True:
            slots, live = self._refilled(slots, live)
            if live.any():
                slots, live = self._stepped(slots, live)
                leaving = live & (slots["hit"] | slots["state.done"]).cpu()
                if leaving.any():
                    self.suspects.add(_suspects(take(slots, leaving.nonzero().squeeze(1))))
                    live &= ~leaving
            drained = not (live.any() or self._waiting())
            while len(self.suspects) >= size or (drained and len(self.suspects)):
                yield from self._verify(self.suspects.pop(size))
            if drained and not self.again.peek():
                return

    def _waiting(self) -> bool:
        return self.again.peek() or self.fresh.peek()

    def _refilled(self, slots: Columns, live: Tensor) -> tuple[Columns, Tensor]:
        """The slots with every vacant one taken, as far as rows are waiting."""
        size = self.engine.batch
        if len(live) < size and self._waiting():  # rows came back after the slots were narrowed
            slots = take(slots, torch.arange(size) % len(live))
            live = torch.cat([live, live.new_zeros(size - len(live))])
        vacant = (~live).nonzero().squeeze(1)
        incoming = self._incoming(len(vacant))
        if incoming is None:
            return slots, live
        count = len(incoming["row"])
        if slots:
            put(slots, vacant[:count], incoming)
        else:
            slots = take(incoming, torch.arange(size) % count)
        return slots, live.index_fill(0, vacant[:count], value=True)

    def _stepped(self, slots: Columns, live: Tensor) -> tuple[Columns, Tensor]:
        """The slots after a step; in a smaller room when nobody is waiting for the vacant ones.

        Which kernel a library picks depends on the size of a batch, and with it the last bits. So a smaller room is
        taken only after one step of the rows in it has come out bit for bit as in the room before.
        """
        rows = live.nonzero().squeeze(1)
        room = max(SMALLEST_BATCH, _GRAIN * -(-len(rows) // _GRAIN))
        trial = (room, *slots["x0"].shape[1:])
        known = trial in self.rooms.proven
        worth_a_trial = not self.rooms.refused and self.attack.length >= _LONG and room <= _MUCH * len(live)
        if room >= len(live) or not (known or worth_a_trial) or self._waiting():
            return self._advance(slots), live
        narrow = self._advance(take(slots, rows[torch.arange(room) % len(rows)]))
        if not known:
            wide = self._advance(slots)
            if not same_bits(take(wide, rows), take(narrow, torch.arange(len(rows)))):
                self.rooms.refused = True
                return wide, live
            self.rooms.proven.add(trial)
        return narrow, torch.arange(room) < len(rows)

    def _rows_of(self, jobs: Iterable[Job]) -> Iterator[Columns]:
        """Jobs as columns on the device, with the bookkeeping that every row carries."""
        device, row = self.engine.device, 0
        classes: int | None = None
        for job in jobs:
            count = len(job.x)
            if not count:
                continue
            given = {**job.columns, "x0": job.x, "y": job.y, "index": job.index}
            columns = {name: recordable(value).to(device) for name, value in given.items()}
            columns["row"] = torch.arange(row, row + count, device=device)
            for name in ("restart", "forwards", "backwards", "stage", "kept_iteration"):
                columns[name] = torch.zeros_like(columns["row"])
            if self.attack.needs_reference and "reference" not in columns:
                columns["reference"] = self.engine.logits(columns["x0"])
                columns["forwards"] += 1
            if classes is None:
                known = columns.get("reference")
                classes = self.engine.classes(columns["x0"]) if known is None else known.shape[1]
            columns["kept_broken"] = torch.zeros_like(columns["row"], dtype=torch.bool)
            columns["kept_x"] = columns["x0"]
            columns["kept_logits"] = torch.zeros(count, classes, device=device)
            columns["kept_margin"] = torch.full((count,), torch.inf, device=device)
            row += count
            yield columns

    def _incoming(self, count: int) -> Columns | None:
        """Up to ``count`` rows ready to step: those sent back first, then new ones, started."""
        parts = []
        if count and self.again.peek():
            parts.append(self.again.pop(count))
            count -= len(parts[0]["row"])
        if count and self.fresh.peek():
            parts.append(self._started(self.fresh.pop(count)))
        return join(parts) if parts else None

    def _started(self, columns: Columns) -> Columns:
        """Rows at the beginning of a start, with nothing seen yet."""
        state = self.attack.start(self.model, self._case(columns))
        known = unprefixed(columns)  # of the start before, if there was one
        state |= {name: known[name] for name in self.attack.carries if name in known}
        zero = torch.zeros_like(columns["row"])
        seen: Columns = {"hit": zero.bool()}
        if self.seek:
            nothing = torch.full(zero.shape, torch.inf, device=zero.device)
            seen |= {"hit_x": columns["x0"], "hit_iteration": zero}
            seen |= {"low_x": columns["x0"], "low_iteration": zero, "low_margin": nothing}
        return columns | seen | prefixed(state)

    def _case(self, columns: Columns) -> Case:
        threat = self.threat.with_epsilon(columns["epsilon"]) if "epsilon" in columns else self.threat
        optional = {name: columns.get(name) for name in ("target", "step_size", "reference", "restart")}
        return Case(columns["x0"], columns["y"], columns["index"], threat, self.draws, **optional)

    def _advance(self, slots: Columns) -> Columns:
        """Step every slot ``poll`` times; rows that were hit or are done stand still meanwhile."""
        case, model = self._case(slots), self.model
        for turn in range(self.engine.poll):
            before = model.forwards, model.backwards
            new = self.attack.step(model, case, unprefixed(slots))
            size = len(slots["row"])  # a step may pass several versions of every image at once
            passes = (model.forwards - before[0]) // size, (model.backwards - before[1]) // size
            moved = self._fold(slots, new, *passes)
            if turn:
                still = slots["hit"] | slots["state.done"]
                moved = {
                    name: value if value is slots[name] else choose(still, slots[name], value)
                    for name, value in moved.items()
                }
            slots = moved
        return slots

    def _fold(self, slots: Columns, new: State, forwards: int, backwards: int) -> Columns:
        """The slots after a step, with the first suspicion and the lowest margin remembered."""
        result = slots | prefixed(new)
        result["forwards"] = slots["forwards"] + forwards
        result["backwards"] = slots["backwards"] + backwards
        if not self.seek:
            return result
        value, seen, taken = new["margin"], new["seen"], slots["state.iteration"]
        hit, lower = value < 0, value < slots["low_margin"]
        return result | {
            "hit": hit,
            "hit_x": choose(hit, seen, slots["hit_x"]),
            "hit_iteration": torch.where(hit, taken, slots["hit_iteration"]),
            "low_x": choose(lower, seen, slots["low_x"]),
            "low_iteration": torch.where(lower, taken, slots["low_iteration"]),
            "low_margin": torch.where(lower, value, slots["low_margin"]),
        }

    def _verify(self, rows: Columns) -> Iterator[Finished]:
        """Judge one image of each row in float32; then the row is finished, or goes on in one of four ways."""
        stage = rows["stage"]
        candidate, taken = self._candidate(rows)
        candidate = self._inside(candidate, rows)
        logits = self.engine.logits(candidate)
        broken = (logits.argmax(1) != rows["y"]) | ~logits.isfinite().all(1)
        value = logit_margin(logits, rows["y"])
        better = broken | (~rows["kept_broken"] & ~(rows["kept_margin"] <= value))
        rows |= {
            "forwards": rows["forwards"] + 1,
            "kept_x": choose(better, candidate, rows["kept_x"]),
            "kept_logits": choose(better, logits, rows["kept_logits"]),
            "kept_margin": torch.where(better, value, rows["kept_margin"]),
            "kept_iteration": torch.where(better, taken, rows["kept_iteration"]),
            "kept_broken": rows["kept_broken"] | broken,
        }
        stands = ~broken
        false_alarm = stands & (stage == _HIT)
        resumes = false_alarm & ~rows["state.done"]
        ends = false_alarm & rows["state.done"]
        lower = stands & (stage == _LAST) & (rows["low_margin"] < value) if self.seek else torch.zeros_like(stands)
        exhausted = stands & ~(resumes | ends | lower)
        # Where the nearest point is sought, another start may find a nearer one.
        open_still = exhausted | broken if self.attack.minimises and not self.seek else exhausted
        restarts = open_still & (rows["restart"] + 1 < self.attack.starts_for(logits.shape[1]))
        if len(going := masked(rows, resumes)["row"]):
            self.again.add(masked(rows, resumes) | {"hit": torch.zeros_like(going, dtype=torch.bool)})
        for mask, next_stage in ((ends, _LAST), (lower, _LOWEST)):
            if len(going := masked(rows, mask)["row"]):
                self.suspects.add(masked(rows, mask) | {"stage": torch.full_like(going, next_stage)})
        if len(going := masked(rows, restarts)["row"]):
            once_more = masked(rows, restarts)
            self.again.add(self._started(once_more | {"restart": once_more["restart"] + 1}))
        finished = (broken | exhausted) & ~restarts
        if finished.any():
            yield self._finished(masked(rows, finished))

    def _candidate(self, rows: Columns) -> tuple[Tensor, Tensor]:
        """The image to verify of each row, and the steps taken up to it."""
        image, taken = rows["state.x"], rows["state.iteration"]
        if self.seek:
            for stage, name in ((_HIT, "hit"), (_LOWEST, "low")):
                chosen = rows["stage"] == stage
                image = choose(chosen, rows[f"{name}_x"], image)
                taken = torch.where(chosen, rows[f"{name}_iteration"], taken)
        return image, taken

    def _inside(self, candidate: Tensor, rows: Columns) -> Tensor:
        """The images as they are where they keep to their ball and box, projected where an attack went astray."""
        threat, x0 = self._case(rows).threat, rows["x0"]
        radius = threat.radius(x0).flatten()
        limit = radius + 1e-6 * radius.clamp_min(1)
        boxed = (candidate >= 0).flatten(1).all(1) & (candidate <= 1).flatten(1).all(1)
        legal = boxed & (threat.distance(candidate, x0) <= limit)
        return choose(legal, candidate, threat.project(candidate.nan_to_num(0.0), x0))

    def _finished(self, rows: Columns) -> Finished:
        return Finished(
            row=rows["row"],
            index=rows["index"],
            y=rows["y"],
            x0=rows["x0"],
            x=rows["kept_x"],
            logits=rows["kept_logits"],
            broken=rows["kept_broken"],
            iterations=rows["kept_iteration"],
            forwards=rows["forwards"],
            backwards=rows["backwards"],
            records={name: rows[f"state.{name}"] for name in self.attack.records},
        )


def _suspects(rows: Columns) -> Columns:
    """Rows that have left their slots, marked with the image to verify: the suspicious one, else the last."""
    return rows | {"stage": torch.where(rows["hit"], _HIT, _LAST)}
