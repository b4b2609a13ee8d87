"""Several processes that share one audit or one training: ranks, collectives, and failures of a process.

Rows and short messages travel over gloo and the store of `torch.distributed`, whatever the models run on; sums of
tensors on GPUs travel over nccl. Nobody waits for a process that has failed. A process that raises leaves its message
in the store, where the others find it after their next step or block of rows, or while they wait in a collective. A
process that ends without a message closes its connections, which makes gloo's collectives fail; and ``torchrun`` stops
the others. There is no thread of Python beside the main one: one that is inside torch when the interpreter shuts down
aborts the process.
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

ARRIVAL_SECONDS = 1800.0
"""How long a process waits for the others to come."""
WAIT_SECONDS = 86_400.0
"""How long a process waits in a collective for one that works: only a machine that vanishes without closing its
connections, or a process that is suspended, takes so long to be given up."""
FAREWELL_SECONDS = 10.0
"""How long a process that fails waits for the others to read its message."""
_LOOK_SECONDS = 0.02
_SUM_SECONDS = 0.0001
_ASK_SECONDS = 0.5


class PeerError(ClasswiseError):
    """Another process failed; what it said is repeated."""


class LostError(PeerError):
    """Another process ended without a message. Every survivor says so, as it may be the first one that is lost."""

    unheard = True

    def __init__(self) -> None:
        super().__init__(
            "another process ended without a message; the files written so far are complete, and --resume continues "
            "from them"
        )


class UnheardError(ClasswiseError):
    """This process failed, and the first one has not heard of it in time, so this one must say it itself."""

    unheard = True


class ProcessGroup:
    """The processes of an audit or a training; alone, all of this does nothing.

    Attributes:
        rank: this process's number; 0 is the first, which speaks and writes what is written once.
        world_size: how many there are.
    """

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank = rank
        self.world_size = world_size

    @property
    def is_main(self) -> bool:
        """Whether this is the process that speaks."""
        return self.rank == 0

    def check(self) -> None:
        """See that no other process has failed.

        Raises:
            PeerError: if one has.
        """

    def barrier(self) -> None:
        """Wait until every process is here.

        Raises:
            PeerError: if one fails meanwhile.
            LostError: if one ends without a message.
        """

    def all_gather(self, value: Any) -> list[Any]:
        """The value that each process gives, by rank."""
        return [value]

    def gather(self, value: Any) -> list[Any]:
        """The same for the first process; nothing for the others."""
        return [value]

    def broadcast(self, value: Any) -> Any:
        """The value that the first process gives."""
        return value

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of the tensors that the processes give, written over this one; the same bits in each of them.

        Raises:
            PeerError: if another process fails meanwhile.
            LostError: if one ends without a message.
        """
        return tensor

    def group(self, device: torch.device) -> dist.ProcessGroup | None:
        """The group in which tensors of a device travel; all processes ask for it together, or for none."""
        del device
        return None


class _TorchProcessGroup(ProcessGroup):
    """The processes of a `torch.distributed` group."""

    _count = 0

    def __init__(self) -> None:
        # torch has no public way to the store; and not every build of it has this module.
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

        super().__init__(dist.get_rank(), dist.get_world_size())
        _TorchProcessGroup._count += 1
        self._store = PrefixStore(f"classwise/{_TorchProcessGroup._count}", _get_default_store())
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._arrive(ARRIVAL_SECONDS)
        self._group = self._in("gloo")

    def check(self) -> None:
        with self._losing():
            if not self._store.check(["failure"]):
                return
            message = self._store.get("failure").decode()
            if self.is_main:
                self._store.set("reported", "")
            self._store.add("heard", 1)  # the last word: who reads it finds the rest
        raise PeerError(message)

    def barrier(self) -> None:
        with self._together():
            self._until(dist.barrier(group=self._group, async_op=True), _LOOK_SECONDS)

    def all_gather(self, value: Any) -> list[Any]:
        self.barrier()
        found: list[Any] = [None] * self.world_size
        with self._together():
            dist.all_gather_object(found, value, group=self._group)
        return found

    def gather(self, value: Any) -> list[Any]:
        self.barrier()
        found: list[Any] | None = [None] * self.world_size if self.is_main else None
        with self._together():
            dist.gather_object(value, found, group=self._group)
        return found or []

    def broadcast(self, value: Any) -> Any:
        self.barrier()
        held = [value]
        with self._together():
            dist.broadcast_object_list(held, group=self._group)
        return held[0]

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self.check()
        with self._together():
            work = dist.all_reduce(tensor, group=self.group(tensor.device), async_op=True)
            if _backend(tensor.device) == "gloo":
                self._until(work, _SUM_SECONDS)
            else:
                assert work is not None
                work.wait()
        return tensor

    def _until(self, work: dist.Work | None, pause: float) -> None:
        """Wait until the others have joined a collective of gloo, unless one of them has failed.

        Raises:
            PeerError: if another process has left a message.
            RuntimeError: if a connection was closed.
        """
        assert work is not None
        asked = time.monotonic()
        while not work.is_completed():
            if time.monotonic() - asked > _ASK_SECONDS:
                try:
                    self.check()
                except LostError:  # the store has gone with its process; the collective says whether it came first
                    break
                asked = time.monotonic()
            time.sleep(pause)
        work.wait()

    def group(self, device: torch.device) -> dist.ProcessGroup:
        return self._in(_backend(device))

    def _in(self, backend: str) -> dist.ProcessGroup:
        if backend not in self._groups:
            with self._together():
                self._groups[backend] = dist.new_group(backend=backend, timeout=timedelta(seconds=WAIT_SECONDS))
        return self._groups[backend]

    def announce(self, error: BaseException) -> bool:
        """Leave a message that this process fails; whether the first one has read it, or failed itself."""
        said = str(error) if isinstance(error, ClasswiseError) else f"{type(error).__name__} {error}".strip()
        try:
            if self.is_main:
                self._store.set("reported", "")  # before the count, which lets the others go
            if self._store.add("failures", 1) == 1:
                self._store.set("failure", f"process {self.rank} of {self.world_size} failed: {said}")
            if isinstance(error, KeyboardInterrupt):
                return True
            until = time.monotonic() + FAREWELL_SECONDS
            while self._store.add("heard", 0) + self._store.add("failures", 0) < self.world_size:
                if time.monotonic() > until:
                    break
                time.sleep(_LOOK_SECONDS)
            return self._store.check(["reported"])
        except RuntimeError:  # the process that holds the store is gone
            return False

    def close(self) -> None:
        """Destroy the groups, which closes this process's connections and ends what the others wait for."""
        while self._groups:
            _, group = self._groups.popitem()
            dist.destroy_process_group(group)
        del self._group

    def _arrive(self, limit: float) -> None:
        """Wait for the others before there is a group to wait in, at most so many seconds."""
        deadline = time.monotonic() + limit
        with self._losing():
            self._store.set(f"here/{self.rank}", "")
        for rank in range(self.world_size):
            while not self._here(rank):
                if time.monotonic() > deadline:
                    raise PeerError(
                        f"process {rank} of {self.world_size} did not arrive within {limit:.0f} s; call this in every "
                        "process, or with distributed=False in one"
                    )
                self.check()
                time.sleep(_LOOK_SECONDS)

    def _here(self, rank: int) -> bool:
        with self._losing():
            return self._store.check([f"here/{rank}"])

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Translate what torch raises in a collective when a peer is gone: its message, if it has left one."""
        try:
            yield
        except RuntimeError as error:
            self.check()
            raise LostError from error

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Translate what torch raises when the process that holds the store is gone."""
        try:
            yield
        except RuntimeError as error:
            raise LostError from error


def _backend(device: torch.device) -> str:
    """Nccl between GPUs; gloo on a CPU, and where several processes have to share a GPU, which nccl refuses."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return "nccl" if device.type == "cuda" and here <= torch.cuda.device_count() else "gloo"


_OPEN: list[ProcessGroup] = []


@contextmanager
def process_group(*, distributed: bool = True) -> Iterator[ProcessGroup]:
    """The processes of the group that `torch.distributed` was initialised with; inside another such block, the same.

    All of them leave the block together, so what one of them writes in it is on disk before any of them ends.

    Args:
        distributed: False: this process only, whatever others there are.

    Raises:
        PeerError: if another process fails in its block.
        LostError: if another process ends in its block without a message.
        UnheardError: if this one fails and the first one does not hear of it.
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
        processes.barrier()  # nobody goes before everybody is done: the end of one process ends the others
    except PeerError:
        raise
    except BaseException as error:
        if not processes.announce(error) and isinstance(error, ClasswiseError):
            raise UnheardError(str(error)) from error
        raise
    finally:
        _OPEN.remove(processes)
        processes.close()


@contextmanager
def launched() -> Iterator[ProcessGroup]:
    """The processes that ``torchrun`` started, joined; a process of its own is alone."""
    known = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    if not known or int(os.environ["WORLD_SIZE"]) == 1 or dist.is_initialized():
        with process_group() as processes:
            yield processes
        return
    try:
        dist.init_process_group("gloo")
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ClasswiseError(f"the processes of torchrun do not find each other: {reason}") from error
    # Only at the end: over one store of torchrun a group can be made once.
    atexit.register(_leave)
    with process_group() as processes:
        yield processes


def _leave() -> None:
    """Close the connections and join the threads of gloo while the interpreter is whole."""
    if dist.is_initialized():
        dist.destroy_process_group()


def local_device(device: str) -> str:
    """``cuda`` as the GPU of this process, where a machine runs several; any other device as it is."""
    if device != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    return f"cuda:{int(os.environ['LOCAL_RANK']) % max(torch.cuda.device_count(), 1)}"
