"""Bisection of the robust radii of all images, in parallel.

In a round each image is attacked once, at the midpoint of its own bracket: first by the attack that succeeded on it
last, then by the others.
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
from classwise.auditing.curve.brackets import Brackets, SavedBrackets
from classwise.auditing.outcomes.table import CLEAN
from classwise.auditing.run.partition import balanced_order, part_of
from classwise.auditing.run.plan import Plan
from classwise.core.distributed import ProcessGroup
from classwise.core.progress import Progress
from classwise.data.images import Images
from classwise.models.logits import predicts
from classwise.stats.counts import BoolArray, FloatArray, IntArray

MINIMAL_DISTANCE = "minimal_distance"
"""The record of minimum-norm attacks: the distance of the nearest adversarial example found."""


class Bisection:
    """Bisection of the robust radii on pieces of the data.

    Args:
        engine: runs the attacks.
        plan: the settings of the search; its threat has the largest radius.
        processes: the processes that share the images.
        progress: receives the progress.
        saved: the brackets of an unfinished search.
    """

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
        """Search the radii of this process's images of a piece.

        Args:
            number: the number of the piece.
            piece: the images.
            rounds: how often the range is halved.

        Returns:
            A row for each image, with the columns of `classwise.auditing.curve.result.COLUMNS`.
        """
        order = part_of(balanced_order(piece.y.cpu()), piece.y.cpu(), self.processes)
        index, label = piece.index.cpu()[order].numpy(), piece.y.cpu()[order].numpy()
        brackets = self._initial(piece, order, index, label)
        highest = float(cast("float", self.plan.threat.epsilon))
        width = highest / 2**rounds
        for round_ in itertools.count(int(brackets.probes.max(initial=0))):
            self.saved.write(number, index, label, brackets)
            radius = brackets.probe(width, highest)
            # A search takes rounds + 1 probes; restarted searches are limited to about twice as many.
            radius[brackets.probes > 2 * rounds] = np.nan
            todo = np.flatnonzero(~np.isnan(radius))
            if not len(todo):
                break
            self.progress.start(f"round {round_ + 1}", len(todo))
            self._round(piece, order, brackets, todo, radius)
        labels = np.array([CLEAN, *(label for label, _ in self.attacks)], dtype=object)
        first_success = np.where(np.isinf(brackets.high), None, labels[brackets.attack + 1])
        return pd.DataFrame(
            {
                "index": index,
                "label": label,
                "low": brackets.low,
                "high": brackets.high,
                "first_success": pd.Series(first_success, dtype="string"),
                "probes": brackets.probes,
                "forwards": brackets.forwards,
                "backwards": brackets.backwards,
            }
        )

    def _initial(self, piece: Images, order: Tensor, index: IntArray, label: IntArray) -> Brackets:
        """The brackets to start from: the saved ones, and for the other images those after the clean pass."""
        saved = self.saved.rows(index, label)
        unsaved = ~np.isin(index, saved.index)
        wrong = self._wrong(piece, order[torch.from_numpy(unsaved)])
        initial = pd.DataFrame(Brackets(wrong).columns(), index=index[unsaved])
        parts = [part for part in (saved, initial) if len(part)]
        return Brackets.of(pd.concat(parts).loc[index] if parts else initial)

    def _wrong(self, piece: Images, order: Tensor) -> BoolArray:
        """Whether each clean image is misclassified."""
        wrong = []
        for rows in torch.split(order, self.plan.batch_size) if len(order) else ():
            self.processes.check()
            batch = piece.batch(rows)
            (logits,) = self.engine.predict([batch.x])
            wrong.append(~predicts(logits.cpu(), batch.y.cpu()))
        return torch.cat(wrong).numpy() if wrong else np.zeros(0, dtype=np.bool_)

    def _round(self, piece: Images, order: Tensor, brackets: Brackets, todo: IntArray, radius: FloatArray) -> None:
        """Attack each image at its radius: first by the attack that succeeded on it last, then by the others."""
        robust = np.zeros(len(radius), dtype=np.bool_)
        robust[todo] = True
        last = brackets.attack.copy()
        for succeeded_last in (True, False):
            for number, (_, attack) in enumerate(self.attacks):
                rows = np.flatnonzero(robust & ((last == number) == succeeded_last))
                if len(rows):
                    adversarial = self._attack(number, attack, piece, order, rows, radius, brackets)
                    robust[adversarial] = False
        brackets.probes[todo] += 1
        survivors = np.flatnonzero(robust)
        brackets.set_robust(survivors, radius[survivors])
        self.progress.advance(len(survivors))

    def _attack(
        self,
        number: int,
        attack: Attack,
        piece: Images,
        order: Tensor,
        rows: IntArray,
        radius: FloatArray,
        brackets: Brackets,
    ) -> IntArray:
        """Run one attack on some rows and update the brackets; returns the rows on which it succeeded."""
        column = torch.from_numpy(radius).float()

        def jobs() -> Generator[Job, None, None]:
            for part in torch.split(torch.from_numpy(rows), self.plan.batch_size):
                self.processes.check()
                batch = piece.batch(order[part])
                yield Job(batch.index, batch.x, batch.y, {"epsilon": column[part]})

        adversarial: list[IntArray] = []
        blocks = self.engine.attack(attack, self.plan.threat, jobs(), images=len(rows))
        with contextlib.closing(cast("Generator[Finished, None, None]", blocks)):
            for done in blocks:
                at = rows[done.row.cpu().numpy()]
                brackets.forwards[at] += done.forwards.cpu().numpy()
                brackets.backwards[at] += done.backwards.cpu().numpy()
                distance = self._distance(done)
                success = np.isfinite(distance) | done.success.cpu().numpy()
                brackets.set_adversarial(at[success], np.fmin(distance, radius[at])[success], number)
                adversarial.append(at[success])
                self.progress.advance(int(success.sum()))
        return np.concatenate(adversarial) if adversarial else rows[:0]

    def _distance(self, done: Finished) -> FloatArray:
        """Distance of the nearest adversarial example found for each row; infinity for none.

        A minimum-norm attack may have found a nearer one than its final image. That distance is used only if the
        attack ran in float32, in which success is verified. It is NaN for an adversarial example of a spatial threat,
        which has no distance.
        """
        distance = self.plan.threat.distance(done.x, done.x0)
        nearest = torch.where(done.success, distance, torch.inf)
        if MINIMAL_DISTANCE in done.records and self.plan.precision.dtype == "float32":
            nearest = torch.minimum(nearest, done.records[MINIMAL_DISTANCE].to(nearest).nan_to_num(torch.inf))
        result: FloatArray = nearest.double().cpu().numpy()
        return result
