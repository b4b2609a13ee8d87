"""`run_sweep` and `resume_sweep`: expand a plan into the cells of a folder, and run those that are not finished."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from classwise.core import interruption
from classwise.core.arguments import checked
from classwise.core.config import Count
from classwise.core.ownership import owned
from classwise.core.progress import Progress
from classwise.core.progress_display import listening
from classwise.sweeps.cells import SweepFolder
from classwise.sweeps.executors.base import Executor
from classwise.sweeps.executors.local import Local
from classwise.sweeps.plan import Plan
from classwise.sweeps.status import CellStatus, cell_status, counts_text, sweep_status


@checked
def run_sweep(
    plan: str | Path | Mapping[str, Any] | Plan,
    *,
    out: str | Path,
    executor: Executor | None = None,
    device: str = "cpu",
    processes: Count = 1,
    progress: Progress | bool | None = None,
) -> list[CellStatus]:
    """Train and audit every cell of a plan. A cell that fails does not stop the others.

    Repeated with a plan that has further values, only new and unfinished cells run.

    Args:
        plan: a plan, its YAML file, or a mapping.
        out: the folder of the sweep; each cell has an ordinary run folder in ``runs``.
        executor: where the cells run; None: one after the other on this machine.
        device: the device of every cell, ``"cpu"`` or ``"cuda"``.
        processes: processes of each cell, started by ``torchrun`` if there are several.
        progress: True shows the progress in cells; or a listener.

    Returns:
        The status of each cell.

    Raises:
        ClasswiseError: before anything starts, if the plan, a recipe or an audit is invalid, or the folder contains
            other cells of the same names or is in use.

    Example:
        >>> import tempfile
        >>> tiny = {"model.name": "small-cnn", "model.width": 0.1, "data.subset": 60, "data.validation": 0.2}
        >>> plan = {"recipes": ["at"], "data": ["digits"], "set": tiny | {"epochs": 1}, "audits": {}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [(cell.name, cell.state) for cell in run_sweep(plan, out=folder)]
        [('at-digits-seed0', 'finished')]
    """
    folder = prepare_sweep(plan, out, device=device, processes=processes).path
    return resume_sweep(folder, executor=executor, progress=progress)


@checked
def prepare_sweep(
    plan: str | Path | Mapping[str, Any] | Plan,
    out: str | Path,
    *,
    device: str = "cpu",
    processes: Count = 1,
    **settings: Any,
) -> SweepFolder:
    """Expand and check a plan, and write the cells and their tasks into a folder.

    Args:
        plan: a plan, its YAML file, or a mapping.
        out: the folder of the sweep.
        device: the device of every cell.
        processes: processes of each cell.
        **settings: further settings to write beside these.

    Raises:
        ClasswiseError: see `run_sweep`.
    """
    from classwise.sweeps.plan import Plan

    parsed = Plan.read(plan)
    cells, folder = parsed.cells(), SweepFolder(Path(out))
    folder.check_new()
    with owned(folder.path):
        folder.write(cells, parsed.yaml(), {"device": device, "processes": processes, **settings})
    return folder


@checked
def resume_sweep(
    folder: str | Path, *, executor: Executor | None = None, progress: Progress | bool | None = None
) -> list[CellStatus]:
    """Run the cells of a sweep that are neither finished nor running.

    Args:
        folder: the folder of the sweep.
        executor: where the cells run; None: one after the other on this machine.
        progress: True shows the progress in cells; or a listener.

    Returns:
        The status of each cell.

    Raises:
        ClasswiseError: if the folder contains no sweep, or another process runs it.
    """
    sweep = SweepFolder.open(folder)
    with owned(sweep.path), listening(progress) as listener:
        try:
            _run(sweep, executor or Local(), listener)
        except interruption.STOPS as stop:
            stop.add_note(f"{counts_text(sweep_status(sweep.path))} of the cells in {sweep.path}")
            raise
    return sweep_status(sweep.path)


def _run(sweep: SweepFolder, executor: Executor, progress: Progress) -> None:
    cells, settings = sweep.cells(), sweep.settings()
    waiting = {}
    for cell in cells:
        if cell_status(sweep, cell).state not in ("finished", "running"):
            sweep.write_task(cell, settings)  # with the present path of the folder
            waiting[sweep.task(cell).absolute()] = cell
    progress.start("cells", len(cells))
    progress.advance(len(cells) - len(waiting))
    if not waiting:
        return
    with closing(executor.run(list(waiting))) as ended:  # type: ignore[type-var]  # a generator
        for finished in ended:
            status = cell_status(sweep, waiting[finished.folder])
            progress.log(f"{status.name}: {status.state}{f' ({status.error})' if status.error else ''}")
            progress.advance(1)
