"""The bisection of the radii of all images together.

A round is one pass of the engine's queue in which each image is attacked at the middle of its own bracket, first by the
attack that succeeded on it last.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator
from typing import cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine, Finished, Job
from classwise.auditing.curve.brackets import Brackets
from classwise.auditing.curve.folder import SavedBrackets
from classwise.auditing.outcomes import CLEAN
from classwise.auditing.plan import Plan
from classwise.auditing.runner import balanced_order, part_of
from classwise.core.distributed import ProcessGroup
from classwise.core.progress import Progress
from classwise.data.images import Images
from classwise.stats.counts import BoolArray, FloatArray, IntArray

MINIMAL_DISTANCE = "minimal_distance"
"""The record of an attack that looks for the nearest adversarial image: how near the nearest one was that it met."""


class Bisection:
    """The search of radii on pieces of the data."""

    def __init__(
        self, engine: Engine, plan: Plan, processes: ProcessGroup, progress: Progress, saved: SavedBrackets
    ) -> None:
        self.saved = saved
        self.engine = engine
        self.plan = plan
        self.processes = processes
        self.progress = progress
        self.attacks = list(plan.suite.attacks.items())

    def radii(self, number: int, piece: Images, rounds: int) -> pd.DataFrame:
        """A row for each image of a piece that is this process's."""
        order = part_of(balanced_order(piece.y.cpu()), piece.y.cpu(), self.processes)
        index, label = piece.index.cpu()[order].numpy(), piece.y.cpu()[order].numpy()
        found = self._initial(piece, order, index, label)
        highest = float(cast("float", self.plan.threat.epsilon))
        width = highest / 2**rounds
        for turn in itertools.count(int(found.probes.max(initial=0))):
            self.saved.write(number, index, label, found)
            radius = found.probe(width, highest)
            radius[found.probes > 2 * rounds] = np.nan  # `rounds` and the first, unless searches begin again
            todo = np.flatnonzero(~np.isnan(radius))
            if not len(todo):
                break
            self.progress.start(f"round {turn + 1}", len(todo))
            self._round(piece, order, found, todo, radius)
        labels = np.array([CLEAN, *(label for label, _ in self.attacks)], dtype=object)
        breaker = np.where(np.isinf(found.high), None, labels[found.breaker + 1])
        return pd.DataFrame(
            {
                "index": index,
                "label": label,
                "low": found.low,
                "high": found.high,
                "first_success": pd.Series(breaker, dtype="string"),
                "probes": found.probes,
                "forwards": found.forwards,
                "backwards": found.backwards,
            }
        )

    def _initial(self, piece: Images, order: Tensor, index: IntArray, label: IntArray) -> Brackets:
        """The brackets of some images: those that are saved, and of the others what the clean pass says."""
        saved = self.saved.rows(index, label)
        fresh = ~np.isin(index, saved.index)
        wrong = self._wrong(piece, order[torch.from_numpy(fresh)])
        begun = pd.DataFrame(Brackets(wrong).columns(), index=index[fresh])
        parts = [part for part in (saved, begun) if len(part)]
        return Brackets.of(pd.concat(parts).loc[index] if parts else begun)

    def _wrong(self, piece: Images, order: Tensor) -> BoolArray:
        """Which images are misclassified without an attack."""
        wrong = []
        for rows in torch.split(order, self.plan.batch_size) if len(order) else ():
            self.processes.check()
            batch = piece.batch(rows)
            (logits,) = self.engine.predict([batch.x])
            right = (logits.argmax(1).cpu() == batch.y.cpu()) & logits.isfinite().all(1).cpu()
            wrong.append(~right)
        return torch.cat(wrong).numpy() if wrong else np.zeros(0, dtype=np.bool_)

    def _round(self, piece: Images, order: Tensor, found: Brackets, todo: IntArray, radius: FloatArray) -> None:
        """Attack each image at its radius: first by the attack that succeeded on it last, then by the others."""
        robust = np.zeros(len(radius), dtype=np.bool_)
        robust[todo] = True
        last = found.breaker.copy()
        for warm in (True, False):
            for place, (_, attack) in enumerate(self.attacks):
                rows = np.flatnonzero(robust & ((last == place) == warm))
                if len(rows):
                    adversarial = self._attack(place, attack, piece, order, rows, radius, found)
                    robust[adversarial] = False
        found.probes[todo] += 1
        left = np.flatnonzero(robust)
        found.set_robust(left, radius[left])
        self.progress.advance(len(left))

    def _attack(
        self,
        place: int,
        attack: Attack,
        piece: Images,
        order: Tensor,
        rows: IntArray,
        radius: FloatArray,
        found: Brackets,
    ) -> IntArray:
        """One attack on some rows; returns those on which it succeeded."""
        column = torch.from_numpy(radius).float()

        def jobs() -> Generator[Job, None, None]:
            for chosen in torch.split(torch.from_numpy(rows), self.plan.batch_size):
                self.processes.check()
                batch = piece.batch(order[chosen])
                yield Job(batch.index, batch.x, batch.y, {"epsilon": column[chosen]})

        adversarial: list[IntArray] = []
        blocks = self.engine.attack(attack, self.plan.threat, jobs())
        with contextlib.closing(cast("Generator[Finished, None, None]", blocks)):
            for done in blocks:
                at = rows[done.row.cpu().numpy()]
                found.forwards[at] += done.forwards.cpu().numpy()
                found.backwards[at] += done.backwards.cpu().numpy()
                near = self._distance(done)
                hit = np.isfinite(near) | done.success.cpu().numpy()
                found.set_adversarial(at[hit], np.minimum(near, radius[at])[hit], place)
                adversarial.append(at[hit])
                self.progress.advance(int(hit.sum()))
        return np.concatenate(adversarial) if adversarial else rows[:0]

    def _distance(self, done: Finished) -> FloatArray:
        """How near the nearest adversarial image is that an attack has shown for each row; infinity for none.

        An attack that looks for the nearest one may have met a nearer one than it was stopped at. That is believed
        only where it saw in float32.
        """
        distance = self.plan.threat.distance(done.x, done.x0)
        near = torch.where(done.success, distance, torch.inf)
        if MINIMAL_DISTANCE in done.records and self.plan.precision.dtype == "float32":
            near = torch.minimum(near, done.records[MINIMAL_DISTANCE].to(near).nan_to_num(torch.inf))
        result: FloatArray = near.double().cpu().numpy()
        return result
