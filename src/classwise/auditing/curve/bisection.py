"""Bisection of the robust radii of all images, in parallel.

In a round each image is attacked once, at the midpoint of its own bracket: first by the attack that succeeded on it
last, then by the others.

A bracket is an interval that contains the robust radius of an image; files hold those of an unfinished search.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine, Finished, Job, StepsLeft
from classwise.auditing.outcomes.parquet import facts_of, read_table, write_table
from classwise.auditing.outcomes.table import CLEAN
from classwise.auditing.run.partition import balanced_order, part_of
from classwise.auditing.run.plan import Plan
from classwise.core.compute.distributed import ProcessGroup
from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import CHECKSUMS, note_removal
from classwise.core.progress.listener import Progress, expect
from classwise.data.image_names import or_none
from classwise.data.images import Images
from classwise.models.logits import predicts
from classwise.stats.counts import BoolArray, FloatArray, IntArray

_ADVICE = "remove it and resume, which repeats this part of the search"


class Brackets:
    """The brackets of the images of a piece, and the cost of the search so far; arrays of (N,).

    Args:
        wrong: whether each clean image is misclassified, (N,).

    Attributes:
        low: the largest radius at which every attack failed, 0 if there is none.
        high: the smallest radius at which an attack succeeded, infinity if there is none.
        attack: the position in the suite of the attack that succeeded at ``high``; -1 if none did.
        probes: the number of radii at which the image was attacked.
        forwards, backwards: the number of passes.
    """

    def __init__(self, wrong: BoolArray) -> None:
        count = len(wrong)
        self.low, self.high = np.zeros(count), np.where(wrong, 0.0, np.inf)
        self.attack = np.full(count, -1)
        self.probes, self.backwards = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.forwards = np.ones(count, dtype=np.int64)

    @staticmethod
    def of(frame: pd.DataFrame) -> Brackets:
        """The brackets with the `columns` of a frame, in its order."""
        brackets = Brackets(np.zeros(len(frame), dtype=np.bool_))
        for name in brackets.columns():
            setattr(brackets, name, frame[name].to_numpy(copy=True))
        return brackets

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """All arrays by name."""
        return {name: getattr(self, name) for name in ("low", "high", "attack", "probes", "forwards", "backwards")}

    def probe(self, width: float, highest: float) -> FloatArray:
        """The next radius of each image, (N,): first ``highest``, then the midpoint of its bracket; NaN if finished.

        Args:
            width: the width of a finished bracket.
            highest: the largest radius.
        """
        untried = np.isinf(self.high) & (self.low == 0)
        open_ended = np.isinf(self.high) & ~untried
        wide = ~open_ended & (untried | (self.high - self.low > width * (1 + 1e-6)))
        finite = np.where(np.isinf(self.high), 0.0, self.high)
        return np.where(wide, np.where(untried, highest, (self.low + finite) / 2), np.nan)

    def set_robust(self, rows: IntArray, radius: FloatArray) -> None:
        """Update the brackets of images on which every attack failed.

        Args:
            rows: the images.
            radius: the radius of the attacks, one for each of ``rows``.
        """
        self.low[rows] = np.maximum(self.low[rows], radius)

    def set_adversarial(self, rows: IntArray, radius: FloatArray, attack: int) -> None:
        """Update the brackets of images on which an attack succeeded.

        If every attack failed at a larger radius, that failure was due to chance: the lower end is reset to 0.

        Args:
            rows: the images.
            radius: the distance of the adversarial example, one for each of ``rows``.
            attack: the position of the attack in the suite.
        """
        nearer = radius < self.high[rows]
        rows, radius = rows[nearer], radius[nearer]
        self.high[rows], self.attack[rows] = radius, attack
        self.low[rows] = np.where(radius <= self.low[rows], 0.0, self.low[rows])


class SavedBrackets:
    """The brackets of an unfinished search on disk: a file for each piece of the data and each process.

    The search of an image depends on its own bracket only, so it can be resumed by any number of processes.
    """

    def __init__(
        self, folder: Path | None, processes: ProcessGroup, written: Callable[[], None] = lambda: None
    ) -> None:
        self.folder, self.processes, self._written = None if folder is None else folder / "rounds", processes, written
        self._rows = pd.DataFrame()
        if self.folder is not None and (files := sorted(self.folder.glob("part-*.parquet"))):
            rows = pd.concat([_saved(file) for file in files])
            # An image may be in files of several runs with different numbers of processes: use its latest state.
            rows = rows.sort_values("probes", kind="stable").drop_duplicates("index", keep="last")
            self._rows = rows.set_index("index")

    def rows(self, index: IntArray, label: IntArray) -> pd.DataFrame:
        """The saved brackets among some images, by image number.

        Args:
            index: the image numbers.
            label: their labels.

        Raises:
            ClasswiseError: if the saved labels differ.
        """
        if self._rows.empty:
            return self._rows
        rows = self._rows.loc[np.isin(self._rows.index, index)]
        if not np.array_equal(pd.Series(label, index)[rows.index].to_numpy(), rows["label"].to_numpy()):
            raise ClasswiseError(
                f"{self.folder} contains a search on other images: the labels differ; give another folder"
            )
        return rows.drop(columns="label")

    def write(self, piece: int, index: IntArray, label: IntArray, brackets: Brackets) -> None:
        """Save the brackets of a piece atomically."""
        if self.folder is not None:
            name = f"part-{self.processes.world_size:03d}-{self.processes.rank:03d}-{piece:05d}.parquet"
            frame = pd.DataFrame({"index": index, "label": label, **brackets.columns()})
            write_table(self.folder / name, frame, "curve", {})
            self._written()

    def remove(self) -> None:
        """Remove the files of a finished search."""
        if self.folder is not None:
            note_removal(self.folder)
            for file in (*self.folder.glob("part-*.parquet"), self.folder / CHECKSUMS):
                file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the folder has other files
                self.folder.rmdir()


def _saved(file: Path) -> pd.DataFrame:
    """The table in a file of brackets."""
    table = read_table(file, _ADVICE, damaged=_ADVICE)
    facts_of(table, "curve", file, _ADVICE)  # checks the schema version
    frame: pd.DataFrame = table.to_pandas()
    return frame


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
            self.progress.start(f"round {round_}" if round_ else "largest radius", len(todo))
            self._round(piece, order, brackets, todo, radius)
        labels = np.array([CLEAN, *(label for label, _ in self.attacks)], dtype=object)
        first_success = np.where(np.isinf(brackets.high), None, labels[brackets.attack + 1])
        names = None if piece.image_names is None else or_none(piece.image_names)[order.numpy()]
        return pd.DataFrame(
            {
                "index": index,
                "name": pd.Series(names, range(len(index)), dtype="string"),
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

        def jobs() -> Iterator[Job]:
            for part in torch.split(torch.from_numpy(rows), self.plan.batch_size):
                self.processes.check()
                batch = piece.batch(order[part])
                yield Job(batch.index, batch.x, batch.y, {"epsilon": column[part]})

        adversarial: list[IntArray] = []
        # An estimate of one attack is that of the round only if there is no other.
        steps_left = StepsLeft(partial(expect, self.progress)) if len(self.attacks) == 1 else None
        blocks = self.engine.attack(attack, self.plan.threat, jobs(), images=len(rows), steps_left=steps_left)
        with contextlib.closing(blocks):
            for done in blocks:
                at = rows[done.row.cpu().numpy()]
                brackets.forwards[at] += done.forwards.cpu().numpy()
                brackets.backwards[at] += done.backwards.cpu().numpy()
                distance = self._distance(done)
                success = done.success.cpu().numpy() | (distance <= radius[at])
                found = success | np.isfinite(distance)  # a minimum-norm attack may find one beyond the radius
                nearest = np.where(success, np.fmin(distance, radius[at]), distance)
                brackets.set_adversarial(at[found], nearest[found], number)
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
