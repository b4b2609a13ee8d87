"""The queue: images under attack share one device batch of fixed size.

An image leaves its slot as soon as an adversarial example is found, and the next image takes it. So the device works on
full batches of images that are still robust. Device batches are padded with copies; at the end of the data they are
smaller, if a smaller batch gives the same bits, or on a GPU the same up to rounding. Each row is one start of an image,
computed from that row only, so its result depends neither on the other rows nor on their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from classwise.attacks.engine.attack import Attack, AttackInputs, State
from classwise.attacks.engine.decisions import margin as logit_margin
from classwise.attacks.engine.graphed import Comparison, GraphedSteps, GraphUse
from classwise.attacks.engine.passes import NARROWEST, CountedForward, Passes, bitwise_equal, recordable
from classwise.attacks.engine.polling import EndedSlots
from classwise.attacks.engine.rows import (
    Buffer,
    Columns,
    Finished,
    Job,
    choose,
    join,
    prefixed,
    put,
    same_bits,
    take,
    unprefixed,
    wrong_state,
)
from classwise.attacks.engine.starts import Starts, better
from classwise.attacks.engine.steps import StepsLeft
from classwise.core.compute.rng import CounterRNG
from classwise.core.compute.transfers import to_cpu, to_device
from classwise.core.errors import ClasswiseError
from classwise.models.logits import raised
from classwise.threat.ball import Threat
from classwise.threat.grid import rounded
from classwise.threat.text import Grid

SMALLEST_BATCH = 32
"""Minimum batch size with which an attack begins: below it, libraries may choose other kernels than for a full batch.

Smaller ones are used only after a step that gave the same bits (`BatchSizes`).
"""

_FULL = 256
"""Rows of a batch that a GPU computes at nearly its full rate.

On an H100 a step of APGD with PreActResNet-18 takes 3.1 ms with 128 rows, 3.7 ms with 256 and 9 ms with 928.
"""
_MUCH = 0.75
"""A smaller batch size is tested only if it is at most this fraction of the current one."""
_LONG = 8
"""Minimum number of steps of an attack for which a smaller batch is tested; the test takes one step."""
_MOST_HELD = 4
"""No later start begins early if more rows than this number of batches are held for earlier ones."""
_OPTIONAL = ("target", "step_size", "reference", "restart", "target_order")
"""Columns that an attack may have in its inputs."""
_OF_JOBS = ("id", "row", "x0", "y", "index", "epsilon", *_OPTIONAL)
"""Columns that do not change during a start."""
_FAILURES = 8
"""Candidates of one start that may fail verification before a candidate must have a margin below all earlier ones.

Else a row whose margin is negative in TF32 and positive in float32 would be verified at every poll.
"""


@dataclass
class BatchSizes:
    """Smaller batch sizes that gave the same results as a larger one in a step of an attack.

    On a GPU kernels are chosen by batch size, and results need not repeat to the bit: there the results are the same if
    they differ by rounding only (`Comparison`), and batches of equal size are used from the start (`slots`).

    Args:
        attack: the attack; a reference, so that its id is not reused.
        rounded: whether results may differ by rounding.
        refused: why no smaller batch is tested any more on a GPU, once one gave other results.
        admissible: batch sizes and image shapes that gave the same results.
        least: the smallest size that is used on a CPU: twice a size that gave other bits.
    """

    attack: Attack
    rounded: bool = False
    refused: str = ""
    admissible: set[tuple[int, ...]] = field(default_factory=set)
    least: int = NARROWEST

    def slots(self, batch_size: int, rows: int | None) -> int:
        """The number of slots for rows: as many for each of the fewest batches that contain them all."""
        if not self.rounded or not rows:
            return batch_size
        batches = -(-rows // batch_size)
        return min(batch_size, _up(-(-rows // batches), SMALLEST_BATCH))

    def refuse(self, size: int, difference: str) -> None:
        """Note that a size gave other results: on a CPU, larger ones are tested; on a GPU, none."""
        if self.rounded:
            self.refused = difference
        self.least = 2 * size

    def fitting(self, count: int, slots: int) -> int:
        """The smallest admissible number of slots for ``count`` rows; on a GPU a half, a quarter, ... of all slots."""
        if not self.rounded:
            return max(self.least, _up(count, NARROWEST))
        while (half := _up(-(-slots // 2), NARROWEST)) >= max(count, SMALLEST_BATCH) and half < slots:
            slots = half
        return slots

    def holding(self, count: int, slots: int, shape: tuple[int, ...]) -> int:
        """The smallest size known to be admissible for ``count`` rows of a shape; on a GPU, any size is (`fitting`)."""
        if self.rounded:
            return self.fitting(count, slots)
        return min((size for size, *of in self.admissible if size >= count and (*of,) == shape), default=slots)


Trial = tuple[Columns, list[Tensor]]
"""Slots after a step in some batch size, and the logits and gradients of its passes."""


class Stage(IntEnum):
    """The image of a row that is verified in float32, in the column ``stage``.

    The verification decides the `Fate` of the row, whose image is then robust (correctly classified) or not:

    ====== ============================ =============== =================================================
    stage  verified image               not robust      robust
    ====== ============================ =============== =================================================
    HIT    the candidate                END             RESUME, or TRY_LAST if the start is done
    LAST   the last iterate             END             TRY_LOWEST with early stop and a lower margin, or END
    LOWEST the iterate of lowest margin END             END
    FINAL  the image to return          FINISH          FINISH
    ====== ============================ =============== =================================================

    With several passes for each decision, an image whose starts have ended is decided once more, in FINAL.
    """

    HIT = 0
    LAST = 1
    LOWEST = 2
    FINAL = 3


class Fate(IntEnum):
    """What becomes of a verified row."""

    RESUME = 0  # to the slots
    TRY_LAST = 1  # to the candidates, in the stage LAST
    TRY_LOWEST = 2  # to the candidates, in the stage LOWEST
    END = 3  # the start has succeeded or failed
    FINISH = 4


class Queue:
    """One attack over one stream of images: slots on the device, candidates to verify, rows that return to the slots.

    Each row is a start of an image (`Starts`). It has the columns of the image's job (``x0``, ``y``, ``index``, ...),
    the attack's state (``state.x``, ...), the candidate and the iterate of lowest margin (``hit_x``, ``low_x``, ...),
    and the best image verified in float32 (``best_x``, ...). Rows move between slots and buffers with all columns;
    outside the slots they also have the column ``id``.

    Args:
        passes: float32 passes of the model, and the size of a device batch.
        forward: the forward pass for the attack.
        attack: the attack.
        threat: norm and radius; a job's ``epsilon`` column overrides the radius.
        seed: the seed of the attack's random numbers.
        poll: steps between checks of which rows have finished.
        early_stop: return the first verified adversarial example, else the iterate of lowest margin. False: return the
            last iterate.
        batch_sizes: smaller batch sizes tested so far for this attack.
        images: number of images of the stream; None: unknown.
        graphs: the CUDA graphs of the engine.
        grid: the grid that images are rounded to before they are verified.
        steps_left: estimates what is left; without a number of images it is not used.
    """

    def __init__(
        self,
        passes: Passes,
        forward: CountedForward,
        attack: Attack,
        threat: Threat,
        *,
        seed: int,
        poll: int,
        early_stop: bool,
        batch_sizes: BatchSizes,
        images: int | None = None,
        graphs: GraphUse,
        grid: Grid | None,
        steps_left: StepsLeft | None = None,
    ) -> None:
        self._passes = passes
        self._forward = forward
        self._attack = attack
        self._threat = threat
        self._rng = CounterRNG(seed, "attack")
        self._poll = poll
        self._early_stop = early_stop
        self._batch_sizes = batch_sizes
        self._slots = passes.batch_size
        self._images = images
        self._grid = grid
        self._steps_left = steps_left if images else None
        self._graphed = GraphedSteps(self._advance, attack, graphs)
        self._late = passes.device.type == "cuda"
        self._ended = EndedSlots(0, attack.length, late=self._late)
        self._fresh = Buffer()
        self._returned = Buffer()  # rows that failed verification, or are the next start of their image
        self._waiting = Buffer()  # rows that wait for the verification of an earlier start of their image
        self._candidates = Buffer()  # rows with an image to verify in float32
        self._unconfirmed = Buffer()  # finished images whose reports are to be verified in float32
        self._confirms = forward.in_tf32 and type(attack).confirm is not Attack.confirm
        self._classes = 0  # until the first images are known
        self._starts = Starts(1, attack, early_stop=early_stop, confirms=self._confirms)
        self._side_by_side = False
        self._room = 0  # number of slots in which later starts may begin early

    def run(self, jobs: Iterable[Job]) -> Iterator[Finished]:
        """Attack all images of a stream and yield them as they finish; every job must have the same columns."""
        try:
            yield from self._run(jobs)
        finally:
            self._graphed.release()

    def _run(self, jobs: Iterable[Job]) -> Iterator[Finished]:
        self._fresh = Buffer(self._rows_of(jobs))
        size = self._passes.batch_size  # of verifications
        if not self._fresh.peek():
            return
        starts = self._attack.starts_for(self._classes)
        self._starts = Starts(starts, self._attack, early_stop=self._early_stop, confirms=self._confirms)
        self._side_by_side = starts > 1 and not self._attack.carries and self._passes.repeats.count == 1
        self._room = _FULL if self._late else SMALLEST_BATCH
        rows = self._images
        if rows and self._side_by_side:
            rows = max(rows, min(rows * starts, self._room)) if rows <= self._room // 2 else rows
        self._slots = self._batch_sizes.slots(size, rows)
        self._forward.compile_batches_of(self._slots)
        self._ended = EndedSlots(self._slots, self._attack.length, late=self._late)
        slots: Columns = {}
        live = torch.zeros(self._slots, dtype=torch.bool)
        if self._steps_left is not None and self._images:
            self._steps_left.begin(self._images, starts, self._attack.length, self._slots)
        while True:
            live = self._allowed(slots, live)
            while (incoming := self._incoming(slots, live)) is not None:
                slots, live = self._filled(slots, live, incoming)
            if live.any():
                steps = min(self._poll, self._ended.steps_left(live))
                if steps:
                    slots, live = self._stepped(slots, live, steps)
                leaving, hit = self._ended.poll(slots, live, steps)
                if self._steps_left is not None:
                    ids, left = self._ended.ids[live], self._ended.left[live]
                    self._steps_left.stepped(steps, ids, left, leaving[live], hit[live])
                if leaving.any():
                    self._starts.set_candidates(self._ended.ids[hit])
                    self._candidates.add(_candidates(self._left(slots, leaving)))
                    live &= ~leaving
            drained = not (live.any() or self._pending())
            # On a GPU late starts may run beside many rows that wait for a verification, and then for them.
            stalled = drained or (self._late and not self._pending() and len(self._candidates) > int(live.sum()))
            while len(self._candidates) >= size or (stalled and len(self._candidates)):
                yield from self._verify(self._candidates.pop(size))
            over = drained and not self._returned.peek()
            while len(self._unconfirmed) >= size or (over and len(self._unconfirmed)):
                yield self._finished(self._confirmed(self._unconfirmed.pop(size)))
            if over:
                return

    def _pending(self) -> bool:
        return self._returned.peek() or self._fresh.peek()

    def _allowed(self, slots: Columns, live: Tensor) -> Tensor:
        """The live slots without starts that are not needed or wait for the verification of an earlier one."""
        leaving = live.clone()
        leaving[live] = ~self._starts.may_run(self._ended.ids[live])
        if leaving.any():
            self._waiting.add(self._needed(self._left(slots, leaving)))
            self._ended.emptied(leaving)
        return live & ~leaving

    def _left(self, slots: Columns, leaving: Tensor) -> Columns:
        """The rows of some slots, given as a mask."""
        places = leaving.nonzero().squeeze(1)
        return take(slots, places) | {"id": self._ended.ids[places]}

    def _needed(self, rows: Columns) -> Columns:
        """The rows of which no earlier start of the image has succeeded."""
        needed = self._starts.needed(rows["id"])
        return rows if needed.all() else take(rows, needed.nonzero().squeeze(1))

    def _incoming(self, slots: Columns, live: Tensor) -> Columns | None:
        """Rows for unused slots that are ready to step: returned rows first, then new images, then later starts."""
        count, parts = self._slots - int(live.sum()), list[Columns]()
        while count and self._returned.peek():
            parts.append(self._needed(self._returned.pop(count)))
            count -= len(parts[-1]["row"])
        if count and self._fresh.peek():
            images = self._fresh.pop(count)
            self._starts.begin(images["id"])
            parts.append(self._started(images))
        if parts:
            return join(parts)
        return self._early(slots, live, count) if count and self._side_by_side else None

    def _early(self, slots: Columns, live: Tensor, count: int) -> Columns | None:
        """Up to ``count`` later starts of images whose earlier ones are in the slots.

        They take only slots that cost little: on a CPU those of the smallest batch, which is computed anyway. On a GPU
        a batch of half as many rows takes nearly as long, so there they begin if half of the slots are unused.
        """
        if len(self._waiting) + self._starts.held > _MOST_HELD * self._passes.batch_size:
            return None
        places = live.nonzero().squeeze(1)
        most = self._room - len(places)
        count = 0 if self._late and most < len(places) else max(min(count, most), 0)
        others, ids = self._starts.begin_early(self._ended.ids[places], count)
        if not len(ids):
            return None
        return self._started(take(slots, places[others]) | {"id": ids})

    def _filled(self, slots: Columns, live: Tensor, incoming: Columns) -> tuple[Columns, Tensor]:
        """The slots with incoming rows in unused ones; their number may increase."""
        count = len(incoming["row"])
        vacant = (~live).nonzero().squeeze(1)
        if len(live) < self._slots and (len(vacant) < count or not live.any()):
            # The batch was reduced: it grows again, and is then reduced to the smallest size for the new rows.
            size = self._slots
            if not self._fresh.peek():
                size = max(len(live), self._batch_sizes.holding(int(live.sum()) + count, size, slots["x0"].shape[1:]))
            places = torch.arange(size) % len(live)
            slots, live = take(slots, places), torch.cat([live, live.new_zeros(size - len(live))])
            self._ended.moved(places, live)
            vacant = (~live).nonzero().squeeze(1)
        columns = {name: value for name, value in incoming.items() if name != "id"}
        if slots:
            put(slots, vacant[:count], columns, in_place=self._graphed.owns(slots))
        else:
            slots = take(columns, torch.arange(len(live)) % count)
        self._ended.filled(vacant[:count], incoming["id"])
        return slots, live.index_fill(0, vacant[:count], value=True)

    def _stepped(self, slots: Columns, live: Tensor, steps: int) -> tuple[Columns, Tensor]:
        """The slots after some steps, at a smaller batch size if no row is pending for the unused slots.

        Libraries choose kernels by batch size, so a smaller batch may change the last bits. A smaller size is used only
        if one step at that size gives every row the same results as the larger batch (`BatchSizes`).
        """
        rows, sizes = live.nonzero().squeeze(1), self._batch_sizes
        size = sizes.fitting(len(rows), len(live))
        trial = (size, *slots["x0"].shape[1:])
        known = trial in sizes.admissible
        if sizes.rounded:
            worthwhile = (
                not sizes.refused and self._ended.steps_left(live) >= _LONG + 2 * self._graphed.steps_to_capture
            )
        else:
            worthwhile = known or (self._attack.length >= _LONG and size <= _MUCH * len(live))
        if size >= len(live) or not worthwhile or self._pending():
            return self._graphed(slots, steps), live
        places = rows[torch.arange(size) % len(rows)]
        tested = 1 if sizes.rounded else steps
        with self._forward.not_compiled():  # compiled kernels round otherwise, and no smaller batch is compiled
            with self._forward.observed() as few:
                narrow = self._advance(take(slots, places), tested)
            with self._forward.observed() as many:
                wide = slots if known else self._advance(slots, tested)
        if not known:
            difference, compared = self._difference(slots, (wide, many), (narrow, few), rows)
            if difference:
                sizes.refuse(size, difference)
                return self._advance(wide, steps - tested), live
            if compared:
                sizes.admissible.add(trial)
        live = torch.arange(size) < len(rows)
        self._ended.moved(places, live)
        return self._advance(narrow, steps - tested), live

    def _difference(self, before: Columns, wide: Trial, narrow: Trial, rows: Tensor) -> tuple[str, int]:
        """How the result of a smaller batch differs from that of the larger one in its rows; empty if it does not.

        Also the number of rows that show it: on a GPU, rows may have ended without being read yet. On a CPU, logits and
        gradients are compared, too: steps in the direction of the sign are the same for other bits of them.
        """
        first = torch.arange(len(rows))
        expected, found = take(wide[0], rows), take(narrow[0], first)
        if not self._batch_sizes.rounded:
            size = len(narrow[0]["row"])
            if same := same_bits(expected, found) and len(wide[1]) == len(narrow[1]):
                passes = zip(wide[1], narrow[1], strict=True)
                same = all(bitwise_equal(many[rows], few[first]) for many, few in passes if len(few) == size)
            return "" if same else "it gives other bits", len(rows)
        comparison = Comparison(take(before, rows), expected)
        differs = comparison.difference(found)
        return differs and f"it computes another {differs}", comparison.rows

    def _rows_of(self, jobs: Iterable[Job]) -> Iterator[Columns]:
        """Yield the first start of each image of the jobs as columns on the device, without a state."""
        device, row = self._passes.device, 0
        for job in jobs:
            count = len(job.x)
            if not count:
                continue
            inputs = {**job.columns, "x0": job.x, "y": job.y, "index": job.index}
            columns = {name: to_device(recordable(value), device) for name, value in inputs.items()}
            columns["row"] = torch.arange(row, row + count, device=device)
            columns |= {name: torch.zeros_like(columns["row"]) for name in ("forwards", "backwards")}
            columns["id"] = torch.stack([torch.arange(row, row + count), torch.zeros(count, dtype=torch.int64)], 1)
            if self._attack.needs_reference and "reference" not in columns:
                columns["reference"] = self._passes.reference(columns["x0"])
                columns["forwards"] += 1
            if not self._classes:
                reference = columns.get("reference")
                self._classes = self._passes.classes(columns["x0"]) if reference is None else reference.shape[1]
            if self._attack.orders_targets:
                columns |= self._targets(columns)
            row += count
            yield columns

    def _targets(self, columns: Columns) -> Columns:
        """The attack's order of targets, in passes of the batch size, with these passes counted."""
        size, rows, forward = self._passes.batch_size, torch.arange(len(columns["row"])), self._forward
        before, blocks = (forward.forwards, forward.backwards), []
        for block in torch.split(rows, size):
            inputs = self._inputs(take(columns, block[torch.arange(size) % len(block)]))
            with forward.arithmetic():
                blocks.append(self._attack.target_order(forward, inputs)[: len(block)])
                forward.restore()
        padded = size * len(blocks)
        return {
            "target_order": torch.cat(blocks),
            "forwards": columns["forwards"] + (forward.forwards - before[0]) // padded,
            "backwards": columns["backwards"] + (forward.backwards - before[1]) // padded,
        }

    def _started(self, rows: Columns) -> Columns:
        """The rows in the state of a new start, without a candidate and without an image verified in float32."""
        rows = rows | {"restart": to_device(rows["id"][:, 1].contiguous(), rows["row"].device)}
        state = self._attack.start(self._forward, self._inputs(rows))
        self._forward.restore()
        if self._attack.user_code:
            self._check_state(state, rows, "start")
        previous = unprefixed(rows)  # empty at the first start
        state |= {name: previous[name] for name in self._attack.carries if name in previous}
        columns = {name: rows[name] for name in _OF_JOBS if name in rows}
        zero = torch.zeros_like(rows["row"])
        infinite = torch.full(zero.shape, torch.inf, device=zero.device)
        for name in ("forwards", "backwards"):  # of the reference and the order of the targets
            columns[name] = torch.where(rows["restart"] == 0, rows[name], zero)
        columns |= dict.fromkeys(("stage", "best_iteration", "best_prediction", "best_repeats"), zero)
        columns |= dict.fromkeys(("success", "hit", "ended"), zero.bool())
        columns |= {"best_x": rows["x0"], "best_margin": infinite}
        columns["best_logits"] = torch.zeros(len(zero), self._classes, device=zero.device)
        if self._early_stop:
            columns |= {"hit_x": rows["x0"], "hit_iteration": zero}
            columns |= {"low_x": rows["x0"], "low_iteration": zero, "low_margin": infinite}
            if self._forward.in_tf32:
                columns["failed"] = zero
        return columns | prefixed(state)

    def _inputs(self, columns: Columns) -> AttackInputs:
        threat = self._threat.with_epsilon(columns["epsilon"]) if "epsilon" in columns else self._threat
        optional: dict[str, Any] = {name: columns.get(name) for name in _OPTIONAL}
        return AttackInputs(columns["x0"], columns["y"], columns["index"], threat, self._rng, **optional)

    def _advance(self, slots: Columns, steps: int) -> Columns:
        """Step every slot some times; rows with a candidate or a finished start no longer change."""
        inputs, forward = self._inputs(slots), self._forward
        with forward.arithmetic():
            for step in range(steps):
                before = forward.forwards, forward.backwards
                new = self._attack.step(forward, inputs, unprefixed(slots))
                forward.restore()
                if self._attack.user_code:
                    self._check_state(new, slots, "step")
                size = len(slots["row"])  # a step may evaluate several versions of every image in one pass
                passes = (forward.forwards - before[0]) // size, (forward.backwards - before[1]) // size
                moved = self._fold(slots, new, *passes)
                if step or self._late:
                    moved = {
                        name: value if value is slots[name] else choose(slots["ended"], slots[name], value)
                        for name, value in moved.items()
                    }
                slots = moved | {"ended": moved["hit"] | moved["state.done"]}
        return slots

    def _check_state(self, state: State, rows: Columns, method: str) -> None:
        """Check what a method of an attack of a user returns; a step returns the columns that it was given, and others.

        Raises:
            ClasswiseError: if the engine cannot use it.
        """
        needed = ["x", "iteration", "done"]
        if method == "step":
            needed += [*unprefixed(rows), *(("seen", "margin") if self._early_stop else ())]
        what = wrong_state(state, rows["x0"], needed)
        if not what and method == "step" and not self._late:  # on a GPU it would wait for the device
            before, taken, length = rows["state.iteration"], state["iteration"], self._attack.length
            running = ~state["done"] & ~rows["state.done"] & (before < length)  # unused slots step beyond the length
            if bool((running & (taken >= length)).any()):
                what = f"a row that is not done after {length} steps, its length"
            elif bool((running & (taken <= before)).any()):
                what = "the same number of steps as before in column 'iteration', for a row that is not done"
        if what:
            raise ClasswiseError(f"{self._attack.user_code}.{method} returned {what}; correct the attack")

    def _fold(self, slots: Columns, new: State, forwards: int, backwards: int) -> Columns:
        """The slots after a step, with the first candidate and the iterate of lowest margin updated."""
        result = slots | prefixed(new)
        result["forwards"] = slots["forwards"] + forwards
        result["backwards"] = slots["backwards"] + backwards
        if not self._early_stop:
            return result
        value, seen, taken = new["margin"], new["seen"], slots["state.iteration"]
        hit, lower = (value < 0) | value.isnan(), value < slots["low_margin"]  # logits of NaN are no prediction
        if self._forward.in_tf32:
            hit = hit & (lower | (slots["failed"] < _FAILURES))
        return result | {
            "hit": hit,
            "hit_x": choose(hit, seen, slots["hit_x"]),
            "hit_iteration": torch.where(hit, taken, slots["hit_iteration"]),
            "low_x": choose(lower, seen, slots["low_x"]),
            "low_iteration": torch.where(lower, taken, slots["low_iteration"]),
            "low_margin": torch.where(lower, value, slots["low_margin"]),
        }

    def _verify(self, rows: Columns) -> Iterator[Finished]:
        """Verify one image of each row in float32.

        The start of the row then resumes, verifies its last iterate or that of lowest margin, or ends. The image that
        an attack returns was chosen because of its passes. With several passes, others decide its outcome.
        """
        if self._side_by_side:
            rows = self._needed(rows)
        if not len(rows["row"]):
            return
        decided = self._decided(rows, *self._candidate(rows))
        rows = rows | better(rows, decided) | {"forwards": decided["forwards"]}
        next_stages = {Fate.TRY_LAST: Stage.LAST, Fate.TRY_LOWEST: Stage.LOWEST}
        for fate, (block, success) in self._by_fate(rows, decided["success"], decided["best_margin"]).items():
            if fate == Fate.END:
                yield from self._ended_starts(block, success)
            elif fate == Fate.FINISH:
                yield from self._finish(block)
            elif fate == Fate.RESUME:
                self._starts.clear_candidates(block["id"])
                never = torch.zeros_like(block["success"])
                failures = {"failed": block["failed"] + 1} if self._forward.in_tf32 else {}
                self._returned.add(block | {"hit": never, "ended": never} | failures)
            else:
                self._starts.clear_candidates(block["id"])
                self._candidates.add(block | {"stage": torch.full_like(block["stage"], next_stages[fate])})
        if len(self._waiting):
            waiting = self._needed(self._waiting.pop(len(self._waiting)))
            may_run = self._starts.may_run(waiting["id"])
            self._returned.add(take(waiting, may_run.nonzero().squeeze(1)))
            self._waiting.add(take(waiting, (~may_run).nonzero().squeeze(1)))

    def _ended_starts(self, rows: Columns, success: Tensor) -> Iterator[Finished]:
        """End starts, begin the next ones, and yield finished images, unless they are yet to be decided or verified."""
        finished = self._starts.end(rows, success)
        following = self._starts.next(rows)
        if len(following["row"]):
            self._returned.add(self._started(following))
        if self._passes.repeats.count == 1:
            yield from self._finish(finished)
        else:  # the outcome so far does not count
            undecided = {"success": torch.zeros_like(finished["success"])}
            undecided["best_margin"] = torch.full_like(finished["best_margin"], torch.inf)
            undecided["stage"] = torch.full_like(finished["stage"], Stage.FINAL)
            self._candidates.add(finished | undecided)

    def _finish(self, rows: Columns) -> Iterator[Finished]:
        if self._confirms:
            self._unconfirmed.add(rows)
        elif len(rows["row"]):
            yield self._finished(rows)

    def _decided(self, rows: Columns, image: Tensor, taken: Tensor) -> Columns:
        """The outcomes of images decided in float32, after some steps (N,), and the forward passes of the rows."""
        image = self._inside(image, rows)
        decision = self._passes.decide(image, rows["y"])
        return {
            "forwards": rows["forwards"] + self._passes.repeats.count,
            "best_x": image,
            "best_logits": decision.logits,
            "best_prediction": decision.prediction,
            "best_repeats": decision.repeats,
            "best_margin": logit_margin(raised(decision.logits), rows["y"]),
            "best_iteration": taken,
            "success": ~decision.correct,
        }

    def _confirmed(self, rows: Columns) -> Columns:
        """Finished rows with the attack's reports verified in float32; without early stop also its nearest point."""
        verify = CountedForward(self._passes.reference, self._passes.model)
        state = self._attack.confirm(verify, self._inputs(rows), unprefixed(rows), rows["best_x"])
        rows = rows | prefixed(state) | {"forwards": rows["forwards"] + verify.forwards // len(rows["row"])}
        return rows if self._early_stop else rows | self._decided(rows, state["x"], rows["best_iteration"])

    def _by_fate(self, rows: Columns, success: Tensor, value: Tensor) -> dict[Fate, tuple[Columns, Tensor]]:
        """The verified rows by what becomes of them, in the order of `Fate`, and ``success`` on the CPU.

        Args:
            rows: the rows.
            success: whether the verified image is misclassified, (N,).
            value: the logit margin of the verified image, (N,).
        """
        is_hit = rows["stage"] == Stage.HIT
        fate = torch.where(is_hit, torch.where(rows["state.done"], Fate.TRY_LAST, Fate.RESUME), Fate.END)
        if self._early_stop:
            lower = (rows["stage"] == Stage.LAST) & (rows["low_margin"] < value)
            fate = torch.where(lower, Fate.TRY_LOWEST, fate)
        fate = torch.where(success, Fate.END, fate)
        fate = torch.where(rows["stage"] == Stage.FINAL, Fate.FINISH, fate)
        # One copy to the CPU and one of the order to the device serve all fates.
        read = to_cpu({"fate": fate.to(torch.int8), "success": success})
        fates = read["fate"]
        counts = torch.bincount(fates, minlength=len(Fate)).tolist()
        order = fates.argsort(stable=True)
        ordered = rows if max(counts) == len(fates) else take(rows, order)
        blocks: dict[Fate, tuple[Columns, Tensor]] = {}
        first = 0
        for number, count in enumerate(counts):
            if count:
                block = {name: column[first : first + count] for name, column in ordered.items()}
                blocks[Fate(number)] = block, read["success"][order[first : first + count]]
            first += count
        return blocks

    def _candidate(self, rows: Columns) -> tuple[Tensor, Tensor]:
        """The image of each row to verify, and the number of steps up to it."""
        image, taken = rows["state.x"], rows["state.iteration"]
        if self._early_stop:
            for stage, name in ((Stage.HIT, "hit"), (Stage.LOWEST, "low")):
                chosen = rows["stage"] == stage
                image = choose(chosen, rows[f"{name}_x"], image)
                taken = torch.where(chosen, rows[f"{name}_iteration"], taken)
        final = rows["stage"] == Stage.FINAL
        return choose(final, rows["best_x"], image), torch.where(final, rows["best_iteration"], taken)

    def _inside(self, candidate: Tensor, rows: Columns) -> Tensor:
        """The images, projected where they are outside the ball or [0, 1], then rounded to the grid, if any."""
        threat, x0 = self._inputs(rows).threat, rows["x0"]
        radius = threat.radius(x0).flatten()
        limit = radius + 1e-6 * radius.clamp_min(1)
        boxed = (candidate >= 0).flatten(1).all(1) & (candidate <= 1).flatten(1).all(1)
        legal = boxed & (threat.distance(candidate, x0) <= limit)
        allowed = choose(legal, candidate, threat.project(candidate.nan_to_num(0.0), x0))
        return allowed if self._grid is None else rounded(allowed, x0, threat)

    def _finished(self, rows: Columns) -> Finished:
        return Finished(
            row=rows["row"],
            index=rows["index"],
            y=rows["y"],
            x0=rows["x0"],
            x=rows["best_x"],
            logits=rows["best_logits"],
            prediction=rows["best_prediction"],
            repeats=rows["best_repeats"],
            success=rows["success"],
            iterations=rows["best_iteration"],
            forwards=rows["forwards"],
            backwards=rows["backwards"],
            records={name: rows[f"state.{name}"] for name in self._attack.records},
        )


def _up(count: int, multiple: int) -> int:
    """The next multiple."""
    return -(-count // multiple) * multiple


def _candidates(rows: Columns) -> Columns:
    """Rows that have left their slots, marked with the image to verify: the candidate, else the last iterate."""
    return rows | {"stage": torch.where(rows["hit"], Stage.HIT, Stage.LAST)}
