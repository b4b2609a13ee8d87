"""``python -m benchmarks.gpu``: parity, tests and benchmarks of a GPU, in calls of a few minutes."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch

from benchmarks.gpu import ceilings, parity, peers, speed, suite
from benchmarks.gpu.cells import LEAST, RESULTS, Report, Stage, Task
from benchmarks.gpu.machine import ROOT, machine, sources
from benchmarks.tables import table
from classwise.core.errors import first_line

STAGES: dict[str, Callable[[bool], Stage]] = {
    "parity": lambda quick: parity.stage(parity.QUICK if quick else parity.Size()),
    "tests": lambda quick: suite.stage(),  # noqa: ARG005
    "speed": lambda quick: speed.stage(speed.QUICK if quick else speed.Size()),
    "ceilings": lambda quick: ceilings.stage(ceilings.QUICK if quick else ceilings.Size()),
    "peers": lambda quick: peers.stage(peers.QUICK if quick else peers.Size()),
}
"""The stages, in order."""
MINUTES = 8.0
SKIPPED = "no CUDA device: the GPU tests and benchmarks were skipped"
PAGES = ROOT / "docs" / "results" / "gpu"
TRIAL = ROOT / "build" / "gpu-quick"
"""The folder of a quick run, whose numbers are no results."""
UNFINISHED = 3
"""Exit status if no cell has failed and some have not been run."""


def main(arguments: Sequence[str]) -> int:
    """Run the stages.

    Returns:
        0 if every cell has been run and none has failed, or without a CUDA device; 1 if one has failed; else
        `UNFINISHED`.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").replace("`", ""))
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)} [all]")
    parser.add_argument("--quick", action="store_true", help="tiny inputs, to try the benchmarks themselves")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"end after this time [{MINUTES:g}]")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder of the results [{PAGES.relative_to(ROOT)}]")
    parser.add_argument(
        "--from", type=Path, metavar="FILE", dest="start", help=f"continue from this {RESULTS} [that of --out]"
    )
    parser.add_argument("--commit", metavar="SHA", help="the commit [that of the git repository]")
    options = parser.parse_args(arguments)
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"unknown stage {min(unknown)!r}; known: {', '.join(STAGES)}")
    if not options.minutes > 0:
        parser.error(f"--minutes {options.minutes:g}: must be positive")
    if options.start is not None and not options.start.is_file():
        parser.error(f"--from {options.start}: no such file")
    if not torch.cuda.is_available():
        print(SKIPPED)
        return 0
    out = options.out or (TRIAL if options.quick else PAGES)
    command = shlex.join(["python3", "-m", "benchmarks.gpu", *arguments])
    limit, start = 60 * options.minutes, options.start or out / RESULTS
    return run(
        options.stages or STAGES, out, command, quick=options.quick, commit=options.commit, limit=limit, start=start
    )


def run(
    names: Collection[str],
    out: Path,
    command: str,
    *,
    quick: bool,
    commit: str | None = None,
    device: str = "cuda",
    limit: float = float("inf"),
    start: Path | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Run stages on a device: the cells that have not been run, then those that have failed in earlier calls.

    The result is that of `main`.
    """
    end = clock() + limit
    here = machine(device, commit) | ({"quick": True} if quick else {})
    stages = [make(quick) for make in STAGES.values()]
    report = Report(out, stages, here, {stage.name: sources(stage.sources) for stage in stages}, command)
    report.read(start or out / RESULTS)
    fresh: set[tuple[str, str]] = set()
    try:
        for again in (False, True):
            for stage in stages:
                if stage.name in names and end - clock() >= LEAST:
                    stage.run(Task(report, stage, device, end, again, fresh, clock))
    except RuntimeError as error:
        print(f"this process can no longer use the device, and another may: {first_line(error)}")
    report.write()
    chosen = [stage for stage in stages if stage.name in names]
    failed = [row for row in report.failures() if row[0] in names]
    missing = report.missing(chosen)
    print(f"\n{table('Failures', ['stage', 'cell', 'reason'], failed)}" if failed else "\nno cell has failed")
    if missing:
        print(f"not yet run: {', '.join(missing)}; repeat the command with --from {out / RESULTS}")
    print(out / "results.md", flush=True)
    return 1 if failed else UNFINISHED if missing else 0
