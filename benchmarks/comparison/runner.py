"""Train and audit what is missing."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from benchmarks.comparison.methods import (
    METHODS,
    QUICK,
    Method,
    Place,
    Scale,
    finished,
    images,
    keep,
    log,
    made,
    named,
    seeds,
)
from benchmarks.comparison.page import report
from classwise.auditing.audit import audit
from classwise.core.errors import ClasswiseError


def audited(method: Method, weights: Path, place: Place) -> None:
    for suite, (count, attacks) in place.scale.suites.items():
        if suite == "autoattack" and method.name not in named("AUTOATTACK"):
            continue
        folder = place.folder(method.name) / "audits" / suite
        with place.held(f"{method.name}-{suite}", wait=False) as ours:
            if not ours or finished(folder):
                continue
            log(f"{method.name}, seed {place.seed}: audit by {suite}")
            data = images("test", count if count is not None else place.scale.test)
            audit(weights, data, attacks=attacks, out=folder, resume=True, device=place.device)


def run(*, quick: bool) -> str:
    """Train and audit what is missing, then report."""
    known = [each.name for each in METHODS]
    wanted = named("METHODS") or known
    unknown = {*wanted, *named("AUTOATTACK")} - {*known}
    if unknown:
        sys.exit(f"unknown method {min(unknown)!r}; known: {', '.join(known)}")
    for seed in seeds():
        place = Place(keep(quick), seed, QUICK if quick else Scale(), os.environ.get("DEVICE", "cpu"))
        for method in METHODS:
            if method.name not in wanted:
                continue
            try:
                weights = made(method, place, wait=False)
                if weights is not None:
                    audited(method, weights, place)
            except ClasswiseError as error:  # the others go on
                log(f"{method.name}, seed {seed}: left out: {error}")
            except Exception:  # noqa: BLE001  # the report of what went well is worth more than a stop
                log(f"{method.name}, seed {seed}: left out:\n{traceback.format_exc()}")
    return report(quick=quick)
