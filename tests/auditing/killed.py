"""A script for two processes, one of which is killed at its first message during its work."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from classwise.cli import main


def run(lost: int, folder: Path) -> int:
    """Train until one process kills itself at its second step, as the kernel does when memory runs out."""
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # as the program does before it imports torch
    from classwise.training.trainer import Trainer

    step = Trainer.train_step

    def killing(self: Trainer, *arguments: object) -> None:
        if self.state.step == 1 and self.processes.rank == lost:
            os.kill(os.getpid(), signal.SIGKILL)
        step(self, *arguments)  # type: ignore[arg-type]

    Trainer.train_step = killing  # type: ignore[method-assign, assignment]
    words = ["train", "at", "--budget=short", "--data=digits", "--set=model.width=0.0625", "--set=data.subset=240"]
    words += ["--set=batch_size=32", "--epochs=1", f"--out={folder / 'run'}"]
    return main(words)


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), Path(sys.argv[2])))
