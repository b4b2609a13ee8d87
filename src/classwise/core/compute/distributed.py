"""Distributed audits and trainings: ranks, collectives, and the failure of a process.

Objects are exchanged over gloo and the store of `torch.distributed`, on any device; tensors on GPUs are reduced over
nccl. No process waits for one that has failed:

- A process that raises writes its message into the store. The others read it after their next step or block of rows,
  or while they wait in a collective.
- A process that is killed closes its connections. Gloo's collectives then fail, and ``torchrun`` stops the others.

No Python thread is started: a thread that is inside torch when the interpreter shuts down aborts the process.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from classwise.core.errors import ClasswiseError
from classwise.core.progress.interruption import ended_by_signals, stop_with_parent

RENDEZVOUS_SECONDS = 1800.0
"""Timeout of the rendezvous: how long a process waits for the others to enter the group."""
COLLECTIVE_SECONDS = 86_400.0
"""Timeout of a collective. It is reached only if a process is suspended, or its machine vanishes without closing the
connections."""
FAILURE_REPORT_SECONDS = 10.0
"""How long a failing process waits for the others to read its message."""
_POLL_SECONDS = 0.02
_REDUCE_POLL_SECONDS = 0.0001
_CHECK_SECONDS = 0.5


class ProcessFailedError(ClasswiseError):
    """Another process failed; the message is that process's own."""


class ProcessLostError(ProcessFailedError):
    """Another process ended without a failure message. Every rank reports this, since rank 0 may be the one lost."""

    reported_by_every_rank = True

    def __init__(self) -> None:
        super().__init__(
            "another process ended without a message; the files written so far are complete, and --resume continues "
            "from them"
        )


class UndeliveredError(ClasswiseError):
    """This process failed and rank 0 did not read its message in time, so this process reports the error itself."""

    reported_by_every_rank = True


class ProcessGroup:
    """The processes of an audit or a training. In this base class there is one, and collectives return their input.

    Attributes:
        rank: the rank of this process; rank 0 prints, and writes the files that exist once.
        world_size: the number of processes.
    """

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank = rank
        self.world_size = world_size

    @property
    def is_main(self) -> bool:
        """Whether this process has rank 0, which prints."""
        return self.rank == 0

    def check(self) -> None:
        """Check that no other process has failed.

        Raises:
            ProcessFailedError: if one has.
        """

    def barrier(self) -> None:
        """Wait until every process calls this.

        Raises:
            ProcessFailedError: if another process fails meanwhile.
            ProcessLostError: if another process ends without a message meanwhile.
        """

    def all_gather(self, value: Any) -> list[Any]:
        """Gather the value of each process in every process, by rank."""
        return [value]

    def gather(self, value: Any) -> list[Any]:
        """Gather the value of each process in rank 0, by rank; an empty list in the others."""
        return [value]

    def broadcast(self, value: Any) -> Any:
        """Send the value of rank 0 to every process."""
        return value

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum the tensors of all processes, in place; every process gets the same bits.

        Raises:
            ProcessFailedError: if another process fails meanwhile.
            ProcessLostError: if another process ends without a message meanwhile.
        """
        return tensor

    def group(self, device: torch.device) -> dist.ProcessGroup | None:
        """The group of `torch.distributed` for tensors on a device; a collective: all processes call it, or none."""
        del device
        return None


class _TorchProcessGroup(ProcessGroup):
    """The processes of a `torch.distributed` group."""

    _count = 0

    def __init__(self) -> None:
        # torch has no public function that returns the store, and not every build of torch has this module.
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

        super().__init__(dist.get_rank(), dist.get_world_size())
        _TorchProcessGroup._count += 1
        self._store = PrefixStore(f"classwise/{_TorchProcessGroup._count}", _get_default_store())
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._rendezvous(RENDEZVOUS_SECONDS)
        self._group = self._group_of("gloo")

    def check(self) -> None:
        with self._store_access():
            if not self._store.check(["failure"]):
                return
            message = self._store.get("failure").decode()
            if self.is_main:
                self._store.set("reported", "")
            self._store.add("heard", 1)  # last, so that a process that reads it finds the other entries
        raise ProcessFailedError(message)

    def barrier(self) -> None:
        with self._collective():
            self._wait(dist.barrier(group=self._group, async_op=True), _POLL_SECONDS)

    def all_gather(self, value: Any) -> list[Any]:
        self.barrier()
        values: list[Any] = [None] * self.world_size
        with self._collective():
            dist.all_gather_object(values, value, group=self._group)
        return values

    def gather(self, value: Any) -> list[Any]:
        self.barrier()
        values: list[Any] | None = [None] * self.world_size if self.is_main else None
        with self._collective():
            dist.gather_object(value, values, group=self._group)
        return values or []

    def broadcast(self, value: Any) -> Any:
        self.barrier()
        values = [value]
        with self._collective():
            dist.broadcast_object_list(values, group=self._group)
        return values[0]

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self.check()
        with self._collective():
            work = dist.all_reduce(tensor, group=self.group(tensor.device), async_op=True)
            if _backend(tensor.device) == "gloo":
                self._wait(work, _REDUCE_POLL_SECONDS)
            else:
                assert work is not None
                work.wait()
        return tensor

    def _wait(self, work: dist.Work | None, pause: float) -> None:
        """Wait until a collective of gloo is complete, or a process fails.

        Args:
            work: the collective.
            pause: seconds between two polls.

        Raises:
            ProcessFailedError: if another process has written a failure message.
            RuntimeError: if a connection was closed.
        """
        assert work is not None
        checked = time.monotonic()
        while not work.is_completed():
            if time.monotonic() - checked > _CHECK_SECONDS:
                try:
                    self.check()
                except ProcessLostError:  # the store has ended; the collective may have completed before
                    break
                checked = time.monotonic()
            time.sleep(pause)
        work.wait()

    def group(self, device: torch.device) -> dist.ProcessGroup:
        return self._group_of(_backend(device))

    def _group_of(self, backend: str) -> dist.ProcessGroup:
        if backend not in self._groups:
            with self._collective():
                self._groups[backend] = dist.new_group(backend=backend, timeout=timedelta(seconds=COLLECTIVE_SECONDS))
        return self._groups[backend]

    def report_failure(self, error: BaseException) -> bool:
        """Write a failure message into the store and wait until the other processes have read it.

        Returns:
            Whether rank 0 has read it, or failed itself.
        """
        message = str(error) if isinstance(error, ClasswiseError) else f"{type(error).__name__} {error}".strip()
        try:
            if self.is_main:
                self._store.set("reported", "")  # before the count, after which the others stop waiting
            if self._store.add("failures", 1) == 1:
                self._store.set("failure", f"process {self.rank} of {self.world_size} failed: {message}")
            if isinstance(error, KeyboardInterrupt):
                return True
            deadline = time.monotonic() + FAILURE_REPORT_SECONDS
            while self._store.add("heard", 0) + self._store.add("failures", 0) < self.world_size:
                if time.monotonic() > deadline:
                    break
                time.sleep(_POLL_SECONDS)
            return self._store.check(["reported"])
        except RuntimeError:  # the process of the store has ended
            return False

    def close(self) -> None:
        """Destroy the groups, which closes this process's connections and ends pending collectives of the others."""
        while self._groups:
            _, group = self._groups.popitem()
            dist.destroy_process_group(group)
        del self._group

    def _rendezvous(self, timeout: float) -> None:
        """Wait through the store for every process, before the group is created.

        Raises:
            ProcessFailedError: if a process fails, or does not call this within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        with self._store_access():
            self._store.set(f"here/{self.rank}", "")
        for rank in range(self.world_size):
            while not self._has_joined(rank):
                if time.monotonic() > deadline:
                    raise ProcessFailedError(
                        f"process {rank} of {self.world_size} did not join within {timeout:.0f} s; call this in every "
                        "process, or with distributed=False in one"
                    )
                self.check()
                time.sleep(_POLL_SECONDS)

    def _has_joined(self, rank: int) -> bool:
        with self._store_access():
            return self._store.check([f"here/{rank}"])

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Translate an error of torch in a collective into the failure message of a process, or `ProcessLostError`."""
        try:
            yield
        except RuntimeError as error:
            self.check()
            raise ProcessLostError from error

    @contextmanager
    def _store_access(self) -> Iterator[None]:
        """Translate the error of torch when the process of the store has ended into `ProcessLostError`."""
        try:
            yield
        except RuntimeError as error:
            raise ProcessLostError from error


def _backend(device: torch.device) -> str:
    """Nccl between GPUs; gloo on a CPU, and for processes that share a GPU, which nccl does not support."""
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return "nccl" if device.type == "cuda" and local_world_size <= torch.cuda.device_count() else "gloo"


_OPEN: list[ProcessGroup] = []


@contextmanager
def process_group(*, distributed: bool = True) -> Iterator[ProcessGroup]:
    """The process group of the initialised `torch.distributed`, or of this process only; a nested block reuses it.

    All processes leave the block together, so files written in it by one are complete before any process ends.

    Args:
        distributed: False: this process only, even if `torch.distributed` is initialised.

    Raises:
        ProcessFailedError: if another process fails in its block.
        ProcessLostError: if another process ends in its block without a message.
        UndeliveredError: if this process fails and rank 0 does not read its message.
    """
    if not distributed or not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        yield ProcessGroup()
        return
    if _OPEN:
        yield _OPEN[-1]
        return
    processes = _TorchProcessGroup()
    _OPEN.append(processes)
    try:
        yield processes
        processes.barrier()  # all leave together, because the end of one process fails the collectives of the others
    except ProcessFailedError:
        raise
    except BaseException as error:
        if not processes.report_failure(error) and isinstance(error, ClasswiseError):
            raise UndeliveredError(str(error)) from error
        raise
    finally:
        _OPEN.remove(processes)
        processes.close()


@contextmanager
def launched() -> Iterator[ProcessGroup]:
    """Initialise `torch.distributed` if ``torchrun`` started several processes, and yield their process group.

    A process that ``torchrun`` started is stopped if ``torchrun`` is killed (Linux only).
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        stop_with_parent()
    by_torchrun = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    if not by_torchrun or int(os.environ["WORLD_SIZE"]) == 1 or dist.is_initialized():
        with process_group() as processes:
            yield processes
        return
    try:
        with ended_by_signals():
            dist.init_process_group("gloo")
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ClasswiseError(f"the processes of torchrun cannot connect to each other: {reason}") from error
    # Destroyed at exit only: torchrun's store allows one initialisation.
    atexit.register(_destroy)
    with process_group() as processes:
        yield processes


def _destroy() -> None:
    """Close the connections and join the threads of gloo before the interpreter shuts down."""
    if dist.is_initialized():
        dist.destroy_process_group()


def local_device(device: str) -> str:
    """``cuda`` as the GPU of this process's local rank under ``torchrun``; any other device unchanged."""
    if device != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    return f"cuda:{int(os.environ['LOCAL_RANK']) % max(torch.cuda.device_count(), 1)}"
