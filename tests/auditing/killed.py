"""A script that forks two processes, of which one is killed at its second step; then again, for the other one."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401  # which optimisers import: here once, for all processes

from classwise.cli import main
from classwise.training.trainer import Trainer


def run(lost: int, folder: Path) -> int:
    """Train until one process kills itself at its second step, as the kernel does when memory runs out."""
    step = Trainer.train_step

    def killing(self: Trainer, *arguments: object) -> None:
        if self.state.step == 1 and self.processes.rank == lost:
            os.kill(os.getpid(), signal.SIGKILL)
        step(self, *arguments)  # type: ignore[arg-type]

    Trainer.train_step = killing  # type: ignore[method-assign, assignment]
    words = ["train", "at", "--budget=short", "--data=digits", "--set=model.width=0.0625", "--set=data.subset=240"]
    words += ["--set=batch_size=32", "--epochs=1", f"--out={folder / 'run'}"]
    return main(words)


def fork(lost: int, rank: int, port: int, folder: Path) -> int:
    """Start a process of a group of two, which writes its errors into a file; returns its number."""
    if child := os.fork():
        return child
    with (folder / f"{lost}-{rank}.err").open("w") as file:
        os.dup2(file.fileno(), 2)
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank)}
    os._exit(run(lost, folder / str(lost)))


def free_port() -> int:
    """A port that no program uses."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port: int = free.getsockname()[1]
        return port


if __name__ == "__main__":
    place = Path(sys.argv[1])
    groups = [(lost, free_port()) for lost in range(2)]
    children = {fork(lost, rank, port, place): f"{lost}-{rank}" for lost, port in groups for rank in range(2)}
    for child, name in children.items():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        (place / f"{name}.status").write_text(str(status))
