"""``python -m benchmarks gpu``: the stages in order; speed is not measured where parity has failed."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu import ceilings, parity, speed
from benchmarks.gpu.cells import Result, Stage, run_stage, saved
from benchmarks.gpu.machine import ROOT, machine

STAGES = ("parity", "ceilings", "speed")
SKIPPED = "no CUDA device: the GPU benchmarks were skipped"
PAGES = ROOT / "docs" / "results" / "gpu"
TRIAL = ROOT / "build" / "gpu-quick"
"""The folder of a quick run, whose numbers are no results."""


def main(arguments: Sequence[str]) -> int:
    """Run the stages.

    Returns:
        0 if every cell has finished and parity has passed, or without a CUDA device; else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=(__doc__ or "").replace("`", ""))
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)} [all]")
    parser.add_argument("--quick", action="store_true", help="tiny inputs, to try the benchmarks themselves")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder of the results [{PAGES.relative_to(ROOT)}]")
    parser.add_argument("--commit", metavar="SHA", help="the commit, in a folder without a git repository")
    options = parser.parse_args(arguments)
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"unknown stage {min(unknown)!r}; known: {', '.join(STAGES)}")
    if not torch.cuda.is_available():
        print(SKIPPED)
        return 0
    out = options.out or (TRIAL if options.quick else PAGES)
    command = shlex.join(["python3", "-m", "benchmarks", "gpu", *arguments])
    return run(options.stages or STAGES, out, command, quick=options.quick, commit=options.commit)


def run(
    stages: Sequence[str], out: Path, command: str, *, quick: bool, commit: str | None = None, device: str = "cuda"
) -> int:
    """Run stages on a device; the result is that of `main`."""
    here = machine(device, commit) | ({"quick": True} if quick else {})

    def results(name: str) -> dict[str, Result]:
        return {cell: each["result"] for cell, each in saved(out / f"{name}.json", here).items() if "result" in each}

    complete = True
    for name in (each for each in STAGES if each in stages):
        if name == "speed" and (failed := parity.failed(results("parity"), _parity(quick))):
            print(f"speed was not measured: no parity with the CPU on {here['device']} in {', '.join(failed)}")
            return 1
        stage = _stage(name, ceilings.rate_of_products(results("ceilings")), quick)
        complete &= run_stage(stage, out, here, command, device)
        complete &= name != "parity" or not parity.failed(results(name), _parity(quick))
        print(f"{name}: {out / name}.md", flush=True)
    return int(not complete)


def _parity(quick: bool) -> parity.Size:
    return parity.QUICK if quick else parity.Size()


def _stage(name: str, rate: float | None, quick: bool) -> Stage:
    if name == "parity":
        return parity.stage(_parity(quick))
    if name == "ceilings":
        return ceilings.stage(ceilings.QUICK if quick else ceilings.Size())
    return speed.stage(speed.QUICK if quick else speed.Size(), rate)
