"""Run benchmarks and print Markdown: ``python -m benchmarks [--quick] [NAME...]``; by default all but `LONG`.

``python -m benchmarks gpu`` is ``python -m benchmarks.gpu``, which has options of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import torch

from benchmarks import (
    attack_signs,
    attacks,
    audit_calls,
    autoattack,
    cluster_scaling,
    comparison,
    evaluation,
    fusion,
    interval_coverage,
    jpeg_quality,
    limit,
    methods,
    named_class,
    ratios,
    real_size,
    scaling,
    smaller_batches,
    smallest_radii,
    streams,
    strength,
    suite_members,
    symmetry,
    training_length,
    training_step,
    two_phase,
    worst_class,
)
from benchmarks.gpu import command
from benchmarks.tables import processor
from classwise.core.compute.environment import environment
from classwise.core.compute.precision import check_device
from classwise.core.errors import ClasswiseError

ALL: dict[str, Callable[..., str]] = {
    "training_step": training_step.run,
    "limit": limit.run,
    "methods": methods.run,
    "evaluation": evaluation.run,
    "audit-calls": audit_calls.run,
    "fusion": fusion.run,
    "strength": strength.run,
    "attacks": attacks.run,
    "suite-members": suite_members.run,
    "smallest-radii": smallest_radii.run,
    "autoattack": autoattack.run,
    "worst-class": worst_class.run,
    "two-phase": two_phase.run,
    "named-class": named_class.run,
    "scaling": scaling.run,
    "cluster-scaling": cluster_scaling.run,
    "streams": streams.run,
    "stream-shards": streams.run_shards,
    "smaller-batches": smaller_batches.run,
    "interval-coverage": interval_coverage.run,
    "jpeg-quality": jpeg_quality.run,
}
STUDIES = {study.name: study for study in (attack_signs.STUDY, training_length.STUDY, real_size.STUDY, symmetry.STUDY)}
LONG = {"comparison": comparison.run, **{name: study.run for name, study in STUDIES.items()}}
"""Benchmarks of hours or days, which run only if named."""
REPORTS = {"comparison": comparison.report, **{name: study.report for name, study in STUDIES.items()}}
"""Functions that ``--report`` calls instead: they write the page of the finished runs."""
ON_DEVICE = ("training_step", "evaluation", "audit-calls", "fusion", "scaling")
"""Benchmarks with ``--device``; most others measure CPU seconds."""


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["gpu"]:
        return command.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").replace("`", ""))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(['gpu', *ALL, *LONG])}")
    parser.add_argument("--quick", action="store_true", help="small inputs and few rounds")
    parser.add_argument("--report", action="store_true", help="write the page of the finished runs, without running")
    parser.add_argument("--record", action="store_true", help=f"add the ratios to {ratios.HISTORY.name}")
    parser.add_argument("--device", default="cpu", help=f"of {', '.join(ON_DEVICE)} [cpu]")
    options = parser.parse_args(arguments)
    selected = options.names or (list(ALL) if options.device == "cpu" else ON_DEVICE)
    known = REPORTS if options.report else ALL | LONG
    if unknown := set(selected) - set(known):
        parser.error(f"unknown benchmark {min(unknown)!r}; known: {', '.join(known)}")
    if options.device != "cpu" and (elsewhere := set(selected) - set(ON_DEVICE)):
        parser.error(f"--device {options.device}: {min(elsewhere)!r} has no --device; known: {', '.join(ON_DEVICE)}")
    try:
        check_device(options.device)
    except ClasswiseError as error:
        parser.error(str(error))
    if options.record and os.environ.get("KEEP"):
        parser.error("--record: the folder KEEP has times of earlier runs; unset it")
    place = {} if options.device == "cpu" else {"device": options.device}
    on_gpu = options.device.startswith("cuda")
    name = torch.cuda.get_device_name(options.device) if on_gpu else f"{torch.get_num_threads()} threads, {processor()}"
    print(f"{evaluation.threads()}, device {name if on_gpu else options.device}\n")
    git = environment("cpu")["classwise_commit"] or {}
    commit = f"{git.get('commit') or ''}"[:10] + ("+" if git.get("modified") else "")
    conditions = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit,
        "torch": torch.__version__,
        "size": "quick" if options.quick else "full",
        "device": name,
    }
    rows: list[dict[str, str]] = []
    for benchmark in selected:
        ratios.taken()
        try:
            print(known[benchmark](quick=options.quick, **place), flush=True)
        except ClasswiseError as error:
            parser.error(f"{benchmark}: {error}")
        rows += ratios.rows_of(benchmark, ratios.taken(), conditions)
    if rows:
        print(ratios.changes(rows, ratios.read()))
    if options.record:
        ratios.append(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
