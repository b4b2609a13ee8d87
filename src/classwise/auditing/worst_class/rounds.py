"""The rounds of a search: the engine attacks the images that the racing rules choose."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from typing import cast

import numpy as np
import torch
from torch import Tensor

from classwise.attacks.engine import Finished, Job
from classwise.auditing.outcomes import CLEAN
from classwise.auditing.plan import Plan
from classwise.auditing.preparation import Prepared
from classwise.auditing.suite import attack_length
from classwise.auditing.worst_class.folder import SavedSearch
from classwise.auditing.worst_class.ledger import Ledger, SurvivorCounts
from classwise.core import interruption
from classwise.core.errors import ClasswiseError
from classwise.core.progress import Progress
from classwise.core.rng import CounterRNG
from classwise.data.images import Images
from classwise.stats.best_arm import Draw, Escalate, Race
from classwise.stats.counts import BoolArray, IntArray

SAVE_SECONDS = 30.0
"""The first pass is saved when so long has passed since the last time; rounds are saved as each is finished."""
ESCALATED = 2
"""The number in a ledger of an image on which the second attack, the escalating one, succeeded."""


class Rounds:
    """The images of a search and the engine that attacks them.

    Args:
        ready: what was prepared.
        progress: receives the progress of the search.
        saved: the search as far as it is on disk.
    """

    def __init__(self, ready: Prepared, progress: Progress, saved: SavedSearch) -> None:
        self.ready, self.progress, self.saved = ready, progress, saved
        self._started = time.monotonic() - saved.seconds
        self._saved_at = time.monotonic()
        self.plan: Plan = ready.plan
        self.attacks = list(ready.plan.suite.attacks.items())
        self.engine = ready.plan.engine(ready.model)
        self.ledger = Ledger()
        self.held: list[tuple[Images, IntArray]] = []  # the survivors of each piece, and their places in the ledger
        self.seen = np.zeros((len(self.attacks), 3))  # of each attack: images, successes, passes

    @property
    def seconds(self) -> float:
        """How long the search has taken, earlier parts of it included."""
        return time.monotonic() - self._started

    def first_pass(self) -> SurvivorCounts:
        """The clean pass and the first attack on all images; the survivors are held.

        Finished images are saved from time to time, and before a requested stop (see `classwise.core.interruption`).
        """
        (label, _), before = self.attacks[0], self.saved.table
        if before is not None:
            self.seen = np.array(self.saved.seen)
        judged = (
            0
            if before is None
            else int(_first_done(*(before[name].to_numpy() for name in ("stage", "forwards"))).sum())
        )
        self.progress.start(f"{CLEAN}, {label}", (self.ready.meta.images or judged) - judged)
        with interruption.deferred():
            for piece in self.ready.pieces:
                places = self.ledger.add(piece)
                if before is not None and (self.saved.rounds or places[0] < len(before)):
                    self.ledger.restore(places, before)
                self._judge(piece, places)
                # Only the first attack has number 1; what later rounds found is replayed.
                left = np.flatnonzero(~np.isin(self.ledger["stage"][places], (0, 1)))
                if len(left):
                    self.held.append((piece.take(torch.from_numpy(left)), places[left]))
        stage, rounds = self.ledger["stage"], self.saved.rounds
        if before is not None and len(before) > len(stage):
            raise ClasswiseError("the folder holds a search on other images; give another folder")
        if not rounds:
            self._save()
        classes = self.ready.meta
        total = len(classes.class_names)
        everything = np.ones(len(stage), dtype=np.bool_)
        survives = ~np.isin(stage, (0, 1))
        return SurvivorCounts(*(self.ledger.counts(mask, total) for mask in (everything, stage != 0, survives)))

    def _judge(self, piece: Images, places: IntArray) -> None:
        """The clean pass and the first attack on the images of a piece that are not finished."""
        fresh = torch.from_numpy(np.flatnonzero(self.ledger["forwards"][places] == 0))
        for rows in torch.split(fresh, self.plan.batch_size):
            if not len(rows):
                break
            batch = piece.batch(rows)
            (logits,) = self.engine.predict([batch.x])
            right = (logits.argmax(1) == batch.y.to(logits.device)) & logits.isfinite().all(1)
            wrong = rows[~right.cpu()].numpy()
            self.ledger["stage"][places[wrong]], self.ledger["settled"][places[wrong]] = 0, 1
            self.ledger["forwards"][places[rows.numpy()]] += 1
            self._finished(len(wrong))
        done = _first_done(self.ledger["stage"][places], self.ledger["forwards"][places])
        todo = np.flatnonzero(~done)
        self._attack(0, [(piece, places)], np.stack([np.zeros_like(todo), todo], 1), self._finished)

    def _finished(self, count: int) -> None:
        """So many images of the first pass are finished: save them if the last time was long ago, or before a stop."""
        self.progress.advance(count)
        if time.monotonic() - self._saved_at > SAVE_SECONDS:
            self._save()
        interruption.stop_point(self._save)

    def _save(self) -> None:
        self.saved.write(self.ledger, self.seen, round(self.seconds, 3))
        self._saved_at = time.monotonic()

    def run(self, race: Race, deadline: float) -> int:
        """Race the classes; returns how many rounds it took."""
        order = self._orders(len(race.images))
        if len(self.attacks) == 1:  # nothing is left to find out
            for label, rows in enumerate(order):
                self._settle(race, label, rows)
        rounds = 0
        while (moves := race.next()) and (rounds < len(self.saved.rounds) or time.monotonic() <= deadline):
            rounds += 1
            up = [move.label for move in moves if isinstance(move, Escalate)]
            chosen = {label: order[label][race.drawn[label] :] for label in up}
            drawn = {m.label: order[m.label][race.drawn[m.label] :][: m.size] for m in moves if isinstance(m, Draw)}
            fresh = [rows for label, rows in drawn.items() if race.level[label] == 0]
            replayed = rounds <= len(self.saved.rounds)
            if not replayed:
                size = sum(len(rows) for rows in (*chosen.values(), *drawn.values()))
                self.progress.start(f"round {rounds}", size)
                self._attack(1, self.held, _joined([*chosen.values(), *fresh]))
                for attack in range(2, len(self.attacks)):
                    self._attack(attack, self.held, self._surviving(_joined(list(drawn.values()))))
                for rows in drawn.values():
                    self.ledger["settled"][self._places(rows)] = 1
            # An image that the escalating attack left may be adversarial in a later round.
            found: dict[str, list[list[int]]] = {"draws": [], "escalations": []}
            for name, rows in drawn.items():
                found["draws"].append([name, len(rows), len(rows) - len(self._surviving(rows))])
                race.observe_draw(*found["draws"][-1])
            for name, rows in chosen.items():
                order[name] = rows[self.ledger["stage"][self._places(rows)] != ESCALATED] if len(rows) else rows
                found["escalations"].append([name, len(rows), len(rows) - len(order[name])])
                race.observe_escalation(name, len(rows) - len(order[name]))
                if len(self.attacks) == 2:
                    self._settle(race, name, order[name])
            if replayed:
                if found != self.saved.rounds[rounds - 1]:
                    raise ClasswiseError(
                        f"{self.saved.path} is damaged: round {rounds} differs; search in another folder"
                    )
                continue
            self.saved.rounds.append(found)
            self._save()
            self.progress.advance(size)
        return rounds

    def _settle(self, race: Race, label: int, rows: IntArray) -> None:
        """Every attack has run on these survivors already."""
        self.ledger["settled"][self._places(rows)] = 1
        race.observe_draw(label, len(rows), 0)

    def _orders(self, classes: int) -> list[IntArray]:
        """For each class its survivors, (n, 2) rows of piece and place in it, in the order in which they are drawn."""
        rng = CounterRNG(self.plan.seed, "race")
        found: list[list[tuple[int, int, int]]] = [[] for _ in range(classes)]
        for number, (piece, _) in enumerate(self.held):
            keys = rng.integers(piece.index.cpu(), (), 1 << 62).tolist()
            for row, (key, label) in enumerate(zip(keys, piece.y.tolist(), strict=True)):
                found[label].append((key, number, row))
        return [np.array([each[1:] for each in sorted(rows)], dtype=np.int64).reshape(-1, 2) for rows in found]

    def _places(self, rows: IntArray) -> IntArray:
        """Places in the ledger of held survivors."""
        places = [self.held[piece][1][row] for piece, row in rows]
        return np.array(places, dtype=np.int64)

    def _surviving(self, rows: IntArray) -> IntArray:
        return rows[self.ledger["stage"][self._places(rows)] < 0] if len(rows) else rows

    def _attack(
        self,
        number: int,
        pieces: list[tuple[Images, IntArray]],
        rows: IntArray,
        finished: Callable[[int], None] = lambda _: None,
    ) -> None:
        """One attack on some rows of some pieces, (n, 2), noted in the ledger; ``finished`` receives their number."""
        if not len(rows):
            return
        _, attack = self.attacks[number]
        places = np.array([pieces[piece][1][row] for piece, row in rows])
        blocks = self.engine.attack(attack, self.plan.threat, self._jobs(pieces, rows, places))
        # The jobs come piece after piece, in the order of `_grouped`.
        sequence = places[_grouped(rows)]
        with contextlib.closing(cast("Generator[Finished, None, None]", blocks)):
            for done in blocks:
                at = sequence[done.row.cpu().numpy()]
                success = done.success.cpu().numpy()
                forwards, backwards = done.forwards.cpu().numpy(), done.backwards.cpu().numpy()
                self.ledger["stage"][at[success]] = number + 1
                self.ledger["settled"][at[success]] = 1
                self.ledger["forwards"][at] += forwards
                self.ledger["backwards"][at] += backwards
                self.seen[number] += len(at), success.sum(), forwards.sum() + backwards.sum()
                finished(len(at))

    def _jobs(self, pieces: list[tuple[Images, IntArray]], rows: IntArray, places: IntArray) -> Iterator[Job]:
        sequence = _grouped(rows)
        epsilon = self.plan.threat.epsilon
        for piece in np.unique(rows[:, 0]):
            mine = sequence[rows[sequence, 0] == piece]
            for part in torch.split(torch.from_numpy(mine), self.plan.batch_size):
                batch = pieces[piece][0].batch(torch.from_numpy(rows[part.numpy(), 1]))
                radius: dict[str, Tensor] = {}
                if isinstance(epsilon, Tensor):  # such data are in memory, so that places are rows of theirs
                    radius = {"epsilon": epsilon.cpu()[torch.from_numpy(places[part.numpy()])]}
                yield Job(batch.index, batch.x, batch.y, radius)

    def full_audit_passes(self, race: Race) -> float:
        """Passes of the cascade on all images: those taken, and what the images that are left would take on average."""
        spent = float(self.ledger["forwards"].sum() + self.ledger["backwards"].sum())
        costs, falls = [], []
        for (_, attack), (images, successes, passes) in zip(self.attacks, self.seen, strict=True):
            costs.append(passes / images if images else 2.0 * attack_length(attack) + attack.starts)
            falls.append(successes / images if images else 0.0)
        left, after = 0.0, [0.0]
        for cost, fall in zip(reversed(costs), reversed(falls), strict=True):
            left = cost + (1 - fall) * left
            after.append(left)
        after.reverse()  # after[k]: the passes of an image that comes to attack k
        early = race.level == 0
        waiting = race.unsettled
        second, third = (after[k] if k < len(after) else 0.0 for k in (1, 2))
        return spent + float(waiting[early].sum() * second + waiting[~early].sum() * third)


def _first_done(stage: IntArray, forwards: IntArray) -> BoolArray:
    """Which images are wrong when clean, or have passes of the first attack beside the clean one."""
    done: BoolArray = (stage == 0) | (forwards > 1)
    return done


def _joined(rows: list[IntArray]) -> IntArray:
    return np.concatenate(rows) if rows else np.empty((0, 2), dtype=np.int64)


def _grouped(rows: IntArray) -> IntArray:
    """The order in which (n, 2) rows are read: piece after piece."""
    return np.argsort(rows[:, 0], kind="stable")
