"""Run a sweep in slices of some minutes, each on a machine that starts without the files of the others.

    python -m benchmarks.slices benchmarks/plans/strong.yaml --device cuda --minutes 8 --from IN --out OUT
    python -m benchmarks.slices kdd21 iclr21 --scale full --device cuda --minutes 8 --from IN --out OUT

The second form runs the items of papers in the order of `classwise papers list --estimate`, in one store.
The parts of earlier slices in the folders IN are unpacked into sweeps/. The trainings and the audits of the plan that
are not finished then run in turn, first those of the first seed. What runs at the end of the time saves its work. The
files that are new or changed are written to OUT, as a tar archive in parts of at most 15 MB.

Weights are rounded to float16 after the training and before the first audit, and the training state is deleted: these
files are half as large, and all audits of a cell attack the same weights. `classwise sweep collect` reads the unpacked
folder.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open

import classwise as cw
from classwise.core.compute.rates import Rates, named_rates
from classwise.core.files.ownership import OWNER
from classwise.models import load_model, save_weights
from classwise.models.weights import METADATA_KEY
from classwise.papers import catalogue
from classwise.papers.store import Store
from classwise.sweeps.cells import Cell, SweepFolder
from classwise.sweeps.collect import audit_of
from classwise.sweeps.executors.run import prepare_sweep
from classwise.sweeps.jobs import JOB, Job
from classwise.sweeps.plan import read_recipe
from classwise.training.cost import estimate_training
from classwise.training.folder import Run

PART_BYTES = 15_000_000
"""Size of a part of an archive."""
STORE = "papers"
"""The folder of the store of papers, beside those of sweeps."""
GRACE_SECONDS = 30.0
"""How long a call may take to save its work after SIGTERM."""
State = dict[Path, tuple[int, int]]
"""Time of change and size of each file."""


def run_slice(
    plan: Path,
    root: Path,
    parts: Sequence[Path],
    out: Path,
    minutes: float,
    device: str = "cpu",
    rates: Rates | None = None,
) -> bool:
    """Run one slice of a sweep.

    Args:
        plan: the plan.
        root: the folder of the sweeps; that of the plan has its name.
        parts: folders with the parts of earlier slices, of this sweep and of those that it starts from.
        out: the folder of the parts of this slice.
        minutes: duration of the calls.
        device: ``"cpu"`` or ``"cuda"``.
        rates: after the first call, a training only starts if it ends in time by these rates; None: always.

    Returns:
        Whether all cells are finished.
    """
    deadline = time.monotonic() + 60 * minutes
    for folder in parts:
        unpack(folder, root)
    before = _state(root)
    sweep = prepare_sweep(plan, root / plan.stem, device=device)
    try:
        return _run_calls(sweep, deadline, rates)
    finally:
        changed = [file for file, facts in _state(root).items() if before.get(file) != facts]
        pack(changed, root, out / f"{plan.stem}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}")


def run_papers(
    papers: Sequence[str],
    scale: str,
    root: Path,
    parts: Sequence[Path],
    out: Path,
    minutes: float,
    device: str = "cpu",
) -> bool:
    """Run one slice of the items of papers, in a store in the folder ``root/papers``.

    The training states of finished runs are deleted. Weights are not rounded, since an item audits them right after its
    trainings.

    Args:
        papers: names of papers.
        scale: scale of the items.
        root: the folder of the store and of sweeps.
        parts: folders with the parts of earlier slices.
        out: the folder of the parts of this slice.
        minutes: duration of the calls.
        device: ``"cpu"`` or ``"cuda"``.

    Returns:
        Whether all items have a result.
    """
    deadline = time.monotonic() + 60 * minutes
    for folder in parts:
        unpack(folder, root)
    before, store = _state(root), Store(root / STORE)
    try:
        for item in cw.papers.plan(papers, scale):
            if store.result_file(item, scale).is_file():
                continue
            words = ["papers", "run", item, "--scale", scale, "--store", str(store.path), "--device", device]
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not wait([sys.executable, "-m", "classwise", *words], remaining):
                return False
        return True
    finally:
        for run in (Run(recipe.parent) for recipe in store.runs):
            if run.complete:
                run.state_file.unlink(missing_ok=True)
        changed = [file for file, facts in _state(root).items() if before.get(file) != facts]
        pack(changed, root, out / f"{STORE}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}")


def _run_calls(sweep: SweepFolder, deadline: float, rates: Rates | None) -> bool:
    first = True
    for cell in sorted(sweep.cells(), key=lambda cell: cell.seed):
        run = Run(sweep.run(cell))
        for number, audit in enumerate(cell.audits if cell.model else (None, *cell.audits), 1):
            if _trained(run) if audit is None else _audited(sweep, cell, audit):
                continue
            remaining = deadline - time.monotonic()
            too_long = audit is None and rates is not None and not first and _seconds(cell, rates) > remaining
            if remaining <= 0 or too_long or not call(sweep.task(cell) / JOB, number, remaining):
                return False
            first = False
            if audit is None:
                shrink(run)
    return True


def call(file: Path, number: int, seconds: float) -> bool:
    """Make a call of a job, and stop it after some seconds; returns whether it has ended by itself.

    Raises:
        CalledProcessError: if it fails.
    """
    return wait(Job.read(file).command(file, number), seconds)


def wait(command: Sequence[str], seconds: float) -> bool:
    """Run a command, and stop it after some seconds; returns whether it has ended by itself.

    Raises:
        CalledProcessError: if it fails.
    """
    process = subprocess.Popen(command)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        process.kill()
        process.wait()
        return False
    if status:
        raise subprocess.CalledProcessError(status, command)
    return True


def shrink(run: Run) -> None:
    """Round the weights of a finished run to float16, and delete its training state."""
    for name in run.saved_weights():
        file = run.weights_file(name)
        with safe_open(file, "pt") as opened:
            entries = json.loads(opened.metadata()[METADATA_KEY])
        save_weights(file, load_model(file), entries, torch.float16, checksum=True)
    run.state_file.unlink(missing_ok=True)


def pack(files: Sequence[Path], root: Path, stem: Path) -> None:
    """Write files as a tar archive in parts, ``STEM-000.part`` and so on; their names are relative to ``root``."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as whole:
        with tarfile.open(fileobj=whole, mode="w") as archive:
            for file in files:
                archive.add(file, file.relative_to(root))
        whole.seek(0)
        for number in itertools.count():
            if not (content := whole.read(PART_BYTES)):
                return
            stem.with_name(f"{stem.name}-{number:03d}.part").write_bytes(content)


def unpack(folder: Path, root: Path) -> None:
    """Unpack the archives of a folder in the order of their times, and shrink finished runs."""
    names = itertools.groupby(sorted(folder.glob("*.part")), lambda part: part.name.rpartition("-")[0])
    archives = {name: list(parts) for name, parts in names}
    for name in sorted(archives, key=lambda name: name.rpartition("-")[2]):
        with tempfile.TemporaryFile() as whole:
            for part in archives[name]:
                whole.write(part.read_bytes())
            whole.seek(0)
            with tarfile.open(fileobj=whole) as archive:
                archive.extractall(root, filter="data")
    for recipe in root.glob("*/runs/*/recipe.yaml"):
        run = Run(recipe.parent)
        of_sweep = recipe.parents[2].name != STORE
        if of_sweep and run.complete and run.state_file.is_file():  # of an earlier slice, or not shrunk yet
            shrink(run)


def _trained(run: Run) -> bool:
    """Whether a run is finished and its files are shrunk."""
    return run.recipe_file.is_file() and run.complete and not run.state_file.is_file()


def _audited(sweep: SweepFolder, cell: Cell, name: str) -> bool:
    audit = audit_of(sweep, cell, name)
    return audit is not None and audit.complete


def _seconds(cell: Cell, rates: Rates) -> float:
    return estimate_training(read_recipe(cell), rates=rates).seconds


def _state(root: Path) -> State:
    files = [file for file in root.rglob("*") if file.is_file() and file.name != OWNER]
    return {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in files}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Run a slice of a sweep.")
    parser.add_argument("plan", nargs="+", help="the plan of a sweep, or names of papers")
    parser.add_argument("--scale", default="full", help="scale of the items of papers")
    parser.add_argument("--from", dest="parts", type=Path, nargs="*", default=[], help="folders of earlier parts")
    parser.add_argument("--out", type=Path, required=True, help="folder of the parts of this slice")
    parser.add_argument("--root", type=Path, default=Path("sweeps"), help="folder of the sweeps")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rates", help="start a training only if it ends in time by these rates, such as h100")
    given = parser.parse_args()
    rates = named_rates(given.rates) if given.rates else None
    folders = given.root, given.parts, given.out
    if given.plan[0] in catalogue.papers():
        done = run_papers(given.plan, given.scale, *folders, given.minutes, given.device)
    else:
        done = run_slice(Path(given.plan[0]), *folders, given.minutes, given.device, rates)
    print(f"{', '.join(given.plan)}: {'everything is finished' if done else 'continue with the parts of this slice'}")


if __name__ == "__main__":
    main()
