"""Robustness curves: for every image the smallest radius at which a suite of attacks breaks it.

From these radii follows the accuracy of every class at every radius (`classwise.auditing.radii`).

All images are bisected together: a round is one pass of the engine's queue in which each image is attacked at the
middle of its own bracket, first by the attack that broke it last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from classwise import interruption
from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine, Finished, Job
from classwise.auditing import states
from classwise.auditing.applicable import require_applicable
from classwise.auditing.claims import check_place, claim, settings_of
from classwise.auditing.outcomes import CLEAN
from classwise.auditing.preparing import Model, Plan, prepare, usual_radius
from classwise.auditing.radii import RADII, Curve
from classwise.auditing.running import balanced_order, part_of
from classwise.auditing.suite import Attacks, parse_attacks
from classwise.compute import FAST, Compute
from classwise.data.images import Images
from classwise.data.stream import as_data
from classwise.environment import environment
from classwise.errors import UserError
from classwise.ownership import owned
from classwise.progress import Progress, Silent
from classwise.stats.counts import BoolArray, FloatArray, IntArray
from classwise.team import Team, joined
from classwise.threat import Norm, Threat

ROUNDS = 6
"""Halvings of the range: brackets end 64 times as narrow as it."""
USUAL_TIMES = 2.0
"""Unless told otherwise, radii up to so many times the data's usual one are searched."""
SEARCH = "search.json"
"""The settings of a search, in its folder."""
MINIMAL_DISTANCE = "minimal_distance"
"""The record of an attack that looks for the nearest adversarial image: how near the nearest one was that it met."""


@torch.inference_mode(mode=False)
def curve(
    model: Model,
    data: Any,
    norm: Norm = "Linf",
    attacks: Attacks | None = None,
    *,
    highest: float | None = None,
    rounds: int = ROUNDS,
    compute: Compute = FAST,
    batch: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    alone: bool = False,
    name: str = "curve",
    out: str | Path | None = None,
    resume: bool = False,
) -> Curve:
    """Find for every image the smallest radius at which the attacks break it.

    Processes of `torch.distributed` share the images, as in `classwise.auditing.audit.audit`.

    Args:
        model: as `audit` takes it.
        data: as `audit` takes it; each image is attacked several times, so a stream is held in memory piece by piece.
        norm: ``"Linf"``, ``"L2"`` or ``"L1"``.
        attacks: as `audit` takes them; an image stands at a radius if it stands against each.
        highest: the largest radius of the search; None: twice the data's usual one.
        rounds: how often the range is halved: an image's bracket ends at most ``highest / 2**rounds`` wide.
        compute: how gradients are computed; success is decided in float32.
        batch: as `audit` takes it.
        seed: of the attacks' draws.
        device: where to run; None: where the model is.
        progress: who is told how it goes.
        alone: search every image in this process, whatever others there are.
        name: what the curve is called.
        out: a folder for the curve; each finished round of the search is written into it.
        resume: continue the search in ``out``, or load it if it has finished; it must have the same settings.

    Returns:
        The curve: a row for each image with the radii between which it falls.

    Raises:
        UserError: as `audit` does; or for a range or a number of rounds that makes no sense, or a folder that holds
            something else or is in use.
    """
    if not 1 <= rounds <= 30:
        raise UserError(f"rounds = {rounds}: between 1 and 30 halvings")
    if highest is not None and not (highest > 0 and math.isfinite(highest)):
        raise UserError(f"highest = {highest}: the largest radius of the search is a number above 0, such as 16/255")
    if out is not None:
        check_place(Path(out), "curve", SEARCH)
    with joined(alone=alone) as team, contextlib.ExitStack() as stack:
        listener = progress if progress is not None and team.first else Silent()
        source = as_data(data)
        ball = Threat(norm, USUAL_TIMES * usual_radius(source, norm) if highest is None else highest)
        suite = parse_attacks(attacks, norm)
        settings: dict[str, Any] = {"stop": "broken", "cascade": True, "compute": compute, "batch": batch, "seed": seed}
        ready = prepare(model, source, suite, ball, device=device, **settings)
        require_applicable(ready.plan.suite, suite, ready.no_gradient)
        if ready.meta.not_applicable:
            names = ", ".join(ready.meta.not_applicable)
            listener.say(f"not applicable: {names}; the model has no gradient: {ready.no_gradient}")
        if ready.note:
            listener.say(ready.note)
        folder = None if out is None else Path(out)
        before: Curve | None = None
        if folder is not None and team.first:
            before = _claimed(folder, settings_of(ready.plan, ready.meta) | {"rounds": rounds}, stack, resume=resume)
        before = team.spread(before)
        if before is not None:
            return before
        saved = _Saved(folder, team)
        team.meet()  # nobody writes before everybody has read what is saved
        search = _Search(ready.plan.engine(ready.model), ready.plan, team, listener, saved)
        try:
            frames = [search.radii(number, piece, rounds) for number, piece in enumerate(ready.pieces)]
        except torch.OutOfMemoryError as error:
            raise UserError(f"the device has no memory for {ready.plan.batch} images; use a smaller batch") from error
        except interruption.STOPS as stop:
            if folder is not None:
                stop.add_note(f"the finished rounds are saved in {folder}")
            raise
        found = team.gather((frames, ready.source.fingerprint()))
        if not team.first:
            result: Curve = team.spread(None)
            return result
        if len({digest for _, digest in found}) > 1:
            raise UserError("the processes read other images; give all of them the same, in the same order")
        frame = pd.concat([part for parts, _ in found for part in parts])
        result = Curve(
            frame=frame.sort_values("index", kind="stable").reset_index(drop=True),
            meta=dataclasses.replace(ready.meta, data_hash=found[0][1], images=len(frame)),
            highest=float(cast("float", ball.epsilon)),
            rounds=rounds,
            name=name,
            environment=environment(search.engine.device) | ({"processes": team.size} if team.size > 1 else {}),
        )
        if folder is not None:
            result.write(folder)
            saved.remove()
        team.spread(result)
        return result


def _claimed(folder: Path, settings: Mapping[str, Any], stack: contextlib.ExitStack, *, resume: bool) -> Curve | None:
    """Own the folder until the stack is closed; the curve in it, if that is finished.

    Raises:
        UserError: if the folder holds something else, or is in use.
    """
    stack.enter_context(owned(folder))
    about = folder / SEARCH
    if (folder / RADII).is_file() and not about.is_file():
        raise UserError(f"{folder} holds a curve without its settings; give another --out")
    again = claim(
        folder,
        "curve",
        SEARCH,
        settings,
        resume=resume,
        read=lambda: states.read_settings(about),
        write=lambda: states.write_settings(about, settings),
    )
    return Curve.load(folder) if again and (folder / RADII).is_file() else None


class _Brackets:
    """What is known of the radius of each image of a piece; arrays of (N,).

    Attributes:
        low: the largest radius at which it stood, 0 if there is none.
        high: the smallest radius at which it was broken, infinity if there is none.
        breaker: the place in the suite of the attack that broke it at ``high``; -1 if none did.
        probes: radii at which it was attacked.
        forwards, backwards: passes spent.
    """

    def __init__(self, wrong: BoolArray) -> None:
        count = len(wrong)
        self.low, self.high = np.zeros(count), np.where(wrong, 0.0, np.inf)
        self.breaker = np.full(count, -1)
        self.probes, self.backwards = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.forwards = np.ones(count, dtype=np.int64)

    @staticmethod
    def of(frame: pd.DataFrame) -> _Brackets:
        """The brackets whose `columns` are in a frame, in its order."""
        found = _Brackets(np.zeros(len(frame), dtype=np.bool_))
        for name in found.columns():
            setattr(found, name, frame[name].to_numpy(copy=True))
        return found

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """All arrays by name."""
        return {name: getattr(self, name) for name in ("low", "high", "breaker", "probes", "forwards", "backwards")}

    def probe(self, width: float, highest: float) -> FloatArray:
        """The radius to try next, NaN where the bracket is as narrow as wanted: the middle, and at first the end."""
        untried = np.isinf(self.high) & (self.low == 0)
        open_ended = np.isinf(self.high) & ~untried
        wide = ~open_ended & (untried | (self.high - self.low > width * (1 + 1e-6)))
        finite = np.where(np.isinf(self.high), 0.0, self.high)
        return np.where(wide, np.where(untried, highest, (self.low + finite) / 2), np.nan)

    def stood(self, rows: IntArray, radius: FloatArray) -> None:
        """Some images stood against every attack at a radius."""
        self.low[rows] = np.maximum(self.low[rows], radius)

    def broke(self, rows: IntArray, radius: FloatArray, attack: int) -> None:
        """Some images were broken within a radius.

        An attack that breaks an image nearer than where it stood before shows that it stood by luck: the search for
        that image begins again below.
        """
        nearer = radius < self.high[rows]
        rows, radius = rows[nearer], radius[nearer]
        self.high[rows], self.breaker[rows] = radius, attack
        self.low[rows] = np.where(radius <= self.low[rows], 0.0, self.low[rows])


class _Search:
    """The search of radii on pieces of the data."""

    def __init__(self, engine: Engine, plan: Plan, team: Team, progress: Progress, saved: _Saved) -> None:
        self.saved = saved
        self.engine = engine
        self.plan = plan
        self.team = team
        self.progress = progress
        self.attacks = list(plan.suite.attacks.items())

    def radii(self, number: int, piece: Images, rounds: int) -> pd.DataFrame:
        """A row for each image of a piece that is this process's."""
        order = part_of(balanced_order(piece.y.cpu()), piece.y.cpu(), self.team)
        index, label = piece.index.cpu()[order].numpy(), piece.y.cpu()[order].numpy()
        found = self._begun(piece, order, index, label)
        highest = float(cast("float", self.plan.threat.epsilon))
        width = highest / 2**rounds
        for turn in itertools.count(int(found.probes.max(initial=0))):
            self.saved.write(number, index, label, found)
            radius = found.probe(width, highest)
            radius[found.probes > 2 * rounds] = np.nan  # `rounds` and the first, unless searches begin again
            todo = np.flatnonzero(~np.isnan(radius))
            if not len(todo):
                break
            self.progress.begin(f"round {turn + 1}", len(todo))
            self._round(piece, order, found, todo, radius)
        labels = np.array([CLEAN, *(label for label, _ in self.attacks)], dtype=object)
        breaker = np.where(np.isinf(found.high), None, labels[found.breaker + 1])
        return pd.DataFrame(
            {
                "index": index,
                "label": label,
                "low": found.low,
                "high": found.high,
                "broken_by": pd.Series(breaker, dtype="string"),
                "probes": found.probes,
                "forwards": found.forwards,
                "backwards": found.backwards,
            }
        )

    def _begun(self, piece: Images, order: Tensor, index: IntArray, label: IntArray) -> _Brackets:
        """The brackets of some images: those that are saved, and of the others what the clean pass says."""
        saved = self.saved.rows(index, label)
        fresh = ~np.isin(index, saved.index)
        wrong = self._wrong(piece, order[torch.from_numpy(fresh)])
        begun = pd.DataFrame(_Brackets(wrong).columns(), index=index[fresh])
        parts = [part for part in (saved, begun) if len(part)]
        return _Brackets.of(pd.concat(parts).loc[index] if parts else begun)

    def _wrong(self, piece: Images, order: Tensor) -> BoolArray:
        """Which images are misclassified as they are."""
        wrong = []
        for rows in torch.split(order, self.plan.batch) if len(order) else ():
            self.team.check()
            batch = piece.batch(rows)
            (logits,) = self.engine.predict([batch.x])
            right = (logits.argmax(1).cpu() == batch.y.cpu()) & logits.isfinite().all(1).cpu()
            wrong.append(~right)
        return torch.cat(wrong).numpy() if wrong else np.zeros(0, dtype=np.bool_)

    def _round(self, piece: Images, order: Tensor, found: _Brackets, todo: IntArray, radius: FloatArray) -> None:
        """Attack each image at its radius: by the attack that broke it last, then by the others in their order."""
        standing = np.zeros(len(radius), dtype=np.bool_)
        standing[todo] = True
        last = found.breaker.copy()
        for warm in (True, False):
            for place, (_, attack) in enumerate(self.attacks):
                rows = np.flatnonzero(standing & ((last == place) == warm))
                if len(rows):
                    broken = self._attack(place, attack, piece, order, rows, radius, found)
                    standing[broken] = False
        found.probes[todo] += 1
        left = np.flatnonzero(standing)
        found.stood(left, radius[left])
        self.progress.advance(len(left))

    def _attack(
        self,
        place: int,
        attack: Attack,
        piece: Images,
        order: Tensor,
        rows: IntArray,
        radius: FloatArray,
        found: _Brackets,
    ) -> IntArray:
        """One attack on some rows; those that it broke."""
        column = torch.from_numpy(radius).float()

        def jobs() -> Generator[Job, None, None]:
            for chosen in torch.split(torch.from_numpy(rows), self.plan.batch):
                self.team.check()
                batch = piece.batch(order[chosen])
                yield Job(batch.index, batch.x, batch.y, {"epsilon": column[chosen]})

        broken: list[IntArray] = []
        blocks = self.engine.attack(attack, self.plan.threat, jobs())
        with contextlib.closing(cast("Generator[Finished, None, None]", blocks)):
            for done in blocks:
                at = rows[done.row.cpu().numpy()]
                found.forwards[at] += done.forwards.cpu().numpy()
                found.backwards[at] += done.backwards.cpu().numpy()
                near = self._distance(done)
                hit = np.isfinite(near) | done.broken.cpu().numpy()
                found.broke(at[hit], np.minimum(near, radius[at])[hit], place)
                broken.append(at[hit])
                self.progress.advance(int(hit.sum()))
        return np.concatenate(broken) if broken else rows[:0]

    def _distance(self, done: Finished) -> FloatArray:
        """How near the nearest adversarial image is that an attack has shown for each row; infinity for none.

        An attack that looks for the nearest one may have met a nearer one than it was stopped at. That is believed
        only where it saw in float32.
        """
        distance = self.plan.threat.distance(done.x, done.x0)
        near = torch.where(done.broken, distance, torch.inf)
        if MINIMAL_DISTANCE in done.records and self.plan.compute.dtype == "float32":
            near = torch.minimum(near, done.records[MINIMAL_DISTANCE].to(near).nan_to_num(torch.inf))
        result: FloatArray = near.double().cpu().numpy()
        return result


class _Saved:
    """The brackets of an unfinished search on disk: a file for each piece of the data and each process.

    An image's search depends on its own bracket alone, so searches may be resumed by any number of processes.
    """

    def __init__(self, folder: Path | None, team: Team) -> None:
        self.folder, self.team = None if folder is None else folder / "rounds", team
        self._rows = pd.DataFrame()
        if self.folder is not None and (files := sorted(self.folder.glob("part-*.parquet"))):
            rows = pd.concat([states.read(file)[0] for file in files])
            # Of an image that several files hold, as they are of runs of several processes, the latest state.
            rows = rows.sort_values("probes", kind="stable").drop_duplicates("index", keep="last")
            self._rows = rows.set_index("index")

    def rows(self, index: IntArray, label: IntArray) -> pd.DataFrame:
        """The brackets of those of some images that are saved, by image number.

        Raises:
            UserError: if they are of images with other labels.
        """
        if self._rows.empty:
            return self._rows
        rows = self._rows.loc[np.isin(self._rows.index, index)]
        if not np.array_equal(pd.Series(label, index)[rows.index].to_numpy(), rows["label"].to_numpy()):
            raise UserError(f"{self.folder} holds a search on other images: their labels differ; give another folder")
        return rows.drop(columns="label")

    def write(self, piece: int, index: IntArray, label: IntArray, found: _Brackets) -> None:
        """Save the brackets of a piece, whole or not at all."""
        if self.folder is not None:
            name = f"part-{self.team.size:03d}-{self.team.rank:03d}-{piece:05d}.parquet"
            frame = pd.DataFrame({"index": index, "label": label, **found.columns()})
            states.write(self.folder / name, frame, {})

    def remove(self) -> None:
        """Remove what a finished search no longer needs."""
        if self.folder is not None:
            for file in self.folder.glob("part-*.parquet"):
                file.unlink()
            with contextlib.suppress(OSError):  # somebody has put a file of theirs there
                self.folder.rmdir()
