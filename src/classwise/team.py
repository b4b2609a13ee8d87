"""Several processes that share one audit or one training: who is who, who waits for whom, and who has failed.

Rows and short messages go over gloo and the store of `torch.distributed`, whatever the models run on; sums of tensors
on GPUs go over nccl. Nobody waits for a process that has failed: a failure is left in the store, where the others find
it after their next step or block of rows, and a process that is gone is known by its silence.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from classwise.errors import UserError

ARRIVAL_SECONDS = 1800.0
"""How long a process waits for the others to come."""
BEAT_SECONDS = 2.0
"""How often a process says that it lives,"""
SILENCE_SECONDS = 60.0
"""and after how long a silence the others give it up."""
FAREWELL_SECONDS = 10.0
"""How long a process that fails waits for the others to hear of it."""
_LOOK_SECONDS = 0.02
_SUM_SECONDS = 0.0001
_ASK_SECONDS = 0.5


class PeerError(UserError):
    """Another process failed; what it said is repeated."""


class UnheardError(UserError):
    """This process failed, and the first one has not heard of it in time, so this one must say it itself."""

    unheard = True


class Team:
    """The processes of an audit or a training; alone, all of this does nothing.

    Attributes:
        rank: this process's number; 0 is the first, which speaks and writes what is written once.
        size: how many there are.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @property
    def first(self) -> bool:
        """Whether this is the process that speaks."""
        return self.rank == 0

    def check(self) -> None:
        """See that no other process has failed.

        Raises:
            PeerError: if one has.
        """

    def meet(self) -> None:
        """Wait until every process is here.

        Raises:
            PeerError: if one fails or is lost meanwhile.
        """

    def all(self, value: Any) -> list[Any]:
        """The value that each process gives, by rank."""
        return [value]

    def gather(self, value: Any) -> list[Any]:
        """The same for the first process; nothing for the others."""
        return [value]

    def spread(self, value: Any) -> Any:
        """The value that the first process gives."""
        return value

    def add(self, tensor: Tensor) -> Tensor:
        """The sum of the tensors that the processes give, written over this one; the same bits in each of them.

        Raises:
            PeerError: if another process fails or is lost meanwhile.
        """
        return tensor

    def group(self, device: torch.device) -> dist.ProcessGroup | None:
        """The group in which tensors of a device travel; all processes ask for it together, or for none."""
        del device
        return None


class _Joined(Team):
    """The processes of a `torch.distributed` group."""

    _teams = 0

    def __init__(self) -> None:
        # torch has no public way to the store; and not every build of it has this module.
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

        super().__init__(dist.get_rank(), dist.get_world_size())
        _Joined._teams += 1
        self._store = PrefixStore(f"classwise/{_Joined._teams}", _get_default_store())
        self._meetings = 0
        self._closed = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()
        self._wait(self._arrivals, ARRIVAL_SECONDS)
        with self._losing():
            self._group = dist.new_group(backend="gloo")
        self._groups: dict[str, dist.ProcessGroup] = {"gloo": self._group}

    def check(self) -> None:
        with self._losing():
            if not self._store.check(["failure"]):
                return
            message = self._store.get("failure").decode()
            if self.first:
                self._store.set("told", "")
            self._store.add("heard", 1)  # the last word: who reads it finds the rest
        raise PeerError(message)

    def meet(self) -> None:
        self._meetings += 1
        self._wait(self._arrivals, None)

    def all(self, value: Any) -> list[Any]:
        self.meet()
        found: list[Any] = [None] * self.size
        with self._losing():
            dist.all_gather_object(found, value, group=self._group)
        return found

    def gather(self, value: Any) -> list[Any]:
        self.meet()
        found: list[Any] | None = [None] * self.size if self.first else None
        with self._losing():
            dist.gather_object(value, found, group=self._group)
        return found or []

    def spread(self, value: Any) -> Any:
        self.meet()
        held = [value]
        with self._losing():
            dist.broadcast_object_list(held, group=self._group)
        return held[0]

    def add(self, tensor: Tensor) -> Tensor:
        self.check()
        try:
            work = dist.all_reduce(tensor, group=self.group(tensor.device), async_op=True)
            assert work is not None
            if _backend(tensor.device) == "gloo":
                self._until(work)
            work.wait()
        except RuntimeError as error:
            self.check()  # what the lost one has said, rather than that it is lost
            raise PeerError(_lost("another process")) from error
        return tensor

    def _until(self, work: dist.Work) -> None:
        """Wait for the others' part, but not for that of one that has failed and lives."""
        asked = time.monotonic()
        while not work.is_completed():
            if time.monotonic() - asked > _ASK_SECONDS:
                self.check()
                asked = time.monotonic()
            time.sleep(_SUM_SECONDS)

    def group(self, device: torch.device) -> dist.ProcessGroup:
        backend = _backend(device)
        if backend not in self._groups:
            with self._losing():
                self._groups[backend] = dist.new_group(backend=backend)
        return self._groups[backend]

    def announce(self, error: BaseException) -> bool:
        """Leave word that this process fails; whether the first one has heard of it, or failed itself."""
        said = str(error) if isinstance(error, UserError) else f"{type(error).__name__} {error}".strip()
        try:
            if self.first:
                self._store.set("told", "")  # before the count, which lets the others go
            if self._store.add("failures", 1) == 1:
                self._store.set("failure", f"process {self.rank} of {self.size} failed: {said}")
            if isinstance(error, KeyboardInterrupt):
                return True
            until = time.monotonic() + FAREWELL_SECONDS
            while self._store.add("heard", 0) + self._store.add("failures", 0) < self.size:
                if time.monotonic() > until:
                    break
                time.sleep(_LOOK_SECONDS)
            return self._store.check(["told"])
        except RuntimeError:  # the process that holds the store is gone
            return False

    def close(self) -> None:
        """Say no more that this process lives."""
        self._closed.set()

    def _beat(self) -> None:
        try:
            while not self._closed.wait(BEAT_SECONDS):
                self._store.add(f"beat/{self.rank}", 1)
        except RuntimeError:  # the store is gone; the next that this process asks of it will tell
            return

    def _arrivals(self) -> list[int]:
        """The processes that have not come to this meeting."""
        mine = f"met/{self._meetings}/{self.rank}"
        if not self._store.check([mine]):
            self._store.set(mine, "")
        return [rank for rank in range(self.size) if not self._store.check([f"met/{self._meetings}/{rank}"])]

    def _wait(self, missing: Callable[[], list[int]], limit: float | None) -> None:
        """Wait for the others: as long as they live, or so many seconds.

        Before the first meeting a process that is late may not have begun to say that it lives.
        """
        began = time.monotonic()
        beats: dict[int, tuple[int, float]] = {}
        while True:
            self.check()
            with self._losing():
                late = missing()
                counts = {rank: self._store.add(f"beat/{rank}", 0) for rank in late}
            if not late:
                return
            now = time.monotonic()
            if limit is not None and now - began > limit:
                raise PeerError(
                    f"process {late[0]} of {self.size} has not come in {limit:.0f} s; call this in every process, "
                    "or with alone=True in one"
                )
            for rank, count in counts.items():
                if beats.get(rank, (None, 0.0))[0] != count:
                    beats[rank] = (count, now)
                if limit is None and now - beats[rank][1] > SILENCE_SECONDS:
                    raise PeerError(_lost(f"process {rank} of {self.size}"))
            time.sleep(_LOOK_SECONDS)

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """What torch raises when a peer, or the process that holds the store, is gone."""
        try:
            yield
        except RuntimeError as error:
            raise PeerError(_lost("another process")) from error


def _lost(who: str) -> str:
    return f"{who} was lost; what is written is whole, and can be resumed from its folder"


def _backend(device: torch.device) -> str:
    """Nccl between GPUs; gloo on a CPU, and where several processes have to share a GPU, which nccl refuses."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return "nccl" if device.type == "cuda" and here <= torch.cuda.device_count() else "gloo"


_OPEN: list[Team] = []


@contextmanager
def joined(*, alone: bool = False) -> Iterator[Team]:
    """The processes of the group that `torch.distributed` was initialised with; inside another such block, the same.

    Args:
        alone: this process by itself, whatever others there are.

    Raises:
        PeerError: if another process fails in its block.
        UnheardError: if this one fails and the first one does not hear of it.
    """
    if alone or not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        yield Team()
        return
    if _OPEN:
        yield _OPEN[-1]
        return
    team = _Joined()
    _OPEN.append(team)
    try:
        yield team
    except PeerError:
        raise
    except BaseException as error:
        if not team.announce(error) and isinstance(error, UserError):
            raise UnheardError(str(error)) from error
        raise
    finally:
        _OPEN.remove(team)
        team.close()


@contextmanager
def launched() -> Iterator[Team]:
    """The processes that ``torchrun`` started, joined; a process of its own is alone."""
    known = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    if not known or int(os.environ["WORLD_SIZE"]) == 1 or dist.is_initialized():
        with joined() as team:
            yield team
        return
    try:
        dist.init_process_group("gloo")
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"the processes of torchrun do not find each other: {reason}") from error
    # Only at the end: over one store of torchrun a group can be made once.
    atexit.register(dist.destroy_process_group)
    with joined() as team:
        yield team


def local_device(device: str) -> str:
    """``cuda`` as the GPU of this process, where a machine runs several; any other device as it is."""
    if device != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    return f"cuda:{int(os.environ['LOCAL_RANK']) % max(torch.cuda.device_count(), 1)}"
