"""`run_shards`: the shards of an audit or a curve as tasks of an executor, and then their merge.

Each shard is a call with ``shard`` and a folder of its own, and the merge is the same call with ``shards``, so shards
can also be run and merged by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from classwise.auditing.evaluation.shard import Shard
from classwise.auditing.run.merging import SHARDS, shard_folder
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.files.ownership import owned
from classwise.core.progress import interruption
from classwise.core.progress.listener import NullProgress, Progress
from classwise.sweeps.executors.base import Executor, Finished
from classwise.sweeps.jobs import Call, Job
from classwise.sweeps.tasks import LOG

TASKS = "tasks"
"""The folder of the tasks, beside the folders of the shards."""


def run_shards(
    function: str,
    arguments: Mapping[str, Any],
    folder: Path,
    shards: int,
    executor: Executor,
    is_finished: Callable[[Path], bool],
    *,
    of_shards: Mapping[str, Any],
    processes: int = 1,
    progress: Progress | None = None,
) -> None:
    """Run the shards of an audit or a curve that are not finished, and merge all.

    Args:
        function: the command, ``audit`` or ``curve``.
        arguments: its options, such as ``{"model": "runs/at", "batch_size": 128}``, without a folder and shards.
        folder: the folder of the audit or curve, which the machines of the executor see under the same path.
        shards: number of shards.
        executor: where they run.
        is_finished: whether the folder of a shard is finished.
        of_shards: further options of the shards only, such as ``{"max_time": 60}``.
        processes: processes of each shard and of the merge; more than one are started by ``torchrun``.
        progress: receives the progress in shards.

    Raises:
        IncompleteError: if a shard is not finished at the end of its task; finished shards are not repeated.
        ClasswiseError: if the merge fails, or another process runs the shards.
    """
    folder, listener = folder.absolute(), progress or NullProgress()
    tasks = folder / SHARDS / TASKS
    shared = {**arguments, "resume": True}

    def write(task: Path, out: Path, **changes: Any) -> None:
        call = Call(function=function, arguments={**shared, **changes}, out=str(out))
        Job(calls=(call,), processes=processes, directory=str(Path.cwd())).write(task)

    with owned(folder / SHARDS):
        waiting: dict[Path, Shard] = {}
        for shard in Shard.all(shards):
            place = shard_folder(folder, shard)
            if not is_finished(place):
                write(tasks / shard.name, place, shard=str(shard), **of_shards)
                waiting[tasks / shard.name] = shard
        if waiting:
            listener.start("shards", len(waiting))
        merge = tasks / "merge"
        write(merge, folder, shards=shards)
        try:
            statuses = _run(executor, waiting, listener)
            failed = [task for task, shard in waiting.items() if not is_finished(shard_folder(folder, shard))]
            if failed:
                raise IncompleteError(_failure(failed, waiting, statuses, shards))
            listener.log(f"merging {shards} shards into {folder}")
            merged = _run(executor, {merge: None}, listener)[merge]
        except interruption.STOPS as stop:
            stop.add_note(f"finished shards are saved in {folder / SHARDS}")
            raise
        if merged.status:
            raise ClasswiseError(f"the merge of the shards {_end(merged)}; repeat the command with --resume")


def _run(executor: Executor, waiting: Mapping[Path, Shard | None], listener: Progress) -> dict[Path, Finished]:
    """Run the tasks of shards, or that of the merge, until all have ended."""
    ended: dict[Path, Finished] = {}
    if waiting:
        with closing(executor.run(list(waiting))) as tasks:  # type: ignore[type-var]  # a generator
            for task in tasks:
                ended[task.folder] = task
                if shard := waiting[task.folder]:
                    listener.advance(1)
                    if task.status:
                        listener.log(f"shard {shard} {_end(task)}")
    return ended


def _failure(
    failed: Sequence[Path], waiting: Mapping[Path, Shard], statuses: Mapping[Path, Finished], shards: int
) -> str:
    """Which shards are not finished, and how the first of them ended."""
    named = ", ".join(str(waiting[task].number) for task in failed[:10]) + (", ..." if len(failed) > 10 else "")
    first = statuses.get(failed[0], Finished(failed[0], 0))
    return (
        f"{len(failed)} of {shards} shards are not finished: {named}; shard {waiting[failed[0]]} {_end(first)}; repeat "
        "the command with --resume"
    )


def _end(task: Finished) -> str:
    """How a task has ended, with the last line of its log."""
    try:
        lines = (task.folder / LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    cause = f"was killed by signal {-task.status}" if task.status < 0 else f"ended with status {task.status}"
    return f"{cause}: {lines[-1].removeprefix('classwise: ') if lines else 'no output'} ({task.folder / LOG})"
