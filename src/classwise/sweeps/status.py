"""The status of a sweep, read from its folder alone: queued, running, stopped, killed, failed and finished cells."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from classwise.core.errors import ClasswiseError
from classwise.core.files.ownership import OWNER, STALE_SECONDS, read_owner
from classwise.core.files.reading import open_regular
from classwise.core.progress.display import duration_range
from classwise.core.progress.interruption import STOP_SIGNALS
from classwise.core.progress.record import read_progress
from classwise.core.settings.arguments import checked
from classwise.sweeps.cells import CHANGED, Cell, SweepFolder
from classwise.sweeps.tasks import LOG, Start, read_attempts

if sys.platform != "win32":
    import fcntl

State = Literal["queued", "running", "stopped", "killed", "failed", "finished"]
STATES: tuple[State, ...] = get_args(State)
"""``stopped``: saved after a signal; ``killed``: a start without an end, whose process no longer runs."""
SILENT_SECONDS = STALE_SECONDS
"""Age of the last sign of an attempt on another machine, whose lock is not visible here, from which it is killed."""
TAIL_BYTES = 1 << 16
"""The part of a log that is searched for the last error."""
_SIGNALLED = {status for number in STOP_SIGNALS for status in (128 + number, -number)}


@dataclass(frozen=True)
class CellStatus:
    """The status of a cell.

    Attributes:
        name: the name of the cell.
        state: one of `STATES`.
        attempts: number of starts.
        host: the machine of the last attempt.
        stage: what a running cell does, such as ``training``.
        done: finished units of the stage; None if unknown.
        total: all units of the stage; None if unknown.
        left: time left of the stage, such as ``about 3 min``; empty if unknown.
        error: the last line of the error of a failed cell, and the first damaged line of its records.
    """

    name: str
    state: State
    attempts: int = 0
    host: str = ""
    stage: str = ""
    done: int | None = None
    total: int | None = None
    left: str = ""
    error: str = ""

    @property
    def progress(self) -> str:
        """The stage and its progress in words, such as ``training 25 %``."""
        if self.done is None or not self.total:
            return self.stage
        return f"{self.stage} {100 * self.done // self.total} %"


@checked
def sweep_status(folder: str | Path) -> list[CellStatus]:
    """Read the status of every cell of a sweep, while it runs or afterwards, on any machine that can read the folder.

    Args:
        folder: the folder of the sweep.

    Returns:
        The status of each cell, in the order of the plan.

    Raises:
        ClasswiseError: if the folder contains no sweep, or a file is damaged.

    Example:
        >>> import tempfile
        >>> from classwise.sweeps.plan import Plan
        >>> from classwise.sweeps.executors.run import prepare_sweep
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = prepare_sweep(Plan(recipes=("at",), data=("digits",)), folder)
        ...     [(cell.name, cell.state) for cell in sweep_status(folder)]
        [('at-digits-seed0', 'queued')]
    """
    sweep = SweepFolder.open(folder)
    return [cell_status(sweep, cell) for cell in sweep.cells()]


def cell_status(sweep: SweepFolder, cell: Cell) -> CellStatus:
    """The status of one cell; damaged lines of its attempts are left out, and the first one is in its error."""
    lines, problems = read_attempts(sweep.task(cell))
    status = _status_by(sweep, cell, lines)
    return dataclasses.replace(status, error="; ".join(filter(None, (status.error, *problems[:1]))))


def _status_by(sweep: SweepFolder, cell: Cell, lines: Sequence[Any]) -> CellStatus:
    """The status of a cell by the events of its attempts."""
    task = sweep.task(cell)
    starts = [line for line in lines if line["event"] == "start"]
    if not starts:
        return CellStatus(cell.name, "queued")
    start = starts[-1]  # an attempt that was taken over may end after the next one has started
    ends = [line for line in lines if line["event"] == "end" and line["attempt"] == start["attempt"]]
    about = {"name": cell.name, "attempts": len(starts), "host": start["host"]}
    if not ends:
        if is_alive(task, start["host"]):
            return CellStatus(state="running", **about, **_progress(sweep, cell))
        return CellStatus(state="killed", **about)
    if any(line["event"] == CHANGED for line in lines[lines.index(start) :]) or _has_new_model(cell, start):
        return CellStatus(state="queued", **about)
    status = ends[-1]["status"]
    if status == 0:
        return CellStatus(state="finished", **about)
    if status in _SIGNALLED:
        return CellStatus(state="stopped", **about)
    return CellStatus(state="failed", **about, error=_error(task, start, status))


def _has_new_model(cell: Cell, start: Start) -> bool:
    """Whether a file of a cell's model was written or replaced since an attempt has started.

    Reads the time of the last change of the file or its metadata, which a copy with an older date does not set back.
    """
    since = datetime.fromisoformat(start["time"]).timestamp() if cell.model and "time" in start else 0
    return any(file.stat().st_ctime > since for file in cell.model_files())


def counts_text(cells: Iterable[CellStatus]) -> str:
    """The number of cells in each state that occurs, such as ``2 running, 6 finished``."""
    states = [cell.state for cell in cells]
    return ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)


def unfinished(cells: Sequence[CellStatus]) -> list[CellStatus]:
    """The cells that are not finished."""
    return [cell for cell in cells if cell.state != "finished"]


def is_alive(folder: Path, host: str) -> bool:
    """Whether the owner of a folder still runs: it holds the lock of the folder's owner file.

    Args:
        folder: the folder of a task or a sweep.
        host: the machine of the owner. If that is another one, whose locks may not be visible here, the owner file must
            not be older than `SILENT_SECONDS`.
    """
    path = folder / OWNER
    try:
        with open_regular(path) as file:
            if _is_locked(file.fileno()):
                return True
    except (OSError, ClasswiseError):
        return False
    if host == platform.node():
        return False
    try:
        return time.time() - path.stat().st_mtime < SILENT_SECONDS
    except OSError:  # released
        return False


def owner_host(folder: Path) -> str:
    """The machine in the owner file of a folder; empty if there is none."""
    return read_owner(folder).get("host", "")


def _is_locked(handle: int) -> bool:
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    return False


def _progress(sweep: SweepFolder, cell: Cell) -> dict[str, Any]:
    """The progress that a running cell has recorded in its run folder, or in the folder of an audit."""
    folders = (sweep.run(cell), *(sweep.audit(cell, name) for name in cell.audits))
    record = next(filter(None, map(read_progress, folders)), None)
    if record is None:
        return {"stage": "starting"}
    left = "" if (high := record.seconds_left) is None else duration_range(record.seconds_left_low or high, high)
    return {"stage": record.task, "done": record.done, "total": record.total, "left": left}


def _error(task: Path, start: Start, status: int) -> str:
    """The last line that classwise has printed for an error, else the last line of the log."""
    lines = _log(task, start)
    own = [line.removeprefix("classwise: ") for line in lines if line.startswith("classwise: ")]
    return own[-1] if own else (lines[-1] if lines else f"exit status {status}")


def _log(task: Path, start: Start) -> list[str]:
    """The last lines of an attempt that are not empty."""
    try:
        with open_regular(task / LOG) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(min(start.get("log", 0), size), size - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode("utf-8", errors="replace")
    except (OSError, ClasswiseError):
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]
