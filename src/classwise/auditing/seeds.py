"""Audit every training seed of a method with the same settings."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path
from typing import Any

from classwise.auditing.audit import audit
from classwise.auditing.result import ABOUT, Audit, folder_for
from classwise.core.errors import ClasswiseError
from classwise.core.progress import Progress
from classwise.training.folder import Run, runs_in


def seed_runs(folder: str | Path) -> list[Run]:
    """The runs in a folder that ``train --seeds`` made, by seed.

    Raises:
        ClasswiseError: if it holds none, runs that differ in more than the seed, or two of one seed.
    """
    runs = sorted((Run.open(path) for path in runs_in(Path(folder))), key=lambda run: run.recipe.seed)
    if not runs:
        raise ClasswiseError(
            f"{folder} holds no runs seed-0, seed-1, ...; make them with: classwise train RECIPE --seeds 0,1"
        )
    for run in runs[1:]:
        if dataclasses.replace(run.recipe, seed=0) != dataclasses.replace(runs[0].recipe, seed=0):
            raise ClasswiseError(f"{runs[0].path} and {run.path} differ in more than the seed; audit each by itself")
    for one, other in itertools.pairwise(runs):
        if one.recipe.seed == other.recipe.seed:
            raise ClasswiseError(
                f"{one.path} and {other.path} have the same training seed {one.recipe.seed}; audit one of them"
            )
    return runs


def audit_seeds(
    folder: str | Path,
    data: Any,
    *args: Any,
    out: str | Path | None = None,
    resume: bool = False,
    max_time: float | None = None,
    name: str = "audit",
    progress: Progress | None = None,
    **settings: Any,
) -> dict[int, Audit]:
    """Audit each run in a folder of seeds, each into its own run's ``audits/<name>``.

    `classwise.auditing.compare.compare` reads the same folder as one method and gives means over the seeds.

    Args:
        folder: a folder that ``train --seeds`` made: ``seed-0``, ``seed-1``, ...
        data: as of `classwise.audit`.
        *args: threat and attacks, as of `classwise.audit`.
        out: a folder for the audits, ``seed-0``, ``seed-1``, ... in it; by default those of the runs.
        resume: continue audits that were interrupted, load finished ones, and make the missing ones.
        max_time: seconds for all seeds together; those for which none is left have no audit.
        name: what the audits are called.
        progress: where progress is reported.
        **settings: further arguments of `classwise.audit`, such as ``seed``, which is that of the attacks.

    Returns:
        The audits by training seed, ascending.

    Raises:
        ClasswiseError: as `classwise.audit` does; if the runs differ in more than the seed; or, before any work, if a
            run has such an audit already and ``resume`` is not asked for.

    Example:
        >>> import tempfile
        >>> import classwise as cw
        >>> small = {"data.subset": 60, "data.validation": 0.2, "model.name": "small-cnn", "model.width": 0.1}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for seed in (0, 1):
        ...         _ = cw.train("at", data="digits", out=f"{folder}/seed-{seed}", changes=small, epochs=1, seed=seed)
        ...     audits = cw.audit_seeds(folder, cw.load_data("digits", subset=32), "Linf:0.1", ["pgd:steps=2"])
        >>> {seed: audit.names for seed, audit in audits.items()}
        {0: ('clean', 'pgd', 'all'), 1: ('clean', 'pgd', 'all')}
    """
    runs = seed_runs(folder)
    places = {run.recipe.seed: run.audits / name if out is None else Path(out) / run.path.name for run in runs}
    for place in places.values():
        if not resume and (folder_for(place, name) / ABOUT).is_file():
            raise ClasswiseError(
                f"{place} holds an audit already; continue with resume (--resume), or give another out"
            )
    started = time.monotonic()
    found: dict[int, Audit] = {}
    for run in runs:
        left = None if max_time is None else max_time - (time.monotonic() - started)
        if left is not None and left <= 0:
            break
        if progress is not None:
            progress.log(f"seed {run.recipe.seed}: {run.path}")
        found[run.recipe.seed] = audit(
            run.path,
            data,
            *args,
            out=places[run.recipe.seed],
            resume=resume,
            max_time=left,
            name=name,
            progress=progress,
            **settings,
        )
    return found
