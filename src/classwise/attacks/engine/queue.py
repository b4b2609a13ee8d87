"""The queue: images under attack share one device batch of fixed size.

An image leaves its slot as soon as an adversarial example is found, and the next image takes it. So the device works on
full batches of images that are still robust. Device batches are padded with copies; at the end of the data they are
smaller, if a smaller batch gives the same bits, or on a GPU the same up to rounding. Each row is computed from that row
only, so the result for an image depends neither on the other images nor on their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor

from classwise.attacks.base import Attack, AttackInputs, State
from classwise.attacks.engine.graphed import Comparison, GraphedSteps, GraphUse
from classwise.attacks.engine.passes import CountedForward, Passes, recordable
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
)
from classwise.attacks.losses import margin as logit_margin
from classwise.core.grid import rounded
from classwise.core.rng import CounterRNG
from classwise.core.threat import Threat
from classwise.core.threat_text import Grid
from classwise.core.transfers import to_cpu, to_device
from classwise.models.logits import raised

SMALLEST_BATCH = 32
"""Minimum batch size for reproducible results: below it, libraries choose kernels by the composition of the batch."""

_GRAIN = 8
"""Smaller batch sizes are multiples of this."""
_MUCH = 0.75
"""A smaller batch size is tested only if it is at most this fraction of the current one."""
_LONG = 8
"""Minimum number of steps of an attack for which a smaller batch is tested; the test takes one step."""
_FAILURES = 8
"""Candidates of one start that may fail verification before a candidate must have a margin below all earlier ones.

Else a row whose margin is negative in TF32 and positive in float32 would be verified at every poll.
"""
_OPTIONAL = ("target", "step_size", "reference", "restart", "target_order")
"""Columns that an attack may have in its inputs."""


@dataclass
class BatchSizes:
    """Smaller batch sizes that gave the same results as a larger one in a step of an attack.

    On a GPU kernels are chosen by batch size, and results need not repeat to the bit: there the results are the same if
    they differ by rounding only (`Comparison`), and batches of equal size are used from the start (`slots`).

    Args:
        attack: the attack; a reference, so that its id is not reused.
        rounded: whether results may differ by rounding.
        refused: why smaller batches are not used, once one gave other results, or if they are not to be tested.
        admissible: batch sizes and image shapes that gave the same results.
    """

    attack: Attack
    rounded: bool = False
    refused: str = ""
    admissible: set[tuple[int, ...]] = field(default_factory=set)

    def slots(self, batch_size: int, images: int | None) -> int:
        """The number of slots for images: as many for each of the fewest batches that contain them all."""
        if not self.rounded or not images:
            return batch_size
        batches = -(-images // batch_size)
        return min(batch_size, _up(-(-images // batches), SMALLEST_BATCH))

    def fitting(self, count: int, slots: int) -> int:
        """The smallest admissible number of slots for ``count`` rows; on a GPU a half, a quarter, ... of all slots."""
        if not self.rounded:
            return max(SMALLEST_BATCH, _up(count, _GRAIN))
        while (half := _up(-(-slots // 2), _GRAIN)) >= max(count, SMALLEST_BATCH) and half < slots:
            slots = half
        return slots


class Stage(IntEnum):
    """The image of a row that is verified in float32, in the column ``stage``.

    The verification decides the `Fate` of the row, whose image is then robust (correctly classified) or not:

    ====== ============================ =============== ====================================================
    stage  verified image               not robust      robust
    ====== ============================ =============== ====================================================
    HIT    the candidate                FINISH          RESUME, or TRY_LAST if the start is done
    LAST   the last iterate             FINISH          TRY_LOWEST with early stop and a lower margin, or FINISH
    LOWEST the iterate of lowest margin FINISH          FINISH
    FINAL  the image to return          FINISH          FINISH
    ====== ============================ =============== ====================================================

    Except in FINAL, a FINISH becomes RESTART while starts remain, of robust rows, and without early stop of all rows if
    the attack minimises the distance. With several passes for each decision, the other FINISH become DECIDE_AGAIN.
    """

    HIT = 0
    LAST = 1
    LOWEST = 2
    FINAL = 3


class Fate(IntEnum):
    """What becomes of a verified row."""

    RESUME = 0  # to the slots, in the same start
    TRY_LAST = 1  # to the candidates, in the stage LAST
    TRY_LOWEST = 2  # to the candidates, in the stage LOWEST
    RESTART = 3  # to the slots, in another start
    DECIDE_AGAIN = 4  # to the candidates, in the stage FINAL: other passes decide the image to return
    FINISH = 5


class Queue:
    """One attack over one stream of images: slots on the device, candidates to verify, rows that return to the slots.

    Each row has the columns of its job (``x0``, ``y``, ``index``, ...), the attack's state (``state.x``, ...), the
    candidate and the iterate of lowest margin (``hit_x``, ``low_x``, ...), and the best image verified in float32
    (``best_x``, ...). Rows move between slots and buffers with all their columns.

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
    ) -> None:
        self._passes = passes
        self._forward = forward
        self._attack = attack
        self._threat = threat
        self._rng = CounterRNG(seed, "attack")
        self._poll = poll
        self._early_stop = early_stop
        self._batch_sizes = batch_sizes
        self._slots = batch_sizes.slots(passes.batch_size, images)
        self._grid = grid
        self._graphed = GraphedSteps(self._advance, attack, graphs)
        self._late = passes.device.type == "cuda"
        self._ended = EndedSlots(0, attack.length, late=self._late)
        self._fresh = Buffer()
        self._returned = Buffer()  # rows that failed verification or begin another start
        self._candidates = Buffer()  # rows with an image to verify in float32
        self._unconfirmed = Buffer()  # finished rows whose reports are to be verified in float32
        self._confirms = forward.in_tf32 and type(attack).confirm is not Attack.confirm

    def run(self, jobs: Iterable[Job]) -> Iterator[Finished]:
        """Attack all images of a stream and yield them as they finish; every job must have the same columns."""
        try:
            yield from self._run(jobs)
        finally:
            self._graphed.release()

    def _run(self, jobs: Iterable[Job]) -> Iterator[Finished]:
        self._fresh = Buffer(self._rows_of(jobs))
        size = self._passes.batch_size  # of verifications
        slots: Columns = {}
        live = torch.zeros(self._slots, dtype=torch.bool)
        self._ended = EndedSlots(self._slots, self._attack.length, late=self._late)
        while True:
            slots, live = self._refilled(slots, live)
            if live.any():
                steps = min(self._poll, self._ended.steps_left(live))
                if steps:
                    slots, live = self._stepped(slots, live, steps)
                leaving = self._ended.poll(slots["ended"], live, steps)
                if leaving.any():
                    self._candidates.add(_candidates(take(slots, leaving.nonzero().squeeze(1))))
                    live &= ~leaving
            drained = not (live.any() or self._waiting())
            while len(self._candidates) >= size or (drained and len(self._candidates)):
                yield from self._verify(self._candidates.pop(size))
            over = drained and not self._returned.peek()
            while len(self._unconfirmed) >= size or (over and len(self._unconfirmed)):
                yield self._finished(self._confirmed(self._unconfirmed.pop(size)))
            if over:
                return

    def _waiting(self) -> bool:
        return self._returned.peek() or self._fresh.peek()

    def _refilled(self, slots: Columns, live: Tensor) -> tuple[Columns, Tensor]:
        """The slots after filling the unused ones with pending rows."""
        size = self._slots
        if self._batch_sizes.rounded and not self._fresh.peek():
            size = self._batch_sizes.fitting(int(live.sum()) + len(self._returned), size)
        if len(live) < size and self._waiting():  # rows returned after the batch was reduced
            places = torch.arange(size) % len(live)
            slots, live = take(slots, places), torch.cat([live, live.new_zeros(size - len(live))])
            self._ended.moved(places, live)
        vacant = (~live).nonzero().squeeze(1)
        incoming = self._incoming(len(vacant))
        if incoming is None:
            return slots, live
        count = len(incoming["row"])
        if slots:
            put(slots, vacant[:count], incoming, in_place=self._graphed.owns(slots))
        else:
            slots = take(incoming, torch.arange(size) % count)
        self._ended.filled(vacant[:count])
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
            worthwhile = known or (not sizes.refused and self._attack.length >= _LONG and size <= _MUCH * len(live))
        if size >= len(live) or not worthwhile or self._waiting():
            return self._graphed(slots, steps), live
        places = rows[torch.arange(size) % len(rows)]
        tested = 1 if sizes.rounded else steps
        narrow = self._advance(take(slots, places), tested)
        if not known:
            wide = self._advance(slots, tested)
            sizes.refused = self._difference(slots, wide, narrow, rows)
            if sizes.refused:
                return self._advance(wide, steps - tested), live
            sizes.admissible.add(trial)
        live = torch.arange(size) < len(rows)
        self._ended.moved(places, live)
        return self._advance(narrow, steps - tested), live

    def _difference(self, before: Columns, wide: Columns, narrow: Columns, rows: Tensor) -> str:
        """How the result of a smaller batch differs from that of the larger one in its rows; empty if it does not."""
        expected, found = take(wide, rows), take(narrow, torch.arange(len(rows)))
        if not self._batch_sizes.rounded:
            return "" if same_bits(expected, found) else "it gives other bits"
        differs = Comparison(take(before, rows), expected).difference(found)
        return differs and f"it computes another {differs}"

    def _rows_of(self, jobs: Iterable[Job]) -> Iterator[Columns]:
        """Yield the jobs as columns on the device, with the initial values of the queue's own columns."""
        device, row = self._passes.device, 0
        classes: int | None = None
        for job in jobs:
            count = len(job.x)
            if not count:
                continue
            inputs = {**job.columns, "x0": job.x, "y": job.y, "index": job.index}
            columns = {name: to_device(recordable(value), device) for name, value in inputs.items()}
            columns["row"] = torch.arange(row, row + count, device=device)
            for name in ("restart", "forwards", "backwards", "stage", "best_iteration"):
                columns[name] = torch.zeros_like(columns["row"])
            if self._attack.needs_reference and "reference" not in columns:
                columns["reference"] = self._passes.reference(columns["x0"])
                columns["forwards"] += 1
            if classes is None:
                reference = columns.get("reference")
                classes = self._passes.classes(columns["x0"]) if reference is None else reference.shape[1]
            columns["success"] = torch.zeros_like(columns["row"], dtype=torch.bool)
            columns["best_x"] = columns["x0"]
            columns["best_logits"] = torch.zeros(count, classes, device=device)
            columns["best_prediction"] = columns["best_repeats"] = torch.zeros_like(columns["row"])
            columns["best_margin"] = torch.full((count,), torch.inf, device=device)
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
        padded = size * len(blocks)
        return {
            "target_order": torch.cat(blocks),
            "forwards": columns["forwards"] + (forward.forwards - before[0]) // padded,
            "backwards": columns["backwards"] + (forward.backwards - before[1]) // padded,
        }

    def _incoming(self, count: int) -> Columns | None:
        """Up to ``count`` rows that are ready to step: returned rows first, then new ones."""
        parts = []
        if count and self._returned.peek():
            parts.append(self._returned.pop(count))
            count -= len(parts[0]["row"])
        if count and self._fresh.peek():
            parts.append(self._started(self._fresh.pop(count)))
        return join(parts) if parts else None

    def _started(self, columns: Columns) -> Columns:
        """The rows with the state of a new start, without a candidate."""
        state = self._attack.start(self._forward, self._inputs(columns))
        previous = unprefixed(columns)  # empty at the first start
        state |= {name: previous[name] for name in self._attack.carries if name in previous}
        zero = torch.zeros_like(columns["row"])
        initial: Columns = {"hit": zero.bool(), "ended": zero.bool()}
        if self._early_stop:
            infinite = torch.full(zero.shape, torch.inf, device=zero.device)
            initial |= {"hit_x": columns["x0"], "hit_iteration": zero}
            initial |= {"low_x": columns["x0"], "low_iteration": zero, "low_margin": infinite}
            if self._forward.in_tf32:
                initial["failed"] = zero
        return columns | initial | prefixed(state)

    def _inputs(self, columns: Columns) -> AttackInputs:
        threat = self._threat.with_epsilon(columns["epsilon"]) if "epsilon" in columns else self._threat
        optional = {name: columns.get(name) for name in _OPTIONAL}
        return AttackInputs(columns["x0"], columns["y"], columns["index"], threat, self._rng, **optional)

    def _advance(self, slots: Columns, steps: int) -> Columns:
        """Step every slot some times; rows with a candidate or a finished start no longer change."""
        inputs, forward = self._inputs(slots), self._forward
        with forward.arithmetic():
            for step in range(steps):
                before = forward.forwards, forward.backwards
                new = self._attack.step(forward, inputs, unprefixed(slots))
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

    def _fold(self, slots: Columns, new: State, forwards: int, backwards: int) -> Columns:
        """The slots after a step, with the first candidate and the iterate of lowest margin updated."""
        result = slots | prefixed(new)
        result["forwards"] = slots["forwards"] + forwards
        result["backwards"] = slots["backwards"] + backwards
        if not self._early_stop:
            return result
        value, seen, taken = new["margin"], new["seen"], slots["state.iteration"]
        hit, lower = value < 0, value < slots["low_margin"]
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

        A row then finishes, resumes its start, verifies its last iterate or that of lowest margin, or restarts. The
        image that an attack returns was chosen because of its passes. With several passes, others decide its outcome.
        """
        rows, success, value = self._decided(rows)
        next_stages = {Fate.TRY_LAST: Stage.LAST, Fate.TRY_LOWEST: Stage.LOWEST, Fate.DECIDE_AGAIN: Stage.FINAL}
        for fate, block in self._by_fate(rows, success, value).items():
            if fate == Fate.FINISH and self._confirms:
                self._unconfirmed.add(block)
            elif fate == Fate.FINISH:
                yield self._finished(block)
            elif fate == Fate.RESUME:
                never = torch.zeros_like(block["success"])
                failures = {"failed": block["failed"] + 1} if self._forward.in_tf32 else {}
                self._returned.add(block | {"hit": never, "ended": never} | failures)
            elif fate == Fate.RESTART:
                self._returned.add(self._started(block | {"restart": block["restart"] + 1}))
            else:
                self._candidates.add(block | {"stage": torch.full_like(block["stage"], next_stages[fate])})

    def _decided(self, rows: Columns) -> tuple[Columns, Tensor, Tensor]:
        """The rows with the image to verify decided in float32; whether it is misclassified, and its margin, (N,)."""
        candidate, taken = self._candidate(rows)
        candidate = self._inside(candidate, rows)
        decision = self._passes.decide(candidate, rows["y"])
        success, final = ~decision.correct, rows["stage"] == Stage.FINAL
        value = logit_margin(raised(decision.logits), rows["y"])
        better = final | success | (~rows["success"] & ~(rows["best_margin"] <= value))
        new = {
            "forwards": rows["forwards"] + self._passes.repeats.count,
            "best_x": choose(better, candidate, rows["best_x"]),
            "best_logits": choose(better, decision.logits, rows["best_logits"]),
            "best_prediction": torch.where(better, decision.prediction, rows["best_prediction"]),
            "best_repeats": torch.where(better, decision.repeats, rows["best_repeats"]),
            "best_margin": torch.where(better, value, rows["best_margin"]),
            "best_iteration": torch.where(better, taken, rows["best_iteration"]),
            "success": torch.where(final, success, rows["success"] | success),
        }
        return rows | new, success, value

    def _confirmed(self, rows: Columns) -> Columns:
        """Finished rows with the attack's reports verified in float32; without early stop also its nearest point."""
        verify = CountedForward(self._passes.reference, self._passes.model)
        state = self._attack.confirm(verify, self._inputs(rows), unprefixed(rows), rows["best_x"])
        rows = rows | prefixed(state) | {"forwards": rows["forwards"] + verify.forwards // len(rows["row"])}
        if self._early_stop:
            return rows
        final = torch.full_like(rows["stage"], Stage.FINAL)
        return self._decided(rows | {"stage": final, "best_x": state["x"]})[0]

    def _by_fate(self, rows: Columns, success: Tensor, value: Tensor) -> dict[Fate, Columns]:
        """The verified rows by what becomes of them, in the order of `Fate`.

        Args:
            rows: the rows.
            success: whether the verified image is misclassified, (N,).
            value: the logit margin of the verified image, (N,).
        """
        robust, is_hit = ~success, rows["stage"] == Stage.HIT
        fate = torch.where(is_hit, torch.where(rows["state.done"], Fate.TRY_LAST, Fate.RESUME), Fate.FINISH)
        if self._early_stop:
            lower = (rows["stage"] == Stage.LAST) & (rows["low_margin"] < value)
            fate = torch.where(lower, Fate.TRY_LOWEST, fate)
        fate = torch.where(robust, fate, Fate.FINISH)
        # An attack that minimises the distance may find a nearer point in another start.
        may_restart = (
            fate == Fate.FINISH if self._attack.minimises and not self._early_stop else robust & (fate == Fate.FINISH)
        )
        remains = rows["restart"] + 1 < self._attack.starts_for(rows["best_logits"].shape[1])
        final = rows["stage"] == Stage.FINAL
        fate = torch.where(may_restart & remains & ~final, Fate.RESTART, fate)
        if self._passes.repeats.count > 1:
            fate = torch.where((fate == Fate.FINISH) & ~final, Fate.DECIDE_AGAIN, fate)
        # One copy to the CPU and one of the order to the device serve all fates.
        fates = to_cpu({"fate": fate.to(torch.int8)})["fate"]
        counts = torch.bincount(fates, minlength=len(Fate)).tolist()
        ordered = rows if max(counts) == len(fates) else take(rows, fates.argsort(stable=True))
        blocks: dict[Fate, Columns] = {}
        first = 0
        for number, count in enumerate(counts):
            if count:
                blocks[Fate(number)] = {name: column[first : first + count] for name, column in ordered.items()}
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
