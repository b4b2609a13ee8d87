"""Run the command line in forked processes that are killed, or whose system calls fail, at a chosen call.

The runner imports torch once and then reads jobs as JSON lines from stdin. Each job forks one or several processes,
which patch the calls of `os` that write files and run the command line. So a case does not repeat the imports. The
answer is a JSON line on stdout.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import importlib
import json
import os
import resource
import signal
import stat
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

GRACE_SECONDS = 0.5
"""Seconds after the failure of a process until the others of its job are killed, as by torchrun; ``grace`` of a job
overrides it."""


class Faults:
    """Count the calls that write files in a folder, and kill the process or fail at one of them.

    Args:
        folder: only calls on paths in it are counted; calls on descriptors always are.
        kill: the number (from 1) of the call at which the process is killed; 0 for none.
        fail: the name of a call, the number of its first failure, the number of failures, and the errno; or None.
    """

    def __init__(self, folder: str, kill: int = 0, fail: tuple[str, int, int, int] | None = None) -> None:
        self.folder = os.path.realpath(folder)
        self.kill = kill
        self.fail = fail
        self.count = 0
        self.calls: dict[str, int] = {}

    def install(self) -> None:
        """Patch `os`."""
        opened, written, synced, replaced = os.open, os.write, os.fsync, os.replace

        def open_(path: Any, flags: int, *rest: Any, **more: Any) -> int:
            if not flags & os.O_CREAT or not self._inside(path):
                return opened(path, flags, *rest, **more)
            self._at("open")
            handle = opened(path, flags, *rest, **more)
            self._at("opened")
            return handle

        def write(handle: int, content: bytes) -> int:
            if handle > 2:
                self._at("write", lambda: written(handle, content[: len(content) // 2]))
            return written(handle, content)

        def fsync(handle: int) -> None:
            self._at("fsync-folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "fsync")
            synced(handle)

        def replace(source: Any, target: Any, *rest: Any, **more: Any) -> None:
            self._at("replace")
            replaced(source, target, *rest, **more)
            self._at("replaced")

        os.open, os.write, os.fsync, os.replace = open_, write, fsync, replace  # type: ignore[assignment]

    def count_collectives(self) -> None:
        """Count collectives, too, since processes other than rank 0 write few files."""
        from classwise.core.compute import distributed as processes

        def counted(name: str) -> Callable[..., Any]:
            original = getattr(processes._TorchProcessGroup, name)

            def collective(group: object, *values: Any) -> Any:
                self._at(name)
                return original(group, *values)

            return collective

        for name in ("barrier", "all_reduce"):
            setattr(processes._TorchProcessGroup, name, counted(name))

    def _inside(self, path: Any) -> bool:
        return os.path.realpath(os.fsdecode(path)).startswith(self.folder)

    def _at(self, name: str, partial: Callable[[], object] = lambda: None) -> None:
        self.count += 1
        self.calls[name] = number = self.calls.get(name, 0) + 1
        if self.count == self.kill:
            partial()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fail is not None and self.fail[0] == name and 0 <= number - self.fail[1] < self.fail[2]:
            raise OSError(self.fail[3], os.strerror(self.fail[3]))


def obey_permissions() -> None:
    """Drop the capabilities of root that override file permissions."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3 of the interface, this process
    capabilities = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32 bits
    if libc.capget(header, capabilities):
        raise OSError(ctypes.get_errno(), "capget")
    for place in range(3):
        capabilities[place] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    if libc.capset(header, capabilities):
        raise OSError(ctypes.get_errno(), "capset")


def child(job: dict[str, Any], answer: int) -> NoReturn:
    """Run a job in a forked process."""
    status = 99
    loaded = set(sys.modules)
    faults = Faults(job["folder"], job.get("kill", 0), job.get("fail"))
    try:
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(job.get("env", {}))
        if job.get("limit"):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a write fails with EFBIG
            resource.setrlimit(resource.RLIMIT_FSIZE, (job["limit"], job["limit"]))
        if job.get("obeys"):
            obey_permissions()
        for name, value in job.get("set", {}).items():
            module, _, attribute = name.rpartition(".")
            setattr(importlib.import_module(module), attribute, value)
        faults.install()
        from classwise.cli import main

        if "RANK" in os.environ:
            faults.count_collectives()
        status = main(job["args"])
        if "RANK" in os.environ:
            atexit._run_exitfuncs()  # which destroys the process group
    except BaseException:  # noqa: BLE001  # logged
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        with open(answer, "wb") as pipe:
            pipe.write(json.dumps(_facts(faults, loaded)).encode())
        os._exit(status)


def _facts(faults: Faults, loaded: set[str]) -> dict[str, Any]:
    wanted = ("classwise", "torch", "scipy", "sklearn")
    modules = [name for name in sys.modules if name.startswith(wanted) and name not in loaded]
    return {"count": faults.count, "calls": faults.calls, "modules": modules}


def run(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run jobs at the same time until all have ended; if one fails, the others are killed."""
    found: dict[int, dict[str, Any]] = {}
    pipes: dict[int, tuple[int, int]] = {}
    times: dict[int, float] = {}
    for number, job in enumerate(jobs):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            child(job, writer)
        os.close(writer)
        pipes[pid], times[pid] = (number, reader), time.monotonic()
    failed_at = None
    signalled: set[int] = set()
    grace = max(job.get("grace", GRACE_SECONDS) for job in jobs)
    while len(found) < len(jobs):
        pid, status = os.waitpid(-1, os.WNOHANG)
        now = time.monotonic()
        if pid:
            number, reader = pipes[pid]
            with open(reader, "rb") as pipe:
                text = pipe.read()
            found[number] = {"status": os.waitstatus_to_exitcode(status), **json.loads(text or b"{}")}
            found[number]["seconds"] = now - times[pid]
            if status and failed_at is None:
                failed_at = now
            continue
        for process, (number, _) in pipes.items():
            job = jobs[number]
            if number in found:
                continue
            late = now - times[process]
            if "after" in job and late > job["after"] and process not in signalled:
                os.kill(process, job.get("signal", signal.SIGKILL))
                signalled.add(process)
            if late > job.get("timeout", 120) or (failed_at is not None and now - failed_at > grace):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.002)
    for name in [name for answer in found.values() for name in answer.pop("modules", ())]:
        if name not in sys.modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)  # once for all later processes
    return [found[number] for number in range(len(jobs))]


def serve() -> None:
    """Answer jobs from stdin until it closes."""
    import pandas  # noqa: F401, ICN001
    import pyarrow.parquet  # noqa: F401
    import torch

    import classwise.auditing.run.audit
    import classwise.cli
    import classwise.reporting
    import classwise.training.trainer  # noqa: F401

    torch.set_num_threads(1)
    print(json.dumps({"ready": errno.ENOSPC}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    serve()
