"""`race`: which class is the worst, at a stated confidence, for a fraction of a full audit's passes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from classwise import interruption
from classwise.attacks.engine import Finished, Job
from classwise.auditing import states
from classwise.auditing.applicable import require_applicable
from classwise.auditing.claims import check_place, claim, settings_of
from classwise.auditing.meta import Meta
from classwise.auditing.outcomes import CLEAN
from classwise.auditing.preparing import Model, Plan, Prepared, prepare
from classwise.auditing.suite import Attacks, attack_length, norm_of, parse_attacks
from classwise.compute import FAST, Compute
from classwise.data.images import Images
from classwise.draws import Draws
from classwise.errors import UserError
from classwise.ownership import owned
from classwise.progress import Progress, Silent
from classwise.stats.counts import BoolArray, FloatArray, IntArray
from classwise.stats.racing import Draw, Escalate, Race, Rules, Verdict, usual_draw, usual_tolerance
from classwise.threat import Threat

SEARCH = "search.json"
"""The settings of a search, in its folder,"""
ROUNDS = "rounds.parquet"
"""and what it has found."""
SAVE_SECONDS = 30.0
"""The first pass is saved when so long has passed since the last time; rounds are saved as each is finished."""
ESCALATED = 2
"""The number in a ledger of an image that the second attack, the escalating one, has broken."""
RACING_SUITE = "autoattack"
"""What a race runs unless told otherwise: APGD on the cross-entropy on all images, targeted APGD on all survivors of a
class that is hard to tell, FAB-T and Square on those drawn only. The first two break nearly all that the suite breaks,
so that few draws show how little is left."""


@dataclass(frozen=True)
class RaceResult:
    """The answer of a race, and how it came about.

    Attributes:
        verdict: the worst class by number, its interval, the classes that may be the worst.
        table: a row per class: ``n``, the accuracies ``clean`` and ``first`` (after the first attack) of all images,
            ``estimate``, ``low`` and ``high`` under the whole suite, ``unsettled`` survivors, ``may_be_worst``.
        images: a row per image: ``index``, ``label``, ``broken_by`` (an attack, ``clean``, or nothing), ``settled``
            (whether all attacks of the suite have spoken), ``forwards``, ``backwards``.
        meta: of model, data, threat and suite, as an audit has it.
        full: passes that a full audit would take, as far as can be told from the images drawn.
        rounds: how often the race looked at its figures and went on.
        seconds: how long it took.
    """

    verdict: Verdict
    table: pd.DataFrame
    images: pd.DataFrame
    meta: Meta
    full: float
    rounds: int
    seconds: float

    @property
    def worst(self) -> str:
        """The name of the worst class."""
        return self.meta.class_names[self.verdict.worst]

    @property
    def possibly(self) -> tuple[str, ...]:
        """The names of the classes that may be the worst; the true one is among them at the stated confidence."""
        return tuple(self.meta.class_names[label] for label in self.verdict.possibly)

    @property
    def passes(self) -> int:
        """Forward and backward passes of single images."""
        return int(self.images["forwards"].sum() + self.images["backwards"].sum())

    @property
    def population(self) -> str:
        """The images that the guarantee is about."""
        name = " ".join(filter(None, (self.meta.data, self.meta.split)))
        return f"these {len(self.images):,} images ({name})"

    @property
    def suite(self) -> str:
        """The attacks that the guarantee is relative to."""
        attacks = ", ".join(label for label in self.meta.applicable if label != CLEAN)
        left = f" (not applicable without gradients: {', '.join(self.meta.not_applicable)})"
        left = left if self.meta.not_applicable else ""
        return f"{attacks} at {self.meta.threat} with seed {self.meta.seed}{left}"

    @property
    def sentence(self) -> str:
        """What is guaranteed, of which population, relative to which suite."""
        return self.verdict.sentence(self.meta.class_names, self.population, self.suite)


@torch.inference_mode(mode=False)
def race(
    model: Model,
    data: Any,
    threat: Threat | str | None = None,
    attacks: Attacks | None = None,
    *,
    alpha: float = 0.05,
    tol: float | None = None,
    draw: int | None = None,
    together: int | None = None,
    compute: Compute = FAST,
    batch: int | None = None,
    seed: int = 0,
    max_time: float | None = None,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> RaceResult:
    """Find the worst class without attacking every image to the end.

    The first attack runs on all images. Of the images that survive it, some are drawn at random and attacked by all
    others, until the worst class is told apart; a class that is hard to tell gets the second attack on all its
    survivors. See `classwise.stats.racing`. Every image is attacked by any attack at most once, so a race never takes
    more passes than the audit with ``cascade=True``, whose outcomes it would find.

    Args:
        model: as `classwise.auditing.audit.audit` takes it.
        data: as `audit` takes them; of a stream, the survivors of the first attack are kept in memory.
        threat: the ball; None: the usual one of a data set that is known by name.
        attacks: the suite: first the attack for all images, then the escalating one, then the rest. None:
            `RACING_SUITE`.
        alpha: 1 minus the confidence.
        tol: the answer may be this much (a fraction) above the worst class. None: 0; 0.02 from 100 classes on.
        draw: how many survivors of a class to draw at once. None: see `usual_draw`.
        together: how many classes to draw from at once. None: as many as fill a batch; 1 takes the fewest passes.
        compute: how gradients are computed; success is decided in float32.
        batch: as `audit` takes it.
        seed: of the attacks' draws and of the order in which survivors are drawn.
        max_time: seconds after which no further round is begun; then the classes that may be the worst are more.
        device: where to run; None: where the model is.
        progress: who is told how it goes.
        out: a folder for the search; the first pass is written into it every `SAVE_SECONDS`, and each finished round.
        resume: continue the search in ``out``, or load it if it has finished; it must have the same settings.

    Returns:
        The worst class with its interval, and the classes that may be it.

    Raises:
        UserError: as `audit` does, for a confidence, tolerance or size out of range, and for a folder that holds
            something else or is in use; all before any attack.
    """
    started = time.monotonic()
    if max_time is not None and not max_time > 0:
        raise UserError(f"max_time = {max_time}: give the seconds that the race may take, above 0")
    # Whatever is out of range is refused before the first pass.
    Rules(alpha=alpha, tol=tol or 0.0, draw=1 if draw is None else draw, together=1 if together is None else together)
    if out is not None:
        check_place(Path(out), "worst-class search", SEARCH)
    suite = parse_attacks(RACING_SUITE if attacks is None else attacks, norm_of(threat))
    settings: dict[str, Any] = {"stop": "broken", "cascade": True, "compute": compute, "batch": batch, "seed": seed}
    ready = prepare(model, data, suite, threat, device=device, **settings)
    require_applicable(ready.plan.suite, suite, ready.no_gradient)
    if ready.note and progress is not None:
        progress.say(ready.note)

    with contextlib.ExitStack() as stack:
        saved = _Saved(None)
        if out is not None:
            chosen = {"alpha": alpha, "tol": tol, "draw": draw, "together": together}
            saved = _claimed(Path(out), settings_of(ready.plan, ready.meta) | chosen, stack, resume=resume)
        track = _Track(ready, progress or Silent(), saved)
        try:
            counts = track.first_pass()
            rules = Rules(
                alpha=alpha,
                tol=usual_tolerance(int((counts.images > 0).sum())) if tol is None else tol,
                draw=draw or usual_draw(counts.images),
                together=together or max(1, ready.plan.batch // (draw or usual_draw(counts.images))),
            )
            contest = Race(counts.images, counts.survivors, rules)
            deadline = float("inf") if max_time is None else started + max_time
            rounds = track.run(contest, deadline)
        except interruption.STOPS as stop:
            if saved.path is not None and saved.path.is_file():
                stop.add_note(f"the finished {'rounds are' if saved.rounds else 'images are'} saved in {out}")
            raise
    return RaceResult(
        verdict=contest.verdict(),
        table=_table(ready.meta, contest, counts),
        images=track.ledger.frame(list(ready.plan.suite.attacks)),
        meta=ready.meta,
        full=track.full(contest),
        rounds=rounds,
        seconds=round(track.seconds, 3),
    )


def _claimed(folder: Path, settings: Mapping[str, Any], stack: contextlib.ExitStack, *, resume: bool) -> _Saved:
    """Own the folder until the stack is closed.

    Raises:
        UserError: if the folder holds something else, or is in use.
    """
    stack.enter_context(owned(folder))
    about = folder / SEARCH
    claim(
        folder,
        "worst-class search",
        SEARCH,
        settings,
        resume=resume,
        read=lambda: states.read_settings(about),
        write=lambda: states.write_settings(about, settings),
    )
    return _Saved(folder / ROUNDS)


class _Saved:
    """A search on disk: what is known of every image, and what was found in each round.

    Args:
        path: the file, or None.

    Attributes:
        table: a row for each image in the order of the data, or None before the first pass.
        rounds: for each round the class, the count and the images broken of its draws and of its escalations.
        seen: of each attack: images, those broken, passes.
        seconds: how long all of it took.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.table: pd.DataFrame | None = None
        self.rounds: list[dict[str, list[list[int]]]] = []
        self.seen: list[list[float]] = []
        self.seconds = 0.0
        if path is not None and path.is_file():
            self.table, facts = states.read(path)
            self.rounds, self.seen, self.seconds = facts["rounds"], facts["seen"], facts["seconds"]

    def write(self, ledger: _Ledger, seen: FloatArray, seconds: float) -> None:
        """Save the search, whole or not at all."""
        if self.path is not None:
            facts = {"rounds": self.rounds, "seen": seen.tolist(), "seconds": seconds}
            states.write(self.path, ledger.table(), facts)


@dataclass(frozen=True)
class _Counts:
    """(C,) each: images, those right without an attack, those that survive the first attack."""

    images: IntArray
    clean: IntArray
    survivors: IntArray


@dataclass
class _Ledger:
    """What is known of every image, by its place in the data."""

    index: list[IntArray] = field(default_factory=list)
    label: list[IntArray] = field(default_factory=list)
    _columns: dict[str, IntArray] = field(default_factory=dict)

    def add(self, piece: Images) -> IntArray:
        """Note the images of a piece; returns their places."""
        begin = sum(len(block) for block in self.index)
        self.index.append(piece.index.cpu().numpy())
        self.label.append(piece.y.cpu().numpy())
        # stage: -1 unbroken, 0 wrong when clean, k broken by attack k.
        for name, value in (("stage", -1), ("settled", 0), ("forwards", 0), ("backwards", 0)):
            before = self._columns.get(name, np.empty(0, dtype=np.int64))
            self._columns[name] = np.concatenate([before, np.full(len(piece), value)])
        return np.arange(begin, begin + len(piece))

    def __getitem__(self, name: str) -> IntArray:
        return self._columns[name]

    def table(self) -> pd.DataFrame:
        """All of it, a row for each image in the order of the data."""
        columns = {"index": np.concatenate(self.index), "label": np.concatenate(self.label)}
        return pd.DataFrame(columns | self._columns)

    def restore(self, places: IntArray, saved: pd.DataFrame) -> None:
        """Take over what is saved of the images of the last piece.

        Raises:
            UserError: if it is of other images.
        """
        rows = saved.iloc[places[0] : places[-1] + 1]
        for name, own in (("index", self.index[-1]), ("label", self.label[-1])):
            if not np.array_equal(rows[name].to_numpy(), own):
                raise UserError("the folder holds a search on other images; give another folder")
        for name, column in self._columns.items():
            column[places] = rows[name].to_numpy()

    def counts(self, mask: BoolArray, classes: int) -> IntArray:
        """(C,) images of each class in a mask over all images."""
        return np.bincount(np.concatenate(self.label)[mask], minlength=classes)

    def frame(self, attacks: list[str]) -> pd.DataFrame:
        """The table of `RaceResult.images`, by image number."""
        names = np.array([CLEAN, *attacks, None], dtype=object)  # -1 is the last: nothing broke it
        table = pd.DataFrame(
            {
                "index": np.concatenate(self.index),
                "label": np.concatenate(self.label),
                "broken_by": pd.array(names[self["stage"]], dtype="string"),
                "settled": self["settled"] > 0,
                "forwards": self["forwards"],
                "backwards": self["backwards"],
            }
        )
        return table.sort_values("index", kind="stable").reset_index(drop=True)


class _Track:
    """The images of a race and the engine that attacks them.

    Args:
        ready: what was prepared.
        progress: who is told.
        saved: the search as far as it is on disk.
    """

    def __init__(self, ready: Prepared, progress: Progress, saved: _Saved) -> None:
        self.ready, self.progress, self.saved = ready, progress, saved
        self._started = time.monotonic() - saved.seconds
        self._saved_at = time.monotonic()
        self.plan: Plan = ready.plan
        self.attacks = list(ready.plan.suite.attacks.items())
        self.engine = ready.plan.engine(ready.model)
        self.ledger = _Ledger()
        self.held: list[tuple[Images, IntArray]] = []  # the survivors of each piece, and their places in the ledger
        self.seen = np.zeros((len(self.attacks), 3))  # of each attack: images, those broken, passes

    @property
    def seconds(self) -> float:
        """How long the search has taken, earlier parts of it included."""
        return time.monotonic() - self._started

    def first_pass(self) -> _Counts:
        """The clean pass and the first attack on all images; the survivors are held.

        What is finished is saved from time to time, and where a request to stop (see `classwise.interruption`) is met.
        """
        (label, _), before = self.attacks[0], self.saved.table
        if before is not None:
            self.seen = np.array(self.saved.seen)
        judged = (
            0
            if before is None
            else int(_first_done(*(before[name].to_numpy() for name in ("stage", "forwards"))).sum())
        )
        self.progress.begin(f"{CLEAN}, {label}", (self.ready.meta.images or judged) - judged)
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
            raise UserError("the folder holds a search on other images; give another folder")
        if not rounds:
            self._save()
        classes = self.ready.meta
        total = len(classes.class_names)
        everything = np.ones(len(stage), dtype=np.bool_)
        survives = ~np.isin(stage, (0, 1))
        return _Counts(*(self.ledger.counts(mask, total) for mask in (everything, stage != 0, survives)))

    def _judge(self, piece: Images, places: IntArray) -> None:
        """The clean pass and the first attack on the images of a piece that are not finished."""
        fresh = torch.from_numpy(np.flatnonzero(self.ledger["forwards"][places] == 0))
        for rows in torch.split(fresh, self.plan.batch):
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

    def run(self, contest: Race, deadline: float) -> int:
        """The race itself; returns how many rounds it took."""
        order = self._orders(len(contest.images))
        if len(self.attacks) == 1:  # nothing is left to find out
            for label, rows in enumerate(order):
                self._settle(contest, label, rows)
        rounds = 0
        while (moves := contest.next()) and (rounds < len(self.saved.rounds) or time.monotonic() <= deadline):
            rounds += 1
            up = [move.label for move in moves if isinstance(move, Escalate)]
            chosen = {label: order[label][contest.drawn[label] :] for label in up}
            drawn = {m.label: order[m.label][contest.drawn[m.label] :][: m.size] for m in moves if isinstance(m, Draw)}
            fresh = [rows for label, rows in drawn.items() if contest.level[label] == 0]
            replayed = rounds <= len(self.saved.rounds)
            if not replayed:
                size = sum(len(rows) for rows in (*chosen.values(), *drawn.values()))
                self.progress.begin(f"round {rounds}", size)
                self._attack(1, self.held, _joined([*chosen.values(), *fresh]))
                for attack in range(2, len(self.attacks)):
                    self._attack(attack, self.held, self._standing(_joined(list(drawn.values()))))
                for rows in drawn.values():
                    self.ledger["settled"][self._places(rows)] = 1
            # An image that the escalating attack has left may be broken by a later round.
            found: dict[str, list[list[int]]] = {"draws": [], "escalations": []}
            for name, rows in drawn.items():
                found["draws"].append([name, len(rows), len(rows) - len(self._standing(rows))])
                contest.tell_draw(*found["draws"][-1])
            for name, rows in chosen.items():
                order[name] = rows[self.ledger["stage"][self._places(rows)] != ESCALATED] if len(rows) else rows
                found["escalations"].append([name, len(rows), len(rows) - len(order[name])])
                contest.tell_escalation(name, len(rows) - len(order[name]))
                if len(self.attacks) == 2:
                    self._settle(contest, name, order[name])
            if replayed:
                if found != self.saved.rounds[rounds - 1]:
                    raise UserError(f"{self.saved.path} is damaged: round {rounds} differs; search in another folder")
                continue
            self.saved.rounds.append(found)
            self._save()
            self.progress.advance(size)
        return rounds

    def _settle(self, contest: Race, label: int, rows: IntArray) -> None:
        """Every attack has run on these survivors already."""
        self.ledger["settled"][self._places(rows)] = 1
        contest.tell_draw(label, len(rows), 0)

    def _orders(self, classes: int) -> list[IntArray]:
        """For each class its survivors, (n, 2) rows of piece and place in it, in the order in which they are drawn."""
        draws = Draws(self.plan.seed, "race")
        found: list[list[tuple[int, int, int]]] = [[] for _ in range(classes)]
        for number, (piece, _) in enumerate(self.held):
            keys = draws.integers(piece.index.cpu(), (), 1 << 62).tolist()
            for row, (key, label) in enumerate(zip(keys, piece.y.tolist(), strict=True)):
                found[label].append((key, number, row))
        return [np.array([each[1:] for each in sorted(rows)], dtype=np.int64).reshape(-1, 2) for rows in found]

    def _places(self, rows: IntArray) -> IntArray:
        """Places in the ledger of held survivors."""
        places = [self.held[piece][1][row] for piece, row in rows]
        return np.array(places, dtype=np.int64)

    def _standing(self, rows: IntArray) -> IntArray:
        return rows[self.ledger["stage"][self._places(rows)] < 0] if len(rows) else rows

    def _attack(
        self,
        number: int,
        pieces: list[tuple[Images, IntArray]],
        rows: IntArray,
        finished: Callable[[int], None] = lambda _: None,
    ) -> None:
        """One attack on some rows of some pieces, (n, 2), noted in the ledger; ``finished`` is told their number."""
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
                broken = done.broken.cpu().numpy()
                forwards, backwards = done.forwards.cpu().numpy(), done.backwards.cpu().numpy()
                self.ledger["stage"][at[broken]] = number + 1
                self.ledger["settled"][at[broken]] = 1
                self.ledger["forwards"][at] += forwards
                self.ledger["backwards"][at] += backwards
                self.seen[number] += len(at), broken.sum(), forwards.sum() + backwards.sum()
                finished(len(at))

    def _jobs(self, pieces: list[tuple[Images, IntArray]], rows: IntArray, places: IntArray) -> Iterator[Job]:
        sequence = _grouped(rows)
        epsilon = self.plan.threat.epsilon
        for piece in np.unique(rows[:, 0]):
            mine = sequence[rows[sequence, 0] == piece]
            for part in torch.split(torch.from_numpy(mine), self.plan.batch):
                batch = pieces[piece][0].batch(torch.from_numpy(rows[part.numpy(), 1]))
                radius: dict[str, Tensor] = {}
                if isinstance(epsilon, Tensor):  # such data are in memory, so that places are rows of theirs
                    radius = {"epsilon": epsilon.cpu()[torch.from_numpy(places[part.numpy()])]}
                yield Job(batch.index, batch.x, batch.y, radius)

    def full(self, contest: Race) -> float:
        """Passes of the cascade on all images: those taken, and what the images that are left would take on average."""
        spent = float(self.ledger["forwards"].sum() + self.ledger["backwards"].sum())
        costs, falls = [], []
        for (_, attack), (images, broken, passes) in zip(self.attacks, self.seen, strict=True):
            costs.append(passes / images if images else 2.0 * attack_length(attack) + attack.starts)
            falls.append(broken / images if images else 0.0)
        left, after = 0.0, [0.0]
        for cost, fall in zip(reversed(costs), reversed(falls), strict=True):
            left = cost + (1 - fall) * left
            after.append(left)
        after.reverse()  # after[k]: the passes of an image that comes to attack k
        early = contest.level == 0
        waiting = contest.unsettled
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


def _table(meta: Meta, contest: Race, counts: _Counts) -> pd.DataFrame:
    possible = np.isin(np.arange(len(counts.images)), contest.verdict().possibly)
    size = np.where(counts.images > 0, counts.images, np.nan)
    table = pd.DataFrame(
        {
            "n": counts.images,
            "clean": counts.clean / size,
            "first": counts.survivors / size,
            "estimate": contest.estimate,
            "low": contest.low,
            "high": contest.high,
            "unsettled": contest.unsettled,
            "may_be_worst": possible,
        },
        index=pd.Index(meta.class_names, name="class"),
    )
    return table.replace({np.inf: np.nan})
