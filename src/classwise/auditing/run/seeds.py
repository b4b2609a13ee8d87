"""`audit_seeds`: audit the runs of several training seeds with the same settings."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path
from typing import Any, Unpack

from classwise.auditing.evaluation.evaluation import Evaluation
from classwise.auditing.run.arguments import evaluates
from classwise.auditing.run.audit import audit
from classwise.auditing.run.audit_folder import ABOUT, folder_for
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import Attacks
from classwise.core.errors import ClasswiseError
from classwise.core.progress.display import listening
from classwise.core.progress.listener import Progress
from classwise.core.settings.arguments import checked
from classwise.threat.ball import ThreatLike
from classwise.training.folder import Run, runs_in


def seed_runs(folder: str | Path) -> list[Run]:
    """Runs in a folder, by seed.

    Raises:
        ClasswiseError: if it contains no run, runs that differ in more than the seed, or two runs of one seed.
    """
    runs = sorted((Run.open(path) for path in runs_in(Path(folder))), key=lambda run: run.recipe.seed)
    if not runs:
        raise ClasswiseError(f"{folder} contains no runs; train some with: classwise train RECIPE --seeds 0,1")
    for run in runs[1:]:
        if dataclasses.replace(run.recipe, seed=0) != dataclasses.replace(runs[0].recipe, seed=0):
            raise ClasswiseError(f"{runs[0].path} and {run.path} differ in more than the seed; audit each separately")
    for first, second in itertools.pairwise(runs):
        if first.recipe.seed == second.recipe.seed:
            raise ClasswiseError(
                f"{first.path} and {second.path} have the same training seed {first.recipe.seed}; audit one of them"
            )
    return runs


@checked
@evaluates
def audit_seeds(
    folder: str | Path,
    data: Any,
    threat: ThreatLike | None = None,
    attacks: Attacks | None = None,
    *,
    name: str = "audit",
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
    distributed: bool = True,
    **options: Unpack[Evaluation],
) -> dict[int, Audit]:
    """Audit every run of a folder of training seeds, into ``audits/<name>`` of each run.

    ``max_time`` is for all seeds together; seeds that do not start in time have no audit.

    Args:
        folder: a folder with the runs of one recipe, such as ``seed-0``, ``seed-1``, ... of ``train --seeds``.
        data: as of `classwise.audit`, like ``threat``, ``attacks`` and ``distributed``.
        threat: the ball.
        attacks: the attacks.
        name: the folder of each audit in the ``audits`` of its run.
        out: a folder for the audits, named as their runs; None: those of the runs.
        resume: continue interrupted audits, load finished ones, and run the missing ones.
        progress: as of `classwise.audit`.
        distributed: whether to share the images among processes.
        **options: see `Evaluation`.

    Returns:
        The audits by training seed, ascending. `classwise.compare` reads the same folder as one method.

    Raises:
        ClasswiseError: see `classwise.audit`; or if the runs differ in more than the seed, or one has such an audit.

    Example:
        >>> import tempfile
        >>> import classwise as cw
        >>> small = {"data.subset": 60, "data.validation": 0.2, "model.name": "small-cnn", "model.width": 0.1}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for seed in (0, 1):
        ...         _ = cw.train("at", data="digits", out=f"{folder}/seed-{seed}", overrides=small, epochs=1, seed=seed)
        ...     audits = cw.audit_seeds(folder, cw.load_data("digits", subset=32), "Linf:0.1", ["pgd:steps=2"])
        >>> {seed: audit.names for seed, audit in audits.items()}
        {0: ('clean', 'pgd', 'all'), 1: ('clean', 'pgd', 'all')}
    """
    runs = seed_runs(folder)
    folders = {run.recipe.seed: run.audits / name if out is None else Path(out) / run.path.name for run in runs}
    for given in () if resume else folders.values():
        if (folder_for(given) / ABOUT).is_file():
            raise ClasswiseError(
                f"{given} already contains an audit; if only outputs changed: add --resume, which loads finished "
                "audits and continues others; or give another --out"
            )
    started, max_time = time.monotonic(), options.get("max_time")
    audits: dict[int, Audit] = {}
    with listening(progress) as listener:
        for run in runs:
            if max_time is not None:
                remaining = max_time - (time.monotonic() - started)
                if remaining <= 0:
                    break
                options["max_time"] = remaining
            listener.log(f"seed {run.recipe.seed}: {run.path}")
            audits[run.recipe.seed] = audit(
                run.path,
                data,
                threat,
                attacks,
                out=folders[run.recipe.seed],
                resume=resume,
                progress=listener,
                distributed=distributed,
                **options,
            )
    return audits
