"""Train and audit the methods that are not finished."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks.comparison.methods import (
    METHODS,
    QUICK,
    Method,
    Scale,
    Workspace,
    finished,
    images,
    log,
    names_in,
    root_folder,
    seeds,
    weights_of,
)
from benchmarks.comparison.page import report
from classwise.auditing.evaluation.evaluation import Evaluation
from classwise.auditing.run.audit import audit
from classwise.core.errors import ClasswiseError, unknown


def run_audits(method: Method, weights: Path, workspace: Workspace) -> None:
    for suite, (count, attacks) in workspace.scale.suites.items():
        if suite not in (names_in("SUITES") or workspace.scale.default_suites):
            continue
        folder = workspace.folder(method.name) / "audits" / suite
        with workspace.locked(f"{method.name}-{suite}", wait=False) as acquired:
            if not acquired or finished(folder):
                continue
            log(f"{method.name}, seed {workspace.seed}: audit by {suite}")
            scale = workspace.scale
            data = images(scale.data, "test", count if count is not None else scale.test)
            options: Evaluation = {"device": workspace.device, **scale.options}
            audit(weights, data, scale.threat, attacks, out=folder, resume=True, **options)


def check_names(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Check names that are read from the environment.

    Raises:
        ClasswiseError: if one is not known.
    """
    if others := {*names} - {*known}:
        raise unknown(kind, min(others), known)


def run_methods(methods: Sequence[Method], scale: Scale, root: Path, seeds: Sequence[int]) -> None:
    """Train and audit the methods that are not finished, seed by seed; METHODS, SUITES and DEVICE are read."""
    known = [method.name for method in methods]
    selected = names_in("METHODS") or known
    check_names("method", selected, known)
    check_names("suite", names_in("SUITES"), list(scale.suites))
    for seed in seeds:
        workspace = Workspace(root, seed, scale, os.environ.get("DEVICE", "cpu"))
        for method in methods:
            if method.name not in selected:
                continue
            try:
                weights = weights_of(method, workspace, wait=False)
                if weights is not None:
                    run_audits(method, weights, workspace)
            except ClasswiseError as error:  # the other methods continue
                log(f"{method.name}, seed {seed}: skipped: {error}")
            except Exception:  # noqa: BLE001  # the other methods continue
                log(f"{method.name}, seed {seed}: skipped:\n{traceback.format_exc()}")


def run(*, quick: bool) -> str:
    """Train and audit the methods that are not finished, then report."""
    run_methods(METHODS, QUICK if quick else Scale(), root_folder(quick), seeds())
    return report(quick=quick)
