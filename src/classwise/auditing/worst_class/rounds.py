"""The rounds of a worst-class search: attacks on the images that the racing rules select, and the state of each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Required

import numpy as np
import pandas as pd
import pydantic
import torch
from torch import Tensor
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.attacks.engine import Job
from classwise.auditing.outcomes.parquet import facts_of, read_table, write_table
from classwise.auditing.outcomes.table import CLEAN
from classwise.auditing.run.plan import Plan
from classwise.auditing.run.preparation import Inputs
from classwise.auditing.run.record import RunRecord, environment_of
from classwise.core.compute.environment import Environment
from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError
from classwise.core.files.reading import damaged
from classwise.core.progress import interruption
from classwise.core.progress.listener import Progress
from classwise.data.image_names import ImageNames, or_none
from classwise.data.images import Images
from classwise.models.logits import predicts
from classwise.stats.best_arm import BestArmSearch, Draw, Escalate
from classwise.stats.counts import BoolArray, FloatArray, IntArray

_ADVICE = "remove it and resume, which repeats this part of the search"


@dataclass(frozen=True)
class SurvivorCounts:
    """Counts by class, (C,) each.

    Attributes:
        images: all images.
        clean: images that are correctly classified without an attack.
        survivors: images that survive the first attack.
    """

    images: IntArray
    clean: IntArray
    survivors: IntArray


@dataclass
class Ledger:
    """The state of every image, by its position in the data.

    Columns: ``name`` of the image, null without one; ``stage`` (-1: no attack succeeded so far, 0: the clean image is
    misclassified, k: attack k succeeded), ``settled`` (1 if the verdict under the whole suite is known), ``forwards``
    and ``backwards`` (passes).
    """

    index: list[IntArray] = field(default_factory=list)
    label: list[IntArray] = field(default_factory=list)
    name: list[ImageNames] = field(default_factory=list)
    _columns: dict[str, IntArray] = field(default_factory=dict)

    def add(self, piece: Images) -> IntArray:
        """Add the images of a piece; returns their positions."""
        start = sum(len(block) for block in self.index)
        self.index.append(piece.index.cpu().numpy())
        self.label.append(piece.y.cpu().numpy())
        names = piece.image_names
        self.name.append(np.full(len(piece), None, dtype=object) if names is None else or_none(names))
        for name, value in (("stage", -1), ("settled", 0), ("forwards", 0), ("backwards", 0)):
            before = self._columns.get(name, np.empty(0, dtype=np.int64))
            self._columns[name] = np.concatenate([before, np.full(len(piece), value)])
        return np.arange(start, start + len(piece))

    def __getitem__(self, name: str) -> IntArray:
        return self._columns[name]

    def table(self) -> pd.DataFrame:
        """The whole state, a row for each image in the order of the data."""
        return pd.DataFrame({**self._of_data, **self._columns})

    @property
    def _of_data(self) -> dict[str, Any]:
        """What is known of the images before the search."""
        names = pd.array(np.concatenate(self.name), dtype="string")
        return {"index": np.concatenate(self.index), "name": names, "label": np.concatenate(self.label)}

    def restore(self, places: IntArray, saved: pd.DataFrame) -> None:
        """Restore the saved state of the images of the last piece.

        Args:
            places: the positions of these images.
            saved: a table as `table` returns it.

        Raises:
            ClasswiseError: if the saved images differ.
        """
        rows = saved.iloc[places[0] : places[-1] + 1]
        for name, values in (("index", self.index[-1]), ("label", self.label[-1])):
            if not np.array_equal(rows[name].to_numpy(), values):
                raise ClasswiseError("the folder contains a search on other images; give another folder")
        for name, column in self._columns.items():
            column[places] = rows[name].to_numpy()

    def counts(self, mask: BoolArray, classes: int) -> IntArray:
        """Count the images of each class, (C,), for which a mask over all images is true."""
        return np.bincount(np.concatenate(self.label)[mask], minlength=classes)

    def frame(self, attacks: list[str]) -> pd.DataFrame:
        """The table of `WorstClass.images`, sorted by image number."""
        names = np.array([CLEAN, *attacks, None], dtype=object)  # stage -1 selects the last: no attack succeeded
        table = pd.DataFrame(
            {
                **self._of_data,
                "first_success": pd.array(names[self["stage"]], dtype="string"),
                "settled": self["settled"] > 0,
                "forwards": self["forwards"],
                "backwards": self["backwards"],
            }
        )
        return table.sort_values("index", kind="stable").reset_index(drop=True)


class _Facts(TypedDict, total=False):
    rounds: Required[list[dict[str, list[list[int]]]]]
    totals: Required[list[Annotated[list[float], pydantic.Field(min_length=3, max_length=3)]]]
    environment: Environment
    seconds: float | None


class SavedSearch:
    """The state of a search on disk.

    Args:
        path: the file; None: nothing is saved.

    Attributes:
        table: a row for each image in the order of the data; None before the first pass.
        rounds: the samples and the escalations of each round: class, number of images, number of successes.
        totals: for each attack the number of images, successes and passes.
        environment: that of all runs so far, with their duration in seconds; empty before the first pass.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.table: pd.DataFrame | None = None
        self.rounds: list[dict[str, list[list[int]]]] = []
        self.totals: list[list[float]] = []
        self.environment: Mapping[str, Any] = {}
        if path is not None and path.is_file():
            table = read_table(path, _ADVICE, damaged=_ADVICE)
            facts = facts_of(table, "worst-class search", path, _ADVICE, entries=_Facts)
            self.table, self.rounds, self.totals = table.to_pandas(), facts["rounds"], facts["totals"]
            self.environment = {"seconds": facts.get("seconds"), **facts.get("environment", {})}  # as of older ones
            absent = [name for name in ("index", "label", "stage", "forwards") if name not in self.table]
            if absent:
                raise damaged(str(path), f"no column {absent[0]!r}", _ADVICE)

    def write(self, ledger: Ledger, totals: FloatArray, environment: Mapping[str, Any]) -> None:
        """Save the state of the search atomically."""
        self.environment = environment
        if self.path is not None:
            facts = {"rounds": self.rounds, "totals": totals.tolist(), "environment": environment}
            write_table(self.path, ledger.table(), "worst-class search", facts)


SAVE_SECONDS = 30.0
"""Seconds between two saves of the first pass; later rounds are saved as each is finished."""
ESCALATED = 2
"""The stage in a ledger of an image on which the second attack, which escalates classes, succeeded."""


class Rounds:
    """The images of a search and the engine that attacks them.

    Args:
        ready: the prepared model, data and plan.
        progress: receives the progress of the search.
        saved: the saved state of the search.
    """

    def __init__(self, ready: Inputs, progress: Progress, saved: SavedSearch) -> None:
        self.ready, self.progress, self.saved = ready, progress, saved
        self._saved_at = time.monotonic()
        self.record = RunRecord(None, environment_of(ready.model), self._saved_at, saved.environment)
        self.plan: Plan = ready.plan
        self.attacks = list(ready.plan.suite.attacks.items())
        self.engine = ready.plan.engine(ready.model, classes=ready.meta.num_classes)
        self.ledger = Ledger()
        self.survivors: list[tuple[Images, IntArray]] = []  # of each piece, with their positions in the ledger
        self.totals = np.zeros((len(self.attacks), 3))  # for each attack: images, successes, passes

    def first_pass(self) -> SurvivorCounts:
        """Run the clean pass and the first attack on all images, and store the survivors.

        Finished images are saved periodically, and before a requested stop (see
        `classwise.core.progress.interruption`).

        Raises:
            ClasswiseError: if the saved search is on other images.
        """
        (label, _), saved = self.attacks[0], self.saved.table
        if saved is not None:
            self.totals = np.array(self.saved.totals)
        finished = (
            0 if saved is None else int(_first_done(*(saved[name].to_numpy() for name in ("stage", "forwards"))).sum())
        )
        if finished != self.ready.meta.images:
            self.progress.start(f"{CLEAN}, {label}", (self.ready.meta.images or finished) - finished)
        with interruption.deferred():
            for piece in self.ready.pieces:
                places = self.ledger.add(piece)
                if saved is not None and (self.saved.rounds or places[0] < len(saved)):
                    self.ledger.restore(places, saved)
                self._attack_first(piece, places)
                # Stages above 1 are of later rounds, which are replayed.
                survivors = np.flatnonzero(~np.isin(self.ledger["stage"][places], (0, 1)))
                if len(survivors):
                    self.survivors.append((piece.take(torch.from_numpy(survivors)), places[survivors]))
        stage, rounds = self.ledger["stage"], self.saved.rounds
        if saved is not None and len(saved) > len(stage):
            raise ClasswiseError("the folder contains a search on other images; give another folder")
        if not rounds and (self.record.worked or saved is None):
            self._save()
        classes = len(self.ready.meta.class_names)
        everything = np.ones(len(stage), dtype=np.bool_)
        survives = ~np.isin(stage, (0, 1))
        return SurvivorCounts(*(self.ledger.counts(mask, classes) for mask in (everything, stage != 0, survives)))

    def _attack_first(self, piece: Images, places: IntArray) -> None:
        """Run the clean pass and the first attack on the unfinished images of a piece."""
        unseen = torch.from_numpy(np.flatnonzero(self.ledger["forwards"][places] == 0))
        for rows in torch.split(unseen, self.plan.batch_size):
            if not len(rows):
                break
            self.record.worked = True
            batch = piece.batch(rows)
            (logits,) = self.engine.predict([batch.x])
            wrong = rows[~predicts(logits, batch.y.to(logits.device)).cpu()].numpy()
            self.ledger["stage"][places[wrong]], self.ledger["settled"][places[wrong]] = 0, 1
            self.ledger["forwards"][places[rows.numpy()]] += 1
            self._finished(len(wrong))
        done = _first_done(self.ledger["stage"][places], self.ledger["forwards"][places])
        todo = np.flatnonzero(~done)
        self._attack(0, [(piece, places)], np.stack([np.zeros_like(todo), todo], 1), self._finished)

    def _finished(self, count: int) -> None:
        """Count finished images of the first pass; save them every `SAVE_SECONDS`, and before a stop."""
        self.progress.advance(count)
        if time.monotonic() - self._saved_at > SAVE_SECONDS:
            self._save()
        interruption.stop_point(self._save)

    def _save(self) -> None:
        self.saved.write(self.ledger, self.totals, self.record.environment())
        self._saved_at = time.monotonic()

    def run(self, race: BestArmSearch, deadline: float) -> int:
        """BestArmSearch the classes until one is the worst or the deadline is reached; returns the number of rounds."""
        order = self._orders(len(race.images))
        if len(self.attacks) == 1:  # the first pass was the whole suite
            for label, rows in enumerate(order):
                self._all_known(race, label, rows)
        rounds = 0
        while (moves := race.next()) and (rounds < len(self.saved.rounds) or time.monotonic() <= deadline):
            rounds += 1
            escalated = {
                move.label: order[move.label][race.drawn[move.label] :] for move in moves if isinstance(move, Escalate)
            }
            drawn = {m.label: order[m.label][race.drawn[m.label] :][: m.size] for m in moves if isinstance(m, Draw)}
            # Survivors of an escalated class have survived the second attack already.
            unescalated = [rows for label, rows in drawn.items() if race.level[label] == 0]
            replayed = rounds <= len(self.saved.rounds)
            if not replayed:
                size = sum(len(rows) for rows in (*escalated.values(), *drawn.values()))
                self.progress.start(f"round {rounds}", size)
                self._attack(1, self.survivors, _joined([*escalated.values(), *unescalated]))
                for attack in range(2, len(self.attacks)):
                    self._attack(attack, self.survivors, self._surviving(_joined(list(drawn.values()))))
                for rows in drawn.values():
                    self.ledger["settled"][self._places(rows)] = 1
            results: dict[str, list[list[int]]] = {"draws": [], "escalations": []}
            for label, rows in drawn.items():
                results["draws"].append([label, len(rows), len(rows) - len(self._surviving(rows))])
                race.observe_draw(*results["draws"][-1])
            for label, rows in escalated.items():
                # Only successes of the second attack count: a replayed image may have a later stage.
                order[label] = rows[self.ledger["stage"][self._places(rows)] != ESCALATED] if len(rows) else rows
                results["escalations"].append([label, len(rows), len(rows) - len(order[label])])
                race.observe_escalation(label, len(rows) - len(order[label]))
                if len(self.attacks) == 2:
                    self._all_known(race, label, order[label])
            if replayed:
                if results != self.saved.rounds[rounds - 1]:
                    raise ClasswiseError(
                        f"{self.saved.path} is damaged: round {rounds} differs; search in another folder"
                    )
                continue
            self.saved.rounds.append(results)
            self._save()
            self.progress.advance(size)
        return rounds

    def _all_known(self, race: BestArmSearch, label: int, rows: IntArray) -> None:
        """Count survivors on which every attack has run as settled, and report them to the race."""
        self.ledger["settled"][self._places(rows)] = 1
        race.observe_draw(label, len(rows), 0)

    def _orders(self, classes: int) -> list[IntArray]:
        """The survivors of each class in the random order of sampling, as (n, 2) rows of piece and row in the piece."""
        rng = CounterRNG(self.plan.asked["seed"], "race")
        by_class: list[list[tuple[int, int, int]]] = [[] for _ in range(classes)]
        for number, (piece, _) in enumerate(self.survivors):
            keys = rng.integers(piece.index.cpu(), (), 1 << 62).tolist()
            for row, (key, label) in enumerate(zip(keys, piece.y.tolist(), strict=True)):
                by_class[label].append((key, number, row))
        return [np.array([entry[1:] for entry in sorted(rows)], dtype=np.int64).reshape(-1, 2) for rows in by_class]

    def _places(self, rows: IntArray) -> IntArray:
        """The positions of survivors in the ledger."""
        places = [self.survivors[piece][1][row] for piece, row in rows]
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
        """Run one attack on some rows of some pieces and update the ledger.

        Args:
            number: the position of the attack in the suite.
            pieces: images with their positions in the ledger.
            rows: piece and row in the piece, (n, 2).
            finished: called with the number of images of each finished block.
        """
        if not len(rows):
            return
        self.record.worked = True
        _, attack = self.attacks[number]
        places = np.array([pieces[piece][1][row] for piece, row in rows])
        jobs = self._jobs(pieces, rows, places)
        # Jobs are generated piece by piece, in the order of `_grouped`.
        sequence = places[_grouped(rows)]
        with contextlib.closing(self.engine.attack(attack, self.plan.threat, jobs, images=len(rows))) as blocks:
            for done in blocks:
                at = sequence[done.row.cpu().numpy()]
                success = done.success.cpu().numpy()
                forwards, backwards = done.forwards.cpu().numpy(), done.backwards.cpu().numpy()
                self.ledger["stage"][at[success]] = number + 1
                self.ledger["settled"][at[success]] = 1
                self.ledger["forwards"][at] += forwards
                self.ledger["backwards"][at] += backwards
                self.totals[number] += len(at), success.sum(), forwards.sum() + backwards.sum()
                finished(len(at))

    def _jobs(self, pieces: list[tuple[Images, IntArray]], rows: IntArray, places: IntArray) -> Iterator[Job]:
        sequence = _grouped(rows)
        epsilon = self.plan.threat.epsilon
        for piece in np.unique(rows[:, 0]):
            members = sequence[rows[sequence, 0] == piece]
            for part in torch.split(torch.from_numpy(members), self.plan.batch_size):
                batch = pieces[piece][0].batch(torch.from_numpy(rows[part.numpy(), 1]))
                radius: dict[str, Tensor] = {}
                if isinstance(epsilon, Tensor):  # such data are in memory, so that positions are rows of the data
                    radius = {"epsilon": epsilon.cpu()[torch.from_numpy(places[part.numpy()])]}
                yield Job(batch.index, batch.x, batch.y, radius)

    def full_audit_passes(self, race: BestArmSearch) -> float:
        """Estimate the passes of the cascade on all images: those run, and a mean for each unsettled image."""
        spent = float(self.ledger["forwards"].sum() + self.ledger["backwards"].sum())
        costs, success_rates = [], []
        for (_, attack), (images, successes, passes) in zip(self.attacks, self.totals, strict=True):
            costs.append(passes / images if images else 2.0 * attack.total_length + attack.starts)
            success_rates.append(successes / images if images else 0.0)
        remaining, by_attack = 0.0, [0.0]
        for cost, rate in zip(reversed(costs), reversed(success_rates), strict=True):
            remaining = cost + (1 - rate) * remaining
            by_attack.append(remaining)
        by_attack.reverse()  # by_attack[k]: the mean passes of an image from attack k on
        unescalated = race.level == 0
        unsettled = race.unsettled
        second, third = (by_attack[k] if k < len(by_attack) else 0.0 for k in (1, 2))
        return spent + float(unsettled[unescalated].sum() * second + unsettled[~unescalated].sum() * third)


def _first_done(stage: IntArray, forwards: IntArray) -> BoolArray:
    """Whether each image is misclassified when clean, or has passes of the first attack besides the clean one."""
    done: BoolArray = (stage == 0) | (forwards > 1)
    return done


def _joined(rows: list[IntArray]) -> IntArray:
    return np.concatenate(rows) if rows else np.empty((0, 2), dtype=np.int64)


def _grouped(rows: IntArray) -> IntArray:
    """The order that groups (n, 2) rows by piece."""
    return np.argsort(rows[:, 0], kind="stable")
