"""`Ray`: tasks on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classwise.core.errors import ClasswiseError
from classwise.core.settings.extras import reason, require
from classwise.sweeps.commands import GRACE_SECONDS, STOPPED
from classwise.sweeps.executors.base import Executor, Finished, check_numbers
from classwise.sweeps.tasks import attempts, run_task_remotely

logger = logging.getLogger(__name__)

RETRIES = 3
"""How often Ray repeats a task whose worker or node has died."""
CONNECT_SECONDS = 10.0
"""How long the host of an address may take to accept a connection, and then to answer."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first bytes of an HTTP/2 client, with empty settings (RFC 9113); Ray answers with its settings, of type 4."""


@dataclass(frozen=True)
class Ray(Executor):
    """Runs each task as a Ray task, which Ray repeats if its worker or its node fails; extra ``ray``.

    All nodes see the folders of the tasks under the same path and have the same version of classwise. An existing
    connection to Ray is used and left open.

    Args:
        workers: number of tasks that run at once; None: as many as the cluster has GPUs for, or CPUs if ``gpus`` is
            0. The CPUs of each node are divided among them, and a task has as many threads as CPUs.
        gpus: number of GPUs of a task.
        address: address of the cluster, such as ``"auto"`` on one of its nodes; None: a cluster on this machine,
            which ends with the tasks.

    Raises:
        ClasswiseError: if a number is out of its range.

    Example:
        >>> Ray(workers=2)
        Ray(workers=2, gpus=0, address=None)
    """

    workers: int | None = None
    gpus: int = 0
    address: str | None = None

    def __post_init__(self) -> None:
        check_numbers(self.workers, self.gpus)

    def check(self) -> None:
        """Check that Ray is installed, the cluster of an address can be reached, and this machine has enough GPUs.

        Raises:
            ClasswiseError: see above.
        """
        ray = require("ray", "ray")
        if self.address is not None or self.gpus:
            with self._connection(ray):
                self._check_gpus(ray)

    def run(self, folders: Sequence[Path]) -> Iterator[Finished]:
        """Run tasks; see `Executor.run`. A task that is stopped has half a minute to save.

        Raises:
            ClasswiseError: if Ray is not installed, the cluster cannot be reached, or this machine has too few GPUs.
        """
        ray = require("ray", "ray")
        with self._connection(ray):
            self._check_gpus(ray)
            yield from self._run(ray, folders)

    @contextlib.contextmanager
    def _connection(self, ray: Any) -> Iterator[None]:
        """A connection for the duration of the block; one that exists is used and left open."""
        connected = ray.is_initialized()
        if not connected:
            _connect(ray, self.address)
        try:
            yield
        finally:
            if not connected:
                ray.shutdown()

    def _check_gpus(self, ray: Any) -> None:
        most = max(resources_of_nodes(ray, "GPU"), default=0)
        if self.gpus > most and self.address is None:
            raise ClasswiseError(
                f"{self.gpus} GPUs of each task: Ray has found {most} on this machine; see --gpus-per-cell and "
                "--gpus-per-shard"
            )
        if self.gpus > most:  # a cluster may add nodes on demand
            logger.warning("no node of the cluster has %d GPUs; tasks wait until one has", self.gpus)

    def _run(self, ray: Any, folders: Sequence[Path]) -> Iterator[Finished]:
        cpus, gpus = resources_of_nodes(ray, "CPU"), resources_of_nodes(ray, "GPU")
        most = sum(count // self.gpus for count in gpus) if self.gpus else sum(cpus)
        workers = self.workers or max(most, 1)
        share = cpus_of_a_task(cpus, workers)
        remote = ray.remote(num_cpus=share, num_gpus=self.gpus, max_retries=RETRIES)(_run_task)
        waiting, running = list(folders), dict[Any, Path]()
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    folder = waiting.pop(0)
                    running[remote.remote(str(folder.absolute()), share)] = folder
                for task in _ended(ray, list(running)):
                    yield Finished(running.pop(task), _status(ray, task))
        finally:
            for task in running:
                ray.cancel(task)
            _await_ends(list(running.values()))


def resources_of_nodes(ray: Any, name: str) -> list[int]:
    """How much of a resource, ``"CPU"`` or ``"GPU"``, each node of the connected cluster has."""
    return [int(node["Resources"].get(name, 0)) for node in ray.nodes() if node["Alive"]]


def cpus_of_a_task(nodes: Sequence[int], workers: int) -> int:
    """The largest number of CPUs with which so many tasks run at once, at least 1.

    Args:
        nodes: number of CPUs of each node.
        workers: number of tasks.

    Example:
        >>> cpus_of_a_task([8, 8], workers=3)
        4
        >>> cpus_of_a_task([8, 8], workers=100)
        1
    """
    fitting = (cpus for cpus in range(max(nodes, default=1), 0, -1) if sum(node // cpus for node in nodes) >= workers)
    return next(fitting, 1)


def _run_task(folder: str, cpus: int) -> int:
    """Run a task; called in a worker of Ray."""
    ray = require("ray", "ray")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored after `classwise ... &` in a script: no cancel
    return run_task_remotely(Path(folder), cpus, f"ray-{ray.get_runtime_context().get_task_id()}")


def _ended(ray: Any, references: list[Any]) -> list[Any]:
    """Those of some tasks that end within a second."""
    try:
        ended: list[Any] = ray.wait(references, timeout=1.0)[0]
    except SystemError as error:  # Ray's wrapper of an exception of a signal handler
        raise error.__cause__ or error from None
    return ended


def _await_ends(folders: Sequence[Path]) -> None:
    """Wait until cancelled tasks have recorded their ends: Ray counts a task as ended while it still saves its work."""
    deadline = time.monotonic() + GRACE_SECONDS
    while any(attempts(folder)[-1:] and attempts(folder)[-1]["event"] != "end" for folder in folders):
        if time.monotonic() > deadline:
            return
        time.sleep(0.1)


def _connect(ray: Any, address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is not None:
        _check_port(address)
    try:
        with _sigterm_kept():
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level="error",
                include_dashboard=None if address else False,
            )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ClasswiseError(f"cannot connect to Ray at {address or 'this machine'}: {reason(error)}") from error


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM at the end of the block: that of Ray aborts the process."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _check_port(address: str) -> None:
    """Check that Ray may answer at an address with a port; Ray itself tries again for more than ten minutes.

    Raises:
        ClasswiseError: if it accepts no connection, or does not speak HTTP/2, as Ray does without TLS.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as connection:
            if "RAY_USE_TLS" in os.environ:
                return
            connection.sendall(GREETING)
            answer = connection.recv(9)
    except (OSError, OverflowError) as error:
        raise ClasswiseError(f"cannot connect to Ray at {address}: {reason(error)}") from error
    if answer[3:4] != b"\4":
        raise ClasswiseError(f"cannot connect to Ray at {address}: another program answers at this port")


def _status(ray: Any, reference: Any) -> int:
    """The status of a task that has ended."""
    try:
        return int(ray.get(reference))
    except ray.exceptions.TaskCancelledError:
        return STOPPED
    except ray.exceptions.RayTaskError as error:
        raise error.as_instanceof_cause() from error
    except ray.exceptions.RayError:  # its worker or its node has died more often than Ray repeats a task
        return -signal.SIGKILL
