"""`sweep` and `resume_sweep`: expand a plan into the cells of a folder, and run those that are not finished."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from classwise.core.files.ownership import owned
from classwise.core.progress import interruption
from classwise.core.progress.display import listening
from classwise.core.progress.listener import Progress
from classwise.core.settings.arguments import checked
from classwise.core.settings.config import Count
from classwise.sweeps.cells import SweepFolder
from classwise.sweeps.executors.base import Executor
from classwise.sweeps.executors.choice import executor_of
from classwise.sweeps.plan import Plan, check_data, with_digest
from classwise.sweeps.status import CellStatus, cell_status, counts_text, sweep_status


@checked
def sweep(
    plan: str | Path | Mapping[str, Any] | Plan,
    *,
    out: str | Path,
    executor: Executor | Mapping[str, Any] | None = None,
    device: str = "cpu",
    processes: Count = 1,
    progress: Progress | bool | None = None,
) -> list[CellStatus]:
    """Train and audit every cell of a plan. A cell that fails does not stop the others.

    Repeated with a plan that has further values, only new and unfinished cells run; with other audits, only these run.

    Args:
        plan: a plan, its YAML file, or a mapping.
        out: the folder of the sweep; each cell has an ordinary run folder in ``runs``.
        executor: where the cells run: an executor, or options of `classwise.sweeps.executors.choice.executor_of`, such
            as ``{"on": "slurm", "workers": 8, "gpus": 1}``, which `resume_sweep` reads again. None: one after the
            other on this machine.
        device: the device of every cell, ``"cpu"`` or ``"cuda"``.
        processes: processes of each cell, started by ``torchrun`` if there are several.
        progress: True shows the progress in cells; or a listener.

    Returns:
        The status of each cell.

    Raises:
        ClasswiseError: before anything starts, if the plan, a recipe, an audit or the executor is invalid, or the
            folder contains other cells of the same names or is in use.

    Example:
        >>> import tempfile
        >>> import classwise as cw
        >>> tiny = {"model.name": "small-cnn", "model.width": 0.1, "data.subset": 60, "data.validation": 0.2}
        >>> plan = {"recipes": ["at"], "data": ["digits"], "set": tiny | {"epochs": 1}, "audits": {}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [(cell.name, cell.state) for cell in cw.sweep(plan, out=folder)]
        [('at-digits-seed0', 'finished')]
    """
    options = {} if isinstance(executor, Executor) else dict(executor or {})
    chosen = executor if isinstance(executor, Executor) else executor_of(**options)
    chosen.check()
    settings = {"gpus": options.pop("gpus", 0), "executor": options}
    folder = prepare_sweep(plan, out, device=device, processes=processes, **settings).path
    return resume_sweep(folder, executor=chosen, progress=progress)


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
        ClasswiseError: see `sweep`.
    """
    parsed = Plan.read(plan)
    cells, folder = [with_digest(cell) for cell in parsed.cells()], SweepFolder(Path(out))
    folder.check_new()
    check_data(parsed)
    with owned(folder.path):
        folder.write(cells, parsed.yaml(), {"device": device, "processes": processes, **settings})
    return folder


@checked
def resume_sweep(
    folder: str | Path,
    *,
    executor: Executor | Mapping[str, Any] | None = None,
    progress: Progress | bool | None = None,
) -> list[CellStatus]:
    """Run the cells of a sweep that are neither finished nor running.

    Args:
        folder: the folder of the sweep.
        executor: where the cells run, as of `sweep`; options replace the saved ones of the same executor. None: as
            before.
        progress: True shows the progress in cells; or a listener.

    Returns:
        The status of each cell.

    Raises:
        ClasswiseError: if the folder contains no sweep, or another process runs it.
    """
    opened = SweepFolder.open(folder)
    chosen = executor if isinstance(executor, Executor) else _executor(opened.settings(), dict(executor or {}))
    with owned(opened.path), listening(progress) as listener:
        try:
            _run(opened, chosen, listener)
        except interruption.STOPS as stop:
            stop.add_note(f"{counts_text(sweep_status(opened.path))} of the cells in {opened.path}")
            raise
    return sweep_status(opened.path)


def _executor(settings: Mapping[str, Any], given: Mapping[str, Any]) -> Executor:
    """The executor of the saved settings of a sweep, with the options that are given now."""
    saved = settings.get("executor", {})
    is_same = given.get("on") in (None, saved.get("on", "local"))
    return executor_of(**{"gpus": settings.get("gpus", 0), **(saved if is_same else {}), **given})


def _run(folder: SweepFolder, executor: Executor, progress: Progress) -> None:
    cells, settings = folder.cells(), folder.settings()
    waiting = {}
    for cell in cells:
        if cell_status(folder, cell).state not in ("finished", "running"):
            folder.write_task(cell, settings)  # with the present path of the folder
            waiting[folder.task(cell).absolute()] = cell
    if not waiting:
        return
    progress.start("cells", len(waiting))
    with closing(executor.run(list(waiting))) as ended:  # type: ignore[type-var]  # a generator
        for finished in ended:
            status = cell_status(folder, waiting[finished.folder])
            progress.log(f"{status.name}: {status.state}{f' ({status.error})' if status.error else ''}")
            progress.advance(1)
